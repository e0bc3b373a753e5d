// Segments over mmap. A shared one has no name (memfd_create), or, on systems without memfd_create,
// only between shm_open and shm_unlink. Descriptors and mappings keep it alive, so the system frees
// it with the last process, however that ends.
#include "fabric/segment.hpp"

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

#ifdef __linux__

int open_nameless() {
    const int fd = memfd_create("sley", MFD_CLOEXEC);
    if (fd < 0) raise(errno, "memfd_create");
    return fd;
}

void allocate(int fd, std::size_t offset, std::size_t bytes) {
    while (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
        if (errno != EINTR) raise(errno, "fallocate");
    }
}

#else

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

void allocate(int, std::size_t, std::size_t) {}  // the first access allocates memory

#endif

void resize(int fd, std::size_t bytes) {
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) raise(errno, "ftruncate");
}

// mmap refuses empty mappings.
std::size_t at_least_one(std::size_t bytes) { return bytes == 0 ? 1 : bytes; }

std::byte* map(std::size_t bytes, int protection, int flags, int fd) {
    void* data = mmap(nullptr, bytes, protection, flags, fd, 0);
    if (data == MAP_FAILED) raise(errno, "mmap");
    return static_cast<std::byte*>(data);
}

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;

}  // namespace

Segment Segment::create(std::size_t bytes, bool shared) {
    bytes = at_least_one(bytes);
    if (!shared) return Segment(map(bytes, kReadWrite, kPrivate, -1), bytes, -1);
    Segment segment = sparse(bytes, true);
    segment.reserve(0, bytes);
    return segment;
}

Segment Segment::sparse(std::size_t bytes, bool shared) {
    bytes = at_least_one(bytes);
    if (!shared) return Segment(map(bytes, kReadWrite, kPrivate | MAP_NORESERVE, -1), bytes, -1);
    const int fd = open_nameless();
    try {
        resize(fd, bytes);
        return Segment(map(bytes, kReadWrite, MAP_SHARED | MAP_NORESERVE, fd), bytes, fd);
    } catch (...) {
        close(fd);
        throw;
    }
}

Segment Segment::attach(int fd, std::size_t bytes, bool writable) {
    bytes = at_least_one(bytes);
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) raise(errno, "dup");
    try {
        const int protection = writable ? kReadWrite : PROT_READ;
        return Segment(map(bytes, protection, MAP_SHARED | MAP_NORESERVE, own), bytes, own);
    } catch (...) {
        close(own);
        throw;
    }
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}

Segment::~Segment() {
    if (data_ != nullptr) munmap(data_, size_);
    if (fd_ >= 0) close(fd_);
}

void Segment::reserve(std::size_t offset, std::size_t bytes) {
    if (offset + bytes > size_ || offset + bytes < offset) raise(ENOMEM, "a segment's end");
    if (fd_ >= 0 && bytes > 0) allocate(fd_, offset, bytes);
}

void Segment::release(std::size_t offset, std::size_t bytes) {
#ifdef __linux__
    if (fd_ >= 0) {
        fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
        return;
    }
#endif
    madvise(data_ + offset, bytes, MADV_DONTNEED);
}

}  // namespace sley
