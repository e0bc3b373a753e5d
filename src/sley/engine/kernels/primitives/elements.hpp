// Elements: the type and the reduction that a kernel is compiled for (`docs/machine.md`,
// "Reductions"). SLEY_TYPE and SLEY_REDUCTION are the numbers of `sley.engine.DATA_TYPES` and
// `sley.ReduceOp`.
#pragma once

namespace sley {

#include "float8.hpp"

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
#elif SLEY_TYPE == 9
using Element = u32;
#elif SLEY_TYPE == 10
using Element = u64;
#elif SLEY_TYPE == 11
using Element = Float8<3, 0x7E>;
#define SLEY_FLOAT8 "e4m3x2"
#elif SLEY_TYPE == 12
using Element = Float8<2, 0x7B>;
#define SLEY_FLOAT8 "e5m2x2"
#endif

// Of 8-bit types, conversions by arithmetic, comparisons and divisions are no part of their caller:
// they would need too many registers there.
#if SLEY_TYPE >= 11 && (SLEY_REDUCTION >= 2 || !(__CUDA_ARCH__ >= 890))
#define SLEY_COMBINED SLEY_FUNCTION
#else
#define SLEY_COMBINED SLEY_INLINE
#endif

constexpr bool kIsFloat8 = SLEY_TYPE >= 11;
constexpr bool kIsHalf = SLEY_TYPE <= 1;
constexpr bool kIsInteger = SLEY_TYPE >= 4 && !kIsFloat8;
constexpr bool kScales = SLEY_SCALES;  // inputs are multiplied where they are read first
constexpr bool kAverages = SLEY_REDUCTION == 4;  // as sums, which are divided when they are final
constexpr int kItem = static_cast<int>(sizeof(Element));

// A reduction is done in float for the types of 8 and 16 bits, in the type itself for all others.
SLEY_INLINE float widen(Float16 a) { return a.to_float(); }
SLEY_INLINE float widen(Bfloat16 a) { return a.to_float(); }
template <class T>
SLEY_INLINE T widen(T a) { return a; }

#if SLEY_TYPE >= 11
SLEY_INLINE float widen(Element a) {
#if __CUDA_ARCH__ >= 890  // converts two at once
    u32 pair;
    asm("cvt.rn.f16x2." SLEY_FLOAT8 " %0, %1;" : "=r"(pair) : "h"(u16{a.bits}));
    return Float16{static_cast<u16>(pair)}.to_float();
#else
    return as_float(a.widened(u32{a.bits}));
#endif
}

template <class T>
SLEY_INLINE T narrow(float a) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite." SLEY_FLOAT8 ".f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(a));
    return {static_cast<u8>(pair)};
#else
    return {static_cast<u8>(T::narrowed(as_bits(a)))};
#endif
}
#else
template <class T, class Wide>
SLEY_INLINE T narrow(Wide a) {
    if constexpr (kIsHalf) return T::from_float(a);
    else return static_cast<T>(a);
}
#endif

// Sums and products of integers wrap around, which only unsigned arithmetic guarantees.
template <class T>
SLEY_INLINE T multiply_wide(T a, T b) {
    if constexpr (kIsInteger) return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
    else return product(a, b);
}

template <class T>
SLEY_INLINE T combine_wide(T a, T b) {
#if SLEY_REDUCTION == 1
    return multiply_wide(a, b);
#elif SLEY_REDUCTION == 2
    if constexpr (kIsFloat8) {  // as the CPU runtime: -0 before +0
        if (a == b) return as_float(as_bits(a) | as_bits(b));
    }
    return a < b || a != a ? a : b;  // a NaN on either side wins
#elif SLEY_REDUCTION == 3
    if constexpr (kIsFloat8) {
        if (a == b) return as_float(as_bits(a) & as_bits(b));
    }
    return a > b || a != a ? a : b;
#else
    if constexpr (kIsInteger) return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
    else return a + b;
#endif
}

// Unsigned integers by their size.
template <int kBytes>
struct BitsOfSize { using type = u64; };
template <>
struct BitsOfSize<4> { using type = u32; };
template <>
struct BitsOfSize<2> { using type = u16; };
template <>
struct BitsOfSize<1> { using type = u8; };
template <int kBytes>
using BitsOf = typename BitsOfSize<kBytes>::type;

#if SLEY_REDUCTION >= 5
// The bitwise reductions combine the bits of elements of any type.
SLEY_INLINE Element combine(Element a, Element b) {
    BitsOf<kItem> x, y;
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
SLEY_COMBINED Element combine(Element a, Element b) {
    return narrow<Element>(combine_wide(widen(a), widen(b)));
}
#endif

// Rounds quotients of integers towards zero.
template <class T>
SLEY_INLINE T divide_wide(T a, i32 divisor) {
    if constexpr (SLEY_TYPE == 10) return a / static_cast<T>(divisor);
    else if constexpr (kIsInteger) return static_cast<T>(static_cast<i64>(a) / divisor);
    else return a / static_cast<T>(divisor);
}

SLEY_COMBINED Element divide(Element a, i32 divisor) {
    return narrow<Element>(divide_wide(widen(a), divisor));
}

SLEY_COMBINED Element multiply(Element a, Element factor) {
    return narrow<Element>(multiply_wide(widen(a), widen(factor)));
}

// Multiplies each element of a word of several.
template <class Words>
SLEY_INLINE Words multiply_words(Words a, Element factor) {
    constexpr int kElements = static_cast<int>(sizeof(Words) / sizeof(Element));
    Element x[kElements];
    memcpy(x, &a, sizeof a);
    SLEY_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] = multiply(x[i], factor);
    memcpy(&a, x, sizeof a);
    return a;
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
