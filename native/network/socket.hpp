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

// An address of this host that other network namespaces may reach, IPv4 if there is one; else that of
// the loopback. Throws std::system_error.
std::string own_address();

class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept;
    ~Socket();

    // Listens at any free port of this address.
    static Socket listener(const std::string& address);
    // Bound to `from`, and connecting to `to`.
    static Socket connecting(const std::string& from, const SocketAddress& to);
    // The next connection of a listener; not open if there is none.
    Socket accept() const;

    int fd() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }
    std::uint16_t local_port() const;
    int take_error() const;

    // Sets options for messages: no delay, and little unsent data before the next one.
    void tune() const;
    // The bytes that the peer's host has not acknowledged.
    int undelivered_bytes() const;

private:
    int fd_ = -1;
};

// Notices that a host doesn't acknowledge data. The kernel's own limit, TCP's user timeout, would
// also give up a peer that is alive but doesn't read for long.
class SilenceWatch {
public:
    // Checks the socket; returns whether no acknowledgement has come for `limit` although data wait
    // for one.
    bool is_cut(const Socket& socket, std::chrono::milliseconds limit);

private:
    bool waits_ = false;  // at the last check, data waited for an acknowledgement
    std::chrono::steady_clock::time_point since_{};
};

}  // namespace sley
