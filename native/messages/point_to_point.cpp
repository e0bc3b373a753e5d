// Which thread makes progress when.
#include "messages/point_to_point.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace sley {
namespace {

constexpr unsigned kRoundsBeforeLook = 256;  // while something moves all the time
constexpr int kRoundsToSettle = 16;          // before the thread is woken for it
constexpr std::chrono::milliseconds kMoment(1);  // until the thread takes over what is small
constexpr std::int64_t kLarge = 65536;           // bytes that take longer than to wake the thread

int is_large(const Operation& operation) { return operation.bytes >= kLarge ? 1 : 0; }

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset)
    : fabric_(std::move(fabric)), matching_(fabric_, stride, offset) {}

PointToPoint::~PointToPoint() { close(); }

void PointToPoint::close() {
    std::thread thread;
    {
        const auto lock = enter();
        is_closed_ = true;
        thread.swap(thread_);
    }
    wake_.notify_all();
    bell().ring();
    if (thread.joinable()) thread.join();
    auto lock = enter();
    matching_.close();
    end_tickets(lock);
    bell().ring();
}

// The mutex is not fair: a driver would take it again and again. So drivers let `waiting_` go
// first.
PointToPoint::Lock PointToPoint::enter() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    Lock lock(mutex_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
}

std::shared_ptr<Ticket> PointToPoint::send(const std::byte* data, std::int64_t bytes,
                                           std::int32_t dst, std::int64_t tag, double timeout_s,
                                           std::int32_t type) {
    return submit({true, const_cast<std::byte*>(data), bytes, dst, tag, timeout_s,
                   static_cast<std::uint8_t>(type)});
}

std::shared_ptr<Ticket> PointToPoint::recv(std::byte* data, std::int64_t bytes, std::int32_t src,
                                           std::int64_t tag, double timeout_s, std::int32_t type) {
    return submit({false, data, bytes, src, tag, timeout_s, static_cast<std::uint8_t>(type)});
}

Outcome PointToPoint::send_now(const std::byte* data, std::int64_t bytes, std::int32_t dst,
                               std::int64_t tag, double timeout_s, std::int32_t type) {
    return perform({true, const_cast<std::byte*>(data), bytes, dst, tag, timeout_s,
                   static_cast<std::uint8_t>(type)});
}

Outcome PointToPoint::recv_now(std::byte* data, std::int64_t bytes, std::int32_t src,
                               std::int64_t tag, double timeout_s, std::int32_t type) {
    return perform({false, data, bytes, src, tag, timeout_s, static_cast<std::uint8_t>(type)});
}

std::shared_ptr<Ticket> PointToPoint::submit(Operation&& operation) {
    auto ticket = std::make_shared<Ticket>();
    auto own = std::make_unique<Operation>(std::move(operation));
    own->ticket = ticket;
    auto lock = enter();
    start(*own);
    ++asynchronous_;
    large_ += is_large(*own);
    own.release();  // `end_tickets` deletes it
    hand_over(lock);
    return ticket;
}

Outcome PointToPoint::perform(Operation&& operation) {
    auto lock = enter();
    start(operation);
    if (!operation.is_done) {
        ++synchronous_;
        drive(lock, [&] { return operation.is_done; });
        --synchronous_;
    }
    hand_over(lock);
    return std::move(operation.outcome);
}

bool PointToPoint::wait(Ticket& ticket, double timeout_s) {
    if (ticket.is_done()) return true;
    const auto until = Clock::now() + to_duration<Clock::duration>(timeout_s);
    auto lock = enter();
    ++synchronous_;
    drive(lock, [&] { return ticket.is_done() || Clock::now() >= until; }, until);
    --synchronous_;
    hand_over(lock);
    return ticket.is_done();
}

bool PointToPoint::test(Ticket& ticket) {
    if (ticket.is_done()) return true;
    auto lock = enter();
    if (matching_.advance() && drivers_ > 0) bell().ring();
    hand_over(lock);
    return ticket.is_done();
}

// Everything that can throw comes before the operation is posted. One without memory or a thread
// fails for all ranks, and aborts.
void PointToPoint::start(Operation& operation) {
    auto lack = Failure::kNoMemory;
    try {
        matching_.open(operation);
        lack = Failure::kNoThread;
        const bool may_need_thread = (operation.ticket || has_remote()) && !is_closed_;
        if (may_need_thread && !thread_.joinable()) thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        fabric_->control().fail(lack, fabric_->rank());
    }
    matching_.post(operation);
}

void PointToPoint::run() {
    is_beside_caller = true;
    Lock lock(mutex_);
    while (!is_closed_) {
        is_asleep_ = true;
        wake_.wait(lock, [this] { return is_closed_ || asynchronous_ > 0 || has_unsettled(); });
        is_asleep_ = false;
        wake_.wait_for(lock, kMoment, [this] { return is_closed_ || is_urgent(); });
        drive(lock, [this] { return is_closed_ || !needs_thread(); });
    }
}

// Whether something is left to do, and no caller drives.
bool PointToPoint::needs_thread() {
    return synchronous_ == 0 && (asynchronous_ > 0 || has_unsettled());
}

// Whether it can't wait for a moment.
bool PointToPoint::is_urgent() { return needs_thread() && (large_ > 0 || has_unsettled()); }

// Whether messages or receipts for other hosts have not left yet.
bool PointToPoint::has_unsettled() {
    return has_remote() && !fabric_->is_settled() && !fabric_->control().failed();
}

// Makes progress until `done`, releasing the mutex between the rounds. until: the latest time for
// the next check of `done`.
template <class Done>
void PointToPoint::drive(Lock& lock, const Done& done, Clock::time_point until) {
    // Calls of other threads ring.
    const Rest::Sleep none;
    Rest rest(bell(), fabric_->control().crowd(), has_remote(), none);
    Clock::time_point began;
    unsigned rounds = 0;
    ++drivers_;
    while (!done()) {
        const bool moved = matching_.advance();
        if (moved) {
            rest.reset();
            if (drivers_ > 1) bell().ring();  // operations of other callers may have ended
        }
        end_tickets(lock);
        if (done()) break;
        lock.unlock();
        const bool is_late = !moved && !rest.pause();
        if (is_late) {
            const auto now = Clock::now();
            if (rest.is_first_wait()) began = now;
            rest.wait(now - began >= kQuiet, std::min<Clock::duration>(until - now, kLookInterval));
        }
        while (waiting_.load(std::memory_order_relaxed) > 0) sched_yield();
        lock.lock();
        if (is_late || ++rounds % kRoundsBeforeLook == 0) look(lock);
    }
    --drivers_;
}

// A caller leaves: a driver, or else the thread, takes over the rest.
void PointToPoint::hand_over(Lock& lock) {
    end_tickets(lock);
    for (int i = 0; i < kRoundsToSettle && has_unsettled(); ++i) fabric_->progress();
    if (needs_thread() && (is_asleep_ || is_urgent())) wake_.notify_one();
    if (drivers_ > 0) bell().ring();
}

// Ends the tickets of finished operations; their callbacks may call this object.
void PointToPoint::end_tickets(Lock& lock) {
    if (matching_.finished.empty()) return;
    OperationList finished = std::exchange(matching_.finished, {});
    for (auto* operation = finished.first(); operation; operation = operation->next) {
        --asynchronous_;
        large_ -= is_large(*operation);
    }
    lock.unlock();
    while (!finished.empty()) {
        const std::unique_ptr<Operation> operation(finished.first());
        finished.remove(*operation);
        operation->ticket->end(std::move(operation->outcome));
    }
    lock.lock();
}

// The checks that cost more than a round: interrupts, ranks that are gone, expired operations.
void PointToPoint::look(Lock& lock) {
    const auto now = Clock::now();
    if (now - looked_ < kLookInterval) return;
    looked_ = now;
    lock.unlock();
    auto& control = fabric_->control();
    control.fail_if_interrupted();
    std::vector<Failure> gone(static_cast<std::size_t>(control.ranks()), Failure::kNone);
    for (std::int32_t r = 0; r < control.ranks(); ++r) {
        if (r == control.rank()) continue;
        const bool is_dead = control.is_dead && control.is_dead(r);
        auto& how = gone[static_cast<std::size_t>(r)];
        if (is_dead) how = Failure::kDied;
        if (control.has_left(r)) how = Failure::kLeft;
    }
    lock.lock();
    matching_.look(gone, now);
}

}  // namespace sley
