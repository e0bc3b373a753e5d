// Elements: the type and the reduction that a kernel is compiled for (`docs/machine.md`,
// "Reductions"). SLEY_TYPE and SLEY_REDUCTION are the numbers of `sley.engine.DATA_TYPES` and
// `sley.ReduceOp`.
#pragma once

namespace sley {

#if SLEY_TYPE == 0
using Element = Float16;
#elif SLEY_TYPE == 1
using Element = Bfloat16;
#elif SLEY_TYPE == 2
using Element = float;
#elif SLEY_TYPE == 3
using Element = double;
#elif SLEY_TYPE == 4
using Element = signed char;
#elif SLEY_TYPE == 5
using Element = short;
#elif SLEY_TYPE == 6
using Element = i32;
#elif SLEY_TYPE == 7
using Element = i64;
#elif SLEY_TYPE == 8
using Element = u8;
#endif

constexpr bool kIsHalf = SLEY_TYPE <= 1;
constexpr bool kIsInteger = SLEY_TYPE >= 4;
constexpr bool kAverages = SLEY_REDUCTION == 4;  // as sums, which are divided when they are final
constexpr int kItem = static_cast<int>(sizeof(Element));

// A reduction is done in float for the types of 16 bits, in the type itself for all others.
SLEY_INLINE float widen(Float16 a) { return a.to_float(); }
SLEY_INLINE float widen(Bfloat16 a) { return a.to_float(); }
template <class T>
SLEY_INLINE T widen(T a) { return a; }

template <class T, class Wide>
SLEY_INLINE T narrow(Wide a) {
    if constexpr (kIsHalf) return T::from_float(a);
    else return static_cast<T>(a);
}

// Sums and products of integers wrap around, which only unsigned arithmetic guarantees.
template <class T>
SLEY_INLINE T combine_wide(T a, T b) {
#if SLEY_REDUCTION == 1
    if constexpr (kIsInteger) return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
    else return a * b;
#elif SLEY_REDUCTION == 2
    return a < b || a != a ? a : b;  // a NaN on either side wins
#elif SLEY_REDUCTION == 3
    return a > b || a != a ? a : b;
#else
    if constexpr (kIsInteger) return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
    else return a + b;
#endif
}

#if SLEY_REDUCTION >= 5
template <int kBytes>
struct BitsOf { using type = u64; };
template <>
struct BitsOf<4> { using type = u32; };
template <>
struct BitsOf<2> { using type = u16; };
template <>
struct BitsOf<1> { using type = u8; };

// The bitwise reductions combine the bits of elements of any type.
SLEY_INLINE Element combine(Element a, Element b) {
    typename BitsOf<kItem>::type x, y;
    memcpy(&x, &a, kItem);
    memcpy(&y, &b, kItem);
#if SLEY_REDUCTION == 5
    x &= y;
#elif SLEY_REDUCTION == 6
    x |= y;
#else
    x ^= y;
#endif
    memcpy(&a, &x, kItem);
    return a;
}
#else
SLEY_INLINE Element combine(Element a, Element b) {
    return narrow<Element>(combine_wide(widen(a), widen(b)));
}
#endif

// Rounds quotients of integers towards zero.
template <class T>
SLEY_INLINE T divide_wide(T a, i32 divisor) {
    if constexpr (kIsInteger) return static_cast<T>(static_cast<i64>(a) / divisor);
    else return a / static_cast<T>(divisor);
}

SLEY_INLINE Element divide(Element a, i32 divisor) {
    return narrow<Element>(divide_wide(widen(a), divisor));
}

// Combines two words of several elements each.
template <class Words>
SLEY_INLINE Words combine_words(Words a, Words b) {
    constexpr int kElements = static_cast<int>(sizeof(Words) / sizeof(Element));
    Element x[kElements], y[kElements];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    SLEY_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = combine(x[i], y[i]);
    memcpy(&a, x, sizeof a);
    return a;
}

// Divides each element of a word of several.
template <class Words>
SLEY_INLINE Words divide_words(Words a, i32 divisor) {
    constexpr int kElements = static_cast<int>(sizeof(Words) / sizeof(Element));
    Element x[kElements];
    memcpy(x, &a, sizeof a);
    SLEY_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = divide(x[i], divisor);
    memcpy(&a, x, sizeof a);
    return a;
}

SLEY_INLINE Element load_element(const char* at) { return *reinterpret_cast<const Element*>(at); }
SLEY_INLINE void store_element(char* at, Element e) { *reinterpret_cast<Element*>(at) = e; }

}  // namespace sley
