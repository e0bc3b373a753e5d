// The control block that all ranks of a job share: who failed first, who has arrived at the
// barrier, and each rank's heartbeat; and `Patience`, which says how a rank waits.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "fifo.hpp"

namespace sley {

enum class Failure : std::int32_t { kNone = 0, kStalled = 1, kDied = 2 };

// One line a rank. `beat` counts the rounds in which the rank moved something: a rank that waits
// looks at the others' beats, since a plan in which anybody moves is slow but not stuck.
struct RankState {
    alignas(kCacheLine) std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> beat;
};

// Zeroed memory is a valid, unused control block; the ranks' states follow it.
struct ControlBlock {
    alignas(kCacheLine) std::atomic<std::uint64_t> failure;  // 0, or kind << 32 | rank
};

class Control {
public:
    Control(ControlBlock* block, RankState* states, std::int32_t ranks)
        : block_(block), states_(states), ranks_(ranks) {}

    std::int32_t ranks() const { return ranks_; }

    // Records a failure; only the first one stays, for it is the cause of the others.
    void fail(Failure kind, std::int32_t rank) {
        std::uint64_t none = 0;
        const auto value = static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(rank);
        block_->failure.compare_exchange_strong(none, value, std::memory_order_acq_rel);
    }

    bool failed() const { return block_->failure.load(std::memory_order_acquire) != 0; }

    Failure failure_kind() const {
        return static_cast<Failure>(block_->failure.load(std::memory_order_acquire) >> 32);
    }

    std::int32_t failure_rank() const {
        return static_cast<std::int32_t>(block_->failure.load(std::memory_order_acquire));
    }

    void beat(std::int32_t rank) {
        auto& beat = states_[rank].beat;
        beat.store(beat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    std::uint64_t beats() const {
        std::uint64_t sum = 0;
        for (std::int32_t r = 0; r < ranks_; ++r) {
            sum += states_[r].beat.load(std::memory_order_relaxed);
        }
        return sum;
    }

    std::uint64_t arrive(std::int32_t rank) {
        return states_[rank].arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
    }

    // The first rank that has not arrived `epoch` times, or -1.
    std::int32_t absent(std::uint64_t epoch) const {
        for (std::int32_t r = 0; r < ranks_; ++r) {
            if (states_[r].arrived.load(std::memory_order_acquire) < epoch) return r;
        }
        return -1;
    }

private:
    ControlBlock* block_;
    RankState* states_;
    std::int32_t ranks_;
};

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How a rank waits when nothing of its own can move. Ranks usually outnumber cores, and the rank
// that is waited for may need this very core: so at most kPauses pause instructions, then
// sched_yield. Gives up when somebody failed, or when no rank has moved for `timeout_s`.
class Patience {
public:
    enum class Verdict { kWait, kAborted, kTimedOut };

    Patience(const Control& control, double timeout_s)
        : control_(control),
          timeout_(std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(timeout_s))) {}

    void moved() { rounds_ = 0; }

    Verdict wait() {
        if (++rounds_ <= kPauses) {
            pause_cpu();
            return Verdict::kWait;
        }
        if (control_.failed()) return Verdict::kAborted;
        const auto now = Clock::now();
        if (rounds_ == kPauses + 1) {
            beats_ = control_.beats();
            since_ = sampled_ = now;
        } else if (now - sampled_ >= timeout_ / kSamples) {
            sampled_ = now;
            const auto beats = control_.beats();
            if (beats != beats_) since_ = now;
            beats_ = beats;
            if (now - since_ >= timeout_) return Verdict::kTimedOut;
        }
        sched_yield();
        return Verdict::kWait;
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr int kPauses = 100;
    static constexpr int kSamples = 8;  // looks at the others' beats per timeout

    const Control& control_;
    Clock::duration timeout_;
    std::int64_t rounds_ = 0;
    std::uint64_t beats_ = 0;
    Clock::time_point since_, sampled_;
};

}  // namespace sley
