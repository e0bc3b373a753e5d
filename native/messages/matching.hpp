// The messages between a rank and the others: which receive takes which message.
//
// A message travels through the FIFO of its two ranks as a header with tag and size, with as much
// of the data behind it as its slot has room for, then the rest in pieces of a slot; or, where the
// data lie in the sender's heap, in envelopes that point there. A message that nobody has asked for
// stays in the FIFO, and its sender waits, until a receive here waits for another message that may
// come from that rank: then it is taken into memory of its own.
//
// For one thread at a time; point_to_point.hpp has what lets several in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "fabric/fabric.hpp"
#include "messages/operation.hpp"
#include "messages/pieces.hpp"

namespace sley {

constexpr std::int32_t kAnySource = -1;

class Matching {
public:
    using Clock = Stopwatch::Clock;

    // The FIFO that carries messages to rank `dst` is number dst * stride + offset of the sender's.
    // Throws std::invalid_argument where a slot has less than a cache line.
    Matching(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset);

    // Makes the connections that an operation needs. Throws std::invalid_argument for a rank that
    // isn't there or a size below 0, std::system_error where there is no memory.
    void open(const Operation& operation);
    // Starts an operation, which may end at once. Throws std::bad_alloc where there is no memory
    // for a message to the rank itself; then the operation hasn't started.
    void post(Operation& operation);
    // One round: everything that can move, a burst per peer and direction. Says whether anything
    // did. After a failure all operations end.
    bool advance();
    // Fails the fabric if an operation waits for a rank that is gone, or hasn't moved for its own
    // timeout. gone: of each rank, kLeft, kDied or kNone.
    void look(const std::vector<Failure>& gone, Clock::time_point now);
    // Ends all operations, and those that are posted later, as kAborted.
    void close();

    OperationList finished;

private:
    struct Unexpected {
        std::int64_t tag, bytes;
        std::unique_ptr<std::byte[]> data;
    };
    struct Peer {
        Peer(const Fabric& fabric, std::int32_t rank)
            : outgoing(rank, fabric.shape().fifo), incoming(fabric, rank) {}

        Outgoing outgoing;
        Incoming incoming;
        OperationList posted;  // receives that no message has come for
        std::list<Unexpected> unexpected;
    };

    Peer& peer(std::int32_t rank) { return peers_[static_cast<std::size_t>(rank)]; }
    OperationList& posted(std::int32_t src);
    Operation* first_match(std::int32_t src, std::int64_t tag);
    void take_posted(Operation& receive);
    void post_send(Operation& send);
    void post_receive(Operation& receive);
    void send_to_self(Operation& send);
    bool take_unexpected(Operation& receive);
    std::byte* store_unexpected(std::int32_t src, std::int64_t tag, std::int64_t bytes);

    void mismatch(Operation& receive, std::int32_t src, std::int64_t bytes);
    void abort_all();

    bool receive_pieces(std::int32_t src);
    std::int64_t begin_message(std::int32_t src);

    void look_for_gone(const std::vector<Failure>& gone);
    void look_for_stalled(Clock::time_point now);
    bool stall_posted(OperationList& receives, bool is_coming, Clock::time_point now);
    void stall(Operation& operation, std::int32_t rank);

    std::shared_ptr<Fabric> fabric_;
    std::int32_t stride_, offset_, ranks_;
    std::vector<Peer> peers_;
    OperationList any_;  // receives from any source that no message has come for
    std::uint64_t operations_ = 0;
    bool is_closed_ = false;
    std::int32_t turn_ = 0;  // the peer that is looked at first
};

}  // namespace sley
