// Which waits between thread blocks are redundant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sley {

// Possible waits of row `after` for row `before`, in different blocks, by ascending `after`, then
// by descending `before`. aligned: whether the chunks that both access have one place in both.
// block, sender: by row of the order, its block, and the row that sends the message that it
// receives, or -1.
struct PossibleWaits {
    std::size_t waits, rows;
    const std::int32_t *before, *after;
    const bool* aligned;
    const std::int32_t *block, *sender;
};

// Whether each is needed: neither the order in the blocks, nor the needed waits before it, nor
// messages imply it, as far as a search of `limit` edges finds out. A message that other ranks pass
// on implies only waits that are aligned.
std::vector<std::uint8_t> needed_waits(const PossibleWaits& possible, std::int32_t limit);

}  // namespace sley
