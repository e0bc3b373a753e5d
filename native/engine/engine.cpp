// The interpreter's loop.
#include "engine/engine.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace sley {
namespace {

constexpr auto kAllTiles = std::numeric_limits<std::int64_t>::max();

// The mean count of the parts of a rank's larger buffer.
std::int64_t mean_count(const Parts& parts) {
    std::int64_t most = 0;
    for (const auto& blocks : parts.of) {
        std::int64_t total = 0;
        for (const auto& part : blocks) total += part.count;
        if (!blocks.empty()) most = std::max(most, total / static_cast<std::int64_t>(blocks.size()));
    }
    return most;
}

}  // namespace

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
    if (call.parts) return check_parts(*call.parts, item);
    if (call.count < 0) throw std::invalid_argument("a negative count");
    if (call.blocks) check_blocks(call, item);
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

void Engine::check_blocks(const Call& call, std::int64_t item) const {
    if (program_.in_place) throw std::invalid_argument("separate blocks for a plan in place");
    for (const auto memory : {kInput, kOutput}) {
        const auto& blocks = call.blocks->of[memory];
        if (static_cast<std::int64_t>(blocks.size()) != program_.elements(memory, 1)) {
            throw std::invalid_argument("another number of blocks");
        }
        for (const auto& block : blocks) {
            if (block.count != call.count) throw std::invalid_argument("blocks of other counts");
            if (reinterpret_cast<std::uintptr_t>(block.data) % static_cast<std::size_t>(item)) {
                throw std::invalid_argument("memory that is not aligned to its elements");
            }
        }
    }
}

void Engine::check_parts(const Parts& parts, std::int64_t item) const {
    if (program_.in_place || program_.reduces) {
        throw std::invalid_argument("varying counts for a plan in place or with reductions");
    }
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
    for (const auto memory : {kInput, kOutput}) {
        const auto& blocks = parts.of[memory];
        if (static_cast<std::int64_t>(blocks.size()) != program_.elements(memory, 1)) {
            throw std::invalid_argument("another number of counts than of blocks");
        }
        for (const auto& part : blocks) {
            if (part.count < 0 || part.count > kMost / item) {
                throw std::invalid_argument("an impossible count");
            }
            if (reinterpret_cast<std::uintptr_t>(part.data) % static_cast<std::size_t>(item)) {
                throw std::invalid_argument("memory that is not aligned to its elements");
            }
        }
    }
    check_lengths(item);
}

void Engine::check_lengths(std::int64_t item) const {
    if (room_.slot_bytes < program_.max_count * std::max<std::int64_t>(item, kLengthBytes)) {
        throw SlotTooSmall("a slot holds less than one element, or the length, of every chunk of "
                           "a message");
    }
}

std::shared_ptr<const Parts> Engine::equal_parts(const Call& call) const {
    if (call.blocks) return call.blocks;
    auto parts = std::make_shared<Parts>();
    const auto bytes = call.count * static_cast<std::int64_t>(item_size(call.type));
    for (const auto memory : {kInput, kOutput}) {
        for (std::int64_t b = 0; b < program_.elements(memory, 1); ++b) {
            parts->of[memory].push_back({call.memory[memory] + b * bytes, call.count});
        }
    }
    return parts;
}

void Engine::begin(const Call& call) {
    execution_.begin(call);
    count_ = call.parts ? mean_count(*call.parts) : call.count;
    begin_again();
}

void Engine::begin_again() {
    execution_.begin_iteration();
    running_ = 0;
    first_tiles_ = 0;
    for (std::size_t b = 0; b < positions_.size(); ++b) {
        const auto& block = program_.blocks[b];
        const bool empty = execution_.tiles() == 0 || block.begin == block.end;
        positions_[b] = {block.begin, 0, empty};
        running_ += empty ? 0 : 1;
    }
    if (execution_.varies() && program_.tile_major) first_tiles_ = running_;
    phase_ = Phase::kRunning;
}

bool Engine::advance() {
    bool moved = false;
    if (phase_ == Phase::kRunning) {
        for (std::size_t b = 0; b < positions_.size(); ++b) {
            moved |= end_if_over(b);  // if another block has ended its first tile since
            moved |= advance_block(b);
        }
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
        if (!is_skipped(at, in) && !execution_.perform(in, at.tile)) return false;
        step(block);
        ++done;
    }
    return done > 0;
}

void Engine::step(std::size_t block) {
    auto& at = positions_[block];
    const auto& range = program_.blocks[block];
    if (program_.tile_major) {
        if (++at.instruction < range.end) return;
        at.instruction = range.begin;
        if (++at.tile == 1 && first_tiles_ > 0) --first_tiles_;
    } else {
        // In a call of varying counts, the last execution only waits (`is_skipped`).
        const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
        if (++at.tile < execution_.tiles_of(in) + (execution_.varies() ? 1 : 0)) return;
        at.tile = 0;
        ++at.instruction;
    }
    end_if_over(block);
}

// Ends a block that has no more executions; returns whether it has ended now. In tile order it has
// as many tiles as any instruction of the rank, because other blocks rely on its waits in every
// tile. So it doesn't end before all blocks know the lengths of their chunks.
bool Engine::end_if_over(std::size_t block) {
    auto& at = positions_[block];
    const bool is_over = program_.tile_major
                             ? knows_lengths() && at.tile == execution_.tiles()
                             : at.instruction == program_.blocks[block].end;
    if (at.done || !is_over) return false;
    at.done = true;
    --running_;
    return true;
}

// Whether a call of varying counts leaves out an execution, because its chunks are shorter. It still
// waits for what it would: later instructions of its block may rely on that.
bool Engine::is_skipped(const Position& at, const Instruction& in) const {
    return execution_.varies() && at.tile >= execution_.tiles_of(in);
}

Obstacle Engine::obstacle(const Position& at) {
    if (!knows_lengths() && at.tile == execution_.tiles()) return unknown_lengths();
    const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
    const bool skipped = is_skipped(at, in);
    // In instruction order a skipped execution stands for all later tiles.
    const auto tile = skipped && !program_.tile_major ? kAllTiles : at.tile;
    for (auto w = in.wait_begin; w < in.wait_end; ++w) {
        const auto& wait = program_.waits[static_cast<std::size_t>(w)];
        if (!is_finished(wait, tile)) return {Reason::kInstruction, wait.instruction};
    }
    return skipped ? Obstacle{Reason::kNone, -1} : execution_.obstacle(in, at.tile);
}

// A block that waits until another one has ended its first tile waits for its last instruction.
Obstacle Engine::unknown_lengths() const {
    for (std::size_t b = 0; b < positions_.size(); ++b) {
        if (positions_[b].done || positions_[b].tile > 0) continue;
        return {Reason::kInstruction, program_.blocks[b].end - 1};
    }
    return {Reason::kNone, -1};
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
