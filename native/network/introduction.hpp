// The handshake on one connection: both ends prove that they know a secret, which stays with them.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "network/hmac.hpp"
#include "network/socket.hpp"

namespace sley {

// The first message of both ends.
struct Hello {
    std::array<char, 4> magic{'s', 'l', 'e', 'y'};
    std::uint32_t version = 2;  // of the handshake and the frames
    std::int32_t rank = -1;
    std::int32_t peer = -1;
    Nonce nonce{};
};

// What each end gets from the other: its hello, and the proof that it knows the secret.
struct Greeting {
    Hello hello;
    Digest proof{};
};

static_assert(sizeof(Greeting) == 64, "the same on every machine");

// A connection until both ends have proven themselves. Each answers the other's nonce, first the
// accepting end, so that one that connects to a stranger says nothing but its hello.
class Introduction {
public:
    using Clock = std::chrono::steady_clock;
    enum class Step { kConnecting, kHello, kProof, kDone, kRefused };

    // rank: of this end. peer: -1 at the accepting end, where a rank's hello names it.
    Introduction(Socket socket, bool connects, std::int32_t rank, std::int32_t peer = -1);

    const Socket& socket() const { return socket_; }
    Socket take_socket() { return std::move(socket_); }
    Step step() const { return step_; }
    bool connects() const { return connects_; }
    std::int32_t peer() const { return connects_ ? own_.peer : theirs_.hello.rank; }
    int error() const { return error_; }  // of a connection that could not be made; else 0
    pollfd waits_for() const;
    // Whether one that has connected doesn't even say hello. One that has said it may be stopped for
    // a while.
    bool is_silent(Clock::time_point now) const;

    // Takes what has come, and answers a whole hello, if it `fits`, and a whole proof.
    void advance(const Secret& secret, const std::function<bool(const Hello&)>& fits);

private:
    void read(const Secret& secret, const std::function<bool(const Hello&)>& fits);
    void send(std::string_view bytes);
    Digest proof(const Secret& secret, bool of_connecting) const;

    Socket socket_;
    Step step_;
    Clock::time_point since_ = Clock::now();
    bool connects_;
    int error_ = 0;
    Hello own_;
    Greeting theirs_;
    std::size_t bytes_ = 0;  // of `theirs_` so far
};

}  // namespace sley
