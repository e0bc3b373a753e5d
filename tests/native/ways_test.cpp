// Ways of copying: which one a trial prefers, and that ranks as threads take the same way without
// waiting for each other. Exits with 1 at the first difference.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "fabric/ways.hpp"

namespace sley::ways_test {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// Makes calls that take `seconds` by each way; returns the number of calls by each.
std::vector<int> tried(Trial& trial, const std::vector<double>& seconds, int calls) {
    std::vector<int> went(seconds.size());
    for (int i = 0; i < calls; ++i) {
        const auto way = static_cast<std::size_t>(trial.next());
        ++went[way];
        trial.note(Way{way}, seconds[way]);
    }
    return went;
}

void check_trials() {
    Trial trial(3);
    const auto first = tried(trial, {4, 3, 2.5}, 6);
    expect(first == std::vector<int>{2, 2, 2}, "not every way was tried twice");
    expect(tried(trial, {4, 3, 2.5}, 50)[2] == 50, "not the fastest way");
    const auto all = tried(trial, {4, 3, 2.5}, 5000);
    expect(all[0] > 0 && all[1] > 0, "the slower ways weren't tried again");
    const double lost = all[0] * 1.5 + all[1] * 0.5;
    expect(lost < 0.025 * 2.5 * 5000, "trials cost more than they may");

    // The machine changes: the way that was the fastest takes four times as long.
    expect(tried(trial, {4, 3, 10}, 40)[1] >= 20, "a way that became slow is still preferred");

    // Some calls are late, and therefore slow by any way.
    Trial noisy(2);
    std::mt19937 random(7);
    int wrong = 0;
    for (int i = 0; i < 20000; ++i) {
        const auto way = noisy.next();
        const double late = random() % 3 == 0 ? 10 : 0;
        wrong += way == Way::kCached;
        noisy.note(way, (way == Way::kCached ? 2 : 1) + late);
    }
    expect(wrong < 4000, "the slower way was preferred");

    Trial two(2);
    expect(tried(two, {2, 1, 0}, 100)[2] == 0, "a third way of two");
}

// A call as `Ways` sees it: no rank ends it before all have begun it, but ranks may run ahead.
class Meeting {
public:
    explicit Meeting(int ranks) : begun_(static_cast<std::size_t>(ranks)) {}

    void begin(int rank) { begun_[static_cast<std::size_t>(rank)].fetch_add(1); }
    void end(int rank) {
        const auto mine = begun_[static_cast<std::size_t>(rank)].load();
        for (auto& other : begun_) {
            while (other.load() < mine) std::this_thread::yield();
        }
    }

private:
    std::vector<std::atomic<int>> begun_;
};

void check_agreement(int ranks, int calls) {
    std::vector<std::unique_ptr<RankState>> states;
    std::vector<RankState*> pointers;
    for (int r = 0; r < ranks; ++r) {
        states.push_back(std::make_unique<RankState>());
        pointers.push_back(states.back().get());
    }
    Meeting meeting(ranks);
    std::vector<std::vector<Way>> went(static_cast<std::size_t>(ranks));
    const auto body = [&](int rank) {
        Control control(rank, pointers, false);
        Ways ways(control);
        std::mt19937 sizes(1), times(2);
        for (int i = 0; i < calls; ++i) {
            // Calls whose numbers are 128 apart share an entry.
            const std::uint64_t alike = sizes() % 256, ways_of_call = 2 + alike / 128;
            const auto way = ways.begin(alike, ways_of_call);
            expect(static_cast<std::size_t>(way) < ways_of_call,
                   "a way that the call doesn't have");
            went[static_cast<std::size_t>(rank)].push_back(way);
            meeting.begin(rank);
            meeting.end(rank);
            ways.end(static_cast<double>(times()));
        }
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
    for (auto& thread : threads) thread.join();
    bool any[kWays] = {};
    for (const auto way : went[0]) any[static_cast<std::size_t>(way)] = true;
    expect(any[0] && any[1] && any[2], "some way was never taken");
    for (const auto& of_rank : went) expect(of_rank == went[0], "ranks took different ways");
}

void check_only() {
    auto state = std::make_unique<RankState>();
    Control control(0, {state.get()}, false);
    Ways ways(control);
    ways.only = Way::kAttached;
    for (int i = 0; i < 20; ++i) {
        expect(ways.begin(5, 3) == Way::kAttached, "not the only way");
        ways.end(1);
        expect(ways.begin(5, 2) == Way::kCached, "an impossible way");
        ways.end(1);
    }
}

int test(int, char**) {
    check_trials();
    check_agreement(3, 4000);
    check_only();
    return 0;
}

}  // namespace sley::ways_test
