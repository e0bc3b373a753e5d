// Whether a rank that waits had better leave its core to another rank.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace sley {

// Cores that this process may use.
inline int cores() {
    static const int number = [] {
#ifdef __linux__
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
        return static_cast<int>(std::thread::hardware_concurrency());
    }();
    return number;
}

// Whether this thread works beside one of the caller's, which may need the core.
inline thread_local bool is_beside_caller = false;

// The core that a rank was on when it last looked, plus one; 0: none yet, or a rank of another host.
using CoreOfRank = std::atomic<std::uint64_t>;

// The cores of a host's ranks, as one of them sees them. It costs a few reads of memory.
class Crowd {
public:
    // own: that of this rank, one of `all`.
    Crowd(CoreOfRank& own, std::vector<const CoreOfRank*> all) : own_(own), all_(std::move(all)) {}

    // Tells the others on which core this thread is.
    void show() {
        const auto core = this_core();
        if (own_.load(std::memory_order_relaxed) != core) {
            own_.store(core, std::memory_order_relaxed);
        }
    }

    // Whether a thread of the caller's may need this core, or another rank: one was on it, or ranks
    // outnumber cores.
    bool look() {
        show();
        if (is_beside_caller) return true;
        const auto core = own_.load(std::memory_order_relaxed);
        int ranks = 0, here = 0;
        for (const auto* one : all_) {
            const auto other = one->load(std::memory_order_relaxed);
            ranks += other != 0;
            here += other == core;
        }
        return ranks > cores() || here > 1;
    }

private:
    static std::uint64_t this_core() {
#ifdef __linux__
        const int core = sched_getcpu();
        if (core >= 0) return static_cast<std::uint64_t>(core) + 1;
#endif
        // Unknown: of its own, so that only the number of ranks counts.
        return static_cast<std::uint64_t>(1) << 32 |
               (std::hash<std::thread::id>()(std::this_thread::get_id()) & 0xffffffff);
    }

    CoreOfRank& own_;
    std::vector<const CoreOfRank*> all_;
};

}  // namespace sley
