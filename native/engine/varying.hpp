// The layout of a call of varying counts: the length of each chunk, and the address of each tile
// (machine.md, "Varying counts").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program.hpp"

namespace sley {

// Bytes of the length of a chunk in a message.
constexpr auto kLengthBytes = static_cast<std::int64_t>(sizeof(std::int64_t));

// The elements of one block of the collective in a rank's memory.
struct Part {
    std::byte* data;
    std::int64_t count;
};

// The blocks of a rank's input and output, in the order of its chunks.
struct Parts {
    std::vector<Part> of[2];
};

// A chunk of the input or output, and the length of another one that came there.
struct Misfit {
    std::int32_t cell = -1;
    std::int64_t length = 0;
};

// The memory of a rank's calls of varying counts, one after another. Tile 0 of a call moves the
// length of each chunk instead of data. So each instruction learns the lengths of its chunks, which
// are the same at both ends of a message, and the number of its tiles.
class VaryingLayout {
public:
    // scratch: memory for the cells of the plan's scratch, each in 64-bit words for alignment,
    // shared with later calls of other plans.
    VaryingLayout(const Program& program, std::vector<std::vector<std::uint64_t>>& scratch);

    // Begins a call, which cuts chunks into tiles of `tile` elements of `item` bytes. Throws
    // std::bad_alloc or std::length_error if there is no memory for it.
    void begin(const Parts& parts, std::int64_t tile, std::int64_t item);
    // Forgets the lengths that instructions have learned.
    void begin_iteration();

    // The number of an instruction's tiles: 1 before its tile 0 has run.
    std::int64_t tiles_of(const Instruction& in) const { return tiles_[program_.row_of(in)]; }
    // The largest number of tiles of any instruction so far.
    std::int64_t tiles() const { return most_tiles_; }

    // The bytes of an instruction's message in a tile.
    std::int64_t bytes_of(const Instruction& in, std::int64_t tile) const;
    // The elements of an instruction's chunk `piece` in a tile with data.
    std::int64_t length_of(const Instruction& in, std::int32_t piece, std::int64_t tile) const {
        const auto left = lengths_[first_length_[program_.row_of(in)] + static_cast<std::size_t>(piece)] -
                          (tile - 1) * tile_;
        return std::clamp<std::int64_t>(left, 0, tile_);
    }
    std::byte* address(Memory memory, std::int64_t cell, std::int64_t tile) {
        return data_of(memory, static_cast<std::size_t>(cell)) + (tile - 1) * tile_ * item_;
    }

    // Runs an instruction's tile 0: moves the lengths of its chunks, and makes room for them in
    // scratch. False if a chunk of another length comes to a place of input or output (`misfit`).
    // Throws as `begin`.
    bool pass_lengths(const Instruction& in, const std::byte* message, std::byte* slot);
    const Misfit& misfit() const { return misfit_; }

private:
    std::byte* data_of(Memory memory, std::size_t cell) {
        if (memory != kScratch) return data_[memory][cell];
        return reinterpret_cast<std::byte*>(scratch_[cell].data());
    }
    bool store_length(Memory memory, std::int32_t cell, std::int64_t length);

    const Program& program_;
    std::vector<std::vector<std::uint64_t>>& scratch_;
    std::int64_t tile_ = 1, item_ = 1;
    // Of cells.
    std::vector<std::int64_t> length_[kMemories];
    std::vector<std::byte*> data_[2];
    // Of instructions.
    std::vector<std::size_t> first_length_;
    std::vector<std::int64_t> lengths_;  // of each instruction's chunks
    std::vector<std::int64_t> tiles_;
    std::int64_t most_tiles_ = 1;
    Misfit misfit_;
};

}  // namespace sley
