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

// Maps what the owner has added.
std::byte* Heap::map_rest(std::uint64_t offset, std::size_t bytes) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        const auto size = file_->size();
        if (size > end_) map(end_, size - end_);
        return find_part(offset, bytes);
    } catch (const std::exception&) {
        return nullptr;
    }
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
