// TCP sockets that never block.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace sley {

[[noreturn]] void raise_network(int error, const std::string& what);

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;
#endif

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t length = 0;

    // An IPv4 or IPv6 address as text; throws std::system_error for anything else.
    static SocketAddress parse(const std::string& text, std::uint16_t port);
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
    std::uint16_t port() const;
};

class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept;
    ~Socket();

    // At any free port of this address.
    static Socket listener(const std::string& address);
    // Bound to `from`, and on its way to `to`.
    static Socket connecting(const std::string& from, const SocketAddress& to);
    // The next one that came to a listener; not open where there is none.
    Socket accept() const;

    int fd() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }
    std::uint16_t local_port() const;
    int take_error() const;

    // For messages: without delay, and with little in front of the next one.
    void tune() const;
    // What the peer's host has not acknowledged, in bytes.
    int undelivered_bytes() const;

private:
    int fd_ = -1;
};

// Notices that a host doesn't acknowledge what it is sent. The kernel's own limit, the user timeout
// of TCP, would count a peer as gone that is there and only doesn't read for long.
class SilenceWatch {
public:
    // Looks at the socket; says whether nothing at all has been heard for `limit`, with data that
    // wait for an answer.
    bool is_cut(const Socket& socket, std::chrono::milliseconds limit);

private:
    bool waits_ = false;  // at the last look data waited for an answer
    std::chrono::steady_clock::time_point since_{};
};

}  // namespace sley
