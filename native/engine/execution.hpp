// Executions: instructions on tiles of a call, with their messages.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout.hpp"
#include "engine/program.hpp"
#include "engine/reduce.hpp"
#include "engine/varying.hpp"
#include "fabric/fabric.hpp"
#include "fabric/outcome.hpp"

namespace sley {

// The room of a plan's connections: at most that of the fabric's.
struct Room {
    std::int64_t slots;
    std::int64_t slot_bytes;
};

// What an execution must wait for before it starts; kNone if it can start.
struct Obstacle {
    Reason reason;
    std::int32_t target;
};

// A rank's executions, one call after another. The engine decides their order.
class Execution {
public:
    // The program must outlive it. Throws std::invalid_argument for more room than the fabric's
    // connections have.
    Execution(Fabric& fabric, const Program& program, const std::vector<Connection>& connections,
              Room room);

    // Begins a call. Throws std::bad_alloc or std::length_error if there is no memory for it.
    void begin(const Call& call);
    // Called before the first execution of each iteration of the call, and after the last one.
    void begin_iteration();
    void end_iteration();

    // What an execution waits for besides other instructions: its message, a slot, or the read of a
    // message that it overwrites.
    Obstacle obstacle(const Instruction& in, std::int64_t tile) {
        if (in.recv >= 0) {
            const auto& from = receivers_[static_cast<std::size_t>(in.recv)];
            if (!from.fifo->has_message()) return {Reason::kMessage, from.connection};
        }
        if (pulls_ && in.hold_begin < in.hold_end) {
            const auto unread = unread_hold(in, tile);
            if (unread >= 0) return {Reason::kReading, unread};
        }
        if (in.send < 0) return {Reason::kNone, -1};
        auto& to = senders_[static_cast<std::size_t>(in.send)];
        const bool has_room = is_pulled(in)
                                  ? to.fifo->has_envelope()
                                  : to.fifo->has_slot(limit_, most_bytes_);
        if (has_room) return {Reason::kNone, -1};
        return {Reason::kSlot, to.connection};
    }
    // Runs an execution without an obstacle. False if its message is of another call, or can no
    // longer be read.
    bool perform(const Instruction& in, std::int64_t tile);

    // Whether the receivers have read all messages that they pull from this rank: until then the
    // call may not return the memory to the caller.
    bool is_read() const;
    // The connections on which they have not.
    std::vector<std::int32_t> unread_connections() const;

    const Cut& cut() const { return layout_.cut(); }
    // In a call of varying counts, both grow when the lengths of chunks become known.
    std::int64_t tiles() const { return varies_ ? varying_->tiles() : cut().tiles; }
    std::int64_t tiles_of(const Instruction& in) const {
        return varies_ ? varying_->tiles_of(in) : cut().tiles;
    }
    bool varies() const { return varies_; }
    // The number of the call's iterations by way.
    const std::array<std::uint64_t, kWays>& ways() const { return way_counts_; }
    // Whether the iteration has read memory of other ranks, which they may overwrite once the call
    // has failed.
    bool has_pulled() const { return has_pulled_; }
    // The rank whose message was of another call, or -1.
    std::int32_t mismatched_rank() const { return mismatched_; }
    // The chunk that didn't fit its place; its cell is -1 if all did.
    Misfit misfit() const { return varies_ ? varying_->misfit() : Misfit{}; }
    // Whether a message could no longer be read.
    bool has_failed() const { return has_failed_; }

private:
    // The ends of the rank's connections.
    struct Sender {
        FifoSender* fifo;
        std::int32_t connection, dst;
    };
    struct Receiver {
        FifoReceiver* fifo;
        std::int32_t connection, src;
    };
    // A message that has arrived: readable data, or an address in the sender's process.
    struct Incoming {
        const std::byte* data = nullptr;
        std::int32_t sender = -1;
        std::uint64_t address = 0;

        Incoming from(std::size_t offset) const {
            return {data ? data + offset : nullptr, sender, address + offset};
        }
    };
    // The addresses of an instruction's operands, or of a part of them.
    struct Operands {
        std::byte* dst;
        const std::byte* src;
        const std::byte* message;
        std::byte* slot;
    };
    // The slot in which a tile of a payload that several messages share was staged.
    struct Staged {
        std::uint64_t iteration;
        std::int64_t tile;
        std::int32_t sender;
        std::size_t slot;
        std::uint64_t number;
    };

    void choose_way();
    std::int64_t tile_room(bool can_attach) const;
    void choose_pulled();
    bool is_attached(const Instruction& in) const;
    bool is_pulled(const Instruction& in) const {
        return pulls_ && pulled_[program_.row_of(in)] != 0;
    }
    std::int32_t unread_hold(const Instruction& in, std::int64_t tile);
    bool has_been_read(const Instruction& in, std::int64_t tile);

    bool send(const Instruction& in, std::int64_t tile, const Incoming& message);
    bool fail_without_memory();  // returns false
    void publish_pulled(const Instruction& in, std::int64_t tile, std::uint32_t bytes);
    const Staged* find_staged(const Instruction& in, std::int64_t tile) const;
    std::size_t staged_index(std::int32_t payload, std::int64_t tile) const;
    void forget_overwritten(const Instruction& in, std::int64_t tile);

    std::int64_t bytes_of(const Instruction& in, std::int64_t tile) const {
        if (varies_) return varying_->bytes_of(in, tile);
        const bool reads = reads_source(in.op);
        return layout_.length_of(reads ? in.src_memory : in.dst_memory,
                                 reads ? in.src_cell : in.dst_cell, in.count, tile) *
               cut().item;
    }
    bool work(const Instruction& in, std::int64_t tile, const Incoming& message, std::byte* slot);
    bool work_varying(const Instruction& in, std::int64_t tile, const std::byte* message,
                      std::byte* slot);
    bool work_run(const Instruction& in, std::int64_t piece, Run run, const Incoming& message,
                  std::byte* slot);
    bool work_fetched(const Instruction& in, const Incoming& message, Operands at, std::size_t n);
    bool fetch(const Incoming& message, std::byte* to, std::size_t bytes);
    void compute(const Instruction& in, const Operands& at, std::size_t n) const;
    void stage(std::byte* to, const std::byte* from, std::size_t bytes) const;
    void copy(const Instruction& in, std::byte* to, const std::byte* from, std::size_t bytes) const;

    Fabric& fabric_;
    const Program& program_;
    Room room_;
    std::vector<Sender> senders_;
    std::vector<Receiver> receivers_;
    bool is_one_host_;
    std::int64_t shared_tiles_;  // the tiles of a payload whose slots are remembered

    // Of the current call.
    Layout layout_;
    std::optional<VaryingLayout> varying_;  // since the first call of varying counts
    bool varies_ = false;
    Call call_{};
    std::uint32_t signature_ = 0;
    Combine combine_ = nullptr;
    bool streams_ = false;  // whether the host's ranks write more than their cache holds
    std::int32_t mismatched_ = -1;
    bool has_failed_ = false;
    std::array<std::uint64_t, kWays> way_counts_{};

    // Of the current iteration.
    Way way_ = Way::kCached;
    std::size_t most_bytes_ = 0;  // of a message
    std::size_t limit_ = 0;       // the staged messages in flight on a connection
    bool has_choice_ = false;
    std::chrono::steady_clock::time_point began_;  // if there is a choice
    std::uint64_t heap_[kMemories] = {};           // `where` of each memory, 0 if not in the heap
    bool pulls_ = false;
    bool has_pulled_ = false;
    std::vector<std::uint8_t> pulled_;         // of each instruction: whether its message is
    std::vector<std::uint64_t> first_number_;  // of each sender's messages
    std::uint64_t iteration_ = 0;              // counted over all calls
    std::vector<Staged> staged_;               // the last tiles of each shared payload
};

}  // namespace sley
