// Copies of bytes: through the caches, and past them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sley {

// Null pointers are fine for no bytes, which they aren't for memcpy.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t n) {
    if (n > 0) std::memcpy(to, from, n);
}

// The same with stores that bypass the caches, where the CPU has such (x86-64 with AVX): the lines
// of `to` are not read first, and nothing is driven out for them. For pieces of a destination that
// no cache holds; where one does, this is up to three times slower than copy_bytes. What it has
// written is ordered before the caller's later stores, as with copy_bytes.
void stream_bytes(std::byte* to, const std::byte* from, std::size_t n);

// The cache that the cores share, as far as the system tells.
std::int64_t last_level_cache_bytes();

}  // namespace sley
