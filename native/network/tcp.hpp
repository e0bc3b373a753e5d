// The TCP wire, for every network: one connection for each pair of ranks on different hosts.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "network/handshake.hpp"
#include "network/socket.hpp"
#include "network/wire.hpp"

namespace sley {

// Frames over one socket to one peer.
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

    // A read fills the payload's place, then the buffer, with heads and short payloads of the next
    // frames: so large payloads are not copied, and many short ones are read at once.
    static constexpr std::size_t kBufferBytes = 4096;
    std::array<std::byte, kBufferBytes> buffer_;
    std::size_t start_ = 0, end_ = 0;  // of the buffer's content
    FrameHeader header_;               // of the payload that is being read
    std::byte* place_ = nullptr;       // for the rest of the payload
    std::size_t left_ = 0;             // bytes of that rest
    SilenceWatch silence_;
};

class TcpWire final : public Wire {
public:
    // remote: of each rank, whether it is on another host. nics: addresses of this host; this rank
    // uses number `nic`. silence: a peer whose host is silent for this long counts as cut off.
    TcpWire(std::int32_t rank, std::vector<bool> remote, std::vector<std::string> nics,
            std::size_t nic, std::chrono::milliseconds silence);

    std::string address() const override { return site_.address(); }
    void connect(const Meeting& meeting, FrameSink& sink) override;
    bool has_room(std::int32_t peer, FrameKind kind) const override;
    bool is_lost(std::int32_t peer) const override;
    void post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) override;
    bool send() override;
    bool receive(FrameSink& sink) override;
    std::vector<pollfd> arrivals() override { return polled_; }
    void watch(FrameSink& sink) override;
    bool is_sent() const override;
    bool is_delivered() override;

private:
    const Link* link(std::int32_t peer) const;

    TcpSite site_;
    std::chrono::milliseconds silence_;
    std::vector<Link> links_;
    std::vector<pollfd> polled_;         // of each link
    std::vector<std::int32_t> link_of_;  // by rank; -1 for a rank of this host
};

}  // namespace sley
