// Memory of another process of this host, read by the kernel in one copy (process_vm_readv, "cross
// memory attach"). Whether the system allows it is found out by trying.
#pragma once

#include <cstddef>
#include <cstdint>

#include "control.hpp"

namespace sley {

// Lets others find this process' memory: `state` is the rank's own, at the place where it stays.
void announce(RankState& state);

// Whether a rank's memory can be read; false for one that hasn't announced itself.
bool can_read(const RankState& peer);

// kNone if all of it was read.
Failure read_memory(const RankState& peer, std::uint64_t address, std::byte* to,
                    std::size_t bytes);

}  // namespace sley
