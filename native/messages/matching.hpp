// The messages between a rank and the others: which receive takes which message, and their pieces.
//
// A message travels through the FIFO of its two ranks as a header with tag and size, with as much
// of the data behind it as its slot has room for, then the rest in pieces of a slot; or, where the
// data lie in the sender's heap, in envelopes that point there. A message that nobody has asked for
// stays in the FIFO, and its sender waits, until a receive here waits for another message that may
// come from that rank: then it is taken into memory of its own.
//
// For one thread at a time; point_to_point.hpp has what lets several in.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"

namespace sley {

constexpr std::int32_t kAnySource = -1;

// For how long something hasn't moved. Only who asks reads the clock.
class Stopwatch {
public:
    using Clock = std::chrono::steady_clock;

    void moved() { moved_ = true; }

    bool has_expired(Clock::time_point now, double timeout_s) {
        if (moved_) since_ = now;
        moved_ = false;
        return std::chrono::duration<double>(now - since_).count() >= timeout_s;
    }

private:
    bool moved_ = true;
    Clock::time_point since_{};
};

// A send or receive from its posting to its end. The poster keeps it where it is until then.
struct Operation {
    Operation(bool is_send, std::byte* data, std::int64_t bytes, std::int32_t peer,
              std::int64_t tag, double timeout_s)
        : is_send(is_send), data(data), bytes(bytes), peer(peer), tag(tag), timeout_s(timeout_s) {}

    bool is_send;
    std::byte* data;  // of a send: only read
    std::int64_t bytes;
    std::int32_t peer;
    std::int64_t tag;
    double timeout_s;

    bool is_done = false;
    Outcome outcome;
    std::shared_ptr<Ticket> ticket;  // if there is one, the end is put on `finished`

    std::uint64_t number = 0;      // in the order of posting
    std::uint64_t heap = 0;        // of a send that is pulled: where
    std::int64_t sent = -1;        // bytes that have been published; -1: not even the header
    std::uint64_t last_piece = 0;  // number of a pulled send's last message
    Stopwatch watch;
    Operation* previous = nullptr;
    Operation* next = nullptr;
};

// A list through the operations themselves, so that waiting in one needs no memory.
class OperationList {
public:
    Operation* first() const { return first_; }
    bool empty() const { return first_ == nullptr; }
    Operation* with_tag(std::int64_t tag) const;
    void push(Operation& operation);
    void remove(Operation& operation);

private:
    Operation* first_ = nullptr;
    Operation* last_ = nullptr;
};

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
    // The message whose header has been taken: it goes to a receive or is the last unexpected one.
    struct Coming {
        bool is_active = false;
        bool has_moved = false;  // since the last look
        Operation* receive = nullptr;
        std::byte* to = nullptr;
        std::int64_t bytes = 0, at = 0;
    };
    struct Peer {
        FifoSender* sender = nullptr;
        FifoReceiver* receiver = nullptr;
        OperationList sends;
        OperationList pulled;  // all published, not all consumed
        OperationList posted;  // receives that no message has come for
        Coming coming;
        std::list<Unexpected> unexpected;

        bool is_unread() {
            return !pulled.empty() && !sender->has_consumed(pulled.first()->last_piece);
        }
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

    void end(Operation& operation, Status status, std::int32_t rank = -1, std::int64_t bytes = 0);
    void mismatch(Operation& receive, std::int32_t src, std::int64_t bytes);
    void abort(OperationList& list);
    void abort_all();

    bool send_pieces(std::int32_t dst);
    std::int64_t send_piece(FifoSender& sender, Operation& send) const;
    bool receive_pieces(std::int32_t src);
    bool begin_message(std::int32_t src);
    void take_piece(std::int32_t src, const std::byte* from, std::int64_t bytes, bool is_pulled);

    void look_for_gone(const std::vector<Failure>& gone);
    void look_for_stalled(Clock::time_point now);
    bool stall_first(OperationList& sends, std::int32_t dst, Clock::time_point now);
    bool stall_posted(OperationList& receives, bool is_coming, Clock::time_point now);
    void stall(Operation& operation, std::int32_t rank);

    std::shared_ptr<Fabric> fabric_;
    std::int32_t stride_, offset_, ranks_;
    std::size_t slots_;
    std::int64_t slot_bytes_;
    std::vector<Peer> peers_;
    OperationList any_;  // receives from any source that no message has come for
    std::uint64_t operations_ = 0;
    bool is_closed_ = false;
    std::int32_t turn_ = 0;  // the peer that is looked at first
};

}  // namespace sley
