// Reductions: element types, operations, and the kernels that combine two arrays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sley {

// The numbers are those of `sley.engine.types.DATA_TYPES`.
enum class DataType : std::int32_t {
    kFloat16, kBfloat16, kFloat32, kFloat64, kInt8, kInt16, kInt32, kInt64, kUint8, kUint32, kUint64,
    kFloat8E4m3fn, kFloat8E5m2
};
constexpr std::int32_t kDataTypes = 13;

// The numbers are those of `sley.ir.words.ReduceOp`.
enum class ReduceOp : std::int32_t {
    kSum, kProduct, kMin, kMax, kAverage, kBitAnd, kBitOr, kBitXor
};
constexpr std::int32_t kReduceOps = 8;

// out[i] = a[i] o b[i] for i < n as docs/machine.md defines it, with the same bits on every CPU and
// for b o a. A NaN is written as the positive quiet one without payload, except by the bitwise
// operations; MIN and MAX order -0 before +0. `out` may be `a` or `b`; they must not overlap otherwise. None needs to be aligned.
using Combine = void (*)(std::byte* out, const std::byte* a, const std::byte* b, std::size_t n);
// data[i] = data[i] / divisor for i < n and divisor > 0; integers are rounded towards zero.
using Divide = void (*)(std::byte* data, std::int32_t divisor, std::size_t n);

std::size_t item_size(DataType type);
Combine combine_kernel(DataType type, ReduceOp op);
Divide divide_kernel(DataType type);

// The kernels of one type, in one set of vector instructions.
struct Kernels {
    std::size_t item;
    std::array<Combine, kReduceOps> combine;  // AVG runs as SUM
    Divide divide;
};

using KernelTable = std::array<Kernels, kDataTypes>;

struct Variant {
    const char* name;
    const KernelTable* kernels;
};

// The sets of kernels that this machine can run, the fastest last. All write the same bits.
std::vector<Variant> variants();

}  // namespace sley
