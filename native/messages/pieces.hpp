// The messages between a rank and one other, piece by piece: those that go out, and the one that
// comes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "fabric/fabric.hpp"
#include "messages/operation.hpp"

namespace sley {

// A peer is served for so many bytes before the next one's turn, and data in the heap are cut so.
constexpr std::int64_t kBurst = std::int64_t{1} << 20;

// What a message begins with.
struct Header {
    std::int64_t tag, bytes;
};

// The sends to a rank, in the order of posting.
class Outgoing {
public:
    Outgoing(std::int32_t dst, const FifoShape& shape);

    bool is_open() const { return sender_ != nullptr; }
    void open(FifoSender& sender) { sender_ = &sender; }

    void push(Operation& send) { sends_.push(send); }
    bool is_first(const Operation& send) const { return sends_.first() == &send; }
    // Sends a burst. Says whether anything moved.
    bool advance(OperationList& finished);
    // Whether the rank has still something to take, or to read.
    bool is_pending() { return !sends_.empty() || is_unread(); }
    // Takes out the send whose turn it is, if it hasn't moved for its timeout; else null.
    Operation* take_expired(Stopwatch::Clock::time_point now);
    void abort(OperationList& finished);

private:
    std::int64_t send_piece(Operation& send);
    bool is_unread() {
        return !pulled_.empty() && !sender_->has_consumed(pulled_.first()->last_piece);
    }

    std::int32_t dst_;
    std::size_t slots_;
    std::int64_t slot_bytes_;
    FifoSender* sender_ = nullptr;
    OperationList sends_;
    OperationList pulled_;  // all published, not all consumed
};

// The message of a rank that is on its way: its header has been taken, and it goes to a receive, or
// to memory that is kept for one.
class Incoming {
public:
    Incoming(const Fabric& fabric, std::int32_t src) : fabric_(fabric), src_(src) {}

    bool is_open() const { return receiver_ != nullptr; }
    void open(FifoReceiver& receiver) { receiver_ = &receiver; }

    // Whether a piece has come.
    bool has_piece() const { return receiver_ && receiver_->has_message(); }
    bool is_under_way() const { return is_under_way_; }
    // Of the message that has come, where none is under way.
    Header header() const;
    // Takes the header, and what is behind it. receive: null where nobody has asked for the
    // message. Returns the bytes, as `take_piece` does.
    std::int64_t begin(const Header& header, Operation* receive, std::byte* to,
                       OperationList& finished);
    // Takes the next piece; the last one ends the receive.
    std::int64_t take_piece(OperationList& finished);

    // The receive that the message goes to, or null.
    Operation* receive() const { return receive_; }
    bool goes_to(const std::byte* data) const { return is_under_way_ && to_ == data; }
    // What has come is copied to a receive, and the rest will go there.
    void hand_over(Operation& receive);
    // The receive ends without the message.
    Operation* take_receive() { return std::exchange(receive_, nullptr); }
    // Whether a piece has been taken since the last time that somebody asked.
    bool has_moved() { return std::exchange(has_moved_, false); }

private:
    std::int64_t take(const std::byte* from, std::int64_t bytes, bool is_pulled,
                      OperationList& finished);

    const Fabric& fabric_;
    std::int32_t src_;
    FifoReceiver* receiver_ = nullptr;
    bool is_under_way_ = false;
    bool has_moved_ = false;
    Operation* receive_ = nullptr;
    std::byte* to_ = nullptr;
    std::int64_t bytes_ = 0, at_ = 0;
};

}  // namespace sley
