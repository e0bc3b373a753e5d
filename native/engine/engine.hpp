// The interpreter: one rank runs all its thread blocks on one OS thread.
//
// Each block is a small state machine (instruction, tile), and the engine advances the blocks in
// turn. `docs/machine.md` defines what an execution does, and the order of executions. Waits read
// the positions of other blocks, which need no atomics in one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/execution.hpp"
#include "engine/layout.hpp"
#include "engine/program.hpp"
#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"

namespace sley {

class SlotTooSmall : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An engine's successful calls.
struct Tally {
    std::uint64_t calls = 0;
    std::uint64_t block_bytes = 0;  // the sum of the bytes of one block of each
    double seconds = 0;
    std::array<std::uint64_t, kWays> ways{};  // the number of calls by way
};

class Engine {
public:
    // Throws ProgramFault for an invalid program, std::invalid_argument for more room than the
    // fabric's connections have.
    Engine(std::shared_ptr<Fabric> fabric, const ProgramColumns& columns,
           const std::vector<Connection>& connections, Room room);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Throws std::invalid_argument for memory of the wrong size, and SlotTooSmall.
    void check(const Call& call) const;
    // The parts of a call of equal counts, out of place.
    std::shared_ptr<const Parts> equal_parts(const Call& call) const;
    // Throws SlotTooSmall for calls of varying counts with elements of `item` bytes.
    void check_lengths(std::int64_t item) const;
    // Starts a call that passes `check`.
    void begin(const Call& call);
    // Starts the same call once more.
    void begin_again();
    // Advances each block once; returns whether anything moved.
    bool advance();
    bool is_done() const { return phase_ == Phase::kDone; }
    const Execution& execution() const { return execution_; }

    std::vector<Stuck> find_stuck();
    Fabric& fabric() const { return *fabric_; }

    // Counts successful iterations of the call.
    void count(std::int64_t iterations, double seconds);
    // May be called while another thread runs calls.
    Tally tally() const {
        const std::lock_guard lock(tally_mutex_);
        return tally_;
    }

private:
    enum class Phase { kRunning, kDraining, kDone };
    struct Position {
        std::int32_t instruction;
        std::int64_t tile;
        bool done;
    };

    void check_parts(const Parts& parts, std::int64_t item) const;
    void check_blocks(const Call& call, std::int64_t item) const;
    bool advance_block(std::size_t block);
    bool end_if_over(std::size_t block);
    Obstacle obstacle(const Position& at);
    Obstacle unknown_lengths() const;
    bool is_skipped(const Position& at, const Instruction& in) const;
    bool knows_lengths() const { return first_tiles_ == 0; }
    bool is_finished(const Wait& wait, std::int64_t tile) const;
    void step(std::size_t block);

    std::shared_ptr<Fabric> fabric_;
    Program program_;
    Room room_;
    Execution execution_;
    Phase phase_ = Phase::kDone;
    std::vector<Position> positions_;
    std::size_t running_ = 0;  // blocks
    // Blocks that have not ended their first tile, in a call of varying counts in tile order.
    std::size_t first_tiles_ = 0;
    std::int64_t count_ = 0;   // of the current call
    mutable std::mutex tally_mutex_;
    Tally tally_;
};

}  // namespace sley
