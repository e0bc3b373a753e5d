// A piece of memory: shared between processes through a descriptor, or private to this one.
#pragma once

#include <cstddef>

namespace sley {

class Segment {
public:
    // Zeroed memory of `bytes`, allocated at once: where there is no room, that is an error here
    // (std::system_error) and not a SIGBUS at the first touch.
    static Segment create(std::size_t bytes, bool shared);
    // `bytes` of addresses, with memory only behind what has been reserved.
    static Segment sparse(std::size_t bytes, bool shared);
    // The memory behind `fd`; takes no ownership of the descriptor.
    static Segment attach(int fd, std::size_t bytes, bool writable = true);

    Segment(Segment&& other) noexcept;
    Segment& operator=(Segment&&) = delete;
    ~Segment();

    // Memory, zeroed where there was none, behind a range of a sparse segment, and its end. Any
    // process that has the segment may ask, for any range, as often as it likes.
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
