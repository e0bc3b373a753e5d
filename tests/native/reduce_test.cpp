// Every kernel of every variant that this machine can run, against a plain loop, bit for bit.
//
// Random and special values (NaN with payloads, infinities, subnormals, both zeros, the ends of the
// integers), all short lengths, unaligned starts, results apart from the operands or over one of
// them; all values of the 8- and 16-bit floating-point types. Prints the variants; exits with 1 at the first wrong
// element.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "engine/reduce.hpp"
#include "fabric/copy.hpp"
#include "half.hpp"

namespace sley::reduce_test {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

// An 8-bit floating-point type by its definition: the float of a number is that of its fields, and
// the number of a float the nearest one, of two the even one.
template <int kFraction, int kLargest>
struct Small {
    std::uint8_t bits;

    float to_float() const {
        const int magnitude = bits & 0x7F, exponent = magnitude >> kFraction;
        if (magnitude > kLargest) {
            const bool is_infinite = kLargest == 0x7B && magnitude == 0x7C;
            const float special = is_infinite ? INFINITY : NAN;
            return bits & 0x80 ? -special : special;
        }
        const int fraction = magnitude % (1 << kFraction) + (exponent > 0 ? 1 << kFraction : 0);
        const int bias = (1 << (6 - kFraction)) - 1;
        const float value = std::ldexp(static_cast<float>(fraction),
                                       std::max(exponent, 1) - bias - kFraction);
        return bits & 0x80 ? -value : value;
    }

    static Small from_float(float value) {
        if (std::isnan(value)) return {0x7F};
        const double wanted = std::min<double>(std::fabs(value), 65536);
        int best = 0;
        double least = wanted;
        for (int code = 1; code <= kLargest; ++code) {
            const double off = std::fabs(wanted - Small{static_cast<std::uint8_t>(code)}.to_float());
            if (off < least || (off == least && code % 2 == 0)) best = code, least = off;
        }
        return {static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0))};
    }
};
using Float8E4m3fn = Small<3, 0x7E>;
using Float8E5m2 = Small<2, 0x7B>;

template <class T>
constexpr bool is_short = std::is_class_v<T>;  // combined in float

// ---- the specification, one element at a time ----

template <class T>
T one_nan(T value) {
    return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T expected_min(T a, T b) {
    if constexpr (std::is_integral_v<T>) return b < a ? b : a;
    else if (std::isnan(a) || std::isnan(b)) return one_nan(a + b);
    else if (a == b) return std::signbit(a) ? a : b;
    else return b < a ? b : a;
}

template <class T>
T expected_max(T a, T b) {
    if constexpr (std::is_integral_v<T>) return a < b ? b : a;
    else return one_nan(-expected_min(-a, -b));
}

template <class T>
T expected(ReduceOp op, T a, T b) {
    if (op >= ReduceOp::kBitAnd) {
        for (std::size_t k = 0; k < sizeof(T); ++k) {
            auto* const to = reinterpret_cast<unsigned char*>(&a) + k;
            const auto other = reinterpret_cast<const unsigned char*>(&b)[k];
            if (op == ReduceOp::kBitAnd) *to &= other;
            else if (op == ReduceOp::kBitOr) *to |= other;
            else *to ^= other;
        }
        return a;
    }
    if constexpr (is_short<T>) {
        return T::from_float(expected(op, a.to_float(), b.to_float()));
    } else if (op == ReduceOp::kMin) {
        return expected_min(a, b);
    } else if (op == ReduceOp::kMax) {
        return expected_max(a, b);
    } else if constexpr (std::is_integral_v<T>) {
        const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
        return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
    } else {
        return one_nan(op == ReduceOp::kProduct ? a * b : a + b);
    }
}

template <class T>
T expected_quotient(T a, std::int32_t divisor) {
    if constexpr (is_short<T>) {
        return T::from_float(one_nan(a.to_float() / static_cast<float>(divisor)));
    } else if constexpr (std::is_integral_v<T>) {
        using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        return static_cast<T>(static_cast<Wide>(a) / static_cast<Wide>(divisor));
    } else {
        return one_nan(a / static_cast<T>(divisor));
    }
}

// ---- values ----

template <class T>
T from_bits(std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Magnitudes at the limits; `exponent` and `fraction` are the widths of the type's fields.
std::uint64_t special_float(Random& random, int exponent, int fraction) {
    const std::uint64_t one = 1, infinity = ((one << exponent) - 1) << fraction;
    const std::uint64_t half = ((one << (exponent - 1)) - 1) << fraction;  // the bits of 1
    const std::uint64_t magnitudes[] = {
        0, 1, (one << fraction) - 1, one << fraction, half, half + 1, infinity - 1, infinity,
        infinity + 1,                              // a signalling NaN
        infinity | (one << (fraction - 1)),        // the quiet one
        infinity | ((one << (fraction - 1)) + 5),  // with a payload
        infinity | ((one << fraction) - 1)};
    return magnitudes[random() % 12] | (random() % 2) << (exponent + fraction);
}

template <class T>
T value(Random& random) {
    const std::uint64_t bits = random();
    if (random() % 2 != 0) return from_bits<T>(bits);
    if constexpr (std::is_same_v<T, Float16>) return from_bits<T>(special_float(random, 5, 10));
    if constexpr (std::is_same_v<T, Bfloat16>) return from_bits<T>(special_float(random, 8, 7));
    if constexpr (std::is_same_v<T, float>) return from_bits<T>(special_float(random, 8, 23));
    if constexpr (std::is_same_v<T, double>) return from_bits<T>(special_float(random, 11, 52));
    if constexpr (std::is_integral_v<T>) {
        const T ends[] = {0, 1, static_cast<T>(-1), std::numeric_limits<T>::min(),
                          std::numeric_limits<T>::max()};
        return ends[random() % 5];
    }
    return {};
}

// ---- one comparison ----

struct Where {
    const char* variant;
    const char* what;
    int type;
    int op;
    std::size_t n;
};

template <class T>
void compare(const Bytes& found, const Bytes& wanted, const Where& where) {
    if (found == wanted) return;
    std::size_t at = 0;
    while (found[at] == wanted[at]) ++at;
    std::fprintf(stderr,
                 "%s: %s, type %d, operation %d, %zu elements of %zu bytes: byte %zu is %02x, not "
                 "%02x\n",
                 where.variant, where.what, where.type, where.op, where.n, sizeof(T), at,
                 static_cast<unsigned>(found[at]), static_cast<unsigned>(wanted[at]));
    std::exit(1);
}

template <class T>
void put(Bytes& bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class T>
T get(const Bytes& bytes, std::size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

// Arrays start at an offset in their buffers; the bytes behind them must not change.
constexpr std::size_t kAfter = 96;

template <class T>
Bytes buffer(Random& random, std::size_t offset, std::size_t n) {
    Bytes bytes(offset + n * sizeof(T) + kAfter, std::byte{0x5A});
    for (std::size_t i = 0; i < n; ++i) put(bytes, offset + i * sizeof(T), value<T>(random));
    return bytes;
}

template <class T>
void check_combine(const std::vector<Variant>& variants, Random& random, int type, int op,
                   std::size_t n) {
    const std::size_t at_a = random() % 67, at_b = random() % 67, at_out = random() % 67;
    const Bytes a = buffer<T>(random, at_a, n), b = buffer<T>(random, at_b, n);
    const Bytes blank(at_out + n * sizeof(T) + kAfter, std::byte{0x5A});
    Bytes apart = blank, over_a = a, over_b = b;
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t k = i * sizeof(T);
        const T result =
            expected(static_cast<ReduceOp>(op), get<T>(a, at_a + k), get<T>(b, at_b + k));
        put(apart, at_out + k, result);
        put(over_a, at_a + k, result);
        put(over_b, at_b + k, result);
    }
    for (const Variant& variant : variants) {
        const Combine run = (*variant.kernels)[static_cast<std::size_t>(type)]
                                .combine[static_cast<std::size_t>(op)];
        Bytes x = a, y = b, out = blank;
        run(out.data() + at_out, x.data() + at_a, y.data() + at_b, n);
        compare<T>(out, apart, {variant.name, "apart", type, op, n});
        compare<T>(x, a, {variant.name, "first operand", type, op, n});
        compare<T>(y, b, {variant.name, "second operand", type, op, n});
        run(x.data() + at_a, x.data() + at_a, y.data() + at_b, n);
        compare<T>(x, over_a, {variant.name, "over the first", type, op, n});
        x = a;
        run(y.data() + at_b, x.data() + at_a, y.data() + at_b, n);
        compare<T>(y, over_b, {variant.name, "over the second", type, op, n});
    }
}

template <class T>
void check_divide(const std::vector<Variant>& variants, Random& random, int type, std::size_t n) {
    const std::int32_t divisors[] = {1, 2, 3, 7, 1000, 65537, (1 << 24) + 1, 0x7FFFFFFF};
    const std::int32_t divisor = divisors[random() % 8];
    const std::size_t at = random() % 67;
    const Bytes data = buffer<T>(random, at, n);
    Bytes wanted = data;
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t k = at + i * sizeof(T);
        put(wanted, k, expected_quotient(get<T>(data, k), divisor));
    }
    for (const Variant& variant : variants) {
        Bytes x = data;
        (*variant.kernels)[static_cast<std::size_t>(type)].divide(x.data() + at, divisor, n);
        compare<T>(x, wanted, {variant.name, "divided", type, divisor, n});
    }
}

// All values of a type of 8 bits, each combined with all; of 16 bits, each with one in
// each round.
template <class T>
void check_all_values(const std::vector<Variant>& variants, Random& random, int type, int rounds) {
    constexpr std::size_t n = std::size_t{1} << (8 * sizeof(T));
    Bytes a(n * sizeof(T)), b(n * sizeof(T)), wanted(n * sizeof(T)), found(n * sizeof(T));
    for (std::size_t i = 0; i < n; ++i) put(a, i * sizeof(T), from_bits<T>(i));
    for (int round = 0; round < (sizeof(T) == 1 ? 256 : rounds); ++round) {
        const T other = sizeof(T) == 1 ? from_bits<T>(static_cast<unsigned>(round)) : value<T>(random);
        for (int op = 0; op < kReduceOps; ++op) {
            for (std::size_t i = 0; i < n; ++i) {
                put(b, i * sizeof(T), other);
                put(wanted, i * sizeof(T),
                    expected(static_cast<ReduceOp>(op), from_bits<T>(i), other));
            }
            for (const Variant& variant : variants) {
                (*variant.kernels)[static_cast<std::size_t>(type)].combine[static_cast<std::size_t>(
                    op)](found.data(), a.data(), b.data(), n);
                compare<T>(found, wanted, {variant.name, "all values", type, op, n});
            }
        }
    }
}

template <class T>
void check_type(const std::vector<Variant>& variants, Random& random, DataType data_type,
                int rounds) {
    const int type = static_cast<int>(data_type);
    const Kernels& fastest = variants.back().kernels->at(static_cast<std::size_t>(type));
    if (item_size(data_type) != sizeof(T) || divide_kernel(data_type) != fastest.divide ||
        combine_kernel(data_type, ReduceOp::kMin) != fastest.combine[2]) {
        std::fprintf(stderr, "type %d has other kernels than those of the fastest variant\n", type);
        std::exit(1);
    }
    std::vector<std::size_t> lengths = {1023, 4099};
    for (std::size_t n = 0; n <= 160; ++n) lengths.push_back(n);
    for (const std::size_t n : lengths) {
        for (int op = 0; op < kReduceOps; ++op) check_combine<T>(variants, random, type, op, n);
        check_divide<T>(variants, random, type, n);
    }
    if constexpr (is_short<T>) check_all_values<T>(variants, random, type, rounds);
}

void check_copies(Random& random) {
    for (std::size_t n = 0; n < 2000; n += n < 300 ? 1 : 61) {
        const std::size_t at = random() % 67, to = random() % 131;
        const Bytes from = buffer<std::uint8_t>(random, at, n);
        const Bytes blank(to + n + kAfter, std::byte{0xA5});
        Bytes wanted = blank;
        for (std::size_t i = 0; i < n; ++i) wanted[to + i] = from[at + i];
        for (auto* const copy : {copy_bytes, stream_bytes}) {
            Bytes found = blank;
            copy(found.data() + to, from.data() + at, n);
            compare<std::uint8_t>(found, wanted, {"copies", "copied", 0, 0, n});
        }
    }
}

int test(int count, char** arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 16;
    Random random(6);
    const std::vector<Variant> all = variants();
    for (const Variant& variant : all) std::printf("%s\n", variant.name);
    check_type<Float16>(all, random, DataType::kFloat16, rounds);
    check_type<Bfloat16>(all, random, DataType::kBfloat16, rounds);
    check_type<float>(all, random, DataType::kFloat32, rounds);
    check_type<double>(all, random, DataType::kFloat64, rounds);
    check_type<std::int8_t>(all, random, DataType::kInt8, rounds);
    check_type<std::int16_t>(all, random, DataType::kInt16, rounds);
    check_type<std::int32_t>(all, random, DataType::kInt32, rounds);
    check_type<std::int64_t>(all, random, DataType::kInt64, rounds);
    check_type<std::uint8_t>(all, random, DataType::kUint8, rounds);
    check_type<std::uint32_t>(all, random, DataType::kUint32, rounds);
    check_type<std::uint64_t>(all, random, DataType::kUint64, rounds);
    check_type<Float8E4m3fn>(all, random, DataType::kFloat8E4m3fn, rounds);
    check_type<Float8E5m2>(all, random, DataType::kFloat8E5m2, rounds);
    check_copies(random);
    return 0;
}

}  // namespace sley::reduce_test
