// A segment: memory shared between processes through a descriptor, or private to this one.
#pragma once

#include <cstddef>

namespace sley {

class Segment {
public:
    // Zeroed memory, allocated at once: lack of memory is an error here (std::system_error), not a
    // SIGBUS at the first access.
    static Segment create(std::size_t bytes, bool shared);
    // A range of addresses, with memory only in reserved parts.
    static Segment sparse(std::size_t bytes, bool shared);
    // The memory of `fd`; doesn't take ownership of the descriptor.
    static Segment attach(int fd, std::size_t bytes, bool writable = true);

    Segment(Segment&& other) noexcept;
    Segment& operator=(Segment&&) = delete;
    ~Segment();

    // Allocates memory, zeroed if new, for a range of a sparse segment, or frees it. Any process
    // that has the segment may do so, for any range, repeatedly.
    void reserve(std::size_t offset, std::size_t bytes);
    void release(std::size_t offset, std::size_t bytes);

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    int fd() const { return fd_; }  // -1 for private memory

private:
    Segment(std::byte* data, std::size_t size, int fd) : data_(data), size_(size), fd_(fd) {}

    std::byte* data_;
    std::size_t size_;
    int fd_;
};

}  // namespace sley
