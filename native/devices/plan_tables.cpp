#include "devices/plan_tables.hpp"

#include <algorithm>
#include <limits>

#include "devices/table_bytes.hpp"
#include "engine/borders.hpp"

namespace sley {
namespace {

constexpr std::int64_t kVectorBytes = 16, kWordBytes = 8;
constexpr std::int64_t kLineBytes = 128, kLineWords = 15;
constexpr std::int64_t kScratchAlignment = 256;  // of devices' new memory, and so of scratch

// What the threads of a block load of an operand at once, 480 of them 64 bytes each. Smaller slices
// would take as long.
constexpr std::int64_t kLeastSliceBytes = 30 << 10;

// The runs of a chunk that may be at the place of another one (`primitives/execute.hpp`).
constexpr std::int64_t kRuns = 3;

// The most numbers of a call: an epoch of LL's flags has one more (`primitives/kernel.hpp`).
constexpr std::int64_t kMostNumbers = (std::int64_t{1} << 31) - 2;

constexpr std::string_view kHead = "sley tables 2\n";  // the number grows with each other layout

std::int64_t divide_up(std::int64_t number, std::int64_t by) {
    return number / by + (number % by != 0);
}

std::int64_t round_up(std::int64_t number, std::int64_t unit) {
    return divide_up(number, unit) * unit;
}

}  // namespace

std::int64_t PlanNumbers::least_bytes() const {
    return protocol == layout::kLL128 ? kLineBytes : kVectorBytes;
}

// Blocks of one chunk are one chunk of any number of elements; others have whole units.
std::int64_t PlanNumbers::longest_chunk(std::int64_t item_bytes, std::int64_t count) const {
    const std::int64_t unit = kUnitBytes / item_bytes;
    return chunks == 1 ? count : divide_up(count, unit * chunks) * unit;
}

// A message of Simple takes whole vectors; LL takes 16 bytes for 8 of data, LL128 lines of 128 bytes
// for 120. So does each of the runs of a chunk that may be at the place of another one.
std::int64_t PlanNumbers::tile_elements(std::int64_t item_bytes) const {
    std::int64_t room = slot_bytes / max_count;
    if (misplaced) room = std::max<std::int64_t>(room - (kRuns - 1) * least_bytes(), 0);
    switch (protocol) {
        case layout::kLL: return room / kVectorBytes * kWordBytes / item_bytes;
        case layout::kLL128: return room / kLineBytes * kLineWords * kWordBytes / item_bytes;
        default: return room / kVectorBytes * kVectorBytes / item_bytes;
    }
}

void PlanNumbers::cut(std::int64_t item_bytes, std::int64_t count, layout::Setup& setup) const {
    const std::int64_t unit = kUnitBytes / item_bytes, units = divide_up(count, unit);
    const std::int64_t chunk = longest_chunk(item_bytes, count);
    std::int64_t tile = tile_elements(item_bytes);
    if (tile == 0) {
        const std::int64_t least = least_bytes() * (misplaced ? kRuns : 1);
        throw Refusal("R506",
                      "slot_bytes >= " + std::to_string(max_count * least) + ": " +
                          std::to_string(least) + " for each of " + std::to_string(max_count) +
                          " chunks of a message",
                      "slot_bytes=" + std::to_string(slot_bytes));
    }
    if (tile_major) {
        // Chunks that are smaller than so many slices are cut into so many smaller ones, down to
        // the least.
        const std::int64_t part = round_up(divide_up(chunk, slices), unit);
        const std::int64_t least = kLeastSliceBytes / (max_count * kUnitBytes);
        tile = std::min(tile, std::max(part, std::max<std::int64_t>(least, 1) * unit));
    }
    const std::int64_t tiles = divide_up(chunk, tile), most = kMostNumbers / steps;
    if (tiles > most) {
        throw Refusal("R503", "at most " + std::to_string(most) + " tiles a chunk",
                      std::to_string(tiles) + " tiles", "",
                      "Use larger slots (slot_bytes), or several calls.");
    }
    setup.count = count;
    setup.chunk = chunk;
    setup.least = units / chunks * unit;
    setup.left_over = static_cast<std::int32_t>(units % chunks);
    setup.tile = tile;
    setup.tiles = static_cast<std::int32_t>(tiles);
    setup.slices = tile_major ? slices : setup.tiles;
    setup.is_even = chunk * chunks == count;
}

unsigned PlanNumbers::threads(std::int64_t item_bytes, std::int64_t count) const {
    const std::int64_t message = longest_chunk(item_bytes, count) * item_bytes * max_count;
    if (message <= small_bytes) return 128;
    return message <= medium_bytes ? 256 : static_cast<unsigned>(most_threads);
}

std::int64_t PlanNumbers::front_bytes() const {
    return misplaced ? round_up(2 * data_chunks * kUnitBytes, kScratchAlignment) : 0;
}

std::int64_t PlanNumbers::scratch_bytes(int rank, std::int64_t item_bytes,
                                        std::int64_t count) const {
    const std::int64_t number = scratch_chunks.at(static_cast<std::size_t>(rank));
    std::int64_t size = 0;
    const bool is_beyond =
        __builtin_mul_overflow(longest_chunk(item_bytes, count), number * item_bytes, &size) ||
        __builtin_add_overflow(size, front_bytes(), &size);
    return is_beyond ? std::numeric_limits<std::int64_t>::max() : size;
}

std::string PlanTables::to_bytes() const {
    std::string body;
    const auto number = [&body](const char*, std::int64_t value) { put(body, &value, 1); };
    visit(*this, number, [&](const char* name, const auto& rows) {
        number(name, sizeof rows[0]);
        number(name, static_cast<std::int64_t>(rows.size()));
        put(body, rows.data(), rows.size());
    });
    return sealed(kHead, body);
}

PlanTables PlanTables::from_bytes(std::string_view bytes) {
    unseal(kHead, bytes);
    PlanTables made;
    const auto number = [&bytes](const char*, auto& value) { take_number(bytes, value); };
    visit(made, number, [&](const char* name, auto& rows) {
        std::size_t row = 0, count = 0;
        number(name, row);
        number(name, count);
        if (row != sizeof rows[0] || count > bytes.size() / row) {
            throw damaged(std::string(name) + " of this version");
        }
        rows.resize(count);
        take(bytes, rows.data(), count);
    });
    if (!bytes.empty()) throw damaged("the tables", "bytes behind them");
    made.check();
    return made;
}

void PlanTables::check() const {
    const auto& n = numbers;
    const auto ranks = static_cast<std::int64_t>(n.scratch_chunks.size());
    expect_table(n.chunks > 0 && n.max_count > 0 && n.steps > 0 && n.slots > 0 && n.slices > 0 &&
                     n.most_threads > 0 && ranks <= layout::kRanks,
                 "numbers of a plan");
    const auto within = [](std::int64_t first, std::int64_t count, std::size_t size) {
        return first >= 0 && count >= 0 && first + count <= static_cast<std::int64_t>(size);
    };
    std::int64_t rank = -1;  // of the block before
    for (const auto& b : blocks) {
        expect_table(b.rank == rank || (b.rank == rank + 1 && b.rank < ranks),
                     "blocks rank after rank");
        rank = b.rank;
        expect_table(within(b.first_sender, b.senders, peers.size()) &&
                         within(b.first_receiver, b.receivers, peers.size()) &&
                         within(b.first_step, b.steps, instructions.size()) &&
                         within(b.first_condition, b.conditions, conditions.size()) &&
                         within(b.first_home, 0, homes.size()),
                     "blocks with rows that are there");
    }
    expect_table(rank == ranks - 1, "a block of each rank");
    const auto before = [](const auto& one, const auto& other) { return one.rank < other.rank; };
    expect_table(std::is_sorted(divisions.begin(), divisions.end(), before), "divisions by rank");
}

}  // namespace sley
