#include "engine/varying.hpp"

#include <cstring>

#include "engine/borders.hpp"

namespace sley {

VaryingLayout::VaryingLayout(const Program& program,
                             std::vector<std::vector<std::uint64_t>>& scratch)
    : program_(program), scratch_(scratch) {
    std::size_t total = 0;
    for (const auto& in : program_.instructions) {
        first_length_.push_back(total);
        total += static_cast<std::size_t>(in.count);
    }
    lengths_.resize(total);
    tiles_.resize(program_.instructions.size());
}

void VaryingLayout::begin(const Parts& parts, std::int64_t tile, std::int64_t item) {
    tile_ = tile;
    item_ = item;
    for (const auto memory : {kInput, kOutput}) {
        const auto cells = static_cast<std::size_t>(program_.cells[memory]);
        length_[memory].resize(cells);
        data_[memory].resize(cells);
        const std::int64_t chunks = program_.chunks;
        for (std::size_t cell = 0; cell < cells; ++cell) {
            const auto& part = parts.of[memory][cell / static_cast<std::size_t>(chunks)];
            const auto index = static_cast<std::int64_t>(cell) % chunks;
            const auto start = border(index, chunks, part.count, item);
            length_[memory][cell] = border(index + 1, chunks, part.count, item) - start;
            data_[memory][cell] = part.data + start * item;
        }
    }
    const auto cells = static_cast<std::size_t>(program_.cells[kScratch]);
    length_[kScratch].resize(cells);
    if (scratch_.size() < cells) scratch_.resize(cells);
}

void VaryingLayout::begin_iteration() {
    std::fill(length_[kScratch].begin(), length_[kScratch].end(), 0);
    std::fill(lengths_.begin(), lengths_.end(), 0);
    std::fill(tiles_.begin(), tiles_.end(), 1);
    most_tiles_ = 1;
    misfit_ = {};
}

std::int64_t VaryingLayout::bytes_of(const Instruction& in, std::int64_t tile) const {
    if (tile == 0) return in.count * kLengthBytes;
    std::int64_t elements = 0;
    for (std::int32_t piece = 0; piece < in.count; ++piece) elements += length_of(in, piece, tile);
    return elements * item_;
}

bool VaryingLayout::pass_lengths(const Instruction& in, const std::byte* message,
                                 std::byte* slot) {
    const auto row = program_.row_of(in);
    std::int64_t longest = 0;
    for (std::int32_t i = 0; i < in.count; ++i) {
        const auto piece = in.descending ? in.count - 1 - i : i;
        const auto offset = static_cast<std::size_t>(piece) * sizeof(std::int64_t);
        std::int64_t length;
        if (receives(in.op)) {
            std::memcpy(&length, message + offset, sizeof length);
        } else {
            length = length_[in.src_memory][static_cast<std::size_t>(in.src_cell + piece)];
        }
        if (writes_destination(in.op) && !store_length(in.dst_memory, in.dst_cell + piece, length)) {
            return false;
        }
        if (slot) std::memcpy(slot + offset, &length, sizeof length);
        lengths_[first_length_[row] + static_cast<std::size_t>(piece)] = length;
        longest = std::max(longest, length);
    }
    tiles_[row] = 1 + longest / tile_ + (longest % tile_ != 0 ? 1 : 0);
    most_tiles_ = std::max(most_tiles_, tiles_[row]);
    return true;
}

// A cell of scratch grows. Its data stay: with whole instructions in turn, other blocks may still
// read later tiles of the chunk that was there before.
bool VaryingLayout::store_length(Memory memory, std::int32_t cell, std::int64_t length) {
    auto& own = length_[memory][static_cast<std::size_t>(cell)];
    if (memory != kScratch) {
        if (own != length) misfit_ = {cell, length};
        return own == length;
    }
    own = length;
    auto& words = scratch_[static_cast<std::size_t>(cell)];
    constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint64_t));
    const auto needed = static_cast<std::size_t>((length * item_ + kWord - 1) / kWord);
    if (words.size() < needed) words.resize(needed);
    return true;
}

}  // namespace sley
