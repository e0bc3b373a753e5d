// The begin and the end of every kernel, and the kernel that divides.
#pragma once

namespace sley {

// Flags of LL have 32 bits, so they come back after 2^32 numbers. Therefore a call has numbers of
// one epoch of 2^31: if it would cross a border, it begins there. All ranks do alike.
constexpr int kEpochBits = 31;
SLEY_INLINE bool is_one_epoch(u64 one, u64 other) { return (one ^ other) >> kEpochBits == 0; }

SLEY_INLINE u64 ticks_after(u64 before, u64 span) {
    const u64 after = before + span;
    return is_one_epoch(before, after) ? before : after >> kEpochBits << kEpochBits;
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

// Where the receiver of a connection finds the rank's memories: null for those that it can't read.
SLEY_INLINE Buffers lent_to(const Peer& peer, const Own& own, const Setup& setup) {
    Buffers there;
    SLEY_UNROLL
    for (i32 m = 0; m < 3; ++m) {
        const i64 row = static_cast<i64>(own.registered.number[m]) * setup.ranks;
        const u64 shift = setup.shifts[row + peer.rank];
        there.memory[m] = shift == kHidden ? nullptr : own.buffers.memory[m] + shift;
    }
    return there;
}

SLEY_INLINE Own own_of(const Call& call, i32 place) {
    if (call.setup.owns != nullptr) return call.setup.owns[place];
    return call.own[place];
}

SLEY_INLINE const Block& row_of(const Setup& c) {
    const i64 bytes = sizeof(Block) + c.row_peers * static_cast<i64>(sizeof(Peer));
    return *reinterpret_cast<const Block*>(c.rows + block_index() * bytes);
}

// Loads a row at once. The compiler would put loads behind branches, and so into later rounds.
template <class Row>
SLEY_INLINE Row load_row(const Row* at) {
    u64 words[sizeof(Row) / 8];
    SLEY_UNROLL
    for (u32 i = 0; i < sizeof(Row) / 8; ++i) {
        words[i] = load_word(reinterpret_cast<const u64*>(at) + i);
    }
    Row row;
    memcpy(&row, words, sizeof row);
    return row;
}

// Copies words of 8 bytes, by the last threads: the first ones load counters meanwhile.
SLEY_INLINE void copy_words(void* to, const void* from, i32 bytes) {
    SLEY_ROLLED
    for (i32 i = publisher() - thread(); i < bytes / 8; i += threads()) {
        static_cast<u64*>(to)[i] = static_cast<const u64*>(from)[i];
    }
}

// The ends of the block's connections, each by a thread. Returns whether one has stale slots.
SLEY_INLINE bool load_ends(const Call& call, const Block& row) {
    const Setup& c = call.setup;
    const Peer* const peers = reinterpret_cast<const Peer*>(&row + 1);
    Peer peer = load_row(peers + thread());  // before it is known whether there are so many
    const Block b = load_row(&row);
    const Cell& cell = b.first_cell[b.cell];
    const i32 senders = b.senders, ends = senders + b.receivers;
    bool stale = false;
    SLEY_ROLLED
    for (i32 i = thread(); i < ends; i += threads()) {
        const bool sends = i < senders;
        Counter& kept = sends ? *peer.consumed : *peer.published;  // at this end
        const u64 last = kept.last, flagged = kept.last_flagged, before = cell.ticks;
        Buffers lent;
        if (kProtocol == kDirect && sends) lent = lent_to(peer, own_of(call, b.place), c);
        // Mostly the other end has read everything, and no send polls. What follows waits for it.
        const u64 seen = sends ? acquire(&kept.value) : 0;
        const u64 ticks = ticks_after(before, span(c));
        // Whether the slots have flags of another epoch. Both ends find the same.
        const bool is_old = kProtocol == kLL && !is_one_epoch(flagged, ticks);
        if (sends) {
            state.senders[i] = {peer, seen, is_old ? ticks : last};
        } else {
            state.receivers[i - senders] = {peer, 0, is_old};
            stale |= is_old;
        }
        // Before the first message that is in the rank's memories: where they are, and which call it
        // makes: of another one they would be too short. `end` waits until the receiver has read all
        // messages, so that the next call may tell others.
        if (kProtocol == kDirect && sends) {
            state.lent[i] = peer.published->lent = lent;
            peer.published->call = c.call;
            peer.published->ticks = ticks;
        }
        if (i + threads() < ends) peer = peers[i + threads()];
    }
    return stale;
}

// Reads what a call begins with, in two rounds of loads: first the block's row; then what is where the
// row says, the cell and counters. No warp has loads of a third one, since each has its own part.
// Returns whether an end has stale slots.
SLEY_INLINE bool enter(const Call& call) {
    const Setup& c = call.setup;
    stamp_clocks(c, &Stamp::turn);
    const Block& b = row_of(c);
    copy_words(&state.block, &b, sizeof b);
    copy_words(&state.setup, &c, sizeof c);
    const bool stale = thread() < c.row_peers && load_ends(call, b);
    if (thread() == (publisher() < kWarp ? publisher() : kWarp)) {
        const u64 before = b.first_cell[b.cell].ticks;
        state.own = own_of(call, b.place).buffers;
        state.ticks = ticks_after(before, span(c));
        const char* immediate = reinterpret_cast<const char*>(&c.factor);
        if (kScales) state.factor = load_element(c.factor_at != nullptr ? c.factor_at : immediate);
        state.tiles = c.tiles;
        state.given_up = 0;
        state.failed = false;
    }
    return stale;
}

// The barrier after `enter`.
SLEY_INLINE void settle(bool stale) {
    if constexpr (kProtocol == kLL) {
        if (any_thread(stale)) refresh();
    } else {
        barrier();
    }
    if constexpr (kStamps) {
        if (thread() == 0) stamped = 2;
        stamp(state.setup, 0, &Stamp::start);
    }
}

SLEY_INLINE void begin(const Call& call) { settle(enter(call)); }

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
        b.first_cell[i].ticks = state.ticks + span(state.setup) + 1;
    }
    if constexpr (kStamps) {
        stamp_clocks(state.setup, &Stamp::end);
        if (thread() == 0) state.setup.stamps[block_index() * kStampRows].step = stamped - 2;
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
        const Buffers buffers = own_of(call, division.rank).buffers;
        const u32 within = within_block(division.chunk.bits & 0x3FFFFFFFu);
        char* first = address(buffers, division.chunk, 0, 0);
        divide_elements(first, length_of(within), division.divisor);
    }
}

// Brings memories of ranks for which the call of a launch has no room. It runs before that launch.
SLEY_KERNEL(sley_place) {
    using namespace sley;
    if (thread() != 0) return;
    for (i32 i = 0; i < kOwns; ++i) call.setup.owns[i] = call.own[i];
}
