"""Fibres: a device whose thread blocks have several threads, as those of GPUs have.

The fibres of a block share a thread of the machine, and turn to one another at barriers and where
they wait, in any order. So results show a missing barrier, a word that no thread moves, and a
counter that is published too early. Not for LL128, which needs the lanes of a warp.
"""

from __future__ import annotations

from pathlib import Path

from sley.engine.devices import ThreadsDevice

_FIBRES = """\
}  // namespace sley
#include <ucontext.h>
namespace sley {
constexpr int kFibres = 4;
static thread_local int fibre;
SLEY_INLINE int thread() { return fibre; }
SLEY_INLINE int threads() { return kFibres; }
SLEY_INLINE int workers() { return kFibres - 1; }

struct Meeting {
    int arrived, turns;
    bool flag, result;
};
struct Fibres {
    void (*run)(const void*);
    const void* call;
    ucontext_t main, of[kFibres];
    bool is_done[kFibres];
    Meeting all, working;
    u32 random;
};
static thread_local Fibres* team;

static void turn() {
    const int from = fibre;
    do {
        team->random = team->random * 1664525 + 1013904223;
        fibre = static_cast<int>(team->random >> 16) % kFibres;
    } while (team->is_done[fibre]);
    if (fibre != from) swapcontext(&team->of[from], &team->of[fibre]);
}
static bool meet(Meeting& at, int number, bool flag) {
    const int turns = at.turns;
    at.flag |= flag;
    if (++at.arrived == number) at = {0, turns + 1, false, at.flag};
    while (at.turns == turns) turn();
    return at.result;
}
static void run_fibre() {
    team->run(team->call);
    team->is_done[fibre] = true;
    for (bool done : team->is_done) {
        if (!done) turn();
    }
    setcontext(&team->main);
}
static void run_block(void (*run)(const void*), const void* call, int block) {
    constexpr std::size_t kStackBytes = 1 << 18;
    static thread_local Fibres fibres;
    fibres = {};
    fibres.run = run;
    fibres.call = call;
    fibres.random = 1000003 * block;
    team = &fibres;
    char* stacks = static_cast<char*>(std::malloc(kFibres * kStackBytes));
    for (int k = 0; k < kFibres; ++k) {
        getcontext(&fibres.of[k]);
        fibres.of[k].uc_stack.ss_sp = stacks + k * kStackBytes;
        fibres.of[k].uc_stack.ss_size = kStackBytes;
        makecontext(&fibres.of[k], run_fibre, 0);
    }
    fibre = 0;
    swapcontext(&fibres.main, &fibres.of[0]);
    std::free(stacks);
}
"""

_CHANGES = (
    (
        "SLEY_INLINE int thread() { return 0; }\n"
        "SLEY_INLINE int threads() { return 1; }\n"
        "SLEY_INLINE int workers() { return 1; }\n",
        _FIBRES,
    ),
    (
        "void barrier() { is_fenced = false; }",
        "void barrier() { is_fenced = false, meet(team->all, threads(), false); }",
    ),
    (
        "    barrier();\n    return flag;\n",
        "    is_fenced = false;\n    return meet(team->all, threads(), flag);\n",
    ),
    ("{ return any_thread(flag); }", "{ return meet(team->working, workers(), flag); }"),
    ("void pause() { sched_yield(); }", "void pause() { turn(), sched_yield(); }"),
    ("thread.run(thread.call);", "run_block(thread.run, thread.call, thread.place.block);"),
)
"""What the platform of CPUs has, and what it has instead."""


class FibresDevice(ThreadsDevice):
    """Threads of this machine, each a block of four fibres: three workers, and one that
    publishes."""

    def compiled(self, text: str) -> Path:
        for old, new in _CHANGES:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return super().compiled(text)


FIBRES = FibresDevice(1, flags=["-O0"])
"""A device that tests share."""
