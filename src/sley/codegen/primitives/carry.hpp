// Data movement of one execution: elements in memory (Simple, Direct) or words with flags (LL,
// LL128).
#pragma once

namespace sley {

// One piece of an execution. `in` is the message or the first operand, `local` the other operand;
// the result is written to `out` and, unless that is null, to `copy`.
struct Piece {
    char* out;
    char* copy;
    const char* in;
    const char* local;
    i32 length;
};

// ---- Elements in memory

template <int kBatch, bool kCombines, bool kCopies>
SLEY_INLINE void carry_vectors(const Piece& p, i32 first, i32 step) {
    Vector a[kBatch], b[kBatch];
    SLEY_UNROLL
    for (int k = 0; k < kBatch; ++k) a[k] = load_vector(p.in + 16ll * (first + k * step));
    if constexpr (kCombines) {
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) b[k] = load_vector(p.local + 16ll * (first + k * step));
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) a[k] = combine_words(b[k], a[k]);
    }
    SLEY_UNROLL
    for (int k = 0; k < kBatch; ++k) store_vector(p.out + 16ll * (first + k * step), a[k]);
    if constexpr (kCopies) {
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) store_vector(p.copy + 16ll * (first + k * step), a[k]);
    }
}

// Moves vectors of 16 bytes if all addresses are aligned, several loads before their stores; moves
// the rest, and unaligned data, element by element.
template <bool kCombines, bool kCopies>
SLEY_INLINE void carry_elements(Piece p) {
    constexpr int kBatch = kCombines && kItem < 4 ? 2 : 4;  // small elements need more registers
    u64 addresses = reinterpret_cast<u64>(p.out) | reinterpret_cast<u64>(p.in);
    if constexpr (kCombines) addresses |= reinterpret_cast<u64>(p.local);
    if constexpr (kCopies) addresses |= reinterpret_cast<u64>(p.copy);
    i32 done = 0;
    if (addresses % 16 == 0) {
        const i32 vectors = p.length / (16 / kItem), step = workers();
        i32 i = thread();
        for (; i + (kBatch - 1) * step < vectors; i += kBatch * step) {
            carry_vectors<kBatch, kCombines, kCopies>(p, i, step);
        }
        for (; i < vectors; i += step) carry_vectors<1, kCombines, kCopies>(p, i, step);
        done = vectors * (16 / kItem);
    }
    SLEY_UNROLL_BY_4
    for (i32 i = done + thread(); i < p.length; i += workers()) {
        Element e = load_element(p.in + static_cast<i64>(i) * kItem);
        if constexpr (kCombines) e = combine(load_element(p.local + static_cast<i64>(i) * kItem), e);
        store_element(p.out + static_cast<i64>(i) * kItem, e);
        if constexpr (kCopies) store_element(p.copy + static_cast<i64>(i) * kItem, e);
    }
}

// ---- Elements as words of 8 bytes

constexpr int kWordItems = 8 / kItem;

SLEY_INLINE i32 words_of(i32 length) { return (length + kWordItems - 1) / kWordItems; }

SLEY_INLINE u64 load_word(const char* at, i32 word, i32 length) {
    const char* from = at + 8ll * word;
    const i32 items = length - word * kWordItems;
    if (items >= kWordItems && reinterpret_cast<u64>(from) % 8 == 0) {
        return *reinterpret_cast<const u64*>(from);
    }
    Element e[kWordItems] = {};
    SLEY_UNROLL
    for (int i = 0; i < kWordItems; ++i) {
        if (i < items) e[i] = load_element(from + i * kItem);
    }
    u64 result;
    memcpy(&result, e, sizeof result);
    return result;
}

SLEY_INLINE void store_word(char* at, i32 word, i32 length, u64 value) {
    char* to = at + 8ll * word;
    const i32 items = length - word * kWordItems;
    if (items >= kWordItems && reinterpret_cast<u64>(to) % 8 == 0) {
        *reinterpret_cast<u64*>(to) = value;
        return;
    }
    Element e[kWordItems];
    memcpy(e, &value, sizeof value);
    SLEY_UNROLL
    for (int i = 0; i < kWordItems; ++i) {
        if (i < items) store_element(to + i * kItem, e[i]);
    }
}

// LL: pairs of words, each with 4 bytes of data and 4 of flag. LL128: lines of 128 bytes, each
// eight pairs of words of which the last word is the flag.
SLEY_INLINE void put_ll(u64* slot, i32 word, u64 flag, u64 value) {
    const u64 mark = flag << 32;
    store_pair(slot + 2ll * word, {(value & 0xFFFFFFFFu) | mark, value >> 32 | mark});
}

SLEY_INLINE bool take_ll(const u64* slot, i32 word, u64 flag, u64* value) {
    const Pair p = load_pair(slot + 2ll * word);
    *value = (p.first & 0xFFFFFFFFu) | p.second << 32;
    const u32 mark = static_cast<u32>(flag);
    return static_cast<u32>(p.first >> 32) == mark && static_cast<u32>(p.second >> 32) == mark;
}

// The other arguments of a flagged execution. in, out: the flags of its messages, which no earlier
// message in the same slot had. The rest is for reports.
struct Flags {
    u64 in, out;
    i32 step, tile;
    u32 peer;
};

template <bool kReceives, bool kCombines>
SLEY_INLINE u64 result_word(const Piece& p, i32 word, u64 message) {
    u64 value = message;
    if constexpr (!kReceives) value = load_word(p.in, word, p.length);
    if constexpr (kCombines) value = combine_words(load_word(p.local, word, p.length), value);
    return value;
}

// In a flagged piece, `in` is the slot of the received message (if any), `copy` the slot of the
// sent one (if any), and `out` the destination or null. False if the block gave up.
template <bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_ll(Piece p, Flags flags) {
    const i32 words = words_of(p.length);
    for (i32 w = thread(); w < words; w += workers()) {
        u64 message = 0;
        if constexpr (kReceives) {
            Patience patience{0, 0};
            while (!take_ll(reinterpret_cast<const u64*>(p.in), w, flags.in, &message)) {
                const u64 verdict = patience.verdict();
                if (verdict == 0) continue;
                give_up(verdict, flags.step, flags.tile, kMessage, flags.peer, 0);
                return false;
            }
        }
        const u64 value = result_word<kReceives, kCombines>(p, w, message);
        if (p.out != nullptr) store_word(p.out, w, p.length, value);
        if constexpr (kSends) put_ll(reinterpret_cast<u64*>(p.copy), w, flags.out, value);
    }
    return true;
}

// Eight threads share a line: each has two words, the eighth one word and the flag. All threads of
// a warp run the same number of turns, so that the warp can agree on whether its lines have
// arrived.
template <bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_ll128(Piece p, Flags flags) {
    const i32 words = words_of(p.length);
    const i32 parts = (words + 14) / 15 * 8;
    const i32 turns = (parts + kWarp - 1) / kWarp * kWarp;
    for (i32 i = thread(); i < turns; i += workers()) {
        const bool is_active = i < parts;
        const i32 line = i / 8;
        const int part = i % 8;
        const i32 w = line * 15 + 2 * part;
        Pair message{0, 0};
        if constexpr (kReceives) {
            const u64* at = reinterpret_cast<const u64*>(p.in) + 16ll * line;
            Patience patience{0, 0};
            for (;;) {
                // The flag covers the whole line only if its parts are loaded together.
                sync_warp();
                const bool is_there = !is_active || load_of_line(at, part, flags.in, &message);
                if (!any_lane(!is_there)) break;
                const u64 verdict = patience.verdict();
                if (verdict != 0) {
                    give_up(verdict, flags.step, flags.tile, kMessage, flags.peer, 0);
                }
                if (any_lane(verdict != 0)) return false;
            }
        }
        Pair value{0, flags.out};
        if (is_active && w < words) {
            value.first = result_word<kReceives, kCombines>(p, w, message.first);
            if (p.out != nullptr) store_word(p.out, w, p.length, value.first);
        }
        if (is_active && part < 7 && w + 1 < words) {
            value.second = result_word<kReceives, kCombines>(p, w + 1, message.second);
            if (p.out != nullptr) store_word(p.out, w + 1, p.length, value.second);
        }
        if constexpr (kSends) {
            // A line arrives as a whole only if its parts are stored together.
            sync_warp();
            if (is_active) store_of_line(reinterpret_cast<u64*>(p.copy) + 16ll * line, part, value);
        }
    }
    return true;
}

}  // namespace sley
