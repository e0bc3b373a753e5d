// The primitives: executions of instructions as `docs/machine.md` defines them, for both engines,
// generated code and the interpreter.
#pragma once

namespace sley {

// An instruction's step in its block, the number of waits set before it, whether other blocks wait
// for it, and by what AVG divides its results; or its flags in a call that multiplies inputs.
struct Step {
    u32 bits;
    i32 divisor;
    SLEY_METHOD Step waits(u32 number) const { return {bits | number << 20, divisor}; }
    SLEY_METHOD Step posts() const { return {bits | 1u << 31, divisor}; }
    SLEY_METHOD Step averages(i32 by) const { return {bits, by}; }
    SLEY_METHOD i32 number() const { return static_cast<i32>(bits & 0xFFFFFu); }
    SLEY_METHOD i32 wait_count() const { return static_cast<i32>(bits >> 20 & 0x7FFu); }
    SLEY_METHOD bool is_posted() const { return bits >> 31 != 0; }
};
SLEY_INLINE Step step(u32 number) { return {number, 1}; }

// Message `message` of a tile on each of `members` of the block's connections, from `peer` on: those
// of a group (`groups.hpp`), or one.
struct Group {
    static constexpr bool kIsGroup = true, stays = false;
    i32 peer, message, members;
};

// Message `message` of a tile on the block's connection `peer`. With protocol Direct it may stay in
// the sender's buffer, if the receiver can read that: `stays` at the sender; at the receiver
// `pulled`, its place there. Otherwise it is in a slot.
struct To {
    static constexpr bool kIsGroup = false;
    static constexpr i32 members = 1;
    i32 peer, message;
    bool stays;
    SLEY_METHOD To in_place() const { return {peer, message, true}; }
    SLEY_METHOD Group of(i32 number) const { return {peer, message, number}; }
};
struct From {
    static constexpr bool kIsGroup = false;
    static constexpr i32 members = 1;
    i32 peer, message;
    Place pulled;
    SLEY_METHOD From at(Place where) const { return {peer, message, where}; }
    SLEY_METHOD Group of(i32 number) const { return {peer, message, number}; }
};
SLEY_INLINE To to(i32 peer, i32 message) { return {peer, message, false}; }
SLEY_INLINE From from(i32 peer, i32 message) { return {peer, message, nowhere()}; }

// What an instruction does, by the table of operands in `docs/machine.md`.
template <bool kReceivesT, bool kReadsT, bool kWritesT, bool kSendsT, bool kCombinesT>
struct Kind {
    static constexpr bool kReceives = kReceivesT, kReads = kReadsT, kWrites = kWritesT;
    static constexpr bool kSends = kSendsT, kCombines = kCombinesT;
    // Without flags, an execution waits for its message before it moves data.
    static constexpr bool kAwaitsMessage = kReceives && !kFlagged;
};

SLEY_INLINE char* slot_of(const Peer& peer, u32 message) {
    const u32 mask = static_cast<u32>(state.setup.slots) - 1;
    return peer.slots + static_cast<i64>((message - 1) & mask) * state.setup.slot_bytes;
}

// Whether the receiver can read what is at a place: all of it, also what is before the scratch.
SLEY_INLINE bool is_lent(const Buffers& lent, Place where) {
    if (!is_somewhere(where) || (kMisplaced && lent.memory[kScratch] == nullptr)) return false;
    return lent.memory[where.bits >> 30] != nullptr;
}

// Takes what a sender lends with its first message; false if it makes another call.
SLEY_INLINE bool borrow(i32 number, i32 step, i32 tile) {
    const Counter& there = *state.receivers[number].published;
    state.borrowed[number] = there.lent;
    if (there.call == state.setup.call && there.ticks == state.ticks) return true;
    give_up(1, step, tile, kCall, static_cast<u32>(number), 0);
    return false;
}

// Waits, as a worker, for all conditions of an execution: its waits, its messages, and slots, in
// this numbering. False if the thread gave up.
template <class K, class F, class T>
SLEY_INLINE bool await(Step step, const F& from, const T& to, u32 in, u32 out, Slices slices,
                       i32 tile) {
    const int first = first_condition(), waits = step.wait_count();
    bool is_fine = true;
    for (int w = 0; w < waits; ++w) {
        if (!waits_for(w, first)) continue;
        const Wait& wait = state.waits[w];
        const u64 needed = over_calls(number_in_call(wait.needed, slices, tile));
        is_fine &= reach(wait.counter, needed, step.number(), tile, wait.reason, wait.target,
                         wait.target_step) >= needed;
    }
    if constexpr (K::kAwaitsMessage) {
        SLEY_ROLLED
        for (i32 m = 0; m < from.members; ++m) {
            if (!waits_for(waits + m, first)) continue;
            End& end = state.receivers[from.peer + m];
            const bool is_first = end.seen == 0;
            is_fine &= reached(end, &end.published->value, over_calls(in), step.number(), tile,
                               kMessage, static_cast<u32>(from.peer + m));
            if constexpr (kProtocol == kDirect) {
                if (is_first && is_fine) {
                    is_fine = borrow(from.peer + m, step.number(), tile);
                }
            }
            if constexpr (F::kIsGroup) {
                if (from.members > 1) fence_aliases();
            }
        }
    }
    if constexpr (K::kSends) {
        // Message m reuses the slot of message m - slots; the first ones, slots of earlier calls.
        const u32 slots = static_cast<u32>(state.setup.slots);
        SLEY_ROLLED
        for (i32 m = 0; m < to.members && !to.stays; ++m) {
            if (!waits_for(waits + from.members + m, first)) continue;
            End& end = state.senders[to.peer + m];
            const u64 needed = out > slots ? over_calls(out - slots) : end.first;
            is_fine &= reached(end, &end.consumed->value, needed, step.number(), tile, kSlot,
                               static_cast<u32>(to.peer + m));
        }
    }
    return is_fine;
}

// Elements of a chunk's tile that are in one piece in memory: all of them, unless the plan keeps
// chunks at the places of others. Then what all chunks have, as many elements as the last unit of
// the block has, and the rest of a unit are one stretch each.
struct Stretch {
    i64 first;  // in the chunk
    i32 length;
};
constexpr i32 kStretches = kMisplaced ? 3 : 1;

SLEY_INLINE Stretch stretch_of(Place where, i32 index, i32 tile, i32 number) {
    const Setup& c = state.setup;
    const i64 begin = tile * c.tile;
    if (!kMisplaced || c.is_even) {
        return {begin, number == 0 ? tile_length(chunk_length(where, index), tile) : 0};
    }
    const i64 main = c.chunk - kUnit;
    const i64 borders[4] = {0, main, main + c.count % kUnit, c.chunk};
    const i64 end = begin + c.tile;
    const i64 first = borders[number] > begin ? borders[number] : begin;
    const i64 last = borders[number + 1] < end ? borders[number + 1] : end;
    return {first, first < last ? static_cast<i32>(last - first) : 0};
}

SLEY_INLINE i32 bytes_in_slot(i32 length) {
    const i32 words = words_of(length);
    return kProtocol == kLL      ? words * 16
           : kProtocol == kLL128 ? (words + 14) / 15 * 128
                                 : (length * kItem + 15) / 16 * 16;
}

constexpr i32 kMerged = 1 << 26;  // elements: their bytes still fit into 32 bits

// Moves the data of one execution; false if the block gave up. Of a group, the slots are those of
// its first member.
template <class K, class F, class T>
SLEY_INLINE bool carry(Step step, const F& from, Place src, Place dst, const T& to, i32 count,
                       u32 in, u32 out, i32 tile) {
    const Setup& c = state.setup;
    i32 pieces = count, merged = 1;
    // Whole chunks of one length are adjacent in memory: one piece.
    if (c.tiles == 1 && c.is_even && c.chunk < kMerged / pieces) {
        merged = pieces;
        pieces = 1;
    }
    char* message = nullptr;
    char* slot = nullptr;
    bool is_pulled = false;
    if constexpr (K::kReceives) {
        if constexpr (kProtocol == kDirect) {
            is_pulled = is_lent(state.borrowed[from.peer], from.pulled);
        }
        message = slot_of(state.receivers[from.peer], in);
    }
    if constexpr (K::kSends) {
        if (!to.stays) slot = slot_of(state.senders[to.peer], out);
    }
    bool is_fine = true;
    for (i32 n = 0; n < pieces * kStretches && is_fine; ++n) {
        const i32 i = n / kStretches;
        const Stretch stretch = stretch_of(K::kReads ? src : dst, i, tile, n % kStretches);
        const i32 length = stretch.length * merged;
        if (kMisplaced && length == 0) continue;
        char* target = K::kWrites ? address(state.own, dst, i, stretch.first) : nullptr;
        const char* source = K::kReads ? address(state.own, src, i, stretch.first) : nullptr;
        const char* arrived = message;
        char* leaving = slot;
        message += bytes_in_slot(length);
        if (slot != nullptr) slot += bytes_in_slot(length);
        if constexpr (K::kReceives && kProtocol == kDirect) {
            if (is_pulled) {
                arrived = address(state.borrowed[from.peer], from.pulled, i, stretch.first);
            }
        }
        i32 divisor = step.divisor;
        if constexpr (kScales) {
            const i32 source = (step.divisor & kScalesSource) == 0 ? 0 : K::kReceives ? kLocal : kIn;
            divisor = source | ((step.divisor & kScalesDestination) == 0 ? 0 : kLocal);
        }
        // A copy of elements onto themselves stores nothing: others may read them meanwhile.
        constexpr bool kCopies = K::kReads && K::kWrites && !K::kReceives && !K::kCombines;
        if (kCopies && target == source && !(kScales && (divisor & kIn) != 0)) target = nullptr;
        // A local reduction combines its destination with its source.
        Piece p{target, leaving, K::kReceives ? arrived : source,
                K::kReceives ? source : static_cast<const char*>(target), length, divisor};
        if constexpr (F::kIsGroup) {
            carry_group(K{}, p, from, to);
        } else if constexpr (kFlagged && (K::kReceives || K::kSends)) {
            const Flags flags{over_calls(in), over_calls(out), step.number(), tile,
                              static_cast<u32>(from.peer)};
            is_fine = carry_flagged<K::kReceives, K::kCombines, K::kSends>(p, flags);
        } else if (!K::kWrites || (kCopies && target == nullptr)) {
            p.out = leaving;
            if (leaving != nullptr) carry_elements<K::kCombines, false>(p);
        } else if constexpr (K::kSends) {
            if (kProtocol != kDirect || leaving != nullptr) {
                carry_elements<K::kCombines, true>(p);
            } else {
                carry_elements<K::kCombines, false>(p);
            }
        } else {
            carry_elements<K::kCombines, false>(p);
        }
    }
    return is_fine;
}

SLEY_INLINE void publish_progress(Step step, Slices slices, i32 tile) {
    const u32 done = number_in_call({state.setup.steps, step.number()}, slices, tile);
    publish(state.block.progress + state.block.number, over_calls(done));
}

// Publishes an execution for which other blocks wait, and nothing else. A function of its own, so
// that the other paths have no fence.
SLEY_FUNCTION void publish_step(Step step, Slices slices, i32 tile) {
    fence();
    publish_progress(step, slices, tile);
}

// Publishes an execution that all threads have finished. One fence serves all counters after it.
template <class K, class F, class T>
SLEY_INLINE void publish_end(Step step, const F& from, const T& to, u32 in, u32 out,
                             Slices slices, i32 tile) {
    if (thread() != publisher()) return;
    if constexpr (K::kReceives) {
        SLEY_ROLLED
        for (i32 m = 0; m < from.members; ++m) {
            publish_read(&state.receivers[from.peer + m].consumed->value, over_calls(in));
        }
    }
    if constexpr (K::kSends && !kFlagged) {
        if constexpr (T::kIsGroup) {
            if (to.members > 1) fence_aliases();
        }
        fence();
        SLEY_ROLLED
        for (i32 m = 0; m < to.members; ++m) {
            publish(&state.senders[to.peer + m].published->value, over_calls(out));
        }
        if (step.is_posted()) publish_progress(step, slices, tile);
    } else {
        if (step.is_posted()) publish_step(step, slices, tile);
    }
}

template <class K, class F, class T>
SLEY_INLINE void execute(i32 tile, Step step, F from, Place src, Place dst, T to, i32 count) {
    if (state.failed) return;
    if constexpr (kProtocol == kDirect && K::kSends) {
        to.stays = to.stays && is_lent(state.lent[to.peer], K::kReceives ? dst : src);
    }
    const Slices slices = slices_from(tile);
    for (i32 t = tile; t < slices.end; ++t) {
        // The numbers of its messages, made anew for each tile: they would take registers.
        u32 taken = 0, sent = 0;
        if constexpr (K::kReceives) {
            taken = number_in_call({state.receivers[from.peer].messages, from.message}, slices, t);
        }
        if constexpr (K::kSends) {
            sent = number_in_call({state.senders[to.peer].messages, to.message}, slices, t);
        }
        bool is_fine = true;
        stamp_execution(&Stamp::turn);
        if (thread() < workers()) {
            if (K::kAwaitsMessage || K::kSends || step.wait_count() > 0) {
                is_fine = !any_worker(!await<K>(step, from, to, taken, sent, slices, t));
            }
            stamp_execution(&Stamp::start);
            if constexpr (K::kReceives || K::kWrites || K::kSends) {
                if (is_fine) is_fine = carry<K>(step, from, src, dst, to, count, taken, sent, t);
            }
        }
        if (any_thread(!is_fine)) {
            state.failed = true;
            return;
        }
        publish_end<K>(step, from, to, taken, sent, slices, t);
        stamp_executed(step.number(), t);
    }
}

//                    receives, reads, writes, sends, combines
using Nop = Kind<false, false, false, false, false>;
using Send = Kind<false, true, false, true, false>;
using Recv = Kind<true, false, true, false, false>;
using Copy = Kind<false, true, true, false, false>;
using Reduce = Kind<false, true, true, false, true>;
using RecvReduceCopy = Kind<true, true, true, false, true>;
using RecvCopySend = Kind<true, false, true, true, false>;
using RecvReduceSend = Kind<true, true, false, true, true>;
using RecvReduceCopySend = Kind<true, true, true, true, true>;
using CopySend = Kind<false, true, true, true, false>;

SLEY_INLINE From no_message() { return {0, 0, nowhere()}; }
SLEY_INLINE To nobody() { return {0, 0, false}; }

SLEY_FUNCTION void nop(i32 tile, Step s) {
    execute<Nop>(tile, s, no_message(), nowhere(), nowhere(), nobody(), 0);
}
SLEY_FUNCTION void send(i32 tile, Step s, Place src, To to, i32 count = 1) {
    execute<Send>(tile, s, no_message(), src, nowhere(), to, count);
}
SLEY_FUNCTION void recv(i32 tile, Step s, From from, Place dst, i32 count = 1) {
    execute<Recv>(tile, s, from, nowhere(), dst, nobody(), count);
}
SLEY_FUNCTION void copy(i32 tile, Step s, Place src, Place dst, i32 count = 1) {
    execute<Copy>(tile, s, no_message(), src, dst, nobody(), count);
}
SLEY_FUNCTION void reduce(i32 tile, Step s, Place src, Place dst, i32 count = 1) {
    execute<Reduce>(tile, s, no_message(), src, dst, nobody(), count);
}
SLEY_FUNCTION void recv_reduce_copy(i32 tile, Step s, From from, Place src, Place dst,
                                    i32 count = 1) {
    execute<RecvReduceCopy>(tile, s, from, src, dst, nobody(), count);
}
SLEY_FUNCTION void recv_copy_send(i32 tile, Step s, From from, Place dst, To to, i32 count = 1) {
    execute<RecvCopySend>(tile, s, from, nowhere(), dst, to, count);
}
SLEY_FUNCTION void recv_reduce_send(i32 tile, Step s, From from, Place src, To to, i32 count = 1) {
    execute<RecvReduceSend>(tile, s, from, src, nowhere(), to, count);
}
SLEY_FUNCTION void recv_reduce_copy_send(i32 tile, Step s, From from, Place src, Place dst, To to,
                                         i32 count = 1) {
    execute<RecvReduceCopySend>(tile, s, from, src, dst, to, count);
}
SLEY_FUNCTION void copy_send(i32 tile, Step s, Place src, Place dst, To to, i32 count = 1) {
    execute<CopySend>(tile, s, no_message(), src, dst, to, count);
}

}  // namespace sley
