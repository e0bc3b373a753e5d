// The interpreter's loop.
#include "engine/engine.hpp"

#include <stdexcept>
#include <utility>

namespace sley {

Engine::Engine(std::shared_ptr<Fabric> fabric, const ProgramColumns& columns,
               const std::vector<Connection>& connections, Room room)
    : fabric_(std::move(fabric)),
      program_(build_program(columns, fabric_->rank(), fabric_->shape().ranks(), connections)),
      room_(room),
      execution_(*fabric_, program_, connections, room),
      positions_(program_.blocks.size()) {}

// Python has validated the user's memory before: an error here is a mistake of the calling code.
void Engine::check(const Call& call) const {
    const auto item = static_cast<std::int64_t>(item_size(call.type));
    if (call.count < 0) throw std::invalid_argument("a negative count");
    for (const auto memory : {kInput, kOutput}) {
        if (call.bytes[memory] != program_.elements(memory, call.count) * item) {
            throw std::invalid_argument("memory of the wrong size");
        }
        const auto start = reinterpret_cast<std::uintptr_t>(call.memory[memory]);
        if (start % static_cast<std::size_t>(item)) {
            throw std::invalid_argument("memory that is not aligned to its elements");
        }
    }
    if (room_.slot_bytes < program_.max_count * item) {
        throw SlotTooSmall("a slot holds less than one element of every chunk of a message");
    }
}

void Engine::begin(const Call& call) {
    execution_.begin(call);
    count_ = call.count;
    begin_again();
}

void Engine::begin_again() {
    execution_.begin_iteration();
    running_ = 0;
    for (std::size_t b = 0; b < positions_.size(); ++b) {
        const auto& block = program_.blocks[b];
        const bool empty = execution_.cut().tiles == 0 || block.begin == block.end;
        positions_[b] = {block.begin, 0, empty};
        running_ += empty ? 0 : 1;
    }
    phase_ = Phase::kRunning;
}

bool Engine::advance() {
    bool moved = false;
    if (phase_ == Phase::kRunning) {
        for (std::size_t b = 0; b < positions_.size(); ++b) moved |= advance_block(b);
        if (running_ == 0) phase_ = Phase::kDraining;
    }
    if (phase_ == Phase::kDraining && execution_.is_read()) {
        execution_.end_iteration();
        phase_ = Phase::kDone;
        moved = true;
    }
    return moved;
}

// Advances a block until it must wait, but not for ever: other blocks need their turn, and other
// ranks a heartbeat. Returns whether it moved.
bool Engine::advance_block(std::size_t block) {
    constexpr int kBurst = 256;
    auto& at = positions_[block];
    int done = 0;
    while (done < kBurst && !at.done && obstacle(at).reason == Reason::kNone) {
        const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
        if (!execution_.perform(in, at.tile)) return false;
        step(block);
        ++done;
    }
    return done > 0;
}

void Engine::step(std::size_t block) {
    auto& at = positions_[block];
    const auto& range = program_.blocks[block];
    if (program_.tile_major) {
        if (++at.instruction == range.end) {
            at.done = ++at.tile == execution_.cut().tiles;
            at.instruction = range.begin;
        }
    } else if (++at.tile == execution_.cut().tiles) {
        at.tile = 0;
        at.done = ++at.instruction == range.end;
    }
    if (at.done) --running_;
}

Obstacle Engine::obstacle(const Position& at) {
    const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
    for (auto w = in.wait_begin; w < in.wait_end; ++w) {
        const auto& wait = program_.waits[static_cast<std::size_t>(w)];
        if (!is_finished(wait, at.tile)) return {Reason::kInstruction, wait.instruction};
    }
    return execution_.obstacle(in, at.tile);
}

// A block has finished all executions before its position, in the plan's loop order.
bool Engine::is_finished(const Wait& wait, std::int64_t tile) const {
    const auto& at = positions_[static_cast<std::size_t>(wait.block)];
    if (at.done) return true;
    if (program_.tile_major) {
        return at.tile > tile || (at.tile == tile && at.instruction > wait.instruction);
    }
    return at.instruction > wait.instruction ||
           (at.instruction == wait.instruction && at.tile > tile);
}

std::vector<Stuck> Engine::find_stuck() {
    std::vector<Stuck> list;
    for (const auto& at : positions_) {
        if (phase_ != Phase::kRunning || at.done) continue;
        const auto obstacle = this->obstacle(at);
        if (obstacle.reason == Reason::kNone) continue;
        list.push_back({at.instruction, at.tile, obstacle.reason, obstacle.target});
    }
    if (phase_ == Phase::kDraining) {
        for (const auto connection : execution_.unread_connections()) {
            list.push_back({-1, 0, Reason::kReading, connection});
        }
    }
    return list;
}

void Engine::count(std::int64_t iterations, double seconds) {
    const std::lock_guard lock(tally_mutex_);
    tally_.calls += static_cast<std::uint64_t>(iterations);
    tally_.block_bytes += static_cast<std::uint64_t>(iterations * count_ * execution_.cut().item);
    tally_.seconds += seconds;
    for (std::size_t way = 0; way < kWays; ++way) tally_.ways[way] += execution_.ways()[way];
}

}  // namespace sley
