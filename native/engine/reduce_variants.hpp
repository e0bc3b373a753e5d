// The sets of kernels, one for each set of vector instructions that is compiled in.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "engine/reduce.hpp"

namespace sley {

struct Kernels {
    std::size_t item;
    std::array<Combine, kReduceOps> combine;  // AVERAGE runs as SUM
    Divide divide;
};

using KernelTable = std::array<Kernels, kDataTypes>;

struct Variant {
    const char* name;
    const KernelTable* kernels;
};

// Those that this machine can run, the fastest last. All of them write the same bits.
std::vector<Variant> variants();

}  // namespace sley
