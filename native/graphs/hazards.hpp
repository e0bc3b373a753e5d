// Conflicting accesses of a plan's instructions to cells of memory.
#pragma once

#include <cstdint>
#include <vector>

namespace sley {

// Accesses by instruction: `count` cells from `read` and from `write` on; -1 for none. order: the
// instructions in the order of a run. An instruction reads a cell before it writes it.
struct Accesses {
    std::int64_t cells;
    const std::int32_t *order, *count;
    const std::int64_t *read, *write;
    std::int64_t instructions;
};

// What orders instructions directly: the block of each, and its waits for others.
struct Blocks {
    const std::int32_t* block;
    std::int64_t blocks;
    const std::int64_t* wait_offset;
    const std::int32_t* wait_target;
};

// As `sley.ir.happens_before.Hazards`.
struct Conflicts {
    std::vector<std::int32_t> first, second;
    std::vector<std::int64_t> cell;
    std::vector<std::uint8_t> aligned;
};

// The adjacent conflicts, in the order of `second`. blocks: leaves out pairs of one block, and pairs
// of which the second, or one before it in its block, waits for the first, or for one after it in
// its block; null keeps all.
Conflicts find_conflicts(const Accesses& accesses, const Blocks* blocks);

}  // namespace sley
