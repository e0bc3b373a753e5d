// A heap: memory of a process that the other processes of its host can read in place.
//
// It is a file without a name. It grows by parts as its process needs memory, and each process maps
// a part when it first uses data there. So a heap that nobody uses takes no addresses.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "fabric/segment.hpp"

namespace sley {

class Heap {
public:
    Heap() : file_(Segment::sparse(0, true)) {}
    // Another process' heap, to be read. Takes no ownership of the descriptor.
    explicit Heap(int fd) : file_(Segment::attach_sparse(fd, false)) {}

    // Adds a part of so many bytes, a multiple of the page size, and returns its offset. Data lie
    // in one part each. Throws std::system_error.
    std::uint64_t grow(std::size_t bytes);

    // The address of data; null if there are no addresses left to map them. Any thread may ask.
    std::byte* at(std::uint64_t offset, std::size_t bytes) noexcept {
        auto* data = find_part(offset, bytes);
        return data ? data : map_rest(offset, bytes);
    }
    // The offset of data that are in the heap.
    std::optional<std::uint64_t> find(const std::byte* data, std::size_t bytes) const {
        const auto count = count_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < count; ++i) {
            const auto& part = parts_[i];
            if (data < part.data || data + bytes > part.data + part.bytes) continue;
            return part.offset + static_cast<std::uint64_t>(data - part.data);
        }
        return std::nullopt;
    }

    // Memory of a range of the process' own heap, as in a segment.
    void reserve(std::size_t offset, std::size_t bytes) { file_->reserve(offset, bytes); }
    void release(std::size_t offset, std::size_t bytes) { file_->release(offset, bytes); }
    int fd() const { return file_->fd(); }

private:
    struct Part {
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::byte* data = nullptr;
    };

    std::byte* find_part(std::uint64_t offset, std::size_t bytes) const {
        const auto count = count_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < count; ++i) {
            const auto& part = parts_[i];
            if (offset < part.offset || offset + bytes > part.offset + part.bytes) continue;
            return part.data + (offset - part.offset);
        }
        return nullptr;
    }
    std::byte* map_rest(std::uint64_t offset, std::size_t bytes) noexcept;
    void map(std::uint64_t offset, std::size_t bytes);

    // Each part is at least as large as all before it, or half as large as was refused.
    static constexpr std::size_t kMostParts = 256;

    std::shared_ptr<Segment> file_;
    std::mutex mutex_;  // of changes; readers need none
    std::array<Part, kMostParts> parts_;
    std::atomic<std::size_t> count_{0};
    std::uint64_t end_ = 0;  // of what is mapped
};

}  // namespace sley
