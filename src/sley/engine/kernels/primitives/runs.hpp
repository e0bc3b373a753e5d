// Runs: neighbouring instructions that a block executes as one, word by word (`runs.py`). Each is a
// row; a thread does all rows for a word, then all of them for its next word.
#pragma once

namespace sley {

#if SLEY_PROTOCOL == 1  // LL

constexpr i32 kRowsOfRun = 32;

// What an instruction of a run does, besides its flags.
enum RowDoes : u32 { kTakes = 1 << 8, kCombines = 1 << 9 };

// A row: first what its instruction says, then what follows from it for a tile.
struct Row {
    u32 does;  // of RowDoes and InstructionFlag
    i32 step, divisor;
    i32 from, from_message, to, to_message;  // the connections' numbers; kNone without
    Place loaded, stored, chunk;             // nowhere() without; and one that has its length
    u32 taken, in, out;                      // the number of the message taken, and the flags
    i32 length, words;
    bool is_odd;  // whether its addresses aren't all multiples of 8
    const char* own;
    char* result;
    const u64* message;
    u64* slot;
};
constexpr i32 kNone = -1;

SLEY_SHARED Row rows[kRowsOfRun];

// Sets row `number` of the next run; by the worker that later settles it.
template <class K>
SLEY_INLINE void set_row(i32 number, Step s, u32 flags, From from, Place src, Place dst, To to) {
    // A local reduction has its destination on the left.
    constexpr bool kIsLocal = K::kCombines && !K::kReceives;
    const bool loads = kIsLocal || (K::kReads && (flags & kFirst) == 0);
    const Place loaded = kIsLocal && (flags & kFirst) == 0 ? dst : src;
    const bool stores = K::kWrites && (flags & kKept) == 0;
    Row& row = rows[number];
    row.does = flags | (K::kReceives ? kTakes : 0) | (K::kCombines ? kCombines : 0);
    row.step = s.number();
    row.divisor = s.divisor;
    row.from = K::kReceives ? from.peer : kNone;
    row.from_message = from.message;
    row.to = K::kSends ? to.peer : kNone;
    row.to_message = to.message;
    row.loaded = loads ? loaded : nowhere();
    row.stored = stores ? dst : nowhere();
    row.chunk = K::kReads ? src : dst;
}

// Finds where a row's data are for a tile, and waits for the slots of what it sends; false if the
// thread gave up.
SLEY_INLINE bool settle_row(i32 number, Slices slices, i32 tile) {
    Row& row = rows[number];
    const i64 first = tile * state.setup.tile;
    row.length = tile_length(chunk_length(row.chunk, 0), tile);
    row.words = words_of(row.length);
    row.own = is_somewhere(row.loaded) ? address(state.own, row.loaded, 0, first) : nullptr;
    row.result = is_somewhere(row.stored) ? address(state.own, row.stored, 0, first) : nullptr;
    // A copy of elements onto themselves stores nothing: others may read them meanwhile.
    if (row.result == row.own && (row.does & kCombines) == 0) row.result = nullptr;
    const u64 addresses = reinterpret_cast<u64>(row.own) | reinterpret_cast<u64>(row.result);
    row.is_odd = addresses % 8 != 0;
    if (row.from != kNone) {
        const End& end = state.receivers[row.from];
        row.taken = number_in_call({end.messages, row.from_message}, slices, tile);
        row.in = static_cast<u32>(over_calls(row.taken));
        row.message = reinterpret_cast<const u64*>(slot_of(end, row.taken));
    }
    row.slot = nullptr;
    if (row.to == kNone) return true;
    End& end = state.senders[row.to];
    const u32 slots = static_cast<u32>(state.setup.slots);
    const u32 sent = number_in_call({end.messages, row.to_message}, slices, tile);
    row.out = static_cast<u32>(over_calls(sent));
    row.slot = reinterpret_cast<u64*>(slot_of(end, sent));
    const u64 needed = sent > slots ? over_calls(sent - slots) : end.first;
    return reached(end, &end.consumed->value, needed, row.step, tile, kSlot,
                   static_cast<u32>(row.to));
}

// Reports the first message of some rows that hasn't come, or the last that has just come.
SLEY_FUNCTION void give_up_rows(u64 verdict, i32 first, i32 end, i32 word, i32 tile) {
    i32 late = first;
    for (i32 k = end - 1; k >= first; --k) {
        const Row& row = rows[k];
        u64 value;
        if ((row.does & kTakes) == 0 || word >= row.words) continue;
        if (!take_ll(row.message, word, row.in, &value) || late == first) late = k;
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
                    is_there &= take_ll(batch[k].message, w, batch[k].in, &message[k]);
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
                if (row.slot != nullptr) put_ll(row.slot, w, row.out, last);
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
        // By the worker of the row, which is the first one that may set another.
        for (i32 k = thread(); k < count && thread() < workers(); k += workers()) {
            if (rows[k].from == kNone) continue;
            End& end = state.receivers[rows[k].from];
            publish_read(&end.consumed->value, over_calls(rows[k].taken));
        }
        if (s.is_posted() && thread() == publisher()) {
            publish_step({s.bits + static_cast<u32>(count) - 1, 1}, slices, t);
        }
        stamp_executed(s.number(), t);
    }
}

// The rows of generated code; `flags` are of InstructionFlag.
namespace row {

SLEY_INLINE bool is_mine(i32 number) { return thread() == number % workers(); }

SLEY_FUNCTION void send(i32 n, u32 flags, Step s, Place src, To to) {
    if (is_mine(n)) set_row<Send>(n, s, flags, no_message(), src, nowhere(), to);
}
SLEY_FUNCTION void recv(i32 n, u32 flags, Step s, From from, Place dst) {
    if (is_mine(n)) set_row<Recv>(n, s, flags, from, nowhere(), dst, nobody());
}
SLEY_FUNCTION void copy(i32 n, u32 flags, Step s, Place src, Place dst) {
    if (is_mine(n)) set_row<Copy>(n, s, flags, no_message(), src, dst, nobody());
}
SLEY_FUNCTION void reduce(i32 n, u32 flags, Step s, Place src, Place dst) {
    if (is_mine(n)) set_row<Reduce>(n, s, flags, no_message(), src, dst, nobody());
}
SLEY_FUNCTION void recv_reduce_copy(i32 n, u32 flags, Step s, From from, Place src, Place dst) {
    if (is_mine(n)) set_row<RecvReduceCopy>(n, s, flags, from, src, dst, nobody());
}
SLEY_FUNCTION void recv_copy_send(i32 n, u32 flags, Step s, From from, Place dst, To to) {
    if (is_mine(n)) set_row<RecvCopySend>(n, s, flags, from, nowhere(), dst, to);
}
SLEY_FUNCTION void recv_reduce_send(i32 n, u32 flags, Step s, From from, Place src, To to) {
    if (is_mine(n)) set_row<RecvReduceSend>(n, s, flags, from, src, nowhere(), to);
}
SLEY_FUNCTION void recv_reduce_copy_send(i32 n, u32 flags, Step s, From from, Place src, Place dst,
                                         To to) {
    if (is_mine(n)) set_row<RecvReduceCopySend>(n, s, flags, from, src, dst, to);
}
SLEY_FUNCTION void copy_send(i32 n, u32 flags, Step s, Place src, Place dst, To to) {
    if (is_mine(n)) set_row<CopySend>(n, s, flags, no_message(), src, dst, to);
}

}  // namespace row

#endif

}  // namespace sley
