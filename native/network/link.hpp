// Frames over one socket to one peer.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "network/socket.hpp"
#include "network/wire.hpp"

namespace sley {

class Link {
public:
    Link(std::int32_t peer, Socket socket) : peer_(peer), socket_(std::move(socket)) {}

    const Socket& socket() const { return socket_; }
    bool is_open() const { return socket_.is_open(); }
    bool has_room(FrameKind kind) const;
    bool is_sent() const { return queue_.empty(); }
    bool is_blocked() const { return blocked_; }
    void unblock() { blocked_ = false; }

    void post(const FrameHeader& header, const std::byte* payload);
    // Whether any payload was moved.
    bool send();
    bool receive(FrameSink& sink);
    void watch(FrameSink& sink, std::chrono::milliseconds limit);

private:
    struct Frame {
        FrameHeader header;
        const std::byte* payload;
    };

    bool forget_sent(std::size_t bytes);
    void take_read(std::size_t bytes);
    bool parse(FrameSink& sink);
    void end(FrameSink& sink, Failure kind);

    std::int32_t peer_;
    Socket socket_;

    std::vector<Frame> queue_;
    std::size_t sent_ = 0;  // bytes of the first frame
    bool blocked_ = false;  // the kernel takes no more
    int send_error_ = 0;

    // What is read goes to the payload's place, and on into the buffer, where the next frames'
    // heads and short payloads lie together: big payloads are not copied, and many short ones are
    // read at once.
    static constexpr std::size_t kBufferBytes = 4096;
    std::array<std::byte, kBufferBytes> buffer_;
    std::size_t start_ = 0, end_ = 0;  // of what is in the buffer
    FrameHeader header_;               // of the payload that is being read
    std::byte* place_ = nullptr;       // of what follows of it
    std::size_t left_ = 0;
    SilenceWatch silence_;
};

}  // namespace sley
