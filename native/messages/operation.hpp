// Pending sends and receives, and lists of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "fabric/outcome.hpp"

namespace sley {

class OperationList;

// Measures for how long something hasn't moved. Only `has_expired` needs the time.
class Stopwatch {
public:
    using Clock = std::chrono::steady_clock;

    void reset() { moved_ = true; }

    bool has_expired(Clock::time_point now, double timeout_s) {
        if (moved_) since_ = now;
        moved_ = false;
        return std::chrono::duration<double>(now - since_).count() >= timeout_s;
    }

private:
    bool moved_ = true;
    Clock::time_point since_{};
};

// A send or receive, from its posting to its end. Until then its address must not change. type: the
// caller's number of the elements' type; 0: any.
struct Operation {
    Operation(bool is_send, std::byte* data, std::int64_t bytes, std::int32_t peer,
              std::int64_t tag, double timeout_s, std::uint8_t type)
        : is_send(is_send), data(data), bytes(bytes), peer(peer), tag(tag), timeout_s(timeout_s),
          type(type) {}

    bool is_send;
    std::byte* data;  // a send only reads it
    std::int64_t bytes;
    std::int32_t peer;
    std::int64_t tag;
    double timeout_s;
    std::uint8_t type;

    // Whether a receive takes a message of `size` bytes of a type.
    bool fits(std::int64_t size, std::uint8_t other) const {
        return bytes == size && (type == other || type == 0 || other == 0);
    }

    // Ends an operation that is on no list.
    void end(OperationList& finished, Status status, std::int32_t rank = -1,
             std::int64_t bytes = 0);

    bool is_done = false;
    Outcome outcome;
    std::shared_ptr<Ticket> ticket;  // with one, the operation joins `finished` at its end

    std::uint64_t number = 0;      // in the order of posting
    std::uint64_t heap = 0;        // of a pulled send: `where` of its data
    std::int64_t sent = -1;        // published bytes; -1: not even the header
    std::uint64_t last_piece = 0;  // number of a pulled send's last message
    Stopwatch watch;
    Operation* previous = nullptr;
    Operation* next = nullptr;
};

// A list linked through the operations themselves, so that it needs no memory.
class OperationList {
public:
    Operation* first() const { return first_; }
    bool empty() const { return first_ == nullptr; }

    Operation* with_tag(std::int64_t tag) const {
        auto* operation = first_;
        while (operation && operation->tag != tag) operation = operation->next;
        return operation;
    }

    void push(Operation& operation) {
        operation.previous = last_;
        operation.next = nullptr;
        (last_ ? last_->next : first_) = &operation;
        last_ = &operation;
    }

    void remove(Operation& operation) {
        (operation.previous ? operation.previous->next : first_) = operation.next;
        (operation.next ? operation.next->previous : last_) = operation.previous;
    }

    // Ends them all as kAborted.
    void abort(OperationList& finished) {
        while (!empty()) {
            auto& operation = *first();
            remove(operation);
            operation.end(finished, Status::kAborted);
        }
    }

private:
    Operation* first_ = nullptr;
    Operation* last_ = nullptr;
};

inline void Operation::end(OperationList& finished, Status status, std::int32_t rank,
                           std::int64_t bytes) {
    outcome.status = status;
    outcome.rank = rank;
    outcome.bytes = bytes;
    is_done = true;
    if (ticket) finished.push(*this);
}

}  // namespace sley
