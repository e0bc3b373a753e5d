// Spanning trees by matching free links with chunks, in the order of time.
#pragma once

#include <cstdint>
#include <vector>

namespace sley {

// Ranks, and chunks that every rank is to get. Columns of pairs: of ranks that a chunk may go
// between, the preferred ones first. path: the links that pair p takes are path[first[p]] to
// path[first[p + 1] - 1]. time: by link, for a chunk. root: by chunk, where it is at the start.
// most: by root and rank, the most sends from the root; each rank that isn't the root needs a pair
// from one with fewer sends.
struct Spreading {
    std::int64_t ranks;
    std::vector<std::int64_t> src, dst, first, path;
    std::vector<double> time;
    std::vector<std::int64_t> root, most;
};

// The rank that sends to each rank, by chunk, -1 for the root (after TACOS, arXiv 2304.05301,
// section IV): of all sends the one that arrives first is next, of the chunks that could be sent
// one that the fewest ranks have.
std::vector<std::int32_t> match_chunks(const Spreading& given);

}  // namespace sley
