// A call, and the layout of its data: how it cuts chunks into tiles, and the address of each tile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

// `what`: that of the call's record.
inline Call varying_call(std::shared_ptr<const Parts> parts, DataType type, std::uint64_t what) {
    return {0, type, ReduceOp::kSum, {}, {}, {0, what, kVaryingCount}, std::move(parts), nullptr};
}

// How a call cuts every chunk (machine.md, "Memory" and "Tiles").
struct Cut {
    std::int64_t chunk;       // elements of every chunk
    std::int64_t left_over;   // chunks of a block with one element more
    std::int64_t tile;        // elements of a full tile
    std::int64_t full_tiles;  // tiles before the tail, which has those last elements
    std::int64_t tiles;
    std::int64_t item;  // bytes of an element
};

// The memory of a rank's calls, one after another. The tile of the chunks' last elements, the tail,
// runs on small arrays of one element per chunk: so chunks without such an element need no special
// case, and all accesses stay within the caller's memory.
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
    // Whether the blocks of the input and output are in one piece each.
    bool is_whole() const { return blocks_ == nullptr; }
    bool is_tail(std::int64_t tile) const { return tile == cut_.full_tiles; }

    // The elements of a chunk in a tile.
    std::int64_t length_of(std::int64_t tile) const {
        if (is_tail(tile)) return 1;
        return std::min(cut_.tile, cut_.chunk - tile * cut_.tile);
    }

    std::byte* address(Memory memory, std::int64_t cell, std::int64_t tile) const {
        if (is_tail(tile)) return tail_element(memory, cell);
        const auto start = memory == kScratch ? base_[kScratch] + cell * cut_.chunk * cut_.item
                                              : start_of(memory, cell);
        return start + tile * cut_.tile * cut_.item;
    }

    // Copy the tail's elements from the caller's memory, and back those of cells that the rank
    // writes: the memory of others may be read-only.
    void load_tail();
    void store_tail();
    // Divides sums into averages.
    void divide_outputs(DataType type);

private:
    std::int64_t first_element(std::int64_t cell) const {
        const auto elements = cell * cut_.chunk;
        if (cut_.left_over == 0) return elements;
        const auto block = cell / program_.chunks, index = cell % program_.chunks;
        return elements + block * cut_.left_over + index * cut_.left_over / program_.chunks;
    }
    // The first element of a chunk of the input or output.
    std::byte* start_of(Memory memory, std::int64_t cell) const {
        if (blocks_ == nullptr) return base_[memory] + first_element(cell) * cut_.item;
        const auto block = cell / program_.chunks;
        const auto first = first_element(cell) - first_element(block * program_.chunks);
        return blocks_->of[memory][static_cast<std::size_t>(block)].data + first * cut_.item;
    }
    bool has_one_more(std::int64_t cell) const;
    // The last element of a chunk that has one more, and its place in the tail.
    std::byte* last_element(Memory memory, std::int64_t cell) const {
        return start_of(memory, cell) + cut_.chunk * cut_.item;
    }
    std::byte* tail_element(Memory memory, std::int64_t cell) const {
        return tail_[memory] + cell * cut_.item;
    }

    const Program& program_;
    std::vector<std::uint64_t>& scratch_;
    Cut cut_{};
    std::byte* base_[kMemories] = {};
    const Parts* blocks_ = nullptr;  // of the call
    std::byte* tail_[kMemories] = {};
    std::vector<std::uint64_t> tail_memory_;  // 64-bit words, for alignment
};

}  // namespace sley
