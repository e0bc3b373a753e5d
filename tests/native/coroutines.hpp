// Coroutines, of which one at a time makes a step, in a random order.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace sley::coroutines {

struct Routine {
    std::function<void()> body;
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 18);
    bool has_ended = false;
    const void* sleeps_on = nullptr;
};

constexpr int kMostSteps = 1 << 17;

inline std::vector<Routine> routines;
inline std::size_t current;
inline ucontext_t scheduler;

// Ends a step of this coroutine.
inline void give_way() { swapcontext(&routines[current].context, &scheduler); }

inline void sleep(const void* word) {
    routines[current].sleeps_on = word;
    give_way();
}

inline void wake(const void* word) {
    for (auto& routine : routines) {
        if (routine.sleeps_on == word) routine.sleeps_on = nullptr;
    }
}

inline void start() {
    routines[current].body();
    routines[current].has_ended = true;
    give_way();
}

// Runs all coroutines, the last one only from step `late` on, or never. limited: sleeps end where
// nobody can go on. Returns whether all others have ended.
inline bool run(std::mt19937& random, int late, bool limited) {
    const auto last = routines.size() - 1;
    for (auto& routine : routines) {
        getcontext(&routine.context);
        routine.context.uc_stack.ss_sp = routine.stack.data();
        routine.context.uc_stack.ss_size = routine.stack.size();
        makecontext(&routine.context, start, 0);
    }
    for (int step = 1; step < kMostSteps; ++step) {
        std::vector<std::size_t> able;
        bool any_sleeps = false;
        for (std::size_t r = 0; r < routines.size(); ++r) {
            const bool waits = r == last && (late == 0 || step < late);
            any_sleeps |= routines[r].sleeps_on != nullptr;
            if (!waits && !routines[r].has_ended && !routines[r].sleeps_on) able.push_back(r);
        }
        if (able.empty() && any_sleeps && limited) {  // time passes
            for (auto& routine : routines) routine.sleeps_on = nullptr;
            continue;
        }
        if (able.empty()) break;
        // Some go on for long, others hardly: so they also fall behind by calls.
        const auto next = random() % 8 == 0 ? able[random() % able.size()] : current;
        current = std::find(able.begin(), able.end(), next) == able.end() ? able.back() : next;
        swapcontext(&scheduler, &routines[current].context);
    }
    return std::all_of(routines.begin(), routines.end() - 1,
                       [](const auto& routine) { return routine.has_ended; });
}

}  // namespace sley::coroutines
