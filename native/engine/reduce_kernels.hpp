// The kernels for one set of vector instructions, from one template for each type and operation.
//
// reduce.cpp includes this file once for each set, so there is no include guard. Each time it
// defines (and this file undefines)
//   SLEY_VARIANT       the namespace of the set,
//   SLEY_TARGET        the attribute that lets a function use the set's instructions,
//   SLEY_VECTOR_BYTES  the width of the registers to use, 16 or 32 (32: AVX2 and F16C at least).
// Every function here has the attribute; a compiler option for the whole file would not do: the
// linker could keep a copy of a shared inline function (half.hpp, the standard library) that only
// the newest CPUs can run.
//
// All sets write the same bits, in either order of the operands: so ranks on different CPUs agree,
// and so do two ranks that combine exchanged data. Therefore
//   - every NaN that arithmetic writes is the positive quiet one without payload,
//   - MIN and MAX take a NaN from either operand, and order -0 before +0,
//   - the last elements of an array are padded and run the same code as the others,
//   - no product feeds a sum, which a compiler could fuse (except in half.hpp, where it is exact).

namespace sley::SLEY_VARIANT {

#define SLEY_STEP SLEY_TARGET __attribute__((always_inline)) static inline

template <class T>
struct VectorOf {
    typedef T type __attribute__((vector_size(SLEY_VECTOR_BYTES)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class V>
using Lane = std::decay_t<decltype(std::declval<V&>()[0])>;

template <class V>
using Unsigned = Vector<std::make_unsigned_t<Lane<V>>>;

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;

template <class V>
SLEY_STEP V load(const std::byte* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
SLEY_STEP void store(std::byte* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

template <class V>
SLEY_STEP V quiet_nan() {
    return V{} + std::numeric_limits<Lane<V>>::quiet_NaN();
}

template <class V>
SLEY_STEP V with_one_nan(V v) {
    return v == v ? v : quiet_nan<V>();
}

// Integers wrap around, computed as unsigned: signed overflow is undefined in C++.
struct Sum {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        if constexpr (std::is_integral_v<Lane<V>>) {
            return reinterpret_cast<V>(reinterpret_cast<Unsigned<V>>(a) +
                                       reinterpret_cast<Unsigned<V>>(b));
        } else {
            return with_one_nan<V>(a + b);
        }
    }
};

struct Product {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        if constexpr (std::is_integral_v<Lane<V>>) {
            return reinterpret_cast<V>(reinterpret_cast<Unsigned<V>>(a) *
                                       reinterpret_cast<Unsigned<V>>(b));
        } else {
            return with_one_nan<V>(a * b);
        }
    }
};

// Among equal numbers only zeros have different bits. The two selections return different ones of
// equal operands, so "or" gives -0 if there is one, and "and" +0.
struct Min {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        const V low = a < b ? a : b;
        if constexpr (std::is_integral_v<Lane<V>>) {
            return low;
        } else {
            using Bits = decltype(a < b);
            const V other = b < a ? b : a;
            const Bits both = reinterpret_cast<Bits>(low) | reinterpret_cast<Bits>(other);
            return ((a == a) & (b == b)) ? reinterpret_cast<V>(both) : quiet_nan<V>();
        }
    }
};

struct Max {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        const V high = a > b ? a : b;
        if constexpr (std::is_integral_v<Lane<V>>) {
            return high;
        } else {
            using Bits = decltype(a > b);
            const V other = b > a ? b : a;
            const Bits both = reinterpret_cast<Bits>(high) & reinterpret_cast<Bits>(other);
            return ((a == a) & (b == b)) ? reinterpret_cast<V>(both) : quiet_nan<V>();
        }
    }
};

struct BitAnd {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        return a & b;
    }
};

struct BitOr {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        return a | b;
    }
};

struct BitXor {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        return a ^ b;
    }
};

struct Quotient {
    template <class V>
    SLEY_STEP V apply(V a, V b) {
        return with_one_nan<V>(a / b);
    }
};

// The format of elements in memory (`kStep` bytes at a time) and in registers (`Parts`).
template <class E>
struct Format {
    using Part = Vector<E>;
    static constexpr std::size_t kStep = SLEY_VECTOR_BYTES, kParts = 1;
    struct Parts {
        Part part[kParts];
    };
    SLEY_STEP Parts read(const std::byte* from) { return {{load<Part>(from)}}; }
    SLEY_STEP void write(std::byte* to, const Parts& parts) { store(to, parts.part[0]); }
};

// Two bfloat16 in a word are two floats that need no shuffling: one shifted up, one masked.
template <>
struct Format<Bfloat16> {
    using Part = Floats;
    static constexpr std::size_t kStep = SLEY_VECTOR_BYTES, kParts = 2;
    struct Parts {
        Part part[kParts];
    };
    static constexpr std::uint32_t kUpper = 0xFFFF0000u;

    SLEY_STEP Parts read(const std::byte* from) {
        const Words pairs = load<Words>(from);
        return {{reinterpret_cast<Floats>(pairs << 16), reinterpret_cast<Floats>(pairs & kUpper)}};
    }
    SLEY_STEP void write(std::byte* to, const Parts& parts) {
        store(to, (round(parts.part[0]) >> 16) | (round(parts.part[1]) & kUpper));
    }
    // As Bfloat16::from_float, without its case for NaN: the only NaN here has no payload that
    // rounding could carry into the exponent.
    SLEY_STEP Words round(Floats value) {
        const Words w = reinterpret_cast<Words>(value);
        return w + 0x7FFFu + ((w >> 16) & 1u);
    }
};

// Hides the origin of `v`: otherwise Clang 14 compares halves one by one before it widens them.
#if SLEY_VECTOR_BYTES == 32
SLEY_STEP Floats opaque(Floats v) {
    __asm__("" : "+x"(v));
    return v;
}
#endif

template <>
struct Format<Float16> {
    using Part = Floats;
    static constexpr std::size_t kStep = SLEY_VECTOR_BYTES / 2, kParts = 1;
    struct Parts {
        Part part[kParts];
    };

#if SLEY_VECTOR_BYTES == 32
    SLEY_STEP Parts read(const std::byte* from) {
        return {{opaque(_mm256_cvtph_ps(load<__m128i>(from)))}};
    }
    SLEY_STEP void write(std::byte* to, const Parts& parts) {
        store(to, _mm256_cvtps_ph(parts.part[0], _MM_FROUND_TO_NEAREST_INT));
    }
#elif defined(__aarch64__)
    SLEY_STEP Parts read(const std::byte* from) {
        return {{vcvt_f32_f16(load<float16x4_t>(from))}};
    }
    SLEY_STEP void write(std::byte* to, const Parts& parts) {
        store(to, vcvt_f16_f32(parts.part[0]));
    }
#else
    static constexpr std::size_t kLanes = SLEY_VECTOR_BYTES / sizeof(float);
    SLEY_STEP Parts read(const std::byte* from) {
        std::array<Float16, kLanes> halves;
        std::memcpy(&halves, from, sizeof halves);
        Floats v;
        for (std::size_t k = 0; k < kLanes; ++k) v[k] = halves[k].to_float();
        return {{v}};
    }
    SLEY_STEP void write(std::byte* to, const Parts& parts) {
        std::array<Float16, kLanes> halves;
        for (std::size_t k = 0; k < kLanes; ++k) {
            halves[k] = Float16::from_float(parts.part[0][k]);
        }
        std::memcpy(to, &halves, sizeof halves);
    }
#endif
};

#define SLEY_INLINE SLEY_STEP
SLEY_STEP Floats as_float(Words bits) { return reinterpret_cast<Floats>(bits); }
SLEY_STEP Words as_bits(Floats values) { return reinterpret_cast<Words>(values); }
#include "float8.hpp"
#undef SLEY_INLINE

template <int kFraction, unsigned kLargest>
struct Format<Float8<kFraction, kLargest>> {
    using Part = Floats;
    static constexpr std::size_t kStep = SLEY_VECTOR_BYTES / 4, kParts = 1;
    typedef std::uint8_t Codes __attribute__((vector_size(kStep)));
    struct Parts {
        Part part[kParts];
    };
    SLEY_STEP Parts read(const std::byte* from) {
        const Words codes = __builtin_convertvector(load<Codes>(from), Words);
        return {{as_float(Float8<kFraction, kLargest>::widened(codes))}};
    }
    SLEY_STEP void write(std::byte* to, const Parts& parts) {
        const Words codes = Float8<kFraction, kLargest>::narrowed(as_bits(parts.part[0]));
        store(to, __builtin_convertvector(codes, Codes));
    }
};

template <class E, class Op>
SLEY_STEP void combine_step(std::byte* out, const std::byte* a, const std::byte* b) {
    using F = Format<E>;
    typename F::Parts x = F::read(a);
    const typename F::Parts y = F::read(b);
    for (std::size_t k = 0; k < F::kParts; ++k) {
        x.part[k] = Op::template apply<typename F::Part>(x.part[k], y.part[k]);
    }
    F::write(out, x);
}

template <class E, class Op>
SLEY_TARGET void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t n) {
    constexpr std::size_t step = Format<E>::kStep;
    const std::size_t bytes = n * sizeof(E);
    std::size_t i = 0;
    for (; bytes - i >= step; i += step) combine_step<E, Op>(out + i, a + i, b + i);
    if (i == bytes) return;
    std::byte last_a[step] = {}, last_b[step] = {};
    std::memcpy(last_a, a + i, bytes - i);
    std::memcpy(last_b, b + i, bytes - i);
    combine_step<E, Op>(last_a, last_a, last_b);
    std::memcpy(out + i, last_a, bytes - i);
}

template <class E>
SLEY_STEP void divide_step(std::byte* data, typename Format<E>::Part divisor) {
    using F = Format<E>;
    typename F::Parts x = F::read(data);
    for (std::size_t k = 0; k < F::kParts; ++k) {
        x.part[k] = Quotient::apply<typename F::Part>(x.part[k], divisor);
    }
    F::write(data, x);
}

template <class E>
SLEY_TARGET void divide(std::byte* data, std::int32_t divisor, std::size_t n) {
    using Part = typename Format<E>::Part;
    constexpr std::size_t step = Format<E>::kStep;
    const Part divisors = Part{} + static_cast<Lane<Part>>(divisor);
    const std::size_t bytes = n * sizeof(E);
    std::size_t i = 0;
    for (; bytes - i >= step; i += step) divide_step<E>(data + i, divisors);
    if (i == bytes) return;
    std::byte last[step] = {};
    std::memcpy(last, data + i, bytes - i);
    divide_step<E>(last, divisors);
    std::memcpy(data + i, last, bytes - i);
}

// CPUs have no vector division of integers. In a floating-point type that holds both operands, the
// truncated quotient is right: only a quotient nearer than 1 / divisor to an integer could be
// rounded to it. (If a divisor is too large for a float, the quotient is 0 anyway.) No such type
// holds those of 64 bits.
template <class T>
SLEY_TARGET void divide_integers(std::byte* bytes, std::int32_t divisor, std::size_t n) {
    using Exact = std::conditional_t<(sizeof(T) < 4), float,
                                     std::conditional_t<sizeof(T) == 4, double, T>>;
    const auto exact = static_cast<Exact>(divisor);
    for (std::size_t i = 0; i < n; ++i) {
        T value;
        std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        value = static_cast<T>(static_cast<Exact>(value) / exact);
        std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
    }
}

template <class E>
constexpr Divide divide_of() {
    if constexpr (std::is_integral_v<E>) {
        return divide_integers<E>;
    } else {
        return divide<E>;
    }
}

// The unsigned integer of an element's size.
template <class E>
using BitsOf = std::conditional_t<
    sizeof(E) == 1, std::uint8_t,
    std::conditional_t<sizeof(E) == 2, std::uint16_t,
                       std::conditional_t<sizeof(E) == 4, std::uint32_t, std::uint64_t>>>;

template <class E>
constexpr Kernels kernels_of() {
    using Bits = BitsOf<E>;
    return {sizeof(E),
            {combine<E, Sum>, combine<E, Product>, combine<E, Min>, combine<E, Max>,
             combine<E, Sum>, combine<Bits, BitAnd>, combine<Bits, BitOr>, combine<Bits, BitXor>},
            divide_of<E>()};
}

constexpr KernelTable kKernels = {
    kernels_of<Float16>(),      kernels_of<Bfloat16>(),     kernels_of<float>(),
    kernels_of<double>(),       kernels_of<std::int8_t>(),  kernels_of<std::int16_t>(),
    kernels_of<std::int32_t>(), kernels_of<std::int64_t>(), kernels_of<std::uint8_t>(),
    kernels_of<std::uint32_t>(), kernels_of<std::uint64_t>(), kernels_of<Float8<3, 0x7E>>(),
    kernels_of<Float8<2, 0x7B>>()};

}  // namespace sley::SLEY_VARIANT

#undef SLEY_STEP
#undef SLEY_VARIANT
#undef SLEY_TARGET
#undef SLEY_VECTOR_BYTES
