// Instructions with groups: messages from several ranks, or to several, at once, in slots that a
// switch loads and stores (`docs/kernels.md`, "Switches"). A group of one rank is its connection.
#pragma once

namespace sley {

// Whether the switch has the reduction of these elements. If not, the messages are loaded from the
// members one by one.
constexpr bool kSwitchReduces = SLEY_SWITCH_BYTES > 0;

// 16 bytes of a rank's buffer. kWhole: they are aligned, and all belong to the chunk. Otherwise
// `items` elements do, which are moved one by one.
template <bool kWhole>
SLEY_INLINE Vector load_items(const char* at, i32 items) {
    if constexpr (kWhole) return load_vector(at);
    Element e[kUnit] = {};
    SLEY_UNROLL
    for (i32 i = 0; i < kUnit; ++i) {
        if (i < items) e[i] = load_element(at + i * kItem);
    }
    Vector v;
    memcpy(&v, e, sizeof v);
    return v;
}

template <bool kWhole>
SLEY_INLINE void store_items(char* at, Vector v, i32 items) {
    if constexpr (kWhole) {
        store_vector(at, v);
        return;
    }
    Element e[kUnit];
    memcpy(e, &v, sizeof v);
    SLEY_UNROLL
    for (i32 i = 0; i < kUnit; ++i) {
        if (i < items) store_element(at + i * kItem, e[i]);
    }
}

// 16 bytes of the slots of a bundle, at the same place in each. kSwitched: through the switch.
template <bool kSwitched>
SLEY_INLINE Vector load_slots(const End* ends, i32 members, i64 at) {
    if constexpr (kSwitched) return load_switched(ends->switched, at, Combined{0});
    Vector v = load_vector(ends->slots + at);
    SLEY_ROLLED
    for (i32 m = 1; m < members; ++m) v = combine_words(v, load_vector(ends[m].slots + at));
    return v;
}

SLEY_INLINE void store_slots(const End* ends, const char* switched, i64 at, Vector v) {
    if (switched != nullptr) {
        store_switched(switched, at, v);
    } else {
        store_vector(ends->slots + at, v);
    }
}

// Vectors `first` to `end` of a piece. A message has whole vectors in its slot: the last one may be
// partial in buffers, and what is behind its elements in slots means nothing.
template <bool kWhole, bool kSwitched, class K>
SLEY_INLINE void carry_slots(K, const Piece& p, const Group& from, const Group& to, i32 first,
                             i32 end) {
    // Four vectors, or two if the switch loads less than a vector at once: four would spill.
    constexpr int kMost = SLEY_SWITCH_BYTES % 16 == 0 ? 4 : 2;
    constexpr int kBatch = kWhole ? kMost / kShare : 1;
    const End* sources = state.receivers + from.peer;
    const End* targets = state.senders + to.peer;
    const char* switched = K::kSends ? targets->switched : nullptr;
    const char* own = K::kReceives ? p.local : p.in;
    const i64 in_at = K::kReceives ? p.in - sources->slots : 0;
    const i64 out_at = K::kSends ? p.copy - targets->slots : 0;
    SLEY_ROLLED
    for (i32 v = first + first_of_batch<kBatch>(); v < end; v += kBatch * workers()) {
        Vector local[kBatch] = {}, in[kBatch] = {};
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            const i32 at = v + k * kWarp;
            if (at >= end) continue;
            if constexpr (K::kReads) {
                local[k] = scaled(load_items<kWhole>(own + 16ll * at, p.length - at * kUnit),
                                  p.divisor, K::kReceives ? kLocal : kIn);
            }
            if constexpr (K::kReceives) {
                in[k] = load_slots<kSwitched>(sources, from.members, in_at + 16ll * at);
            }
        }
        SLEY_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            const i32 at = v + k * kWarp;
            if (at >= end) continue;
            Vector result = K::kReceives ? in[k] : local[k];
            if constexpr (K::kCombines) {
                result = reduced(local[k], in[k], p.divisor);
            } else if (kAverages && p.divisor > 1) {
                result = divide_words(result, p.divisor);
            }
            if (K::kWrites && p.out != nullptr) {
                store_items<kWhole>(p.out + 16ll * at, result, p.length - at * kUnit);
            }
            if constexpr (K::kSends) store_slots(targets, switched, out_at + 16ll * at, result);
        }
    }
}

template <bool kSwitched, class K>
SLEY_INLINE void carry_vectors(K kind, const Piece& p, const Group& from, const Group& to) {
    u64 addresses = K::kWrites ? reinterpret_cast<u64>(p.out) : 0;
    if constexpr (K::kReads) addresses |= reinterpret_cast<u64>(K::kReceives ? p.local : p.in);
    const i32 vectors = (p.length + kUnit - 1) / kUnit;
    const i32 whole = addresses % 16 == 0 ? p.length / kUnit : 0;
    carry_slots<true, kSwitched>(kind, p, from, to, 0, whole);
    carry_slots<false, kSwitched>(kind, p, from, to, whole, vectors);
}

template <class K>
SLEY_INLINE void carry_group(K kind, const Piece& p, const Group& from, const Group& to) {
    if constexpr (K::kReceives && kSwitchReduces) {
        if (from.members > 1) {
            carry_vectors<true>(kind, p, from, to);
            return;
        }
    }
    carry_vectors<false>(kind, p, from, to);
}

SLEY_INLINE Group no_group() { return {0, 0, 1}; }

SLEY_FUNCTION void send(i32 tile, Step s, Place src, Group to, i32 count = 1) {
    execute<Send>(tile, s, no_group(), src, nowhere(), to, count);
}
SLEY_FUNCTION void recv(i32 tile, Step s, Group from, Place dst, i32 count = 1) {
    execute<Recv>(tile, s, from, nowhere(), dst, no_group(), count);
}
SLEY_FUNCTION void recv_reduce_copy(i32 tile, Step s, Group from, Place src, Place dst,
                                    i32 count = 1) {
    execute<RecvReduceCopy>(tile, s, from, src, dst, no_group(), count);
}
SLEY_FUNCTION void recv_copy_send(i32 tile, Step s, Group from, Place dst, Group to,
                                  i32 count = 1) {
    execute<RecvCopySend>(tile, s, from, nowhere(), dst, to, count);
}
SLEY_FUNCTION void recv_reduce_send(i32 tile, Step s, Group from, Place src, Group to,
                                    i32 count = 1) {
    execute<RecvReduceSend>(tile, s, from, src, nowhere(), to, count);
}
SLEY_FUNCTION void recv_reduce_copy_send(i32 tile, Step s, Group from, Place src, Place dst,
                                         Group to, i32 count = 1) {
    execute<RecvReduceCopySend>(tile, s, from, src, dst, to, count);
}
SLEY_FUNCTION void copy_send(i32 tile, Step s, Place src, Place dst, Group to, i32 count = 1) {
    execute<CopySend>(tile, s, no_group(), src, dst, to, count);
}

}  // namespace sley
