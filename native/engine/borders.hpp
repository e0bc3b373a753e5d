// Borders: the elements of a block that are a chunk's (machine.md, "Memory").
#pragma once

#include <algorithm>
#include <cstdint>

namespace sley {

constexpr std::int64_t kUnitBytes = 16;

// The first element of chunk `index` of a block of `count` elements of `item` bytes; of index
// `chunks` the block's end.
inline std::int64_t border(std::int64_t index, std::int64_t chunks, std::int64_t count,
                           std::int64_t item) {
    const auto unit = kUnitBytes / item;
    const auto units = count / unit + (count % unit != 0 ? 1 : 0);
    const auto first = index * (units / chunks) + index * (units % chunks) / chunks;
    return std::min(first * unit, count);
}

}  // namespace sley
