// Copies of bytes: through the caches, past them, and out of other processes of this host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fabric/control.hpp"

namespace sley {

// Unlike memcpy, allows null pointers for no bytes.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t n) {
    if (n > 0) std::memcpy(to, from, n);
}

// Like copy_bytes, with stores that bypass the caches if the CPU has them (x86-64 with AVX): the
// lines of `to` are not read first, and evict nothing. For destinations that no cache holds; for a
// cached one it is up to three times slower. Its stores are ordered before the caller's later ones,
// as with copy_bytes.
void stream_bytes(std::byte* to, const std::byte* from, std::size_t n);

// The size of the cache that the cores share, or a usual one if the system doesn't give it.
std::int64_t last_level_cache_bytes();

// ---- Memory of another process of this host, copied once, by the kernel (process_vm_readv, "cross
// memory attach"). Only a try shows whether the system allows it.

// Lets others find this process' memory: `state` is the rank's own, at its final address.
void announce(RankState& state);

// Whether a rank's memory can be read; false for one that hasn't announced itself.
bool can_read(const RankState& peer);

// kDied: the process has ended. kGone: its memory no longer exists or is not accessible. kNowhere:
// the memory to read into doesn't exist.
enum class ReadEnd { kDone, kDied, kGone, kNowhere };

ReadEnd read_memory(const RankState& peer, std::uint64_t address, std::byte* to,
                    std::size_t bytes);

}  // namespace sley
