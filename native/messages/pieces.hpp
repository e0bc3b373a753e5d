// The messages between a rank and one other, piece by piece: `Outgoing` and `Incoming`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "fabric/fabric.hpp"
#include "messages/operation.hpp"

namespace sley {

// The bytes that a peer may move before the next peer's turn, and of a piece of data in the heap.
constexpr std::int64_t kBurst = std::int64_t{1} << 20;

// The first bytes of a message.
struct Header {
    std::int64_t tag;
    std::uint64_t bytes : 56, type : 8;
};

// The sends to a rank, in the order of posting.
class Outgoing {
public:
    Outgoing(Fabric& fabric, std::int32_t dst);

    bool is_open() const { return sender_ != nullptr; }
    void open(FifoSender& sender) { sender_ = &sender; }

    void push(Operation& send) { sends_.push(send); }
    bool is_first(const Operation& send) const { return sends_.first() == &send; }
    // Sends a burst. Returns whether anything moved.
    bool advance(OperationList& finished);
    // Whether a send is not finished.
    bool is_pending() { return !sends_.empty() || is_unread(); }
    // Removes the first send, if it hasn't moved for its timeout; else null.
    Operation* take_expired(Stopwatch::Clock::time_point now);
    void abort(OperationList& finished);

private:
    std::int64_t send_piece(Operation& send);
    std::int64_t piece_bytes(std::int64_t message_bytes) const;
    bool is_unread() {
        return !pulled_.empty() && !sender_->has_consumed(pulled_.first()->last_piece);
    }

    Fabric& fabric_;
    std::int32_t dst_;
    std::int64_t slot_bytes_;
    FifoSender* sender_ = nullptr;
    OperationList sends_;
    OperationList pulled_;  // published, but not consumed
};

// The message that is arriving from a rank, after its header: it is copied to a receive, or to
// memory that stores it for a later one.
class Incoming {
public:
    Incoming(Fabric& fabric, std::int32_t src) : fabric_(fabric), src_(src) {}

    bool is_open() const { return receiver_ != nullptr; }
    void open(FifoReceiver& receiver) { receiver_ = &receiver; }

    // Whether a piece has arrived.
    bool has_piece() const { return receiver_ && receiver_->has_message(); }
    bool is_under_way() const { return is_under_way_; }
    // The header of the next message, if none is under way.
    Header header() const;
    // Takes the header, and the data in its slot. receive: null for a message without one. Returns
    // the bytes, as `take_piece` does.
    std::int64_t begin(const Header& header, Operation* receive, std::byte* to,
                       OperationList& finished);
    // Takes the next piece; the last one ends the receive. 0 if the fabric has failed meanwhile.
    std::int64_t take_piece(OperationList& finished);

    // The receive of the message, or null.
    Operation* receive() const { return receive_; }
    bool goes_to(const std::byte* data) const { return is_under_way_ && to_ == data; }
    // Copies the data so far to a receive, and the rest as it arrives.
    void hand_over(Operation& receive);
    // Removes the receive, which ends without the message.
    Operation* take_receive() { return std::exchange(receive_, nullptr); }
    // Whether a piece has been taken since the last call.
    bool has_moved() { return std::exchange(has_moved_, false); }

private:
    std::int64_t take(const std::byte* from, std::int64_t bytes, bool is_pulled,
                      OperationList& finished);

    Fabric& fabric_;
    std::int32_t src_;
    FifoReceiver* receiver_ = nullptr;
    bool is_under_way_ = false;
    bool has_moved_ = false;
    Operation* receive_ = nullptr;
    std::byte* to_ = nullptr;
    std::int64_t bytes_ = 0, at_ = 0;
};

}  // namespace sley
