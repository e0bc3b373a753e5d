// Data movement of one execution: elements in memory (Simple, Direct) or words with flags (LL,
// LL128).
#pragma once

namespace sley {

// One piece of an execution. `in` is the message or the first operand, `local` the other operand;
// the result is written to `out` and, unless that is null, to `copy`. AVG divides the results of a
// reduction by `divisor`. In a call that multiplies inputs, bit kIn or kLocal of it says that this
// operand is one.
struct Piece {
    char* out;
    char* copy;
    const char* in;
    const char* local;
    i32 length;
    i32 divisor;
};

// The batches of a thread of a block with up to 512; a larger block has as many bytes under way with
// half of that, and has half of the registers for it.
constexpr int kShare = SLEY_THREADS > 512 ? 2 : 1;

// The first unit of a thread in a batch of `kBatch` units a thread, of which it has every `kWarp`th
// one from there on: warps have their parts of the batch one after another. So the distances of a
// thread's units are constants, however many threads the block has.
template <int kBatch>
SLEY_INLINE i32 first_of_batch() {
    return thread() / kWarp * (kBatch * kWarp) + thread() % kWarp;
}

// An operand, multiplied by the call's factor if it is an input that is read first.
constexpr i32 kIn = 1, kLocal = 2;
template <class Unit>
SLEY_INLINE Unit scaled(Unit a, i32 divisor, i32 operand) {
    if constexpr (!kScales) return a;
    else return (divisor & operand) != 0 ? multiply_words(a, state.factor) : a;
}

// ---- Elements in memory

SLEY_INLINE void load(Vector* v, const char* at) { *v = load_vector(at); }
SLEY_INLINE void load(Element* e, const char* at) { *e = load_element(at); }
SLEY_INLINE void store(char* at, Vector v) { store_vector(at, v); }
SLEY_INLINE void store(char* at, Element e) { store_element(at, e); }

// A piece from the byte `by` on.
template <bool kCombines, bool kCopies>
SLEY_INLINE Piece from_byte(const Piece& p, i64 by) {
    return {p.out + by, kCopies ? p.copy + by : nullptr, p.in + by,
            kCombines ? p.local + by : nullptr, p.length, p.divisor};
}

// The next units (vectors or elements) of a thread, of which the first is at the start of the piece
// and `rest` units, with those of other threads, follow: it loads all of them before it stores one,
// so that their latencies overlap. kWhole: all kBatch units are there. made(local, in): the result.
template <class Unit, int kBatch, bool kWhole, bool kCombines, bool kCopies, class Made>
SLEY_INLINE void carry_batch(const Piece& p, i32 rest, Made made) {
    constexpr i64 kSize = static_cast<i64>(sizeof(Unit));
    Unit in[kBatch] = {}, local[kBatch] = {};
    SLEY_UNROLL
    for (int k = 0; k < kBatch; ++k) {
        if (!kWhole && k * kWarp >= rest) continue;
        load(&in[k], p.in + k * kWarp * kSize);
        if constexpr (kCombines) load(&local[k], p.local + k * kWarp * kSize);
    }
    SLEY_UNROLL
    for (int k = 0; k < kBatch; ++k) {
        if (!kWhole && k * kWarp >= rest) continue;
        const Unit result = made(local[k], in[k]);
        store(p.out + k * kWarp * kSize, result);
        if constexpr (kCopies) store(p.copy + k * kWarp * kSize, result);
    }
}

// `units` units of a piece: whole batches, and the rest as one more.
template <class Unit, int kBatch, bool kCombines, bool kCopies, class Made>
SLEY_INLINE void carry_units(const Piece& piece, i64 first_byte, i32 units, Made made) {
    constexpr i64 kSize = static_cast<i64>(sizeof(Unit));
    const i32 first = first_of_batch<kBatch>(), step = kBatch * workers();
    i32 rest = units - first;
    Piece p = from_byte<kCombines, kCopies>(piece, first_byte + first * kSize);
    SLEY_ROLLED
    for (; rest > (kBatch - 1) * kWarp; rest -= step) {
        carry_batch<Unit, kBatch, true, kCombines, kCopies>(p, rest, made);
        p = from_byte<kCombines, kCopies>(p, step * kSize);
    }
    if (rest > 0) carry_batch<Unit, kBatch, false, kCombines, kCopies>(p, rest, made);
}

// Moves vectors of 16 bytes if all addresses have the same distance from a multiple of 16; the
// elements before and after them, and all others, one by one.
template <bool kCombines, bool kCopies, class Made>
SLEY_INLINE void carry_elements(const Piece& p, Made made) {
    constexpr int kBatch = (kCombines ? 4 : 8) / kShare;
    constexpr i32 kItems = 16 / kItem;
    const u64 in = reinterpret_cast<u64>(p.in);
    u64 difference = in ^ reinterpret_cast<u64>(p.out);
    if constexpr (kCombines) difference |= in ^ reinterpret_cast<u64>(p.local);
    if constexpr (kCopies) difference |= in ^ reinterpret_cast<u64>(p.copy);
    i32 done = 0;
    if (difference % 16 == 0) {
        const i32 until_aligned = static_cast<i32>((16 - in % 16) % 16) / kItem;
        const i32 head = until_aligned < p.length ? until_aligned : p.length;
        const i32 vectors = (p.length - head) / kItems;
        carry_units<Vector, kBatch, kCombines, kCopies>(p, static_cast<i64>(head) * kItem, vectors,
                                                        made);
        if (head > 0) carry_units<Element, 1, kCombines, kCopies>(p, 0, head, made);
        done = head + vectors * kItems;
    }
    carry_units<Element, kBatch, kCombines, kCopies>(p, static_cast<i64>(done) * kItem,
                                                     p.length - done, made);
}

// The result of a reduction.
template <class Unit>
SLEY_INLINE Unit reduced(Unit local, Unit in, i32 divisor) {
    const Unit sum = combine_words(local, in);
    return kAverages && divisor > 1 ? divide_words(sum, divisor) : sum;
}

struct Combined {
    i32 divisor;
    template <class Unit>
    SLEY_METHOD Unit operator()(Unit local, Unit in) const {
        return reduced(scaled(local, divisor, kLocal), scaled(in, divisor, kIn), divisor);
    }
};
struct Taken {
    i32 divisor;
    template <class Unit>
    SLEY_METHOD Unit operator()(Unit, Unit in) const { return scaled(in, divisor, kIn); }
};

template <bool kCombines, bool kCopies>
SLEY_INLINE void carry_elements(const Piece& p) {
    if constexpr (kCombines) carry_elements<kCombines, kCopies>(p, Combined{p.divisor});
    else carry_elements<kCombines, kCopies>(p, Taken{p.divisor});
}

// ---- Elements as words of 8 bytes

constexpr int kWordItems = 8 / kItem;

// At least one: its flag says that the message has come.
SLEY_INLINE i32 words_of(i32 length) {
    return length == 0 ? 1 : (length + kWordItems - 1) / kWordItems;
}

// kAligned: the word is whole, and its address a multiple of 8.
template <bool kAligned>
SLEY_INLINE u64 load_word(const char* at, i32 word, i32 length) {
    const char* from = at + 8ll * word;
    if constexpr (kAligned) return *reinterpret_cast<const u64*>(from);
    const i32 items = length - word * kWordItems;
    Element e[kWordItems] = {};
    SLEY_UNROLL
    for (int i = 0; i < kWordItems; ++i) {
        if (i < items) e[i] = load_element(from + i * kItem);
    }
    u64 result;
    memcpy(&result, e, sizeof result);
    return result;
}

template <bool kAligned>
SLEY_INLINE void store_word(char* at, i32 word, i32 length, u64 value) {
    char* to = at + 8ll * word;
    if constexpr (kAligned) {
        *reinterpret_cast<u64*>(to) = value;
        return;
    }
    const i32 items = length - word * kWordItems;
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

// The other arguments of a flagged execution. in, out: the flags of its messages, which no word of
// their slots has from an earlier message (LL: `refresh` in kernel.hpp). The rest is for reports.
struct Flags {
    u64 in, out;
    i32 step, tile;
    u32 peer;
};

// In a flagged piece, `in` is the slot of the received message (if any), `copy` the slot of the
// sent one (if any), and `out` the destination or null. The functions below return false if the
// block gave up. A thread loads the local operands of a batch, then polls for all of its messages
// at once: latencies overlap, and those of the operands are over when messages arrive. A word that
// isn't aligned is loaded element by element, which is a batch by itself.

// The words of a piece from word `first` on, in the buffers of its rank. `at` counts from there.
template <bool kAligned, bool kReceives, bool kCombines>
struct Words {
    const char* in;
    const char* local;
    char* out;
    i32 length, divisor;
    SLEY_METHOD Words(const Piece& p, i32 first)
        : in(kReceives ? nullptr : p.in + 8ll * first),
          local(kCombines ? p.local + 8ll * first : nullptr),
          out(p.out == nullptr ? nullptr : p.out + 8ll * first),
          length(p.length - first * kWordItems),
          divisor(p.divisor) {}
    // The operand to load before the message has come.
    SLEY_METHOD u64 own(i32 at) const {
        if constexpr (kCombines) {
            return scaled(load_word<kAligned>(local, at, length), divisor, kLocal);
        } else if constexpr (!kReceives) {
            return scaled(load_word<kAligned>(in, at, length), divisor, kIn);
        } else {
            return 0;
        }
    }
    SLEY_METHOD u64 result(i32 at, u64 own, u64 message) const {
        u64 value = kReceives ? message : own;
        if constexpr (kCombines) value = reduced(own, message, divisor);
        if (out != nullptr) store_word<kAligned>(out, at, length, value);
        return value;
    }
};

// Words `first` to `end` of a piece of LL.
template <bool kAligned, bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_words(const Piece& p, const Flags& flags, i32 first, i32 end) {
    constexpr int kBatch = kAligned ? 4 / kShare : 1;
    const i32 step = kBatch * workers();
    SLEY_ROLLED
    for (i32 w = first + first_of_batch<kBatch>(); w < end; w += step) {
        const Words<kAligned, kReceives, kCombines> words(p, w);
        const i32 rest = end - w;
        u64 own[kBatch] = {}, message[kBatch] = {};
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            if (k * kWarp < rest) own[k] = words.own(k * kWarp);
        }
        if constexpr (kReceives) {
            const u64* slot = reinterpret_cast<const u64*>(p.in) + 2ll * w;
            Patience patience{0, 0};
            for (;;) {
                bool is_there = true;
                SLEY_UNROLL
                for (int k = 0; k < kBatch; ++k) {
                    if (k * kWarp >= rest) continue;
                    is_there &= take_ll(slot, k * kWarp, flags.in, &message[k]);
                }
                if (is_there) break;
                const u64 verdict = patience.verdict();
                if (verdict == 0) continue;
                give_up(verdict, flags.step, flags.tile, kMessage, flags.peer, 0);
                return false;
            }
        }
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            if (k * kWarp >= rest) continue;
            const u64 value = words.result(k * kWarp, own[k], message[k]);
            if constexpr (kSends) {
                put_ll(reinterpret_cast<u64*>(p.copy) + 2ll * w, k * kWarp, flags.out, value);
            }
        }
    }
    return true;
}

// A thread's part of a line of LL128: two words, or, for the eighth thread, one word and the flag.
struct Part {
    i32 line, number;
    SLEY_METHOD i32 word() const { return line * 15 + 2 * number; }
    SLEY_METHOD bool has_second() const { return number < 7; }
};
SLEY_INLINE Part part(i32 number) { return {number / 8, number % 8}; }

// The thread's k-th part after part `first`: that of the same number if a warp has whole lines.
SLEY_INLINE Part later_part(Part first, int k) {
    if constexpr (kWarp % 8 == 0) return {first.line + k * (kWarp / 8), first.number};
    else return part(first.line * 8 + first.number + k * kWarp);
}

// Lines `first` to `end` of a piece of LL128. All threads of a warp run the same number of turns, so
// that the warp can agree on whether its lines have arrived.
template <bool kAligned, bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_lines(const Piece& p, const Flags& flags, i32 first, i32 end) {
    constexpr int kBatch = kAligned ? (kCombines ? 3 : 4) / kShare : 1;  // four would spill
    const i32 turns = 8 * first + (8 * (end - first) + kWarp - 1) / kWarp * kWarp;
    SLEY_ROLLED
    for (i32 i = 8 * first + first_of_batch<kBatch>(); i < turns; i += kBatch * workers()) {
        const Part start = part(i);
        const Words<kAligned, kReceives, kCombines> words(p, start.word());
        const i32 rest = words_of(p.length) - start.word(), lines = end - start.line;
        const u64* from = reinterpret_cast<const u64*>(p.in) + 16ll * start.line;
        u64* to = reinterpret_cast<u64*>(p.copy) + 16ll * start.line;
        Pair own[kBatch] = {}, message[kBatch] = {};
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            const Part next = later_part(start, k);
            const i32 word = next.word() - start.word();
            if (next.line - start.line >= lines) continue;
            if (word < rest) own[k].first = words.own(word);
            if (next.has_second() && word + 1 < rest) own[k].second = words.own(word + 1);
        }
        if constexpr (kReceives) {
            Patience patience{0, 0};
            for (;;) {
                // The flag covers the whole line only if its parts are loaded together.
                sync_warp();
                bool is_there = true;
                SLEY_UNROLL
                for (int k = 0; k < kBatch; ++k) {
                    const Part next = later_part(start, k);
                    const i32 line = next.line - start.line;
                    if (line >= lines) continue;
                    is_there &= load_of_line(from + 16 * line, next.number, flags.in, &message[k]);
                }
                if (!any_lane(!is_there)) break;
                const u64 verdict = patience.verdict();
                if (!any_lane(verdict != 0)) continue;
                if (verdict != 0) {
                    give_up(verdict, flags.step, flags.tile, kMessage, flags.peer, 0);
                }
                return false;
            }
        }
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            const Part next = later_part(start, k);
            const i32 word = next.word() - start.word(), line = next.line - start.line;
            Pair value{0, flags.out};
            if (line < lines && word < rest) {
                value.first = words.result(word, own[k].first, message[k].first);
            }
            if (line < lines && next.has_second() && word + 1 < rest) {
                value.second = words.result(word + 1, own[k].second, message[k].second);
            }
            if constexpr (kSends) {
                // A line arrives as a whole only if its parts are stored together.
                sync_warp();
                if (line < lines) store_of_line(to + 16 * line, next.number, value);
            }
        }
    }
    return true;
}

// The words of a piece that can be accessed as such: whole ones, at multiples of 8 bytes.
template <bool kReceives, bool kCombines>
SLEY_INLINE i32 aligned_words(const Piece& p) {
    u64 addresses = reinterpret_cast<u64>(p.out);
    if constexpr (!kReceives) addresses |= reinterpret_cast<u64>(p.in);
    if constexpr (kCombines) addresses |= reinterpret_cast<u64>(p.local);
    return addresses % 8 == 0 ? p.length / kWordItems : 0;
}

template <bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_ll(const Piece& p, const Flags& flags) {
    const i32 words = words_of(p.length), aligned = aligned_words<kReceives, kCombines>(p);
    return carry_words<true, kReceives, kCombines, kSends>(p, flags, 0, aligned) &&
           carry_words<false, kReceives, kCombines, kSends>(p, flags, aligned, words);
}

template <bool kReceives, bool kCombines, bool kSends>
SLEY_INLINE bool carry_ll128(const Piece& p, const Flags& flags) {
    const i32 words = words_of(p.length), lines = (words + 14) / 15;
    const i32 aligned = aligned_words<kReceives, kCombines>(p);
    // The last line is with the others, unless its last word isn't whole.
    const i32 whole = aligned == words ? lines : aligned / 15;
    return carry_lines<true, kReceives, kCombines, kSends>(p, flags, 0, whole) &&
           carry_lines<false, kReceives, kCombines, kSends>(p, flags, whole, lines);
}

}  // namespace sley
