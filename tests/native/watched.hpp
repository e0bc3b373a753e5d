// Atomics that show their accesses: what is compiled behind this header has them as std::atomic, with a
// clock and the kernel's futexes under control. So the sources run as they are, as coroutines in one
// thread, and every access to a watched word is a place where another coroutine may go on.
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <linux/futex.h>

namespace sley::watched {

enum class Access { kLoad, kStore, kAdd, kSubtract, kExchange, kSleep, kWake };

// The test decides who goes on: before each access, and after it has happened.
void before(const void* word);
void after(const void* word, Access access, std::uint64_t value, std::memory_order order);
// Until the word is woken.
void sleep_on(const void* word);

inline std::chrono::nanoseconds now{0};

inline int yield() { return 0; }

template <class... Rest>
long system_call(long number, Rest... rest) {
    if (number != SYS_futex) return ::syscall(number, rest...);
    const auto futex = [](std::uint32_t* word, int op, std::uint32_t value, auto...) -> long {
        before(word);
        if (op == FUTEX_WAIT) {
            after(word, Access::kSleep, value, std::memory_order_relaxed);
            if (*word == value) sleep_on(word);
        } else {
            after(word, Access::kWake, value, std::memory_order_relaxed);
        }
        return 0;
    };
    return futex(rest...);
}

}  // namespace sley::watched

namespace std {

template <class T>
class watched_atomic {
public:
    static constexpr bool is_always_lock_free = true;

    watched_atomic() = default;
    watched_atomic(T value) : value_(value) {}
    operator T() const { return load(); }
    T operator=(T value) {
        store(value);
        return value;
    }

    T load(memory_order order = memory_order_seq_cst) const {
        sley::watched::before(this);
        return shown(sley::watched::Access::kLoad, value_, order);
    }
    void store(T value, memory_order order = memory_order_seq_cst) {
        sley::watched::before(this);
        value_ = shown(sley::watched::Access::kStore, value, order);
    }
    T fetch_add(T more, memory_order order = memory_order_seq_cst) {
        sley::watched::before(this);
        return changed<sley::watched::Access::kAdd>(value_ + more, order);
    }
    T fetch_sub(T less, memory_order order = memory_order_seq_cst) {
        sley::watched::before(this);
        return changed<sley::watched::Access::kSubtract>(value_ - less, order);
    }
    bool compare_exchange_strong(T& expected, T value, memory_order order) {
        sley::watched::before(this);
        shown(sley::watched::Access::kExchange, value, order);
        const bool is_expected = value_ == expected;
        (is_expected ? value_ : expected) = is_expected ? value : value_;
        return is_expected;
    }

private:
    template <sley::watched::Access access>
    T changed(T value, memory_order order) {
        return exchange(value_, shown(access, value, order));
    }
    T shown(sley::watched::Access access, T value, memory_order order) const {
        if constexpr (is_integral_v<T>) {
            sley::watched::after(this, access, static_cast<uint64_t>(value), order);
        }
        return value;
    }

    T value_{};
};

namespace chrono {
struct watched_clock {
    using duration = nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = chrono::time_point<steady_clock, duration>;
    static time_point now() { return time_point(sley::watched::now += microseconds(20)); }
};
}  // namespace chrono
}  // namespace std

#define atomic watched_atomic
#define steady_clock watched_clock
#define sched_yield sley::watched::yield
#define syscall sley::watched::system_call
