// The platform layer for CPUs: a thread block is one thread; counters and flagged words are atomics.
// All other memory is plain, so that the thread sanitizer sees whether the counters order it.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "half.hpp"

#define SLEY_FUNCTION static
#define SLEY_INLINE static inline
#define SLEY_METHOD
#define SLEY_SHARED static thread_local
#define SLEY_TABLE static const
#define SLEY_LARGE_TABLE static const
#define SLEY_UNROLL
#define SLEY_ROLLED

// A kernel runs its blocks as threads, and returns their number when all have ended. If one can't
// start, those before it give up.
#define SLEY_KERNEL(name) SLEY_KERNEL_OF(name, Call)
#define SLEY_KERNEL_OF(name, Argument)                                               \
    static void name##_block(const sley::layout::Argument& call);                    \
    static void name##_thread(const void* call) {                                    \
        name##_block(*static_cast<const sley::layout::Argument*>(call));             \
    }                                                                                \
    extern "C" int name(const sley::layout::Argument* call, int blocks) {            \
        return sley::run_team(name##_thread, call, call->setup.abort, blocks);       \
    }                                                                                \
    static void name##_block(const sley::layout::Argument& call)

namespace sley {

using std::memcpy;

using i32 = std::int32_t;
using i64 = long long;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;

constexpr int kWarp = 1;

template <class T>
SLEY_INLINE T product(T a, T b) { return a * b; }  // compiled without contraction
SLEY_INLINE u64 high_product(u64 a, u64 b) {
    return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64);
}

// For the test that the thread sanitizer notices a lost release: its kernels can publish without.
#ifdef SLEY_RELEASE_MAY_BREAK
static const std::memory_order kPublish =
    std::getenv("SLEY_BREAK_RELEASE") ? std::memory_order_relaxed : std::memory_order_release;
#else
constexpr std::memory_order kPublish = std::memory_order_release;
#endif

SLEY_INLINE int thread() { return 0; }
SLEY_INLINE int threads() { return 1; }
SLEY_INLINE int workers() { return 1; }

struct Current {
    int block, blocks;
};
static thread_local Current current;
SLEY_INLINE int block_index() { return current.block; }
SLEY_INLINE int blocks() { return current.blocks; }
// Whether the block has had a fence since its last barrier. A GPU orders what is published only
// after one, so here too what is published without is relaxed, which the thread sanitizer notices.
static thread_local bool is_fenced;
// Whether it has stored through a switch since its last fence of aliases: what it publishes then
// orders nothing, whatever fences it has had.
static thread_local bool is_aliased;
SLEY_INLINE void fence() { is_fenced = true; }
SLEY_INLINE void fence_aliases() { is_aliased = false; }
SLEY_INLINE void barrier() { is_fenced = false; }
SLEY_INLINE bool any_thread(bool flag) {
    barrier();
    return flag;
}
SLEY_INLINE bool any_worker(bool flag) { return any_thread(flag); }
SLEY_INLINE void sync_warp() {}
SLEY_INLINE bool any_lane(bool flag) { return flag; }
SLEY_INLINE bool claim(u32* taken) { return (*taken)++ == 0; }
SLEY_INLINE void pause() { sched_yield(); }
constexpr u32 kSpins = 64;  // polls between reads of the clock: beside others a yield takes long

SLEY_INLINE u64 now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<u64>(now.tv_sec) * 1000000000 + static_cast<u64>(now.tv_nsec);
}

SLEY_INLINE u64 cycles() { return now_ns(); }

SLEY_INLINE std::atomic<u64>& atomic(const u64* word) {
    return *reinterpret_cast<std::atomic<u64>*>(const_cast<u64*>(word));
}
SLEY_INLINE u64 peek(const u64* counter) {
    return atomic(counter).load(std::memory_order_relaxed);
}
SLEY_INLINE u64 acquire(const u64* counter) {
    return atomic(counter).load(std::memory_order_acquire);
}
SLEY_INLINE void publish(u64* counter, u64 value) {
    const bool orders = is_fenced && !is_aliased;
    atomic(counter).store(value, orders ? kPublish : std::memory_order_relaxed);
}
// In C++, that values are in registers orders nothing: only a release does.
SLEY_INLINE void publish_read(u64* counter, u64 value) { atomic(counter).store(value, kPublish); }
SLEY_INLINE u64 peek_host(const u64* word) { return acquire(word); }
SLEY_INLINE void publish_host(u64* word, u64 value) {
    atomic(word).store(value, std::memory_order_release);
}

// The threads of a kernel. Not std::thread in a std::vector, whose instances are half of what a
// compiler makes of a kernel without optimisation.
struct Thread {
    void (*run)(const void*);
    const void* call;
    Current place;
    pthread_t handle;
};
static void* run_thread(void* argument) {
    const Thread& thread = *static_cast<Thread*>(argument);
    current = thread.place;
    thread.run(thread.call);
    return nullptr;
}
static int run_team(void (*run)(const void*), const void* call, u64* abort, int blocks) {
    Thread* team = static_cast<Thread*>(std::calloc(blocks, sizeof(Thread)));
    int started = 0;
    for (; team && started < blocks; ++started) {
        team[started] = {run, call, {started, blocks}, {}};
        if (pthread_create(&team[started].handle, nullptr, run_thread, &team[started])) break;
    }
    if (started < blocks) publish_host(abort, 1);
    for (int k = 0; k < started; ++k) pthread_join(team[k].handle, nullptr);
    std::free(team);
    return started;
}

SLEY_INLINE u64 load_word(const u64* at) { return *at; }

struct Vector {
    u32 word[4];
};
SLEY_INLINE Vector load_vector(const char* at) {
    Vector v;
    std::memcpy(&v, at, sizeof v);
    return v;
}
SLEY_INLINE void store_vector(char* at, Vector v) { std::memcpy(at, &v, sizeof v); }
// A vector at any address: no bytes around it, which other blocks may write.
SLEY_INLINE void load_around(Vector* first, Vector*, const char* at) { *first = load_vector(at); }
SLEY_INLINE Vector joined(Vector first, Vector, const char*) { return first; }

// What a switch does, on CPUs: `switched` is a table, the number of a team's memories and the
// addresses of their slots.
SLEY_INLINE void store_switched(const char* switched, i64 at, Vector v) {
    const u64* table = reinterpret_cast<const u64*>(switched);
    for (u64 k = 1; k <= table[0]; ++k) store_vector(reinterpret_cast<char*>(table[k]) + at, v);
    is_aliased = true;
}
template <class Combine>
SLEY_INLINE Vector load_switched(const char* switched, i64 at, Combine combine) {
    const u64* table = reinterpret_cast<const u64*>(switched);
    Vector v = {};
    for (u64 k = 1; k <= table[0]; ++k) {
        v = combine(v, load_vector(reinterpret_cast<const char*>(table[k]) + at));
    }
    return v;
}

struct Pair {
    u64 first, second;
};
SLEY_INLINE Pair load_pair(const u64* at) { return {peek(at), peek(at + 1)}; }
SLEY_INLINE void store_pair(u64* at, Pair p) {
    atomic(at).store(p.first, std::memory_order_relaxed);
    atomic(at + 1).store(p.second, std::memory_order_relaxed);
}

// The parts of a line are stored one after the other, its flag last.
SLEY_INLINE bool load_of_line(const u64* line, int part, u64 flag, Pair* pair) {
    if (acquire(line + 15) != flag) return false;
    pair->first = line[2 * part];
    pair->second = part == 7 ? flag : line[2 * part + 1];
    return true;
}
SLEY_INLINE void store_of_line(u64* line, int part, Pair pair) {
    line[2 * part] = pair.first;
    if (part < 7) {
        line[2 * part + 1] = pair.second;
    } else {
        atomic(line + 15).store(pair.second, kPublish);
    }
}

}  // namespace sley
