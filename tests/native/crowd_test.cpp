// Whether a rank leaves its core to others: on cores that are given here, and this thread's own.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "fabric/crowd.hpp"

namespace sley::crowd_test {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

// Looks as rank 0 of ranks on these cores (plus one); 0: a rank of another host. `kHere` is the core
// of this thread, which is bound to it.
constexpr std::uint64_t kHere = ~0ull;

bool look(const std::vector<std::uint64_t>& others) {
    CoreOfRank own{0};
    std::vector<CoreOfRank> cores(others.size());
    std::vector<const CoreOfRank*> all{&own};
    for (const auto& core : cores) all.push_back(&core);
    Crowd crowd(own, all);
    crowd.show();
    for (std::size_t i = 0; i < others.size(); ++i) {
        cores[i] = others[i] == kHere ? own.load() : others[i];
    }
    return crowd.look();
}

void bind_to_this_core() {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &set);
    check(sched_setaffinity(0, sizeof set, &set) == 0, "the thread can be bound to its core");
}

int test(int, char**) {
    const auto many = static_cast<std::size_t>(cores());  // before the thread has one
    bind_to_this_core();
    constexpr std::uint64_t kElsewhere = 1 << 20;
    check(!look({}), "a rank alone keeps its core");
    check(look({kHere}), "a rank leaves its core to another on it");
    if (many > 1) check(!look({kElsewhere}), "a rank keeps its core from programs that are no ranks");
    check(!look(std::vector<std::uint64_t>(many, 0)), "ranks of other hosts need no core");
    check(look(std::vector<std::uint64_t>(many, kElsewhere)), "ranks outnumber cores");
    std::thread([] {
        is_beside_caller = true;
        check(look({}), "a thread beside the caller leaves its core");
    }).join();
    check(!look({}), "the caller's thread keeps its core after that");
    return 0;
}

}  // namespace sley::crowd_test
