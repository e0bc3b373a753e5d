// Sockets, their addresses and options.
#include "network/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace sley {
namespace {

// Unsent data in the kernel: enough to keep a link busy while this process waits for a core, and no
// more, since credits queue behind it.
constexpr int kUnsentBytes = 256 * 1024;

void set(int fd, int level, int option, int value) {
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) {
        raise_network(errno, "setsockopt");
    }
}

Socket open_socket(int family) {
    Socket socket(::socket(family, SOCK_STREAM, 0));
    if (!socket.is_open()) raise_network(errno, "socket");
    return socket;
}

void make_private_and_nonblocking(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) raise_network(errno, "fcntl");
}

void bind_to(const Socket& socket, const std::string& text) {
    const auto address = SocketAddress::parse(text, 0);
    if (bind(socket.fd(), address.get(), address.length) != 0) {
        raise_network(errno, "bind to " + text);
    }
}

}  // namespace

void raise_network(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

SocketAddress SocketAddress::parse(const std::string& text, std::uint16_t port) {
    SocketAddress address;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        address.length = sizeof *v4;
    } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        address.length = sizeof *v6;
    } else {
        raise_network(EINVAL, "'" + text + "' is not an IP address");
    }
    return address;
}

std::uint16_t SocketAddress::port() const {
    if (storage.ss_family == AF_INET) {
        return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
    }
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

std::string own_address() {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) raise_network(errno, "network interfaces");
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, &freeifaddrs);
    std::string v6;
    for (const auto* each = all; each != nullptr; each = each->ifa_next) {
        constexpr unsigned kRuns = IFF_UP | IFF_RUNNING;
        const auto* address = each->ifa_addr;
        if (address == nullptr || (each->ifa_flags & (kRuns | IFF_LOOPBACK)) != kRuns) continue;
        char text[INET6_ADDRSTRLEN];
        if (address->sa_family == AF_INET) {
            const auto& its = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
            return inet_ntop(AF_INET, &its, text, sizeof text);
        }
        if (address->sa_family != AF_INET6 || !v6.empty()) continue;
        const auto& its = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
        // A link-local address needs its interface's number, which differs among namespaces.
        if (!IN6_IS_ADDR_LINKLOCAL(&its)) v6 = inet_ntop(AF_INET6, &its, text, sizeof text);
    }
    return v6.empty() ? "127.0.0.1" : v6;
}

Socket& Socket::operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

Socket::~Socket() {
    if (fd_ >= 0) close(fd_);
}

Socket Socket::listener(const std::string& address) {
    auto socket = open_socket(SocketAddress::parse(address, 0).get()->sa_family);
    make_private_and_nonblocking(socket.fd());
    bind_to(socket, address);
    if (listen(socket.fd(), SOMAXCONN) != 0) raise_network(errno, "listen at " + address);
    return socket;
}

Socket Socket::connecting(const std::string& from, const SocketAddress& to) {
    auto socket = open_socket(to.get()->sa_family);
    make_private_and_nonblocking(socket.fd());
    bind_to(socket, from);
    if (::connect(socket.fd(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
        raise_network(errno, "connect");
    }
    return socket;
}

Socket Socket::accept() const {
    Socket socket(::accept(fd_, nullptr, nullptr));
    if (socket.is_open()) {
        make_private_and_nonblocking(socket.fd());
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        raise_network(errno, "accept");
    }
    return socket;
}

std::uint16_t Socket::local_port() const {
    SocketAddress address;
    address.length = sizeof address.storage;
    if (getsockname(fd_, address.get(), &address.length) != 0) raise_network(errno, "getsockname");
    return address.port();
}

int Socket::take_error() const {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    return error;
}

void Socket::tune() const {
    set(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef TCP_NOTSENT_LOWAT
    set(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
#endif
}

int Socket::undelivered_bytes() const {
    int bytes = 0;
    return ioctl(fd_, TIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

#ifdef __linux__

bool SilenceWatch::is_cut(const Socket& socket, std::chrono::milliseconds limit) {
    constexpr auto kTick = std::chrono::milliseconds(20);  // the kernel's clock is coarse
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
    const auto now = std::chrono::steady_clock::now();
    const auto heard = now - std::chrono::milliseconds(info.tcpi_last_ack_recv) + kTick;
    if (!waits_ || heard > since_) since_ = now;
    waits_ = info.tcpi_unacked > 0;
    return waits_ && now - since_ >= limit;
}

#else

bool SilenceWatch::is_cut(const Socket&, std::chrono::milliseconds) { return false; }

#endif

}  // namespace sley
