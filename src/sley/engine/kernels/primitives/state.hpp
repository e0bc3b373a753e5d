// A thread block's state, the addresses of chunks, and waiting.
#pragma once

namespace sley {

using namespace layout;

constexpr int kProtocol = SLEY_PROTOCOL;
constexpr bool kFlagged = kProtocol == kLL || kProtocol == kLL128;

// The tiles that an instruction runs one after another before the next instruction begins.
struct Slices {
    i32 first, end;
};

// Event `number` of those that happen `per_tile` times a tile.
struct Series {
    i32 per_tile, number;
};

// A counter that an instruction waits for; block and step are for reports.
struct Wait {
    const u64* counter;
    Series needed;
    u32 reason, target, target_step;
};

// One end of a connection. seen: the last value seen of the counter that the other end writes.
// first: what a sender must see before messages of the call are in slots; at a receiver, whether the
// slots have flags of another epoch.
struct End : Peer {
    u64 seen, first;
};

constexpr i32 kLent = kProtocol == kDirect ? SLEY_PEERS : 1;

struct State {
    Setup setup;
    Block block;
    Buffers own;  // the rank's
    End senders[SLEY_PEERS];
    End receivers[SLEY_PEERS];
    Wait waits[SLEY_WAITS];  // of the next instruction; the thread that waits for w has it
    u64 ticks;               // the number before the call's first event
    i32 tiles;
    Element factor;
    u32 given_up;  // whether a thread has written the block's report
    bool failed;   // changes only at barriers
    Buffers lent[kLent], borrowed[kLent];  // Direct: `Counter::lent` of each sender and receiver
};

SLEY_SHARED State state;

SLEY_INLINE bool more(i32 tile) { return tile < state.tiles && !state.failed; }

SLEY_INLINE i32 slices() { return state.setup.slices; }
SLEY_INLINE Slices slices_from(i32 first) {
    const i32 rest = state.tiles - first;
    return {first, first + (rest < slices() ? rest : slices())};
}

// The number of an event for a tile, from 1 in each call. It is below 2^31: the host sees to it.
SLEY_INLINE u32 number_in_call(Series s, Slices slices, i32 tile) {
    const u32 first = static_cast<u32>(slices.first), here = static_cast<u32>(slices.end) - first;
    return first * static_cast<u32>(s.per_tile) + static_cast<u32>(s.number) * here +
           static_cast<u32>(tile) - first + 1;
}

// The same over all calls.
SLEY_INLINE u64 over_calls(u32 number) { return state.ticks + number; }

// The numbers that the call's events have, at most.
SLEY_INLINE u64 span(const Setup& c) {
    return static_cast<u64>(c.tiles) * static_cast<u64>(c.steps);
}

// ---- Stamps, by the first thread

constexpr bool kStamps = SLEY_STAMPS != 0;
SLEY_SHARED i32 stamped;  // the next execution's row

// The moment of row `row`, which thread 0 alone writes.
SLEY_INLINE void stamp(const Setup& c, i32 row, u64 Stamp::*moment) {
    if constexpr (kStamps) {
        if (thread() != 0 || row >= kStampRows) return;
        c.stamps[block_index() * kStampRows + row].*moment = cycles();
    }
}
// A moment of the call by both clocks. They are read together, for the first store to a page of a
// processor takes microseconds, by which a block's times would be too late.
SLEY_INLINE void stamp_clocks(const Setup& c, u64 Stamp::*moment) {
    if constexpr (kStamps) {
        if (thread() != 0) return;
        const u64 turn = cycles(), ns = now_ns();
        Stamp* rows = c.stamps + block_index() * kStampRows;
        rows[0].*moment = turn;
        rows[1].*moment = ns;
    }
}
SLEY_INLINE void stamp_execution(u64 Stamp::*moment) {
    if constexpr (kStamps) {
        if (thread() == 0) stamp(state.setup, stamped, moment);
    }
}
SLEY_INLINE void stamp_executed(i32 step, i32 tile) {
    if constexpr (kStamps) {
        if (thread() != 0 || stamped == kStampRows) return;
        Stamp& row = state.setup.stamps[block_index() * kStampRows + stamped++];
        row.end = cycles();
        row.step = step;
        row.tile = tile;
    }
}

// ---- Addresses of chunks

SLEY_INLINE Place place(u32 memory, i32 chunk) { return {memory << 30 | static_cast<u32>(chunk)}; }
SLEY_INLINE Place input(i32 chunk) { return place(kData, chunk); }
SLEY_INLINE Place output(i32 chunk) { return place(kOutput, chunk); }
SLEY_INLINE Place scratch(i32 chunk) { return place(kScratch, chunk); }
SLEY_INLINE Place data(i32 chunk) { return place(kData, chunk); }  // in place: input and output
SLEY_INLINE Place nowhere() { return place(kNowhere, 0); }
SLEY_INLINE bool is_somewhere(Place p) { return p.bits >> 30 != kNowhere; }

// Borders of chunks are at multiples of a unit of 16 bytes, from the begin of their block.
constexpr i32 kUnit = 16 / kItem;
// Whether the plan keeps chunks at the places of others. Then all chunks have as many elements as
// the longest, and one at a shorter place has the last of them, at most a unit, before the scratch.
constexpr bool kMisplaced = SLEY_MISPLACED != 0;

// The number of a chunk's block, of those of the collective. Instead of a division, which takes as
// long as the rest of a small execution, a product with the share of a chunk: exact, since both
// numbers are below 2^31.
SLEY_INLINE u32 block_of(u32 chunk) {
    return static_cast<u32>(high_product(2ull * chunk, state.setup.share));
}

// The number of a chunk in its block.
SLEY_INLINE u32 within_block(u32 chunk) {
    return chunk - block_of(chunk) * static_cast<u32>(state.setup.chunks);
}

// The first element of chunk `within` of a block; of `Setup::chunks` the block's end. A chunk has
// `least` units or one more.
SLEY_INLINE i64 border(u32 within) {
    const Setup& c = state.setup;
    const u64 more = high_product(within, c.left_over);
    const i64 first = static_cast<i64>(within) * c.least + static_cast<i64>(more) * kUnit;
    return first < c.count ? first : c.count;
}

SLEY_INLINE i64 length_of(u32 within) { return border(within + 1) - border(within); }

// The elements of a chunk of this rank, the one `index` after a place.
SLEY_INLINE i64 chunk_length(Place where, i32 index) {
    const Setup& c = state.setup;
    if (kMisplaced || c.is_even) return c.chunk;
    const u32 chunk = (where.bits & 0x3FFFFFFFu) + static_cast<u32>(index);
    if (where.bits >> 30 != kScratch) return length_of(within_block(chunk));
    const i32* homes = c.homes + state.block.first_home;
    return length_of(static_cast<u32>(homes[chunk]));
}

// The elements, of `length`, that are in a tile.
SLEY_INLINE i32 tile_length(i64 length, i32 tile) {
    const i64 rest = length - tile * state.setup.tile;
    return static_cast<i32>(rest < 0 ? 0 : rest < state.setup.tile ? rest : state.setup.tile);
}

// The address of an element of the chunk `index` after a place, in some rank's buffers. A function
// of its own, so that its numbers take no registers while data move.
SLEY_FUNCTION char* address(const Buffers& buffers, Place where, i32 index, i64 element) {
    const Setup& c = state.setup;
    const u32 memory = where.bits >> 30;
    const u32 chunk = (where.bits & 0x3FFFFFFFu) + static_cast<u32>(index);
    i64 first = static_cast<i64>(chunk) * c.chunk;
    if (memory != kScratch && !c.is_even) {
        const u32 within = within_block(chunk);
        if (kMisplaced && element >= length_of(within)) {
            const i64 unit = 2 * static_cast<i64>(chunk) + memory + 1;
            return buffers.memory[kScratch] - 16 * unit + (element + kUnit - c.chunk) * kItem;
        }
        first = static_cast<i64>(block_of(chunk)) * c.count + border(within);
    }
    return buffers.memory[memory] + (first + element) * kItem;
}

// ---- Waiting

// Reports once to the host what the block waits for, and aborts all other blocks. A function of its
// own, which keeps what rarely runs out of the paths that wait.
SLEY_FUNCTION void give_up(u64 status, i32 step, i32 tile, u32 reason, u32 target, u32 target_step) {
    Report& report = *state.block.report;
    // A call launched after the one that failed doesn't overwrite its report.
    if (!claim(&state.given_up) || peek_host(&report.status) != 0) return;
    report.step = static_cast<u32>(step);
    report.tile = tile;
    report.reason = reason;
    report.target = target;
    report.target_step = target_step;
    report.ticks = state.ticks;
    report.call = state.setup.call;
    if (kProtocol == kDirect && reason == kCall) {
        const Counter& there = *state.receivers[target].published;
        report.other = there.ticks == state.ticks ? there.call : 0;
    }
    publish_host(&report.status, status);
    publish_host(state.setup.abort, 1);
}

// The limit of a wait: it ends after a time-out, or when another block has given up.
struct Patience {
    u32 spins;
    u64 until;

    // Whether to give up: 0 no, 1 after the time-out, 2 after another block.
    SLEY_METHOD u64 verdict() {
        pause();
        if (++spins % kSpins != 0) return 0;
        if (peek_host(state.setup.abort) != 0) return 2;
        const u64 now = now_ns();
        if (until == 0) until = now + state.setup.timeout_ns;
        return now > until ? 1 : 0;
    }
};

// Waits until a counter reaches a number, and returns the value seen; 0 if the thread gave up.
SLEY_INLINE u64 reach(const u64* counter, u64 needed, i32 step, i32 tile, u32 reason, u32 target,
                      u32 target_step) {
    Patience patience{0, 0};
    u64 seen;
    while ((seen = acquire(counter)) < needed) {
        const u64 verdict = patience.verdict();
        if (verdict != 0) {
            give_up(verdict, step, tile, reason, target, target_step);
            return 0;
        }
    }
    return seen;
}

// The same for a counter of a connection. Counters only grow, so that no load is needed if the
// value last seen is enough; the barriers since then order what that load acquired.
SLEY_INLINE bool reached(End& end, const u64* counter, u64 needed, i32 step, i32 tile, u32 reason,
                         u32 target) {
    if (end.seen < needed) end.seen = reach(counter, needed, step, tile, reason, target, 0);
    return end.seen >= needed;
}

// The first condition for which the thread, a worker, waits: conditions are for warps of their own,
// as long as there are warps.
SLEY_INLINE int first_condition() {
    return thread() % kWarp * (workers() / kWarp) + thread() / kWarp;
}
SLEY_FUNCTION int beyond_workers(int condition) { return condition % workers(); }
// Whether a thread with this first condition waits for `condition`. Few instructions have as many
// conditions as a warp has threads.
SLEY_INLINE bool waits_for(int condition, int first) {
    return first == (condition < kWarp ? condition : beyond_workers(condition));
}

// The thread that publishes: not in a warp that waits, as long as there are warps.
SLEY_INLINE int publisher() { return threads() - 1; }

// Sets wait `number` of the next instruction: for step `step` of the rank's block `block`.
SLEY_FUNCTION void wait(int number, i32 block, i32 step) {
    if (!waits_for(number, first_condition())) return;
    state.waits[number] = {state.block.progress + block, {state.setup.steps, step}, kInstruction,
                           static_cast<u32>(block), static_cast<u32>(step)};
}

// Sets wait `number` of the next instruction: until the receiver has read message `message` of the
// rank's connection `sender`, which the instruction overwrites.
SLEY_FUNCTION void hold(int number, i32 sender, i32 message) {
    if (!waits_for(number, first_condition())) return;
    const Peer& peer = state.setup.peers[state.block.rank_sender + sender];
    state.waits[number] = {&peer.consumed->value, {peer.messages, message}, kReading,
                           static_cast<u32>(sender), static_cast<u32>(message)};
}

}  // namespace sley
