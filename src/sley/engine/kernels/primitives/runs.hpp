// Runs: neighbouring instructions that a block executes as one, word by word (`runs.py`). Each is a
// row; a thread does all rows for a word, then all of them for its next word.
#pragma once

#define SLEY_RUNS (SLEY_PROTOCOL != 2)  // there are none with LL128

namespace sley {

#if SLEY_RUNS

constexpr i32 kRowsOfRun = 32;

// What an instruction of a run does, besides its flags. kReversed: the operand that it loads is the
// left one, and the result before it the right one.
enum RowDoes : u32 { kTakes = 1 << 8, kCombines = 1 << 9, kReversed = 1 << 10 };

// A row: first what its instruction says, then what follows from it for a tile.
struct Row {
    u32 does;  // of RowDoes and InstructionFlag
    i32 step, divisor;
    i32 from, from_message, to, to_message;  // the connections' numbers; kNone without
    Place loaded, chunk;                     // nowhere() without; and one that has its length
    Place left, right, result_at;  // its operands in memory, and its result, whatever the flags say
    Place pulled;                  // Direct: the message's place at the sender
    u16 loads, stores;
    bool stays;   // Direct: whether the message that it sends stays in the buffer
    bool is_odd;  // whether its addresses aren't all multiples of a unit
    u32 taken, in, out;  // the number of the message taken, and the flags
    i32 length, words;
    const char* own;
    char* result;
    const char* message;
    char* slot;
};
constexpr i32 kNone = -1;

SLEY_SHARED Row rows[kRowsOfRun];

// The messages of a row, for the warp that publishes: nobody else sets or reads them, so it needs no
// barrier to know that they are of this run.
struct RowEnds {
    i32 from, from_message, to, to_message;
};
SLEY_SHARED RowEnds row_ends[kRowsOfRun];

// On GPUs each row has threads of its own: a run has no more rows than a warp has threads.
constexpr bool kHasOwn = kRowsOfRun <= kWarp;
SLEY_INLINE bool settles(i32 number) { return thread() == (kHasOwn ? number : number % workers()); }
// The first row whose messages the thread publishes, if it is one of the last warp.
SLEY_INLINE i32 first_published() { return thread() - (threads() - kWarp); }
SLEY_INLINE bool publishes(i32 number) { return first_published() == (kHasOwn ? number : 0); }

// Sets row `number` of the next run: by the worker that settles it, and by the thread that publishes
// its messages.
template <class K>
SLEY_INLINE void set_row(i32 number, Step s, u32 flags, From from, Place src, Place dst, To to) {
    // A local reduction has its destination on the left.
    constexpr bool kIsLocal = K::kCombines && !K::kReceives;
    const i32 taken = K::kReceives ? from.peer : kNone, sent = K::kSends ? to.peer : kNone;
    if (publishes(number)) row_ends[number] = {taken, from.message, sent, to.message};
    if (!settles(number)) return;
    Row& row = rows[number];
    row.left = kIsLocal ? dst : K::kReads ? src : nowhere();
    row.right = kIsLocal ? src : nowhere();
    row.result_at = K::kWrites ? dst : nowhere();
    row.loaded = (flags & kFirst) == 0 ? row.left : (flags & kSecond) == 0 ? row.right : nowhere();
    const bool is_reversed = kIsLocal && (flags & kSecond) != 0;
    row.does = flags | (K::kReceives ? kTakes : 0) | (K::kCombines ? kCombines : 0) |
               (is_reversed ? kReversed : 0);
    row.step = s.number();
    row.divisor = s.divisor;
    row.from = taken;
    row.from_message = from.message;
    row.to = sent;
    row.to_message = to.message;
    row.chunk = K::kReads ? src : dst;
    row.pulled = from.pulled;
    row.loads = static_cast<u16>(is_somewhere(row.loaded) + K::kReceives);
    row.stores = static_cast<u16>((K::kWrites && (flags & kKept) == 0) + K::kSends);
    row.stays = false;
    if constexpr (kProtocol == kDirect && K::kSends) {
        row.stays = to.stays && is_lent(state.lent[to.peer], K::kReceives ? dst : src);
    }
}

SLEY_INLINE u64 address_bits(const void* at) { return reinterpret_cast<u64>(at); }

// Finds where a row's data are for a tile, and waits for the slots of what it sends, and for messages
// without flags; false if the thread gave up.
SLEY_INLINE bool settle_row(i32 number, Slices slices, i32 tile) {
    Row& row = rows[number];
    const i64 first = tile * state.setup.tile;
    bool is_fine = true;
    row.length = tile_length(chunk_length(row.chunk, 0), tile);
    row.words = words_of(row.length);
    row.own = is_somewhere(row.loaded) ? address(state.own, row.loaded, 0, first) : nullptr;
    const bool stores = is_somewhere(row.result_at) && (row.does & kKept) == 0;
    row.result = stores ? address(state.own, row.result_at, 0, first) : nullptr;
    // A copy of elements onto themselves stores nothing: others may read them meanwhile.
    const bool copies = stores && (row.does & (kTakes | kCombines)) == 0;
    if (copies && row.result == address(state.own, row.left, 0, first)) row.result = nullptr;
    row.slot = nullptr;
    if (row.to != kNone && !row.stays) {
        End& end = state.senders[row.to];
        const u32 slots = static_cast<u32>(state.setup.slots);
        const u32 sent = number_in_call({end.messages, row.to_message}, slices, tile);
        row.out = static_cast<u32>(over_calls(sent));
        row.slot = slot_of(end, sent);
        const u64 needed = sent > slots ? over_calls(sent - slots) : end.first;
        is_fine = reached(end, &end.consumed->value, needed, row.step, tile, kSlot,
                          static_cast<u32>(row.to));
    }
    row.message = nullptr;
    if (row.from != kNone) {
        End& end = state.receivers[row.from];
        row.taken = number_in_call({end.messages, row.from_message}, slices, tile);
        row.in = static_cast<u32>(over_calls(row.taken));
        row.message = slot_of(end, row.taken);
        if constexpr (!kFlagged) {
            const bool is_first = end.seen == 0;
            const u32 from = static_cast<u32>(row.from);
            is_fine = is_fine && reached(end, &end.published->value, over_calls(row.taken), row.step,
                                         tile, kMessage, from);
            if constexpr (kProtocol == kDirect) {
                if (is_first && is_fine) is_fine = borrow(row.from, row.step, tile);
                if (is_lent(state.borrowed[row.from], row.pulled)) {
                    row.message = address(state.borrowed[row.from], row.pulled, 0, first);
                }
            }
        }
    }
    constexpr u64 kAligned = kFlagged ? 8 : 16;
    u64 addresses = address_bits(row.own) | address_bits(row.result);
    if constexpr (!kFlagged) addresses |= address_bits(row.message);
    row.is_odd = addresses % kAligned != 0;
    return is_fine;
}

#if SLEY_PROTOCOL == 1  // LL

SLEY_INLINE const u64* ll_slot(const char* at) { return reinterpret_cast<const u64*>(at); }

// Reports the first message of some rows that hasn't come, or the last that has just come.
SLEY_FUNCTION void give_up_rows(u64 verdict, i32 first, i32 end, i32 word, i32 tile) {
    i32 late = first;
    bool is_there = true;
    SLEY_ROLLED
    for (i32 k = first; k < end && is_there; ++k) {
        const Row& row = rows[k];
        u64 value;
        if ((row.does & kTakes) == 0 || word >= row.words) continue;
        late = k;
        is_there = take_ll(ll_slot(row.message), word, row.in, &value);
    }
    give_up(verdict, rows[late].step, tile, kMessage, static_cast<u32>(rows[late].from), 0);
}

// `end` words of `count` rows. A thread loads the operands of eight rows for a word, then polls for
// all of their messages at once: their latencies overlap. kAligned: as for `load_bytes`.
template <int kAligned>
SLEY_INLINE bool carry_rows(i32 count, i32 end, i32 tile) {
    constexpr int kBatch = 8 / kShare;
    SLEY_ROLLED
    for (i32 w = thread(); w < end; w += workers()) {
        u64 last = 0;
        SLEY_ROLLED
        for (i32 from = 0; from < count; from += kBatch) {
            const Row* const batch = rows + from;
            const i32 here = count - from;
            u64 own[kBatch] = {}, message[kBatch] = {};
            SLEY_UNROLL
            for (int k = 0; k < kBatch; ++k) {
                if (k >= here || batch[k].own == nullptr || w >= batch[k].words) continue;
                const i32 items = batch[k].length - w * kWordItems;
                own[k] = load_bytes<8, kAligned>(batch[k].own + 8ll * w, items);
            }
            Patience patience{0, 0};
            for (;;) {
                bool is_there = true;
                SLEY_UNROLL
                for (int k = 0; k < kBatch; ++k) {
                    if (k >= here || (batch[k].does & kTakes) == 0 || w >= batch[k].words) continue;
                    is_there &= take_ll(ll_slot(batch[k].message), w, batch[k].in, &message[k]);
                }
                if (is_there) break;
                const u64 verdict = patience.verdict();
                if (verdict == 0) continue;
                give_up_rows(verdict, from, count, w, tile);
                return false;
            }
            SLEY_UNROLL
            for (int k = 0; k < kBatch; ++k) {
                if (k >= here || w >= batch[k].words) continue;
                const Row& row = batch[k];
                const u32 does = row.does;
                const u64 a = (does & kFirst) != 0 ? last : own[k];
                const u64 b = (does & kTakes) != 0    ? message[k]
                              : (does & kSecond) != 0 ? last
                                                      : own[k];
                last = (does & kCombines) != 0 ? reduced(a, b, row.divisor)
                       : (does & kTakes) != 0  ? b
                                               : a;
                if (row.result != nullptr) {
                    const i32 items = row.length - w * kWordItems;
                    store_bytes<8, kAligned>(row.result + 8ll * w, items, last);
                }
                if (row.slot != nullptr) put_ll(reinterpret_cast<u64*>(row.slot), w, row.out, last);
            }
        }
    }
    return true;
}

// Moves the data of a run for a tile; false if the block gave up.
SLEY_INLINE bool carry_run(i32 count, i32 tile) {
    i32 end = 0;
    bool is_odd = false;
    SLEY_ROLLED
    for (i32 k = 0; k < count; ++k) {
        is_odd |= rows[k].is_odd;
        end = rows[k].words > end ? rows[k].words : end;
    }
    if constexpr (kItem < 8) {
        if (is_odd) return carry_rows<kItem>(count, end, tile);
    }
    return carry_rows<8>(count, end, tile);
}

#else

// What a thread loads for a unit of a run, one after another: an own operand, or a message. It is the
// result so far, or is combined with it. The result is then stored at the places from `stores` to
// those of the next load.
struct Load {
    const char* at;
    i32 length;
    u32 does;
    i32 divisor, stores;
};
SLEY_SHARED Load loads[2 * kRowsOfRun + 1];
SLEY_SHARED char* stores[2 * kRowsOfRun];  // null for a result that is there already

// Lists the loads and stores of row `number` of `count`, behind those of the rows before it. All rows
// must be set.
SLEY_INLINE void list_row(i32 number, i32 count) {
    const Row& row = rows[number];
    i32 load = 0, store = 0;
    for (i32 k = 0; k < number; ++k) {
        load += rows[k].loads;
        store += rows[k].stores;
    }
    const u32 combines = row.does & (kCombines | kReversed);
    const bool joins = (row.does & kTakes) == 0 && (row.does & (kFirst | kSecond)) != 0;
    if (is_somewhere(row.loaded)) {
        loads[load++] = {row.own, row.length, joins ? combines : 0, row.divisor, store};
    }
    if (row.from != kNone) loads[load++] = {row.message, row.length, combines, row.divisor, store};
    if (is_somewhere(row.result_at) && (row.does & kKept) == 0) stores[store++] = row.result;
    if (row.to != kNone) stores[store++] = row.slot;
    if (number == count - 1) loads[load].stores = store;
}

// The loads that a thread has under way: with more, conversions of 8-bit types would spill.
constexpr int kUnderWay = (kIsFloat8 ? 4 : 8) / kShare;

// The units of a load: whole vectors from its start, or the elements behind them.
template <class Unit>
SLEY_INLINE i32 units_of(const Load& load) {
    return sizeof(Unit) == 16 ? load.length / kUnit : load.length % kUnit;
}
template <class Unit>
SLEY_INLINE i64 first_unit_of(const Load& load) {
    return sizeof(Unit) == 16 ? 0 : static_cast<i64>(load.length - load.length % kUnit) * kItem;
}

// Units `first`, and each `step` later one, of `count` loads. A thread loads `kLoads` operands of each
// of some units before it stores one, so that their latencies overlap.
template <class Unit, int kLoads>
SLEY_INLINE void carry_units_of_run(i32 count, i32 first, i32 end, i32 step) {
    constexpr int kUnits = sizeof(Unit) == 16 ? kUnderWay / kLoads : 1;
    SLEY_ROLLED
    for (i32 w = first; w < end; w += step) {
        Unit last[kUnits] = {};
        SLEY_ROLLED
        for (i32 from = 0; from < count; from += kLoads) {
            Unit in[kLoads][kUnits] = {};
            SLEY_UNROLL
            for (int k = 0; k < kLoads; ++k) {
                if (from + k >= count) continue;
                const Load& l = loads[from + k];
                const char* at = l.at + first_unit_of<Unit>(l) + static_cast<i64>(sizeof(Unit)) * w;
                SLEY_UNROLL
                for (int j = 0; j < kUnits; ++j) {
                    if (w + j * kWarp >= units_of<Unit>(l)) continue;
                    load(&in[k][j], at + j * kWarp * static_cast<i64>(sizeof(Unit)));
                }
            }
            SLEY_UNROLL
            for (int k = 0; k < kLoads; ++k) {
                if (from + k >= count) continue;
                const Load& l = loads[from + k];
                const u32 does = l.does;
                SLEY_UNROLL
                for (int j = 0; j < kUnits; ++j) {
                    if ((does & kCombines) == 0) {
                        last[j] = in[k][j];
                    } else if ((does & kReversed) != 0) {
                        last[j] = reduced(in[k][j], last[j], l.divisor);
                    } else {
                        last[j] = reduced(last[j], in[k][j], l.divisor);
                    }
                }
                const i32 end_of_stores = loads[from + k + 1].stores;
                SLEY_ROLLED
                for (i32 n = l.stores; n < end_of_stores; ++n) {
                    if (stores[n] == nullptr) continue;
                    char* to = stores[n] + first_unit_of<Unit>(l) + static_cast<i64>(sizeof(Unit)) * w;
                    SLEY_UNROLL
                    for (int j = 0; j < kUnits; ++j) {
                        if (w + j * kWarp >= units_of<Unit>(l)) continue;
                        store(to + j * kWarp * static_cast<i64>(sizeof(Unit)), last[j]);
                    }
                }
            }
        }
    }
}

template <int kLoads>
SLEY_INLINE void carry_vectors_of_run(i32 count, i32 end) {
    constexpr int kUnits = kUnderWay / kLoads;
    carry_units_of_run<Vector, kLoads>(count, first_of_batch<kUnits>(), end, kUnits * workers());
}

// A row of a run in which not all addresses are multiples of 16: alone, with all operands and its result in
// memory.
SLEY_INLINE void carry_row(const Row& row, i32 tile) {
    const i64 first = tile * state.setup.tile;
    const bool takes = (row.does & kTakes) != 0, combines = (row.does & kCombines) != 0;
    const auto at = [&](Place p) {
        return is_somewhere(p) ? address(state.own, p, 0, first) : nullptr;
    };
    char* const left = at(row.left);
    char* const result = at(row.result_at);
    const char* const in = takes ? row.message : combines ? at(row.right) : left;
    char* const out = result == in && !combines ? nullptr : result;
    Piece p{out == nullptr ? row.slot : out, row.slot, in, left, row.length, row.divisor};
    if (p.out == nullptr) return;
    const bool copies = out != nullptr && row.slot != nullptr;
    if (combines) {
        copies ? carry_elements<true, true>(p) : carry_elements<true, false>(p);
    } else {
        copies ? carry_elements<false, true>(p) : carry_elements<false, false>(p);
    }
}

// Moves the data of a run for a tile.
SLEY_INLINE bool carry_run(i32 count, i32 tile) {
    SLEY_ROLLED
    for (i32 k = thread(); k < count; k += workers()) list_row(k, count);
    any_worker(false);
    i32 end = 0, number = 0;
    bool is_odd = false;
    SLEY_ROLLED
    for (i32 k = 0; k < count; ++k) {
        is_odd |= rows[k].is_odd;
        number += rows[k].loads;
        end = rows[k].length > end ? rows[k].length : end;
    }
    if (is_odd) {
        SLEY_ROLLED
        for (i32 k = 0; k < count; ++k) {
            if (k > 0) any_worker(false);
            carry_row(rows[k], tile);
        }
        return true;
    }
    end /= kUnit;
    if (number > kUnderWay / 2) carry_vectors_of_run<kUnderWay>(number, end);
    else if (number > 2) carry_vectors_of_run<kUnderWay / 2>(number, end);
    else if (number > 1) carry_vectors_of_run<2>(number, end);
    else carry_vectors_of_run<1>(number, end);
    carry_units_of_run<Element, kUnderWay>(number, workers() - 1 - thread(), kUnit, workers());
    return true;
}

#endif

// Publishes what a run has taken and sent, and that it is over. One fence serves all messages.
SLEY_INLINE void publish_run(Step s, i32 count, Slices slices, i32 tile) {
    const Step last{s.bits + static_cast<u32>(count) - 1, 1};
    const bool posts = s.is_posted() && thread() == publisher();
    if (first_published() < 0) return;
    bool orders = posts;
    SLEY_ROLLED
    for (i32 k = first_published(); k < count; k += kWarp) {
        const RowEnds& row = row_ends[k];
        orders |= row.to != kNone;
        if (row.from == kNone) continue;
        const End& end = state.receivers[row.from];
        const u32 taken = number_in_call({end.messages, row.from_message}, slices, tile);
        publish_read(&end.consumed->value, over_calls(taken));
    }
    if constexpr (!kFlagged) {
        if (orders) fence();
        SLEY_ROLLED
        for (i32 k = first_published(); k < count; k += kWarp) {
            if (row_ends[k].to == kNone) continue;
            const End& end = state.senders[row_ends[k].to];
            const u32 sent = number_in_call({end.messages, row_ends[k].to_message}, slices, tile);
            publish(&end.published->value, over_calls(sent));
        }
        if (posts) publish_progress(last, slices, tile);
    } else if (posts) {
        publish_step(last, slices, tile);
    }
}

// Executes the run of `count` rows that are set, of which `s` is the first. The waits are the first
// row's, and other blocks wait for the last one.
SLEY_FUNCTION void run(i32 tile, Step s, i32 count) {
    if (state.failed) return;
    const Slices slices = slices_from(tile);
    for (i32 t = tile; t < slices.end; ++t) {
        bool is_fine = true;
        stamp_execution(&Stamp::turn);
        if (thread() < workers()) {
            is_fine = await<Nop>(s, no_message(), nobody(), 0, 0, slices, t);
            for (i32 k = thread(); k < count; k += workers()) is_fine &= settle_row(k, slices, t);
            is_fine = !any_worker(!is_fine);
            stamp_execution(&Stamp::start);
            is_fine = is_fine && carry_run(count, t);
        }
        if (any_thread(!is_fine)) {
            state.failed = true;
            return;
        }
        publish_run(s, count, slices, t);
        stamp_executed(s.number(), t);
    }
}

// The rows of generated code; `flags` are of InstructionFlag.
namespace row {

SLEY_FUNCTION void send(i32 n, u32 flags, Step s, Place src, To to) {
    set_row<Send>(n, s, flags, no_message(), src, nowhere(), to);
}
SLEY_FUNCTION void recv(i32 n, u32 flags, Step s, From from, Place dst) {
    set_row<Recv>(n, s, flags, from, nowhere(), dst, nobody());
}
SLEY_FUNCTION void copy(i32 n, u32 flags, Step s, Place src, Place dst) {
    set_row<Copy>(n, s, flags, no_message(), src, dst, nobody());
}
SLEY_FUNCTION void reduce(i32 n, u32 flags, Step s, Place src, Place dst) {
    set_row<Reduce>(n, s, flags, no_message(), src, dst, nobody());
}
SLEY_FUNCTION void recv_reduce_copy(i32 n, u32 flags, Step s, From from, Place src, Place dst) {
    set_row<RecvReduceCopy>(n, s, flags, from, src, dst, nobody());
}
SLEY_FUNCTION void recv_copy_send(i32 n, u32 flags, Step s, From from, Place dst, To to) {
    set_row<RecvCopySend>(n, s, flags, from, nowhere(), dst, to);
}
SLEY_FUNCTION void recv_reduce_send(i32 n, u32 flags, Step s, From from, Place src, To to) {
    set_row<RecvReduceSend>(n, s, flags, from, src, nowhere(), to);
}
SLEY_FUNCTION void recv_reduce_copy_send(i32 n, u32 flags, Step s, From from, Place src, Place dst,
                                         To to) {
    set_row<RecvReduceCopySend>(n, s, flags, from, src, dst, to);
}
SLEY_FUNCTION void copy_send(i32 n, u32 flags, Step s, Place src, Place dst, To to) {
    set_row<CopySend>(n, s, flags, no_message(), src, dst, to);
}

}  // namespace row

#endif

}  // namespace sley
