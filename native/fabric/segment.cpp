// Segments over mmap. A shared one has no name (memfd_create), or, on systems without memfd_create,
// only between shm_open and shm_unlink. Descriptors and mappings keep it alive, so the system frees
// it with the last process, however that ends.
#include "fabric/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

std::byte* map(std::size_t bytes, int protection, int flags, int fd, std::size_t offset) {
    void* data = mmap(nullptr, bytes, protection, flags, fd, static_cast<off_t>(offset));
    if (data == MAP_FAILED) raise(errno, "mmap");
    return static_cast<std::byte*>(data);
}

std::size_t page_bytes() {
    static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

int duplicate(int fd) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) raise(errno, "dup");
    return own;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(std::size_t bytes, bool shared) {
    bytes = at_least_one(bytes);
    auto segment = sparse(bytes, shared);
    segment->at(0, bytes);  // first: more than the addresses would take all memory
    segment->reserve(0, bytes);
    return segment;
}

std::shared_ptr<Segment> Segment::sparse(std::size_t bytes, bool shared) {
    std::shared_ptr<Segment> segment(new Segment(shared ? open_nameless() : -1, bytes, true));
    if (shared) segment->grow(bytes);
    return segment;
}

std::shared_ptr<Segment> Segment::attach(int fd, std::size_t bytes) {
    std::shared_ptr<Segment> segment(new Segment(duplicate(fd), bytes, true));
    segment->at(0, at_least_one(bytes));
    return segment;
}

std::shared_ptr<Segment> Segment::attach_sparse(int fd, bool writable) {
    return std::shared_ptr<Segment>(new Segment(duplicate(fd), 0, writable));
}

Segment::~Segment() {
    for (const auto& part : parts_) munmap(part.data, part.bytes);
    if (fd_ >= 0) close(fd_);
}

std::byte* Segment::at(std::size_t offset, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (const auto& part : parts_) {
        if (offset < part.offset || offset + bytes > part.offset + part.bytes) continue;
        return part.data + (offset - part.offset);
    }
    // The system maps pages of a file. Private parts are asked for as a whole, always the same.
    const auto before = fd_ < 0 ? 0 : offset % page_bytes();
    parts_.reserve(parts_.size() + 1);  // so that no part is lost
    Part part{offset - before, before + at_least_one(bytes), nullptr};
    const int protection = writable_ ? PROT_READ | PROT_WRITE : PROT_READ;
    const int flags = MAP_NORESERVE | (fd_ < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    part.bytes = (part.bytes + page_bytes() - 1) / page_bytes() * page_bytes();
    part.data = map(part.bytes, protection, flags, fd_, fd_ < 0 ? 0 : part.offset);
    if (fd_ < 0) part.bytes = bytes;
    parts_.push_back(part);
    return part.data + before;
}

void Segment::reserve(std::size_t offset, std::size_t bytes) {
    if (offset + bytes > size() || offset + bytes < offset) raise(ENOMEM, "a segment's end");
    if (fd_ >= 0 && bytes > 0) allocate(fd_, offset, bytes);
}

void Segment::release(std::size_t offset, std::size_t bytes) {
#ifdef __linux__
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
#endif
}

void Segment::grow(std::size_t bytes) {
    if (size() < bytes) resize(fd_, bytes);
}

std::size_t Segment::size() const {
    struct stat status;
    if (fd_ < 0 || fstat(fd_, &status) != 0) return bytes_;
    return static_cast<std::size_t>(status.st_size);
}

}  // namespace sley
