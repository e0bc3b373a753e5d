// Segments over mmap. The shared kind has a name only for the moment between shm_open and
// shm_unlink; from then on descriptors and mappings keep it, and it goes with the last process,
// however that ends.
#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace sley {
namespace {

[[noreturn]] void raise(int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
}

int open_nameless() {
    static std::atomic<unsigned> serial{0};
    for (;;) {
        const std::string name =
            "/sley-" + std::to_string(getpid()) + "-" + std::to_string(serial.fetch_add(1));
        const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) {
            shm_unlink(name.c_str());
            return fd;
        }
        if (errno != EEXIST) raise(errno, "shm_open");
    }
}

void allocate(int fd, std::size_t bytes) {
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) raise(errno, "ftruncate");
#ifndef __APPLE__
    int error;
    do {
        error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    } while (error == EINTR);
    if (error != 0) raise(error, "posix_fallocate");
#endif
}

// mmap refuses empty mappings.
std::size_t at_least_one(std::size_t bytes) { return bytes == 0 ? 1 : bytes; }

std::byte* map(std::size_t bytes, int flags, int fd) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (data == MAP_FAILED) raise(errno, "mmap");
    return static_cast<std::byte*>(data);
}

}  // namespace

Segment Segment::create(std::size_t bytes, bool shared) {
    bytes = at_least_one(bytes);
    if (!shared) return Segment(map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), bytes, -1);
    const int fd = open_nameless();
    try {
        allocate(fd, bytes);
        return Segment(map(bytes, MAP_SHARED, fd), bytes, fd);
    } catch (...) {
        close(fd);
        throw;
    }
}

Segment Segment::attach(int fd, std::size_t bytes) {
    bytes = at_least_one(bytes);
    return Segment(map(bytes, MAP_SHARED, fd), bytes, -1);
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}

Segment::~Segment() {
    if (data_ != nullptr) munmap(data_, size_);
    if (fd_ >= 0) close(fd_);
}

}  // namespace sley
