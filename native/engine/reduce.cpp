// The kernels, compiled for several sets of vector instructions, and the choice among the sets.
#include "engine/reduce.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "half.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define SLEY_VARIANT baseline
#define SLEY_TARGET
#define SLEY_VECTOR_BYTES 16
#include "engine/reduce_kernels.hpp"

#if defined(__x86_64__)

#define SLEY_VARIANT avx2
#define SLEY_TARGET __attribute__((target("avx2,f16c")))
#define SLEY_VECTOR_BYTES 32
#include "engine/reduce_kernels.hpp"

// AVX-512's instructions (for 64-bit integers, masks), but not its wide registers: with data from
// memory or another core's cache, 64 bytes at a time were 8 % slower on Zen 4, and older Intel CPUs
// lower their clock.
#define SLEY_VARIANT avx512
#define SLEY_TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define SLEY_VECTOR_BYTES 32
#include "engine/reduce_kernels.hpp"

#endif

namespace sley {
namespace {

#if defined(__x86_64__)

// Not every compiler's __builtin_cpu_supports knows F16C. For AVX2 it also checks that the
// operating system saves the wide registers, which F16C needs too.
bool has_avx2_and_f16c() {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_F16C) != 0;
}

bool has_avx512_too() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif

const Kernels& kernels(DataType type) {
    static const KernelTable& fastest = *variants().back().kernels;
    return fastest[static_cast<std::size_t>(type)];
}

}  // namespace

std::vector<Variant> variants() {
    std::vector<Variant> found = {{"baseline", &baseline::kKernels}};
#if defined(__x86_64__)
    if (!has_avx2_and_f16c()) return found;
    found.push_back({"avx2", &avx2::kKernels});
    if (has_avx512_too()) found.push_back({"avx512", &avx512::kKernels});
#endif
    return found;
}

std::size_t item_size(DataType type) { return kernels(type).item; }

Combine combine_kernel(DataType type, ReduceOp op) {
    return kernels(type).combine[static_cast<std::size_t>(op)];
}

Divide divide_kernel(DataType type) { return kernels(type).divide; }

}  // namespace sley
