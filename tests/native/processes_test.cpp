// Processes of a communicator, which are threads here: their meetings. Exits with 1 at the first
// difference.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "devices/barrier.hpp"

namespace sley::processes_test {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// Each process is a thread with one rank.
void in_processes(int processes, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int k = 0; k < processes; ++k) threads.emplace_back(what, k);
    for (auto& each : threads) each.join();
}

std::string rule_of(const std::function<void()>& refused) {
    try {
        refused();
    } catch (const Refusal& refusal) {
        return refusal.rule;
    }
    return "";
}

// Nobody who goes to an exchange, behind a meeting, waits there for one that has given up.
void check_meetings_take_place_for_all_or_none(int processes, unsigned seed) {
    std::vector<Barrier::Word> memory(Barrier::bytes(processes) / sizeof(Barrier::Word));
    std::atomic<int> exchanging{0};
    in_processes(processes, [&](int rank) {
        Barrier barrier(memory.data(), processes, {rank}, 60);
        std::mt19937 random(seed + static_cast<unsigned>(rank));
        const int last = static_cast<int>(random() % 40);
        const bool leaves = random() % 2 == 0;
        std::thread aborts;
        const auto found = rule_of([&] {
            for (int meeting = 1; meeting <= last || !leaves; ++meeting) {
                if (meeting == last + 1) aborts = std::thread([&] { barrier.give_up(); });
                barrier.meet();
                ++exchanging;
                while (exchanging < processes * meeting) std::this_thread::yield();
            }
        });
        if (aborts.joinable()) aborts.join();
        expect(found == "K508" || found == "K514" || (leaves && found.empty()), "another rule");
        barrier.leave();
        barrier.wait_for_others();
    });
    expect(exchanging % processes == 0, "an exchange of some processes");
}

void check_who_is_late() {
    std::vector<Barrier::Word> memory(Barrier::bytes(3) / sizeof(Barrier::Word));
    in_processes(2, [&](int rank) {
        Barrier barrier(memory.data(), 3, {rank}, 0.01);
        try {
            barrier.meet();
        } catch (const Refusal& refusal) {
            expect(refusal.rule == std::string("K514") &&
                       refusal.found == "not the process of 1 rank (2)",
                   "the late process isn't named");
        }
        expect(barrier.is_given_up(), "the others go on without a late process");
    });
    Barrier late(memory.data(), 3, {2}, 60);
    expect(rule_of([&] { late.meet(); }) == "K508", "a late process isn't told");
}

int test(int, char**) {
    for (unsigned seed = 0; seed < 30; ++seed) check_meetings_take_place_for_all_or_none(3, seed);
    check_who_is_late();
    return 0;
}

}  // namespace sley::processes_test
