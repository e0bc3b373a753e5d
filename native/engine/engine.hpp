// The interpreter: one rank runs all its thread blocks on one OS thread.
//
// Each block is a small state machine (instruction, tile). The engine goes round the blocks and
// lets each move on; `docs/machine.md` says what an execution does and in which order.
// Blocks of a rank share nothing but the positions that waits look at, so those need no atomics.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/program.hpp"
#include "engine/reduce.hpp"
#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"

namespace sley {

// What a call is about. In place, memory[kInput] is the rank's data and memory[kOutput] is null.
struct Call {
    std::int64_t count;  // elements of one block of the collective
    DataType type;
    ReduceOp op;
    std::byte* memory[2];
    std::int64_t bytes[2];
    CallRecord record;
};

// How a call cuts every chunk (machine.md, "Memory" and "Tiles").
struct Cut {
    std::int64_t chunk;       // elements that every chunk has
    std::int64_t left_over;   // chunks of a block that have one element more
    std::int64_t tile;        // elements of a full tile
    std::int64_t full_tiles;  // tiles before the one of those last elements
    std::int64_t tiles;
    std::int64_t item;  // bytes of an element
};

class SlotTooSmall : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What a plan may use of its connections: at most the fabric's.
struct Room {
    std::int64_t slots;
    std::int64_t slot_bytes;
};

// Calls that an engine has ended well.
struct Tally {
    std::uint64_t calls = 0;
    std::uint64_t block_bytes = 0;  // of one block of each, added up
    double seconds = 0;
    std::array<std::uint64_t, kWays> ways{};  // the calls that went each
};

class Engine {
public:
    Engine(std::shared_ptr<Fabric> fabric, const ProgramColumns& columns,
           std::vector<Connection> connections, Room room);

    // Throws std::invalid_argument for memory of the wrong size, and SlotTooSmall.
    void check(const Call& call) const;
    // Starts a call that passes `check`.
    void begin(const Call& call);
    // The same call once more.
    void begin_again();
    // Goes round the blocks once; says whether anything moved.
    bool advance();
    bool is_done() const { return phase_ == Phase::kDone; }
    // Whether the call has read memory of other ranks, which is theirs again once it has failed.
    bool has_pulled() const { return has_pulled_; }
    // The rank whose message was of another call, or -1.
    std::int32_t mismatched() const { return mismatched_; }
    // Whether a message could not be read any more.
    bool has_failed() const { return has_failed_; }

    const CallRecord& record() const { return call_.record; }
    std::vector<Stuck> stuck();
    Fabric& fabric() const { return *fabric_; }

    void count(std::int64_t calls, double seconds) {
        tally_.calls += static_cast<std::uint64_t>(calls);
        tally_.block_bytes += static_cast<std::uint64_t>(calls * call_.count * cut_.item);
        tally_.seconds += seconds;
        for (std::size_t way = 0; way < kWays; ++way) tally_.ways[way] += went_[way];
    }
    const Tally& tally() const { return tally_; }

    // Elements that memory (kInput or kOutput) must have for `count`.
    std::int64_t elements(Memory memory, std::int64_t count) const;

private:
    enum class Phase { kRunning, kDraining, kDone };
    struct Position {
        std::int32_t instruction;
        std::int64_t tile;
        bool done;
    };
    struct Obstacle {
        Reason reason;
        std::int32_t target;
    };
    // A message that has come: data that can be read, or an address in the process of its sender.
    struct Incoming {
        const std::byte* data = nullptr;
        std::int32_t sender = -1;
        std::uint64_t address = 0;

        Incoming from(std::size_t offset) const {
            return {data ? data + offset : nullptr, sender, address + offset};
        }
    };
    // The operands of an instruction, or of a part of it.
    struct Operands {
        std::byte* dst;
        const std::byte* src;
        const std::byte* message;
        std::byte* slot;
    };
    // Where a tile of a payload that several messages share was staged, in which call.
    struct Staged {
        std::uint64_t call;
        std::int64_t tile;
        std::int32_t sender;
        std::size_t slot;
        std::uint64_t number;
    };

    void prepare(const Call& call);
    void choose_way();
    std::int64_t tile_room(bool can_attach) const;
    void choose_pulled();
    bool advance_block(std::size_t block);
    Obstacle obstacle(const Position& at);
    bool finished(const Wait& wait, std::int64_t tile) const;
    bool is_pulled(const Instruction& in, std::int64_t tile) const {
        return pulls_ && tile != cut_.full_tiles &&
               pulled_[static_cast<std::size_t>(&in - program_.instructions.data())] != 0;
    }
    bool is_attached(const Instruction& in) const;
    bool has_been_read(std::int32_t instruction, std::int64_t tile);
    bool perform(const Instruction& in, std::int64_t tile);
    bool send(const Instruction& in, std::int64_t tile, const Incoming& message);
    const Staged* shared(const Instruction& in, std::int64_t tile) const;
    std::size_t staged_index(std::int32_t payload, std::int64_t tile) const;
    void forget_overwritten(const Instruction& in, std::int64_t tile);
    bool work(const Instruction& in, std::int64_t tile, const Incoming& message, std::byte* slot);
    bool work_fetched(const Instruction& in, const Incoming& message, Operands at, std::size_t n);
    bool fetch(const Incoming& message, std::byte* to, std::size_t bytes);
    void compute(const Instruction& in, const Operands& at, std::size_t n) const;
    void stage(std::byte* to, const std::byte* from, std::size_t bytes) const;
    void copy(const Instruction& in, std::byte* to, const std::byte* from, std::size_t bytes) const;
    std::int64_t length_of(std::int64_t tile) const;
    std::byte* address(Memory memory, std::int64_t cell, std::int64_t tile) const;
    std::int64_t first_element(std::int64_t cell) const;
    bool has_one_more(std::int64_t cell) const;
    void step(std::size_t block);
    bool drained();
    void finish();
    void load_tail();
    void store_tail();
    void move_tail(Memory memory, bool load);
    void divide_outputs();

    std::shared_ptr<Fabric> fabric_;
    Program program_;
    std::vector<Connection> connections_;
    Room room_;
    std::vector<FifoSender*> senders_;
    std::vector<FifoReceiver*> receivers_;
    bool is_one_host_ = false;
    std::int64_t shared_tiles_ = 1;  // that may be ahead of one another
    std::vector<Position> positions_;
    std::size_t running_ = 0;
    Tally tally_;

    // Of the current call.
    Phase phase_ = Phase::kDone;
    Cut cut_{};
    Call call_{};
    std::uint32_t signature_ = 0;
    std::int32_t mismatched_ = -1;
    bool has_failed_ = false;
    bool streams_ = false;  // the host's ranks write more than their cache holds
    Way way_ = Way::kCached;
    bool has_choice_ = false;
    std::array<std::uint64_t, kWays> went_{};  // the ways of its iterations
    std::uint64_t iteration_ = 0;              // of any call
    std::chrono::steady_clock::time_point began_;  // where there is a choice
    Combine combine_ = nullptr;
    std::byte* base_[kMemories] = {};
    std::byte* tail_[kMemories] = {};
    std::uint64_t heap_[kMemories] = {};  // `where` of the memory, 0 if it isn't in the heap
    bool pulls_ = false;
    bool has_pulled_ = false;
    std::vector<std::uint8_t> pulled_;         // of each instruction: in full tiles
    std::vector<std::uint64_t> first_number_;  // of each sender's messages in this call
    std::vector<Staged> staged_;               // of each shared payload: its last tiles
    std::vector<std::uint64_t> scratch_, tail_memory_;  // 64-bit words, for alignment
};

}  // namespace sley
