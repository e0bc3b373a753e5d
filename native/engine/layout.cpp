#include "engine/layout.hpp"

#include <cstring>
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
    cut_ = {};
    cut_.item = static_cast<std::int64_t>(item_size(call.type));
    cut_.chunk = call.count / program_.chunks;
    cut_.left_over = call.count % program_.chunks;
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
    if (cut_.chunk > kMost / (std::max(1, program_.cells[kScratch]) * cut_.item)) {
        throw std::bad_alloc();
    }
    grow(scratch_, words(program_.cells[kScratch] * cut_.chunk * cut_.item));
    blocks_ = call.blocks.get();
    base_[kInput] = call.memory[kInput];
    base_[kOutput] = call.memory[kOutput];
    base_[kScratch] = reinterpret_cast<std::byte*>(scratch_.data());
    if (cut_.left_over == 0) return;

    std::size_t total = 0;
    for (const auto cells : program_.cells) total += words(cells * cut_.item);
    grow(tail_memory_, total);
    std::size_t start = 0;
    for (std::size_t m = 0; m < kMemories; ++m) {
        tail_[m] = reinterpret_cast<std::byte*>(tail_memory_.data() + start);
        start += words(program_.cells[m] * cut_.item);
    }
}

void Layout::cut_tiles(std::int64_t elements) {
    cut_.tile = elements;
    cut_.full_tiles = (cut_.chunk + cut_.tile - 1) / cut_.tile;
    cut_.tiles = cut_.full_tiles + (cut_.left_over > 0 ? 1 : 0);
}

// Whether a chunk has one element more than `cut_.chunk`.
bool Layout::has_one_more(std::int64_t cell) const {
    const auto index = cell % program_.chunks;
    return index * cut_.left_over % program_.chunks >= program_.chunks - cut_.left_over;
}

void Layout::load_tail() {
    if (cut_.left_over == 0) return;
    const auto item = static_cast<std::size_t>(cut_.item);
    for (const auto memory : {kInput, kOutput}) {
        for (std::int64_t cell = 0; cell < program_.cells[memory]; ++cell) {
            if (!has_one_more(cell)) continue;
            std::memcpy(tail_element(memory, cell), last_element(memory, cell), item);
        }
    }
}

void Layout::store_tail() {
    if (cut_.left_over == 0) return;
    const auto item = static_cast<std::size_t>(cut_.item);
    for (const auto memory : {kInput, kOutput}) {
        for (const auto cell : program_.written[memory]) {
            if (!has_one_more(cell)) continue;
            std::memcpy(last_element(memory, cell), tail_element(memory, cell), item);
        }
    }
}

void Layout::divide_outputs(DataType type) {
    const auto divide = divide_kernel(type);
    const Memory memory = program_.in_place ? kInput : kOutput;
    for (std::size_t i = 0; i < program_.divisor.size(); ++i) {
        const auto divisor = program_.divisor[i];
        if (divisor == 1) continue;
        const auto cell = program_.output_base + static_cast<std::int64_t>(i);
        const auto length = cut_.chunk + (has_one_more(cell) ? 1 : 0);
        divide(start_of(memory, cell), divisor,
               static_cast<std::size_t>(length));
    }
}

}  // namespace sley
