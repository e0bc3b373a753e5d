// The outcome of a call, and the ticket of one that runs in another thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sley {

enum class Reason : std::int32_t { kNone, kInstruction, kMessage, kSlot, kReading };

// A block that is stuck: its position, and what it waits for (an instruction of the rank, or a
// connection of the plan). instruction: -1 for a rank that waits until its messages have been read.
struct Stuck {
    std::int32_t instruction;
    std::int64_t tile;
    Reason reason;
    std::int32_t target;
};

// kAborted: another rank failed, or this one in another call; `Control` has the failure.
// kVarying: no failure, but another rank makes the call with varying counts. kMisfit: a chunk came to
// a place of another count.
enum class Status : std::int32_t {
    kDone, kStalled, kAborted, kAbsent, kMismatched, kNoMemory, kVarying, kMisfit
};

struct Outcome {
    Status status = Status::kDone;
    double seconds = 0.0;
    // kAbsent: the absent rank; kMismatched: the one with another call; kMisfit: not a rank, but the
    // output's chunk.
    std::int32_t rank = -1;
    std::int64_t bytes = 0;  // of a receive: the message's size; kMisfit: elements of what came
    std::vector<Stuck> stuck;
    bool varied = false;  // whether it ran with varying counts instead
};

// The end of a call that runs in another thread.
class Ticket {
public:
    bool is_done() const {
        const std::lock_guard lock(mutex_);
        return done_;
    }

    // Waits for at most `timeout_s`; returns whether the call has ended.
    bool wait(double timeout_s) {
        std::unique_lock lock(mutex_);
        return ended_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                               [this] { return done_; });
    }

    // Only after the end.
    const Outcome& outcome() const { return outcome_; }

    // Calls `then` at the end, in the thread that ends the call; at once if it has ended.
    void on_done(std::function<void()> then) {
        {
            const std::lock_guard lock(mutex_);
            if (!done_) {
                then_.push_back(std::move(then));
                return;
            }
        }
        then();
    }

    // Keeps an object until the call has ended. It is gone before anybody can see the end, so who
    // has seen it may use the object's memory for other things.
    void keep(std::shared_ptr<void> object) {
        const std::lock_guard lock(mutex_);
        if (!done_) kept_.push_back(std::move(object));
    }

    void end(Outcome outcome) {
        std::vector<std::function<void()>> then;
        {
            std::unique_lock lock(mutex_);
            while (!kept_.empty()) {  // another thread may keep one more meanwhile
                auto kept = std::exchange(kept_, {});
                lock.unlock();
                kept.clear();
                lock.lock();
            }
            outcome_ = std::move(outcome);
            done_ = true;
            then.swap(then_);
        }
        ended_.notify_all();
        for (const auto& call : then) call();
    }

private:
    mutable std::mutex mutex_;
    std::condition_variable ended_;
    bool done_ = false;
    Outcome outcome_;
    std::vector<std::shared_ptr<void>> kept_;
    std::vector<std::function<void()>> then_;
};

}  // namespace sley
