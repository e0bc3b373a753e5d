// Plans as tables: what kernels read of a plan, for any devices, and what its calls need to know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "devices/kernel_layout.hpp"
#include "devices/refusal.hpp"

namespace sley {

// Addresses in tables are symbols until the plan is on a device: offsets in segments, which are
// pieces of memory in one order for all plans of a communicator. The segments of the ranks'
// mailboxes come first. 0 is no address; the least bits are the offset.
constexpr int kOffsetBits = 44;

// A plan's numbers.
struct PlanNumbers {
    std::int32_t protocol = 0;           // of the kernels' numbers
    bool tile_major = false;             // else in instruction order
    bool misplaced = false;              // whether chunks are at the places of others
    std::int32_t chunks = 0;             // of a block of the collective
    std::int32_t max_count = 0;          // of the longest message
    std::int32_t steps = 0;              // of the longest block
    std::int32_t slots = 0;              // of a connection
    std::int32_t slices = 0;             // in tile order
    std::int64_t slot_bytes = 0;         // from one slot to the next
    std::int64_t slots_bytes = 0;        // of all slots of a connection, in any plan
    std::int64_t data_chunks = 0;        // the most of a rank
    std::int64_t small_bytes = 0;        // of the longest message, for which blocks have 128 threads
    std::int64_t medium_bytes = 0;       // or 256
    std::int32_t most_threads = 0;       // of a block, for longer messages
    std::vector<std::int32_t> scratch_chunks;  // of each rank

    // Elements of a tile: the most for which the longest message fits into a slot; 0 if none does.
    std::int64_t tile_elements(std::int64_t item_bytes) const;

    // Fills in the cut into chunks and tiles (`docs/machine.md`, "Memory") of a call of `count`
    // elements a block. Throws Refusal.
    void cut(std::int64_t item_bytes, std::int64_t count, layout::Setup& setup) const;

    // Of a block in a call. Ranks may have different numbers.
    unsigned threads(std::int64_t item_bytes, std::int64_t count) const;

    // What precedes a rank's scratch, if the plan keeps chunks at the places of others: a unit for
    // each chunk of its input and output, for the last elements of a longer chunk there.
    std::int64_t front_bytes() const;

    // The bytes that a call needs of a rank's scratch, with its front; the largest number for more
    // than any.
    std::int64_t scratch_bytes(int rank, std::int64_t item_bytes, std::int64_t count) const;

private:
    std::int64_t least_bytes() const;
    std::int64_t longest_chunk(std::int64_t item_bytes, std::int64_t count) const;
};

// The tables. Blocks and divisions are those of all ranks, rank after rank; each rank has a block,
// since a block without instructions counts the call. Of the addresses in blocks `report` is none.
struct PlanTables {
    PlanNumbers numbers;
    std::vector<layout::Block> blocks;
    std::vector<layout::Peer> peers;
    std::vector<layout::Instruction> instructions;
    std::vector<layout::Condition> conditions;
    std::vector<layout::Division> divisions;
    std::vector<std::int32_t> homes;

    // The bytes of a file with the tables, for runtimes of the same version, without Python.
    std::string to_bytes() const;
    // Throws Refusal (F425) for bytes that `to_bytes` of this version didn't write.
    static PlanTables from_bytes(std::string_view bytes);

    // Throws Refusal (F425) unless all rows that blocks name are there. What instructions do isn't
    // looked at: it is proven when the plan is compiled.
    void check() const;

    // Calls `number` with the name of each number, and itself, and `table` for each table.
    template <class Tables, class Number, class Table>
    static void visit(Tables& all, const Number& number, const Table& table) {
        auto& n = all.numbers;
        number("protocol", n.protocol);
        number("tile_major", n.tile_major);
        number("misplaced", n.misplaced);
        number("chunks", n.chunks);
        number("max_count", n.max_count);
        number("steps", n.steps);
        number("slots", n.slots);
        number("slices", n.slices);
        number("slot_bytes", n.slot_bytes);
        number("slots_bytes", n.slots_bytes);
        number("data_chunks", n.data_chunks);
        number("small_bytes", n.small_bytes);
        number("medium_bytes", n.medium_bytes);
        number("most_threads", n.most_threads);
        table("scratch_chunks", n.scratch_chunks);
        table("blocks", all.blocks);
        table("peers", all.peers);
        table("instructions", all.instructions);
        table("conditions", all.conditions);
        table("divisions", all.divisions);
        table("homes", all.homes);
    }
};

}  // namespace sley
