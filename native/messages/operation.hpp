// A send or a receive under way, and lists of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "fabric/outcome.hpp"

namespace sley {

class OperationList;

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

    // The operation is on no list any more.
    void end(OperationList& finished, Status status, std::int32_t rank = -1,
             std::int64_t bytes = 0);

    bool is_done = false;
    Outcome outcome;
    std::shared_ptr<Ticket> ticket;  // with one, the operation is put on `finished` at its end

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
