// File descriptors that processes of one host pass to one another.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sley {

// A descriptor of this process, closed with its owner: a descriptor keeps the memory of its process.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor();

    int fd() const { return fd_; }

private:
    int fd_;
};

// A socket to which other processes send descriptors, by its path. What fails is Refusal (K514).
class DescriptorBox {
public:
    using Ranks = std::map<int, Descriptor>;

    DescriptorBox();
    DescriptorBox(const DescriptorBox&) = delete;
    DescriptorBox& operator=(const DescriptorBox&) = delete;
    ~DescriptorBox();

    const std::string& path() const { return path_; }

    // Sends the descriptors of this process's ranks to the boxes of other processes, and returns those
    // of other ranks. late: by then processes that have met have sent theirs.
    Ranks pass(const std::map<int, int>& own, const std::set<std::string>& paths,
               const std::set<int>& others,
               std::chrono::milliseconds late = std::chrono::seconds(30)) const;

private:
    bool send(const std::string& path, int rank, int fd) const;
    std::pair<int, Descriptor> take() const;

    std::string folder_, path_;
    Descriptor socket_;
};

}  // namespace sley
