// From FIFOs to frames and back: what makes a connection to another host look like one within.
//
// On the sender's side messages leave the sender's own FIFO as data frames. On the receiver's side
// they arrive in a copy of that FIFO, message k in slot k % slots, so that no more than `slots`
// messages are on their way. What the receiver consumes goes back as credits. RankStates travel
// too, at most every kStatePeriod.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabric/fabric.hpp"
#include "network/wire.hpp"

namespace sley {

class Pump final : public Transport, private FrameSink {
public:
    // The fabric owns its transport, and outlives whoever else has it.
    Pump(Fabric& fabric, std::unique_ptr<Wire> wire);

    const std::string& address() const { return address_; }
    void connect(const Meeting& meeting);

    void open_sender(std::int32_t peer, std::int32_t index, const FifoMemory& memory) override;
    void open_receiver(std::int32_t peer, std::int32_t index, const FifoMemory& memory) override;
    // Throws std::length_error for a message that is longer than a slot.
    bool progress() override;
    // Whether peers have been sent all that was published and consumed here. Nobody pumps between
    // calls, so a rank whose call is done goes on until then.
    bool is_settled() override;

    // kNone, while a remote rank can be reached, or has closed. Any thread may ask.
    Failure loss_of(std::int32_t rank) const override;

    // Tells the peers all that is still to be told, `closed` above all, for at most `wait_s`, and
    // ends. Without it peers take this rank for dead.
    void close(double wait_s);

private:
    using Clock = std::chrono::steady_clock;

    struct Outgoing {
        std::int32_t index;
        FifoMemory memory;
        std::uint64_t next = 0;      // the message to be posted
        std::uint64_t consumed = 0;  // as the peer said
    };
    struct Incoming {
        std::int32_t index;
        FifoMemory memory;
        std::uint64_t credited = 0;
    };
    struct Peer {
        std::int32_t rank;
        bool told_failure = false;
        std::uint64_t told_state = 0;   // the last version of this rank's state that was sent
        std::uint64_t heard_state = 0;  // the last one of the peer's
        std::size_t turn = 0;           // the sender to begin with
        std::vector<Outgoing> outgoing;
        std::vector<Incoming> incoming;
        std::unordered_map<std::int32_t, std::size_t> outgoing_of, incoming_of;  // by index
    };

    Peer& peer(std::int32_t rank);
    Incoming& incoming(Peer& peer, std::int32_t index);

    bool round();
    static bool has_message(const Outgoing& out);
    bool may_send(const Outgoing& out) const;
    void post_message(Peer& peer, Outgoing& out);
    bool post_messages(Peer& peer);
    void post_credits(Peer& peer, bool all);
    void note_state(Clock::time_point now);
    void post_news(Peer& peer);
    bool is_settled(const Peer& peer) const;

    std::byte* place(std::int32_t rank, const FrameHeader& header) override;
    bool arrived(std::int32_t rank, const FrameHeader& header) override;
    void lost(std::int32_t rank, Failure kind) override;
    bool take_message(Peer& peer, const FrameHeader& header);
    bool take_credit(Peer& peer, const FrameHeader& header);
    bool take_state(Peer& peer, const FrameHeader& header);
    bool take_failure(Peer& peer, const FrameHeader& header);

    Fabric& fabric_;
    std::unique_ptr<Wire> wire_;
    std::string address_;
    std::uint64_t window_;  // messages that may be on their way on one connection
    std::vector<std::int32_t> locals_;
    std::vector<Peer> peers_;
    std::vector<std::int32_t> peer_of_;  // by rank; -1 for a rank of this host
    std::vector<std::atomic<Failure>> losses_;  // by rank

    std::mutex mutex_;
    bool closed_ = false;
    bool moved_ = false;  // in this round
    FrameHeader state_;   // of this rank, as it is told
    Clock::time_point noted_{}, renewed_{};
};

}  // namespace sley
