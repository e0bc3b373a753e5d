// A call, and the layout of its data: how it cuts chunks into tiles, and the address of each tile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/borders.hpp"
#include "engine/program.hpp"
#include "engine/reduce.hpp"
#include "engine/varying.hpp"
#include "fabric/control.hpp"

namespace sley {

// The arguments of a call. In place, memory[kInput] is the rank's data and memory[kOutput] is null.
// parts: the blocks of a call of varying counts, which has neither `count` nor `memory`; else null.
// blocks: the blocks of a call of equal counts whose buffers are not in one piece, which has no
// `memory`; else null.
struct Call {
    std::int64_t count;  // elements of one block of the collective
    DataType type;
    ReduceOp op;
    std::byte* memory[2];
    std::int64_t bytes[2];
    CallRecord record;
    std::shared_ptr<const Parts> parts;
    std::shared_ptr<const Parts> blocks;
};

inline Call varying_call(std::shared_ptr<const Parts> parts, DataType type) {
    return {0, type, ReduceOp::kSum, {}, {}, {}, std::move(parts), nullptr};
}

// How a call cuts blocks into chunks, and chunks into tiles (machine.md, "Memory" and "Tiles").
struct Cut {
    std::int64_t count;  // elements of a block
    std::int64_t chunk;  // elements of the longest chunk
    bool is_even;        // whether all chunks have that many
    std::int64_t tile;   // elements of a full tile
    std::int64_t tiles;  // of the longest chunk; in the last ones others may have no elements
    std::int64_t item;   // bytes of an element
};

// Elements of a chunk that are in one piece, by their numbers in the chunk.
struct Run {
    std::int64_t begin, end;
    std::int64_t length() const { return end - begin; }
};

// The memory of a rank's calls, one after another. A chunk has as many elements as its place has.
// Only if the plan keeps chunks at the places of others, and chunks differ, all have as many as the
// longest: the last elements, at most a unit, of a chunk at a shorter place are in `overflow_`.
// Then every chunk has the same three runs, of which each is in one piece in every place: what all
// chunks have, as many elements as the block's last unit has, and the rest of a unit.
class Layout {
public:
    // scratch: memory for the plan's scratch, in 64-bit words, shared with later calls of other
    // plans.
    Layout(const Program& program, std::vector<std::uint64_t>& scratch)
        : program_(program), scratch_(scratch) {}

    // Begins a call. Throws std::bad_alloc or std::length_error if there is no memory for it.
    void begin(const Call& call);
    // Cuts chunks into tiles of `elements`.
    void cut_tiles(std::int64_t elements);

    const Cut& cut() const { return cut_; }
    const std::byte* base(Memory memory) const { return base_[memory]; }
    // Whether a chunk of a message is in several runs.
    bool has_runs() const { return has_runs_; }
    // Whether neighbouring chunks are in one piece.
    bool is_adjacent() const { return is_adjacent_; }

    // The elements of a tile of `cells` neighbouring chunks.
    std::int64_t length_of(Memory memory, std::int64_t cell, std::int64_t cells,
                           std::int64_t tile) const {
        if (cut_.is_even || has_runs_) return cells * in_tile(cut_.chunk, tile);
        if (is_adjacent_) return first_element(memory, cell + cells) - first_element(memory, cell);
        std::int64_t elements = 0;
        for (auto end = cell + cells; cell < end; ++cell) {
            elements += in_tile(length_of(memory, cell), tile);
        }
        return elements;
    }
    int runs() const { return has_runs_ ? 3 : 1; }
    // A run of a tile of a chunk, maybe empty.
    Run run_of(Memory memory, std::int64_t cell, std::int64_t tile, int number) const {
        const auto begin = tile * cut_.tile;
        if (!has_runs_) return {begin, begin + length_of(memory, cell, 1, tile)};
        const auto first = std::max(begin, run_borders_[number]);
        return {first, std::max(first, std::min(begin + cut_.tile, run_borders_[number + 1]))};
    }

    // An element of a chunk.
    std::byte* address(Memory memory, std::int64_t cell, std::int64_t element) const {
        if (has_runs_ && memory != kScratch && element >= length_of(memory, cell)) {
            return overflow_[memory] + cell * kUnitBytes + (element - run_borders_[1]) * cut_.item;
        }
        const auto start = blocks_ == nullptr || memory == kScratch
                               ? base_[memory] + first_element(memory, cell) * cut_.item
                               : start_in_block(memory, cell);
        return start + element * cut_.item;
    }

    // Divides sums into averages.
    void divide_outputs(DataType type);

private:
    // The elements of a chunk of `length` in a tile.
    std::int64_t in_tile(std::int64_t length, std::int64_t tile) const {
        return std::clamp<std::int64_t>(length - tile * cut_.tile, 0, cut_.tile);
    }
    std::int64_t first_element(Memory memory, std::int64_t cell) const {
        return cut_.is_even ? cell * cut_.chunk : first_[memory][static_cast<std::size_t>(cell)];
    }
    // The elements that a place has room for.
    std::int64_t length_of(Memory memory, std::int64_t cell) const {
        return first_element(memory, cell + 1) - first_element(memory, cell);
    }
    std::byte* start_in_block(Memory memory, std::int64_t cell) const {
        const auto block = cell / program_.chunks;
        const auto first = first_element(memory, cell) - block * cut_.count;
        return blocks_->of[memory][static_cast<std::size_t>(block)].data + first * cut_.item;
    }
    void find_borders();
    void find_runs(std::int64_t main, std::int64_t last);

    const Program& program_;
    std::vector<std::uint64_t>& scratch_;
    Cut cut_{};
    std::byte* base_[kMemories] = {};
    const Parts* blocks_ = nullptr;  // of the call
    // Of an uneven cut: the first element of each chunk in its memory, and the end.
    std::vector<std::int64_t> first_[kMemories];
    std::pair<std::int64_t, std::int64_t> borders_of_;  // count and item
    bool has_runs_ = false, is_adjacent_ = false;
    std::int64_t run_borders_[4] = {};  // in every chunk
    std::byte* overflow_[2] = {};       // a unit for each chunk of input and output
    std::vector<std::uint64_t> overflow_memory_;  // 64-bit words, for alignment
};

}  // namespace sley
