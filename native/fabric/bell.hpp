// How a thread waits for other ranks: it first spins for a short time, then sleeps until one rings.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

#include "fabric/crowd.hpp"

namespace sley {

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Duration>
Duration to_duration(double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The bell of a rank, in memory that all ranks of its host see: its threads sleep on it, and a
// thread that has written something for the rank rings it. Its memory starts zeroed.
class Bell {
public:
    // Wakes the rank's threads; if none sleeps, it only reads a cache line.
    void ring() {
        if (sleepers_.load(std::memory_order_relaxed) != 0) wake();
    }

    // A thread is about to sleep, until `leave`. A simultaneous `ring` may miss it, since `ring`
    // has no fence between the news and its read of `sleepers_`. So the thread must go on polling
    // for longer than a store takes to become visible, and must not sleep for ever.
    void enter() { sleepers_.fetch_add(1, std::memory_order_seq_cst); }
    void leave() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }
    std::uint32_t rings() const { return rings_.load(std::memory_order_acquire); }

    // Sleeps until the bell rings, unless it has rung since `rings` was read; at most for `most`.
    void sleep(std::uint32_t rings, std::chrono::nanoseconds most) {
#ifdef __linux__
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
        timespec time{};
        time.tv_sec = static_cast<std::time_t>(seconds.count());
        time.tv_nsec = static_cast<long>((most - seconds).count());
        syscall(SYS_futex, word(), FUTEX_WAIT, rings, &time, nullptr, 0);
#else
        constexpr std::chrono::nanoseconds kNap = std::chrono::microseconds(50);
        if (rings_.load(std::memory_order_acquire) == rings) {
            std::this_thread::sleep_for(std::min(most, kNap));
        }
#endif
    }

private:
    void wake() {
        rings_.fetch_add(1, std::memory_order_release);
#ifdef __linux__
        syscall(SYS_futex, word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
    }

    std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(&rings_); }

    std::atomic<std::uint32_t> sleepers_;
    std::atomic<std::uint32_t> rings_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t),
              "the kernel compares the word that threads sleep on");

// One thread's wait, round by round: first pause instructions, then, if another rank may need the
// core, sched_yield, and at last sleep. Where no rank needs the core, to yield would give it to
// another program, for milliseconds.
class Rest {
public:
    using Clock = std::chrono::steady_clock;

    // Sleeps at most for a time.
    using Sleep = std::function<void(std::chrono::nanoseconds most)>;

    // polls: whether news can come without a ring, from other hosts. doze: if it has a function,
    // that one sleeps until they come.
    Rest(Bell& bell, Crowd& crowd, bool polls, const Sleep& doze)
        : bell_(bell), crowd_(crowd), polls_(polls), doze_(doze) {}
    Rest(const Rest&) = delete;
    Rest& operator=(const Rest&) = delete;
    ~Rest() { reset(); }

    // The thread has found something to do.
    void reset() {
        rounds_ = 0;
        is_crowded_ = is_waiting_ = false;
        if (is_entered_) leave();
    }

    // One of the first rounds; false if they are over.
    bool pause() {
        ++rounds_;
        if (rounds_ == kFewPauses) is_crowded_ = crowd_.look();
        if (rounds_ > (is_crowded_ ? kFewPauses : kPauses)) return false;
        pause_cpu();
        return true;
    }

    // A later round. is_quiet: whether to sleep, at most for `most`.
    void wait(bool is_quiet, std::chrono::nanoseconds most) {
        is_waiting_ = true;
        if (!is_quiet) {
            if (is_entered_) leave();
            is_crowded_ = crowd_.look();
            is_crowded_ ? static_cast<void>(sched_yield()) : pause_cpu();
        } else if (!is_entered_) {
            bell_.enter();
            is_entered_ = true;
            checks_ = 0;
            rings_ = bell_.rings();
            entered_ = Clock::now();
        } else if (++checks_ <= kChecks) {
            pause_cpu();
        } else {
            if (doze_) {
                doze_(most);
            } else {
                bell_.sleep(rings_, polls_ ? std::min(most, nap()) : most);
            }
            rings_ = bell_.rings();
        }
    }

    // Whether no later round has been since the last reset.
    bool is_first_wait() const { return !is_waiting_; }

private:
    static constexpr int kPauses = 100, kFewPauses = 4;
    static constexpr int kChecks = 32;  // some microseconds

    void leave() {
        is_entered_ = false;
        bell_.leave();
    }

    // The limit of a sleep grows with the wait: an eighth of it, within bounds.
    std::chrono::nanoseconds nap() const {
        constexpr std::chrono::nanoseconds kLeast = std::chrono::microseconds(50);
        constexpr std::chrono::nanoseconds kMost = std::chrono::milliseconds(1);
        const std::chrono::nanoseconds slept = Clock::now() - entered_;
        return std::clamp(slept / 8, kLeast, kMost);
    }

    Bell& bell_;
    Crowd& crowd_;
    bool polls_;
    const Sleep& doze_;
    std::int64_t rounds_ = 0;
    bool is_crowded_ = false, is_waiting_ = false;
    bool is_entered_ = false;
    int checks_ = 0;
    std::uint32_t rings_ = 0;
    Clock::time_point entered_;
};

}  // namespace sley
