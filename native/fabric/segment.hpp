// A segment: memory shared between processes through a descriptor, or private to this one.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace sley {

class Segment {
public:
    // Zeroed memory, mapped and allocated at once: lack of memory is an error here
    // (std::system_error), not a SIGBUS at the first access.
    static std::shared_ptr<Segment> create(std::size_t bytes, bool shared);
    // Memory that is mapped part by part (`at`), and allocated where it is reserved: the rest takes
    // no addresses either.
    static std::shared_ptr<Segment> sparse(std::size_t bytes, bool shared);
    // The memory of `fd`, mapped at once, or part by part. Takes no ownership of the descriptor.
    static std::shared_ptr<Segment> attach(int fd, std::size_t bytes);
    static std::shared_ptr<Segment> attach_sparse(int fd, bool writable);

    Segment(const Segment&) = delete;
    ~Segment();

    // The address of a range, which is mapped if no part contains it yet; valid as long as the
    // segment. Any thread may ask.
    std::byte* at(std::size_t offset, std::size_t bytes);
    // Of a segment that is mapped as a whole.
    std::byte* data() const { return parts_.front().data; }

    // Allocates memory, zeroed if new, for a range of a sparse segment, or frees it. Any process
    // that has the segment may do so, for any range, repeatedly.
    void reserve(std::size_t offset, std::size_t bytes);
    void release(std::size_t offset, std::size_t bytes);

    // Makes a shared segment at least so large, for all processes that have it.
    void grow(std::size_t bytes);
    // Also what other processes have added.
    std::size_t size() const;
    int fd() const { return fd_; }  // -1 for private memory

private:
    struct Part {
        std::size_t offset, bytes;
        std::byte* data;
    };

    Segment(int fd, std::size_t bytes, bool writable)
        : fd_(fd), bytes_(bytes), writable_(writable) {}

    int fd_;
    std::size_t bytes_;  // of private memory, or of what is mapped at once
    bool writable_;
    std::mutex mutex_;
    std::vector<Part> parts_;
};

}  // namespace sley
