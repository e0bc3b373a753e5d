// The structures that kernels read, for the host: `kernels/primitives/layout.hpp`, in which the
// types of numbers are the platform's.
#pragma once

#include <cstdint>

namespace sley::layout {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

}  // namespace sley::layout

#include "layout.hpp"
