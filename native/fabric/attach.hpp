// Memory of another process of this host, read by the kernel in one copy (process_vm_readv, "cross
// memory attach"). Whether the system allows it is found out by trying.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fabric/control.hpp"

namespace sley {

// Lets others find this process' memory: `state` is the rank's own, at the place where it stays.
void announce(RankState& state);

// Whether a rank's memory can be read; false for one that hasn't announced itself.
bool can_read(const RankState& peer);

// kDied: the process has ended. kGone: its memory is there no more, or not for others. kNowhere: the
// memory to read it into isn't there.
enum class ReadEnd { kDone, kDied, kGone, kNowhere };

ReadEnd read_memory(const RankState& peer, std::uint64_t address, std::byte* to,
                    std::size_t bytes);

}  // namespace sley
