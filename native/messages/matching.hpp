// Matching: which receive takes which message between a rank and the others.
//
// A message travels through the FIFO of its two ranks: first a header with tag and size, followed
// by data up to the slot's end, then the rest in pieces of a slot; or, for data in the sender's
// heap, in envelopes that point there. A message without a receive stays in the FIFO, and its
// sender waits, until a receive here waits for another message of that rank: then it is stored in
// memory of its own.
//
// For one thread at a time; point_to_point.hpp lets several in.
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

    // The FIFO to rank `dst` is number dst * stride + offset of the sender's. Throws
    // std::invalid_argument for slots smaller than a cache line.
    Matching(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset);

    // Opens the connections of an operation. Throws std::invalid_argument for a rank that doesn't
    // exist or a negative size, std::system_error if there is no memory.
    void open(const Operation& operation);
    // Starts an operation, which may end at once. Throws std::bad_alloc, without having started it,
    // if there is no memory for a message to the rank itself.
    void post(Operation& operation);
    // One round: moves everything that can move, a burst per peer and direction. Returns whether
    // anything moved. After a failure all operations end.
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
        std::uint8_t type;
        std::unique_ptr<std::byte[]> data;
    };
    struct Peer {
        Peer(Fabric& fabric, std::int32_t rank) : outgoing(fabric, rank), incoming(fabric, rank) {}

        Outgoing outgoing;
        Incoming incoming;
        OperationList posted;  // receives without a message so far
        std::list<Unexpected> unexpected;
    };

    Peer& peer(std::int32_t rank) { return peers_[static_cast<std::size_t>(rank)]; }
    OperationList& receives_from(std::int32_t src);
    Operation* first_match(std::int32_t src, std::int64_t tag);
    void take_posted(Operation& receive);
    void post_send(Operation& send);
    void post_receive(Operation& receive);
    void send_to_self(Operation& send);
    bool take_unexpected(Operation& receive);
    std::byte* store_unexpected(std::int32_t src, std::int64_t tag, std::int64_t bytes,
                                std::uint8_t type);

    void mismatch(Operation& receive, std::int32_t src, std::int64_t bytes);
    void abort_all();

    bool receive_pieces(std::int32_t src);
    std::int64_t begin_message(std::int32_t src);

    void look_for_gone(const std::vector<Failure>& gone);
    void look_for_stalled(Clock::time_point now);
    bool stall_posted(OperationList& receives, bool is_coming, Clock::time_point now);
    void stall(Operation& operation, std::int32_t rank, Clock::time_point now);

    std::shared_ptr<Fabric> fabric_;
    std::int32_t stride_, offset_, ranks_;
    std::vector<Peer> peers_;
    Signs signs_;
    OperationList any_;  // receives from any source, without a message so far
    std::uint64_t operations_ = 0;
    bool is_closed_ = false;
    std::int32_t turn_ = 0;  // the first peer of the next round
};

}  // namespace sley
