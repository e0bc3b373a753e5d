#include "engine/layout.hpp"

#include <limits>
#include <new>

namespace sley {
namespace {

std::size_t words(std::int64_t bytes) {
    constexpr std::int64_t kWord = sizeof(std::uint64_t);
    return static_cast<std::size_t>((bytes + kWord - 1) / kWord);
}

void grow(std::vector<std::uint64_t>& memory, std::size_t size) {
    if (memory.size() < size) memory.resize(size);
}

}  // namespace

void Layout::begin(const Call& call) {
    const std::int64_t item = static_cast<std::int64_t>(item_size(call.type));
    const std::int64_t chunks = program_.chunks, scratch = program_.cells[kScratch];
    cut_ = {call.count, call.count / chunks, true, 1, 0, item};
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
    if (cut_.chunk > kMost / (std::max<std::int64_t>(1, scratch) * item) - kUnitBytes) {
        throw std::bad_alloc();
    }
    cut_.is_even =
        chunks == 1 || (call.count % chunks == 0 && cut_.chunk * item % kUnitBytes == 0);
    has_runs_ = program_.misplaced && !cut_.is_even;
    if (!cut_.is_even) find_borders();
    const auto elements = cut_.is_even ? scratch * cut_.chunk : first_[kScratch].back();
    grow(scratch_, words(elements * item));
    blocks_ = call.blocks.get();
    base_[kInput] = call.memory[kInput];
    base_[kOutput] = call.memory[kOutput];
    base_[kScratch] = reinterpret_cast<std::byte*>(scratch_.data());
}

// Calls of one size after another keep their borders.
void Layout::find_borders() {
    const auto chunks = static_cast<std::size_t>(program_.chunks);
    const auto unit = kUnitBytes / cut_.item;
    const auto main = cut_.count / unit / program_.chunks * unit;
    cut_.chunk = has_runs_ ? main + unit : std::min(main + unit, cut_.count);
    const std::pair key{cut_.count, cut_.item};
    if (borders_of_ == key) return;
    borders_of_ = {};
    std::vector<std::int64_t> borders;
    for (std::int64_t i = 0; i <= program_.chunks; ++i) {
        borders.push_back(border(i, program_.chunks, cut_.count, cut_.item));
    }
    for (const auto memory : {kInput, kOutput}) {
        first_[memory].clear();
        const auto cells = static_cast<std::size_t>(program_.cells[memory]);
        for (std::size_t cell = 0; cell <= cells; ++cell) {
            const auto block = static_cast<std::int64_t>(cell / chunks);
            first_[memory].push_back(block * cut_.count + borders[cell % chunks]);
        }
    }
    first_[kScratch].assign(1, 0);
    for (const auto home : program_.scratch_home) {
        const auto at = static_cast<std::size_t>(home);
        const auto length = has_runs_ ? cut_.chunk : borders[at + 1] - borders[at];
        first_[kScratch].push_back(first_[kScratch].back() + length);
    }
    if (has_runs_) find_runs(main, cut_.count % unit);
    borders_of_ = key;
}

void Layout::find_runs(std::int64_t main, std::int64_t last) {
    run_borders_[1] = main;
    run_borders_[2] = main + last;
    run_borders_[3] = cut_.chunk;
    const auto cells = static_cast<std::size_t>(program_.cells[kInput] + program_.cells[kOutput]);
    grow(overflow_memory_, cells * words(kUnitBytes));
    overflow_[kInput] = reinterpret_cast<std::byte*>(overflow_memory_.data());
    overflow_[kOutput] = overflow_[kInput] + program_.cells[kInput] * kUnitBytes;
}

void Layout::cut_tiles(std::int64_t elements) {
    cut_.tile = elements;
    cut_.tiles = (cut_.chunk + cut_.tile - 1) / cut_.tile;
    is_adjacent_ = cut_.tiles == 1 && blocks_ == nullptr && !has_runs_;
}

void Layout::divide_outputs(DataType type) {
    const auto divide = divide_kernel(type);
    const Memory memory = program_.in_place ? kInput : kOutput;
    for (std::size_t i = 0; i < program_.divisor.size(); ++i) {
        const auto divisor = program_.divisor[i];
        if (divisor == 1) continue;
        const auto cell = program_.output_base + static_cast<std::int64_t>(i);
        divide(address(memory, cell, 0), divisor,
               static_cast<std::size_t>(length_of(memory, cell)));
    }
}

}  // namespace sley
