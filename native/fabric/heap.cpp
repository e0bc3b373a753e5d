// Growing and mapping a heap.
#include "fabric/heap.hpp"

#include <cerrno>
#include <system_error>

namespace sley {

std::uint64_t Heap::grow(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto offset = end_;
    map(offset, bytes);  // first: others map what the file has
    try {
        file_->grow(offset + bytes);
    } catch (...) {
        count_.store(count_.load() - 1);
        end_ = offset;
        throw;
    }
    return offset;
}

std::byte* Heap::at(std::uint64_t offset, std::size_t bytes) noexcept {
    if (auto* data = find_part(offset, bytes)) return data;
    try {
        const std::lock_guard lock(mutex_);
        const auto size = file_->size();
        if (size > end_) map(end_, size - end_);
        return find_part(offset, bytes);
    } catch (const std::exception&) {
        return nullptr;
    }
}

std::optional<std::uint64_t> Heap::find(const std::byte* data, std::size_t bytes) const {
    for (std::size_t i = 0; i < count_.load(std::memory_order_acquire); ++i) {
        const auto& part = parts_[i];
        if (data < part.data || data + bytes > part.data + part.bytes) continue;
        return part.offset + static_cast<std::uint64_t>(data - part.data);
    }
    return std::nullopt;
}

std::byte* Heap::find_part(std::uint64_t offset, std::size_t bytes) const {
    for (std::size_t i = 0; i < count_.load(std::memory_order_acquire); ++i) {
        const auto& part = parts_[i];
        if (offset < part.offset || offset + bytes > part.offset + part.bytes) continue;
        return part.data + (offset - part.offset);
    }
    return nullptr;
}

void Heap::map(std::uint64_t offset, std::size_t bytes) {
    const auto count = count_.load();
    if (count == kMostParts) {
        throw std::system_error(ENOMEM, std::generic_category(), "a heap of too many parts");
    }
    parts_[count] = {offset, bytes, file_->at(offset, bytes)};
    end_ = offset + bytes;
    count_.store(count + 1, std::memory_order_release);
}

}  // namespace sley
