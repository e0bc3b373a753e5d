// The begin and the end of every kernel, and the kernel that divides.
#pragma once

namespace sley {

// Flags of LL have 32 bits, so they come back after 2^32 numbers. Therefore a call has numbers of
// one epoch of 2^31: if it would cross a border, it begins there. All ranks do alike.
constexpr int kEpochBits = 31;
SLEY_INLINE bool is_one_epoch(u64 one, u64 other) { return (one ^ other) >> kEpochBits == 0; }

SLEY_INLINE u64 ticks_of_call() {
    const u64 before = state.block.first_cell[state.block.cell].ticks, after = before + span();
    return is_one_epoch(before, after) ? before : after >> kEpochBits << kEpochBits;
}

// Whether the slots at an end have flags of another epoch. Both ends find the same.
SLEY_INLINE bool is_stale(const Counter& end) {
    return kProtocol == kLL && !is_one_epoch(end.last_flagged, state.ticks);
}

// Writes to all words of stale slots a flag of the call's epoch that no message has. Then it
// publishes the same number as read, for which the sender waits.
SLEY_FUNCTION void refresh() {
    const i32 ends = state.block.receivers;
    // All of the memory: another plan divides it into other slots.
    const i64 words = state.setup.slots_bytes / 16;
    for (i32 i = 0; i < ends; ++i) {
        u64* slots = reinterpret_cast<u64*>(state.receivers[i].slots);
        const i64 stale = state.receivers[i].first != 0 ? words : 0;
        for (i64 w = thread(); w < stale; w += threads()) put_ll(slots + 2 * w, 0, state.ticks, 0);
    }
    barrier();
    for (i32 i = thread(); i < ends; i += threads()) {
        if (state.receivers[i].first == 0) continue;
        fence();
        publish(&state.receivers[i].consumed->value, state.ticks);
    }
}

// Tells the receiver of connection `number` where it finds the rank's memories, before the first
// message that is in them, and which call it makes: of another one they would be too short. `end`
// waits until it has read all messages, so that the next call may tell others.
SLEY_INLINE void lend(i32 number, const Peer& peer, const Registrations& registered) {
    Buffers there;
    SLEY_UNROLL
    for (i32 m = 0; m < 3; ++m) {
        const i64 row = static_cast<i64>(registered.number[m]) * state.setup.ranks;
        const u64 shift = state.setup.shifts[row + peer.rank];
        there.memory[m] = shift == kHidden ? nullptr : state.own.memory[m] + shift;
    }
    state.lent[number] = peer.published->lent = there;
    peer.published->call = state.setup.call;
    peer.published->ticks = state.ticks;
}

SLEY_INLINE void begin(const Call& call) {
    if (thread() == 0) {
        state.setup = call.setup;
        state.block = call.setup.blocks[block_index()];
        state.own = call.buffers[state.block.rank];
        state.ticks = ticks_of_call();
        const char* immediate = reinterpret_cast<const char*>(&call.setup.factor);
        const char* factor = call.setup.factor_at;
        if (kScales) state.factor = load_element(factor != nullptr ? factor : immediate);
        state.tiles = state.setup.tiles;
        state.given_up = 0;
        state.failed = false;
    }
    barrier();
    const Block& b = state.block;
    bool stale = false;
    // By the last threads, while the first ones load.
    for (i32 i = publisher() - thread(); kProtocol == kDirect && i < b.senders; i += threads()) {
        lend(i, call.setup.peers[b.first_sender + i], call.registered[b.rank]);
    }
    // All words of a counter at once: mostly the other end has read everything, and no send polls.
    for (i32 i = thread(); i < b.senders; i += threads()) {
        const Peer& peer = call.setup.peers[b.first_sender + i];
        const Counter& own = *peer.consumed;
        state.senders[i] = {peer, acquire(&own.value), is_stale(own) ? state.ticks : own.last};
    }
    for (i32 i = thread(); i < b.receivers; i += threads()) {
        const Peer& peer = call.setup.peers[b.first_receiver + i];
        const bool is_old = is_stale(*peer.published);
        state.receivers[i] = {peer, 0, is_old};
        stale |= is_old;
    }
    if constexpr (kProtocol == kLL) {
        if (any_thread(stale)) refresh();
    } else {
        barrier();
    }
}

// The number of the call's last message on a connection. There are none in a call without tiles.
SLEY_INLINE u64 last_of_call(const Peer& peer) {
    return over_calls(static_cast<u32>(state.tiles) * static_cast<u32>(peer.messages));
}

// Waits until receivers have read all messages of the block; false if it gave up. After the call
// they must not read the caller's memory.
SLEY_INLINE bool drain() {
    const int first = first_condition();
    bool is_fine = true;
    for (i32 i = 0; i < state.block.senders; ++i) {
        if (!waits_for(i, first)) continue;
        End& end = state.senders[i];
        const u32 of_rank = static_cast<u32>(state.block.first_sender + i - state.block.rank_sender);
        is_fine &= reached(end, &end.consumed->value, last_of_call(end), state.block.steps - 1,
                           state.tiles - 1, kReading, of_rank);
    }
    return is_fine;
}

// Leaves behind what the next call of any plan begins with, unless the call has failed: then there
// is none, but the reports of calls that were started tell by their ticks which one was the first.
SLEY_INLINE void end() {
    const Block& b = state.block;
    if (state.tiles > 0 && !state.failed) {
        if constexpr (kProtocol == kDirect) any_thread(!drain());
        for (i32 i = thread(); i < b.senders; i += threads()) {
            Counter& own = *state.senders[i].consumed;
            own.last = last_of_call(state.senders[i]);
            if (kProtocol == kLL) own.last_flagged = own.last;
        }
        for (i32 i = thread(); kProtocol == kLL && i < b.receivers; i += threads()) {
            state.receivers[i].published->last_flagged = last_of_call(state.receivers[i]);
        }
    }
    // One number more than there are events: so the number before a call is no message's. Cells
    // behind the launch's blocks are for plans with more; no block reads those in this call.
    for (i32 i = b.cell + thread() * b.stride; i < b.cells; i += threads() * b.stride) {
        b.first_cell[i].ticks = state.ticks + span() + 1;
    }
}

struct Divided {
    i32 divisor;
    template <class Unit>
    SLEY_METHOD Unit operator()(Unit, Unit in) const { return divide_words(in, divisor); }
};

SLEY_INLINE void divide_elements(char* first, i64 length, i32 divisor) {
    if (thread() >= workers()) return;
    for (i64 done = 0; done < length; done += kMerged) {
        const i64 rest = length - done;
        char* at = first + done * kItem;
        const i32 part = static_cast<i32>(rest < kMerged ? rest : kMerged);
        const Piece p{at, nullptr, at, nullptr, part, divisor};
        carry_elements<false, false>(p, Divided{divisor});
    }
}

}  // namespace sley

// The division of the chunks whose sums are operands of others, after every rank has them. Blocks
// share the chunks.
SLEY_KERNEL(sley_divide) {
    using namespace sley;
    if (thread() == 0) state.setup = call.setup;
    barrier();
    const Setup& c = state.setup;
    for (i32 d = block_index(); d < c.division_count; d += blocks()) {
        const Division division = c.divisions[d];
        const Buffers& buffers = call.buffers[division.rank];
        const u32 within = (division.chunk.bits & 0x3FFFFFFFu) % static_cast<u32>(c.chunks);
        char* first = address(buffers, division.chunk, 0, 0);
        divide_elements(first, length_of(within), division.divisor);
    }
}
