// The kernels, one for each type and operation, out of one template.
#include "reduce.hpp"

#include <array>
#include <type_traits>

#include "half.hpp"

// `out` may be `a`: no dependence is carried from one element to the next, but a compiler that
// checks at run time for overlap would fall back to its scalar loop.
#if defined(__clang__)
#define SLEY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SLEY_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace sley {
namespace {

template <class T>
constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// Integers wrap around: signed overflow is undefined in C++, so the sums and products are done
// without sign. uint16 alone would be promoted to int and overflow in a product, so 32 bits.
template <class T>
using Wide = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

struct Sum {
    template <class T>
    static T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>) {
            return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
        } else {
            return a + b;
        }
    }
};

struct Product {
    template <class T>
    static T apply(T a, T b) {
        if constexpr (std::is_integral_v<T>) {
            return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
        } else {
            return a * b;
        }
    }
};

// A NaN wins: then the result does not depend on the order of the operands, and nothing is lost.
struct Min {
    template <class T>
    static T apply(T a, T b) {
        return (a < b || a != a) ? a : b;
    }
};

struct Max {
    template <class T>
    static T apply(T a, T b) {
        return (a > b || a != a) ? a : b;
    }
};

template <class T, class Op>
void combine(std::byte* out_bytes, const std::byte* a_bytes, const std::byte* b_bytes,
             std::size_t n) {
    auto* out = reinterpret_cast<T*>(out_bytes);
    const auto* a = reinterpret_cast<const T*>(a_bytes);
    const auto* b = reinterpret_cast<const T*>(b_bytes);
    SLEY_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
        if constexpr (is_half<T>) {
            out[i] = T::from_float(Op::apply(a[i].to_float(), b[i].to_float()));
        } else {
            out[i] = Op::apply(a[i], b[i]);
        }
    }
}

template <class T>
void divide(std::byte* bytes, std::int32_t divisor, std::size_t n) {
    auto* data = reinterpret_cast<T*>(bytes);
    for (std::size_t i = 0; i < n; ++i) {
        if constexpr (is_half<T>) {
            data[i] = T::from_float(data[i].to_float() / static_cast<float>(divisor));
        } else if constexpr (std::is_integral_v<T>) {
            data[i] = static_cast<T>(static_cast<std::int64_t>(data[i]) / divisor);
        } else {
            data[i] = data[i] / static_cast<T>(divisor);
        }
    }
}

struct Kernels {
    std::size_t item;
    std::array<Combine, kReduceOps> combine;  // AVERAGE runs as SUM
    Divide divide;
};

template <class T>
constexpr Kernels kernels_of() {
    return {sizeof(T),
            {combine<T, Sum>, combine<T, Product>, combine<T, Min>, combine<T, Max>,
             combine<T, Sum>},
            divide<T>};
}

constexpr std::array<Kernels, kDataTypes> kTable = {
    kernels_of<Float16>(),      kernels_of<Bfloat16>(),     kernels_of<float>(),
    kernels_of<double>(),       kernels_of<std::int8_t>(),  kernels_of<std::int16_t>(),
    kernels_of<std::int32_t>(), kernels_of<std::int64_t>(), kernels_of<std::uint8_t>()};

const Kernels& kernels(DataType type) { return kTable[static_cast<std::size_t>(type)]; }

}  // namespace

std::size_t item_size(DataType type) { return kernels(type).item; }

Combine combine_kernel(DataType type, ReduceOp op) {
    return kernels(type).combine[static_cast<std::size_t>(op)];
}

Divide divide_kernel(DataType type) { return kernels(type).divide; }

}  // namespace sley
