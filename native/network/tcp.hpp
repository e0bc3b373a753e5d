// The wire that every network has: one TCP connection for each pair of ranks on different hosts.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "network/handshake.hpp"
#include "network/link.hpp"
#include "network/wire.hpp"

namespace sley {

class TcpWire final : public Wire {
public:
    // remote: of each rank, whether it is on another host. nics: addresses of this host, of which
    // this rank uses number `nic`. silence: after so long without a sign of its host, a peer is cut
    // off.
    TcpWire(std::int32_t rank, std::vector<bool> remote, std::vector<std::string> nics,
            std::size_t nic, std::chrono::milliseconds silence);

    std::string address() const override { return site_.address(); }
    void connect(const Meeting& meeting, FrameSink& sink) override;
    bool has_room(std::int32_t peer, FrameKind kind) const override;
    bool is_lost(std::int32_t peer) const override;
    void post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) override;
    bool send() override;
    bool receive(FrameSink& sink) override;
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
