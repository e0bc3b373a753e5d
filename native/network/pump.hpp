// The pump: from FIFOs to frames and back, so that a connection to another host works like a local
// one.
//
// The sender's pump sends messages of the sender's own FIFO as data frames. The receiver's stores
// them in a copy of that FIFO, message k in slot k % slots, so that at most `slots` messages are in
// flight, and returns credits for consumed messages. RankStates are sent too, at most every
// kStatePeriod.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabric/fabric.hpp"
#include "network/wire.hpp"

namespace sley {

class Pump final : public Transport, private FrameSink {
public:
    // The fabric owns its transport, and must outlive all other owners of it.
    Pump(Fabric& fabric, std::unique_ptr<Wire> wire);

    const std::string& address() const { return address_; }
    void connect(const Meeting& meeting);

    void open_sender(std::int32_t peer, std::int32_t index) override;
    void open_receiver(std::int32_t peer, std::int32_t index) override;
    // Throws std::length_error for a message that is longer than a slot.
    bool progress() override;
    bool is_settled() override;

    // kNone while a remote rank can be reached, or has closed.
    Failure loss_of(std::int32_t rank) const override;

    // Sends the peers everything that is left, above all `closed`, for at most `wait_s`, and ends.
    // Without it peers consider this rank dead.
    void close(double wait_s);

private:
    using Clock = std::chrono::steady_clock;

    struct Outgoing {
        std::int32_t index;
        FifoMemory memory;
        std::uint64_t next = 0;      // the next message to post
        std::uint64_t consumed = 0;  // by the peer's credits
    };
    struct Incoming {
        std::int32_t index;
        FifoMemory memory;
        std::uint64_t credited = 0;
    };
    struct Peer {
        std::int32_t rank;
        bool has_sent_failure = false;
        std::uint64_t sent_state = 0;      // the last version of this rank's state that was sent
        std::uint64_t received_state = 0;  // the last version of the peer's
        std::size_t turn = 0;              // the sender to begin with
        std::vector<Outgoing> outgoing;
        std::vector<Incoming> incoming;
        std::unordered_map<std::int32_t, std::size_t> outgoing_of, incoming_of;  // by index
    };

    Peer& peer(std::int32_t rank);
    Incoming& incoming(Peer& peer, std::int32_t index);

    bool round();
    void doze(std::chrono::nanoseconds most);
    static bool has_message(const Outgoing& out);
    bool may_send(const Outgoing& out) const;
    void post_message(Peer& peer, Outgoing& out);
    bool post_messages(Peer& peer);
    void post_credits(Peer& peer, bool all);
    void note_state(Clock::time_point now);
    void post_news(Peer& peer);
    bool is_settled(const Peer& peer) const;

    std::byte* place(std::int32_t rank, const FrameHeader& header) override;
    bool accept(std::int32_t rank, const FrameHeader& header) override;
    void lose(std::int32_t rank, Failure kind) override;
    bool take_message(Peer& peer, const FrameHeader& header);
    bool take_credit(Peer& peer, const FrameHeader& header);
    bool take_state(Peer& peer, const FrameHeader& header);
    bool take_failure(Peer& peer, const FrameHeader& header);

    Fabric& fabric_;
    std::unique_ptr<Wire> wire_;
    std::string address_;
    std::uint64_t window_;  // the most messages in flight on a connection
    std::vector<std::int32_t> locals_;
    std::vector<Peer> peers_;
    std::vector<std::int32_t> peer_of_;  // by rank; -1 for a rank of this host
    std::vector<std::atomic<Failure>> losses_;  // by rank

    std::mutex mutex_;
    bool closed_ = false;
    std::thread::id caller_;  // of the latest `progress`
    bool is_shared_ = false;  // whether several threads have called it
    bool moved_ = false;  // in this round
    FrameHeader state_;   // this rank's state, as a frame
    Clock::time_point noted_{}, renewed_{};
};

}  // namespace sley
