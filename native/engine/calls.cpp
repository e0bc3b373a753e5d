// The loop of a call, and the queue of calls.
#include "engine/calls.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "engine/floating_point.hpp"

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

// Waits for other ranks, maybe only briefly; the call's status if it must end, `late` if it does
// because no rank moves.
std::optional<Status> wait(Patience& patience, Status late) {
    switch (patience.wait()) {
        case Patience::Verdict::kWait: return {};
        case Patience::Verdict::kAborted: return Status::kAborted;
        case Patience::Verdict::kTimedOut: break;
    }
    patience.fail();
    return late;
}

Status meet_all(Control& control, Fabric& fabric, Patience& patience, Outcome& outcome) {
    const auto epoch = control.arrive();
    for (;;) {
        outcome.rank = control.find_absent(epoch);
        if (outcome.rank < 0) return Status::kDone;
        fabric.progress();
        if (const auto end = wait(patience, Status::kAbsent)) return *end;
    }
}

// Waits for the records of all ranks: kDone if all make the call with equal counts, kVarying if one
// makes it with varying ones. No rank can end that before all have begun it, so a rank at a later
// call has made this one with equal counts. Running the call detects other differences of records.
Status meet_records(Control& control, Fabric& fabric, Patience& patience,
                    const CallRecord& record) {
    for (std::int32_t r = 0; r < control.ranks(); ++r) {
        for (;;) {
            const auto other = control.call_of(r);
            if (other.sequence == record.sequence && record.allows(other)) return Status::kVarying;
            if (other.sequence >= record.sequence) break;
            if (fabric.progress()) {
                patience.reset();
                continue;
            }
            if (const auto end = wait(patience, Status::kStalled)) return *end;
        }
    }
    return Status::kDone;
}

Status run_once(Engine& engine, Patience& patience) {
    Fabric& fabric = engine.fabric();
    Control& control = fabric.control();
    patience.reset();
    for (;;) {
        const bool moved = engine.advance();
        if (engine.is_done() && fabric.is_settled()) {
            // A rank that has given up may have overwritten data while this one read them.
            std::atomic_thread_fence(std::memory_order_acquire);
            const bool is_torn = engine.execution().has_pulled() && control.failed();
            return is_torn ? Status::kAborted : Status::kDone;
        }
        const auto mismatched = engine.execution().mismatched_rank();
        if (mismatched >= 0) {
            control.fail(Failure::kMismatched, mismatched);
            return Status::kMismatched;
        }
        if (engine.execution().misfit().cell >= 0) {
            control.fail(Failure::kMisfit, control.rank());
            return Status::kMisfit;
        }
        if (engine.execution().has_failed()) return Status::kAborted;
        const bool carried = fabric.progress();
        if (moved) control.beat();
        if (moved || carried) {
            patience.reset();
            continue;
        }
        if (const auto end = wait(patience, Status::kStalled)) return *end;
    }
}

}  // namespace

Outcome run_call(Engine& engine, const Call& call, std::int64_t iterations, double timeout_s,
                 bool meet) {
    Fabric& fabric = engine.fabric();
    Control& control = fabric.control();
    Outcome outcome;
    if (call.record.varying != 0) {
        control.enter(call.record);
        Patience patience(control, timeout_s, call.record);
        outcome.status = meet_records(control, fabric, patience, call.record);
        if (outcome.status != Status::kDone) {
            fabric.progress();  // tells other hosts
            return outcome;
        }
    }
    try {
        engine.begin(call);
    } catch (const std::exception&) {  // of vectors: no memory, or too long
        control.fail(Failure::kNoMemory, control.rank());
        outcome.status = Status::kNoMemory;
        return outcome;
    }
    control.enter(call.record);
    Patience patience(control, timeout_s, call.record);
    if (meet) outcome.status = meet_all(control, fabric, patience, outcome);
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < iterations && outcome.status == Status::kDone; ++i) {
        if (i > 0) engine.begin_again();  // needs no more memory
        outcome.status = control.failed() ? Status::kAborted : run_once(engine, patience);
    }
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (outcome.status == Status::kDone) {
        control.leave(call.record);
        engine.count(iterations, outcome.seconds);
    }
    if (outcome.status == Status::kStalled || outcome.status == Status::kAborted) {
        outcome.stuck = engine.find_stuck();
    }
    if (outcome.status == Status::kMismatched) outcome.rank = engine.execution().mismatched_rank();
    if (outcome.status == Status::kMisfit) {
        const auto misfit = engine.execution().misfit();
        outcome.rank = misfit.cell;
        outcome.bytes = misfit.length;
    }
    // Who failed may not have told all yet. They must know before the caller has memory back that they
    // still pull from.
    if (outcome.status == Status::kAborted) {
        control.fail(control.failure_kind(), control.failure_rank());
    }
    if (outcome.status != Status::kDone) fabric.progress();  // tells other hosts
    return outcome;
}

void Calls::close() {
    bool is_at_work;
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
        is_at_work = asked_ != ended_;
    }
    auto& control = fabric_->control();
    // Ranks that still read this one's memory must know before it is the caller's again.
    if (is_at_work) {
        control.fail(Failure::kLeft, fabric_->rank());
    } else {
        control.fail_here(Failure::kLeft, fabric_->rank());
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Outcome Calls::run(const Runner& runner, const Call& call, double timeout_s,
                   std::int64_t iterations, bool meet) {
    runner.check(call);
    {
        std::unique_lock lock(mutex_);
        const auto turn = ++asked_;
        const auto is_next = [&] { return ended_ + 1 == turn; };
        while (!changed_.wait_for(lock, kLookInterval, is_next)) {
            lock.unlock();
            fabric_->control().fail_if_interrupted();
            lock.lock();
        }
    }
    auto outcome = run_in_turn(runner, call, timeout_s, iterations, meet);
    end_turn();
    return outcome;
}

std::shared_ptr<Ticket> Calls::submit(const Runner& runner, const Call& call, double timeout_s) {
    runner.check(call);
    auto ticket = std::make_shared<Ticket>();
    bool can_run = false;
    {
        const std::lock_guard lock(mutex_);
        can_run = start();
        if (can_run) tasks_.push_back({++asked_, runner, call, timeout_s, ticket});
    }
    if (can_run) {
        changed_.notify_all();
    } else {
        fabric_->control().fail(Failure::kNoThread, fabric_->rank());
        Outcome outcome;
        outcome.status = Status::kAborted;
        ticket->end(std::move(outcome));
    }
    return ticket;
}

Outcome Calls::run_in_turn(const Runner& runner, Call call, double timeout_s,
                           std::int64_t iterations, bool meet) {
    const PlainFloatingPoint floating_point;
    Outcome outcome;
    call.record = runner.record_of(call);
    if (runner.choice) {
        outcome = run_choice(*runner.choice, call, timeout_s, iterations);
    } else {
        call.record.sequence = ++number_;
        outcome = run_call(*runner.own.engine, call, iterations, timeout_s, meet);
    }
    if (outcome.status != Status::kVarying) return outcome;
    auto& varying = *runner.varying.engine;
    call = varying_call(varying.equal_parts(call), call.type);
    call.record = {number_, runner.varying.what, kVaryingCount};  // the same call's
    outcome = run_call(varying, call, iterations, timeout_s, false);
    outcome.varied = true;
    return outcome;
}

Outcome Calls::run_choice(Choice& choice, Call call, double timeout_s, std::int64_t iterations) {
    Outcome outcome;
    double seconds = 0;
    while (iterations > 0) {
        const auto& option = choice.next();
        // After an agreement that failed, nothing is left; the next call ends with the cause.
        const auto count = std::min(iterations, std::max<std::int64_t>(choice.left(), 1));
        call.record.sequence = ++number_;
        call.record.what = option.what;
        outcome = run_call(*option.engine, call, count, timeout_s, false);
        if (outcome.status != Status::kDone) return outcome;
        iterations -= count;
        seconds += outcome.seconds;
        if (choice.note(count, outcome.seconds)) agree(choice, timeout_s);
    }
    outcome.seconds = seconds;
    return outcome;
}

// If this fails, so do all further calls, with the cause; the one that has ended has not failed.
void Calls::agree(Choice& choice, double timeout_s) {
    auto call = choice.sum_call();
    call.record.sequence = ++number_;
    call.record.what = choice.sum().what;
    call.record.count = static_cast<std::uint64_t>(call.count);
    const auto outcome = run_call(*choice.sum().engine, call, 1, timeout_s, false);
    if (outcome.status != Status::kDone) return;
    try {
        choice.decide();
    } catch (const Choice::Interrupted&) {  // as a call that ends by a signal
        fabric_->control().fail(Failure::kGaveUp, fabric_->rank());
    }
}

bool Calls::start() {
    if (thread_.joinable()) return true;
    try {
        thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {
        return false;
    }
    return true;
}

void Calls::end_turn() {
    bool is_awaited;
    {
        const std::lock_guard lock(mutex_);
        ++ended_;
        is_awaited = asked_ != ended_ || is_closing_;
    }
    if (is_awaited) changed_.notify_all();
}

// Calls still in the queue when the communicator closes run too, and abort at once.
void Calls::serve() {
    is_beside_caller = true;
    for (;;) {
        Task task;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] {
                if (tasks_.empty()) return is_closing_;
                return tasks_.front().turn == ended_ + 1;
            });
            if (tasks_.empty()) return;
            task = std::move(tasks_.front());
            tasks_.pop_front();
        }
        finish(task);
    }
}

void Calls::run_up_to(const Ticket& last) {
    while (auto task = take_next(last)) finish(*task);
}

// The next call, if it is this one or before it, and its turn has come.
std::optional<Calls::Task> Calls::take_next(const Ticket& last) {
    const std::lock_guard lock(mutex_);
    const auto is_last = [&](const Task& task) { return task.ticket.get() == &last; };
    if (std::none_of(tasks_.begin(), tasks_.end(), is_last)) return {};
    if (tasks_.front().turn != ended_ + 1) return {};
    std::optional<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
}

// In its turn, runs a submitted call to its end.
void Calls::finish(Task& task) {
    auto outcome = run_in_turn(task.runner, task.call, task.timeout_s);
    end_turn();
    const auto* before = std::exchange(ending, this);
    task.ticket->end(std::move(outcome));
    ending = before;
}

}  // namespace sley
