// A piece of memory: shared between processes through a descriptor, or private to this one.
#pragma once

#include <cstddef>

namespace sley {

class Segment {
public:
    // Zeroed memory of `bytes`. Shared memory is allocated at once, so that an exhausted /dev/shm
    // is an error here (std::system_error) and not a SIGBUS at the first touch.
    static Segment create(std::size_t bytes, bool shared);
    // The memory behind `fd`; takes no ownership of the descriptor.
    static Segment attach(int fd, std::size_t bytes);

    Segment(Segment&& other) noexcept;
    Segment& operator=(Segment&&) = delete;
    ~Segment();

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    int fd() const { return fd_; }  // -1 for private and for attached memory

private:
    Segment(std::byte* data, std::size_t size, int fd) : data_(data), size_(size), fd_(fd) {}

    std::byte* data_;
    std::size_t size_;
    int fd_;
};

}  // namespace sley
