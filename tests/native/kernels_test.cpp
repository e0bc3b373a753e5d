// Traces of kernels for the model native/devices/kernels.pml: blocks of two ranks, as coroutines,
// make calls of several plans on one connection. It is compiled behind a kernel's text, with its
// protocol.
//
// kernels SEED ABORT: writes the numbers of the events. SEED: of the plans and the order of steps.
// ABORT: the step at which somebody gives up; 0: never. Exits with 1 if a call that has ended has
// other data, and with 3 if a call doesn't end.
#include <cstdio>
#include <cstdlib>

#include "coroutines.hpp"

namespace sley::kernels_test {

using coroutines::routines;

constexpr int kCalls = 5, kCells = 4;
enum Plan { kHeldPlan, kDirectPlan, kSimplePlan, kUndividedPlan, kFlaggedPlan, kIdlePlan };

// The numbers in kernels.pml. Calls begin before the border of an epoch, and in the model, too.
enum class Event { kLoose, kWrite, kPublish, kRelease, kFail = 13, kChoose = 22 };
constexpr u64 kStart = (1ull << kEpochBits) - 7, kModelStart = 121;
constexpr u64 kOverwritten = 255 - kModelStart + kStart;

struct Row {
    Block block;
    Peer peer;
};

// What the ranks share: counters, slots (of a word, or with LL of two), and the sender's memory.
struct Shared {
    Counter published, consumed;
    u64 slots[kCells], memory[2], abort;
};
Shared shared{};
Cell cells[2]{{kStart, {}}, {kStart, {}}};
Report reports[2]{};
u64 received[kCells]{};
u64 shown[2 + 2 + kCells]{};  // of slots, memory and what was received
Plan plans[kCalls];
bool has_other_data = false;

u64 in_model(u64 number) { return (number - kStart + kModelStart) % 256; }

void show(Event kind, u64 object, u64 value) {
    const u64 event = coroutines::current * 32 + static_cast<u64>(kind);
    std::printf("%llu\n", (event * 256 + object) * 256 + value);
}

void show_writes() {
    for (int i = 0; i < 4 + kCells; ++i) {
        const u64 value = i >= 4   ? received[i - 4]
                          : i >= 2 ? shared.memory[i - 2]
                          : kFlagged ? shared.slots[2 * i + 1] >> 32
                                     : shared.slots[i];
        if (value == std::exchange(shown[i], value)) continue;
        show(Event::kWrite, static_cast<u64>(std::min(i, 4)), in_model(value));
    }
}

// A coroutine's part of what a kernel's threads have of their own.
void step() {
    show_writes();
    const State own = state;
    const bool fenced = is_fenced;
    coroutines::give_way();
    state = own;
    is_fenced = fenced;
}

}  // namespace sley::kernels_test

namespace sley::watched {

using namespace kernels_test;

bool is_watched(const void* word) {
    const auto* begin = reinterpret_cast<const char*>(&shared);
    const auto* at = static_cast<const char*>(word);
    return at >= begin && at < begin + sizeof shared;
}

void before(const void* word) {
    if (is_watched(word)) step();
}

void after(const void* word, Access access, std::uint64_t value, std::memory_order order) {
    if (access != Access::kStore) return;
    const auto kind = word == &shared.published.value  ? Event::kPublish
                      : word == &shared.consumed.value ? Event::kRelease
                                                       : Event::kFail;
    if (word != &shared.abort && kind == Event::kFail) return;  // slots
    const u64 shown = kind == Event::kFail ? 0 : in_model(value);
    show(order == std::memory_order_relaxed ? Event::kLoose : kind, 0, shown);
}

void sleep_on(const void*) {}

}  // namespace sley::watched

namespace sley::kernels_test {

void make_call(int rank, int number) {
    const Plan plan = plans[number];
    const bool idle = plan == kIdlePlan, wide = plan == kUndividedPlan;
    const bool held = plan == kHeldPlan, lends = held || plan == kDirectPlan;
    const i32 messages = idle ? 0 : plan == kDirectPlan ? 1 : 2;
    Row row{};
    row.block.rank = rank;
    row.block.senders = rank == 0 && !idle;
    row.block.receivers = rank == 1 && !idle;
    row.block.stride = row.block.cells = 1;
    row.block.first_cell = &cells[rank];
    row.block.report = &reports[rank];
    row.peer = {&shared.published, &shared.consumed, reinterpret_cast<char*>(shared.slots), nullptr,
                1 - rank, messages};
    const u64 shifts[2] = {0, 0};
    Call call{};
    Setup& c = call.setup;
    c.rows = reinterpret_cast<const char*>(&row);
    c.peers = &row.peer;
    c.abort = &shared.abort;
    c.timeout_ns = ~0ull >> 1;
    c.shifts = shifts;
    c.call = static_cast<u64>(plan);
    c.count = c.chunk = c.tile = wide ? 2 : 1;
    c.slot_bytes = kFlagged || wide ? 16 : 8;
    c.slots_bytes = kFlagged ? 32 : 16;
    c.tiles = c.chunks = c.slices = c.is_even = c.row_peers = 1;
    c.slots = wide ? 1 : 2;
    c.steps = idle || kFlagged || held ? 3 : 2;
    c.ranks = 2;
    const u64 first = ticks_after(cells[rank].ticks, span(c)) + 1;
    u64 data[kCells] = {first, wide ? first : first + 1, first + 1, first + 1};
    u64* own = lends ? &shared.memory[number % 2] : data;
    if (lends && rank == 0) *own = first;
    char* const output_memory = reinterpret_cast<char*>(received);
    char* const next = reinterpret_cast<char*>(data + 1);
    call.own[0].buffers = {{reinterpret_cast<char*>(own), output_memory, next}};
    begin(call);
    for (i32 m = 0; m < messages && !state.failed; ++m) {
        const u32 done = static_cast<u32>(m);
        if (rank == 1) {
            recv(0, sley::step(done), lends ? from(0, m).at(input(0)) : from(0, m), output(m));
        } else if (lends) {
            if (m > 0) {
                hold(0, 0, m - 1);
                copy(0, sley::step(2 * done - 1).waits(1), scratch(m - 1), input(0));
            }
            send(0, sley::step(2 * done), input(0), to(0, m).in_place());
        } else {
            send(0, sley::step(done), input(m), to(0, m));
        }
        const bool is_right = received[m * c.chunk] == first + static_cast<u64>(m);
        has_other_data |= rank == 1 && shared.abort == 0 && !is_right;
    }
    end();
    if (rank == 0 && lends && reports[0].status == 0) *own = kOverwritten;
    show_writes();
}

int test(int count, char** arguments) {
    if (count != 3) return 2;
    std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[1])));
    const Plan first = kProtocol == kDirect ? kDirectPlan
                       : kProtocol == kLL   ? kFlaggedPlan
                                            : kSimplePlan;
    for (int number = 0; number < kCalls; ++number) {
        Plan& plan = plans[number];
        plan = random() % 4 == 0 ? kIdlePlan : first;
        if (plan == kSimplePlan && random() % 2) plan = kUndividedPlan;
        if (plan == kDirectPlan && random() % 2) plan = kHeldPlan;
        show(Event::kChoose, static_cast<u64>(number), static_cast<u64>(plan));
    }
    routines.resize(3);
    for (int rank = 0; rank < 2; ++rank) {
        routines[static_cast<std::size_t>(rank)].body = [rank] {
            for (int number = 0; number < kCalls; ++number) {
                make_call(rank, number);
                if (reports[rank].status != 0) break;
            }
            show_writes();
        };
    }
    routines[2].body = [] { publish_host(&shared.abort, 1); };
    if (!coroutines::run(random, std::atoi(arguments[2]), false)) return 3;
    return has_other_data ? 1 : 0;
}

}  // namespace sley::kernels_test
