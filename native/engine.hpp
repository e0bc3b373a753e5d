// The interpreter: one rank runs all its thread blocks on one OS thread.
//
// Each block is a small state machine (instruction, tile). The engine goes round the blocks and
// lets each move on; `docs/machine.md` says what an execution does and in which order.
// Blocks of a rank share nothing but the positions that waits look at, so those need no atomics.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control.hpp"
#include "fabric.hpp"
#include "program.hpp"
#include "reduce.hpp"

namespace sley {

// What a call is about. In place, memory[kInput] is the rank's data and memory[kOutput] is null.
struct Call {
    std::int64_t count;  // elements of one block of the collective
    DataType type;
    ReduceOp op;
    std::byte* memory[2];
    std::int64_t bytes[2];
    std::int64_t iterations;
    double timeout_s;
};

enum class Reason : std::int32_t { kNone, kInstruction, kMessage, kSlot };

// A block that cannot go on: where it stands, and what it waits for (an instruction of the rank,
// or the fabric's connection).
struct Stuck {
    std::int32_t instruction;
    std::int64_t tile;
    Reason reason;
    std::int32_t target;
};

enum class Status : std::int32_t { kDone, kStalled, kAborted, kAbsent };

struct Outcome {
    Status status = Status::kDone;
    double seconds = 0.0;     // all iterations, from the barrier on
    std::int32_t absent = -1;  // kAbsent: the rank that did not come to the barrier
    std::vector<Stuck> stuck;
};

// How a call cuts every chunk (machine.md, "Memory" and "Tiles").
struct Cut {
    std::int64_t chunk;       // elements of a chunk
    std::int64_t left_over;   // elements at a block's end, one for each of the first chunks
    std::int64_t tile;        // elements of a full tile
    std::int64_t full_tiles;  // tiles before the one for what is left over
    std::int64_t tiles;
    std::int64_t item;  // bytes of an element
};

class SlotTooSmall : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Engine {
public:
    Engine(std::shared_ptr<Fabric> fabric, std::int32_t rank, const ProgramColumns& columns);

    // Runs the plan `iterations` times, back to back, after a barrier with all other ranks.
    // Throws std::invalid_argument for memory of the wrong size, and SlotTooSmall.
    Outcome run(const Call& call);

    // Elements that memory (kInput or kOutput) must have for `count`.
    std::int64_t elements(Memory memory, std::int64_t count) const;

private:
    struct Position {
        std::int32_t instruction;
        std::int64_t tile;
        bool done;
    };
    struct Obstacle {
        Reason reason;
        std::int32_t target;
    };

    void check(const Call& call) const;
    Cut cut_of(const Call& call) const;
    void prepare(const Call& call);
    Status meet(Patience& patience, Outcome& outcome);
    Status run_once(Patience& patience);
    bool advance(std::size_t block);
    Obstacle obstacle(const Position& at);
    bool finished(const Wait& wait, std::int64_t tile) const;
    void perform(const Instruction& in, std::int64_t tile);
    void work(const Instruction& in, std::int64_t tile, const std::byte* message, std::byte* out);
    std::byte* address(Memory memory, std::int64_t cell, std::int64_t tile) const;
    void step(std::size_t block);
    void restart();
    void load_tail();
    void store_tail();
    void move_tail(Memory memory, bool load);
    void divide_outputs();
    std::vector<Stuck> stuck();

    std::shared_ptr<Fabric> fabric_;
    std::int32_t rank_;
    Program program_;
    std::vector<FifoSender> senders_;
    std::vector<FifoReceiver> receivers_;
    std::vector<Position> positions_;
    std::size_t running_ = 0;

    // Of the current call.
    Cut cut_{};
    Call call_{};
    Combine combine_ = nullptr;
    std::byte* base_[kMemories] = {};
    std::byte* tail_[kMemories] = {};
    std::vector<std::uint64_t> scratch_, tail_memory_;  // 64-bit words, for alignment
};

}  // namespace sley
