#include "devices/descriptor_box.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "devices/barrier.hpp"
#include "fabric/control.hpp"

namespace sley {
namespace {

constexpr const char* kFolder = "/dev/shm";  // processes in containers often share it
constexpr timeval kTurn{0, 50'000};

std::string folder_of_boxes() {
    if (access(kFolder, W_OK) == 0) return kFolder;
    const char* given = std::getenv("TMPDIR");
    return given != nullptr ? given : "/tmp";
}

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);  // no folder is so deep
    return address;
}

bool is_for_now() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// A message with a rank, whose descriptor goes beside it.
struct Letter {
    explicit Letter(int fd = -1) {
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        header.msg_control = space;
        header.msg_controllen = sizeof space;
        auto* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }

    std::int32_t rank = -1;
    iovec part{&rank, sizeof rank};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
};

}  // namespace

Descriptor::~Descriptor() {
    if (fd_ >= 0) close(fd_);
}

DescriptorBox::DescriptorBox() : folder_(folder_of_boxes() + "/sley-XXXXXX") {
    const bool is_made = mkdtemp(folder_.data()) != nullptr;
    path_ = folder_ + "/box";
    const auto address = address_of(path_);
    socket_ = Descriptor(is_made ? socket(AF_UNIX, SOCK_DGRAM, 0) : -1);
    const int fd = socket_.fd();
    if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        const std::string problem = std::strerror(errno);
        if (is_made) rmdir(folder_.c_str());
        throw Refusal("K514", "a socket for other processes", path_ + ": " + problem);
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        setsockopt(fd, SOL_SOCKET, which, &kTurn, sizeof kTurn);
    }
}

DescriptorBox::~DescriptorBox() {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
}

DescriptorBox::Ranks DescriptorBox::pass(const std::map<int, int>& own,
                                         const std::set<std::string>& paths,
                                         const std::set<int>& others,
                                         std::chrono::milliseconds late) const {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + late;
    std::vector<std::pair<std::string, int>> left;
    for (const auto& path : paths) {
        for (const auto& [rank, fd] : own) left.emplace_back(path, rank);
    }
    Ranks found;
    // A box holds few messages: whoever finds one full goes on to empty his own, so that none waits
    // for ever for another.
    while (!left.empty() || found.size() < others.size()) {
        while (!left.empty()) {
            const auto& [path, rank] = left.back();
            if (!send(path, rank, own.at(rank))) break;
            left.pop_back();
        }
        if (found.size() < others.size()) {
            auto [rank, file] = take();
            if (others.count(rank) != 0) found[rank] = std::move(file);
        }
        if (is_interrupted && is_interrupted()) throw Interrupted{};
        if (Clock::now() > until) {
            throw Refusal("K514",
                          "file descriptors of " + std::to_string(others.size()) +
                              " ranks of other processes",
                          "those of " + std::to_string(found.size()));
        }
    }
    return found;
}

// False if it can't be sent now.
bool DescriptorBox::send(const std::string& path, int rank, int fd) const {
    auto address = address_of(path);
    Letter letter(fd);
    letter.rank = rank;
    letter.header.msg_name = &address;
    letter.header.msg_namelen = sizeof address;
    if (sendmsg(socket_.fd(), &letter.header, 0) >= 0) return true;
    if (is_for_now()) return false;
    throw Refusal("K514",
                  "another process's socket for file descriptors, in a folder that all processes see",
                  path + ": " + std::strerror(errno));
}

// A rank below 0 if there is none now.
std::pair<int, Descriptor> DescriptorBox::take() const {
    Letter letter;
    if (recvmsg(socket_.fd(), &letter.header, 0) < 0) {
        if (is_for_now()) return {-1, Descriptor()};
        throw Refusal("K514", "file descriptors of other processes", std::strerror(errno));
    }
    const auto* rights = CMSG_FIRSTHDR(&letter.header);
    if (rights == nullptr) {  // it doesn't come again
        throw Refusal("K514", "a file descriptor of another process",
                      "no number that is free for it in this process", {},
                      "Let the process have more open files (ulimit -n).");
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return {letter.rank, Descriptor(fd)};
}

}  // namespace sley
