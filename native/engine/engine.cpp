// The interpreter's loop: what runs when.
#include "engine/engine.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>

#include "fabric/copy.hpp"

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

// Each copy by the kernel is a system call that looks up every page: large pieces alone are worth
// it, and where nothing goes through slots, they are larger than those.
constexpr std::int64_t kLeastPiece = 128 << 10, kLeastChunk = 1 << 20, kAttachedBytes = 512 << 10;
// What lands on the way to its place stays in a cache.
constexpr std::size_t kLandingBytes = 128 << 10;
// Smaller calls are over before the way makes a difference.
constexpr std::int64_t kLeastChoice = 4 << 10;

// Equal for calls of one plan, type and operation whose chunks are of about one size.
std::uint64_t alike(const CallRecord& record, std::int64_t chunk_bytes) {
    std::uint64_t power = 0;
    while (chunk_bytes >>= 1) ++power;
    std::uint64_t h = record.what ^ (power * 0x9e3779b97f4a7c15u);
    for (int i = 0; i < 2; ++i) {
        h ^= h >> 32;
        h *= 0xd6e8feb86659fd93u;
    }
    return h >> 32;
}

}  // namespace

Engine::Engine(std::shared_ptr<Fabric> fabric, const ProgramColumns& columns,
               std::vector<Connection> connections, Room room)
    : fabric_(std::move(fabric)),
      program_(build_program(columns, fabric_->rank(), fabric_->shape().ranks(), connections)),
      connections_(std::move(connections)),
      room_(room) {
    const auto& fifo = fabric_->shape().fifo;
    if (room_.slots < 1 || room_.slots > fifo.slots || room_.slot_bytes > fifo.slot_bytes) {
        throw std::invalid_argument("more room than the fabric's connections have");
    }
    for (const auto c : program_.senders) {
        const auto& connection = connections_[static_cast<std::size_t>(c)];
        senders_.push_back(&fabric_->sender(connection.dst, connection.index));
    }
    for (const auto c : program_.receivers) {
        const auto& connection = connections_[static_cast<std::size_t>(c)];
        receivers_.push_back(&fabric_->receiver(connection.src, connection.index));
    }
    is_one_host_ = fabric_->local_ranks() == fabric_->shape().ranks();
    positions_.resize(program_.blocks.size());
    pulled_.resize(program_.instructions.size());
    first_number_.resize(senders_.size());
    // No tile is still there when a connection's slots have been used again. Across hosts, messages
    // that share many slots hold one another up (4 hosts of 2 ranks: 1.16 times the links' bound
    // instead of 1.09).
    shared_tiles_ = is_one_host_ ? fifo.slots : 1;
    staged_.resize(static_cast<std::size_t>(program_.payloads * shared_tiles_));
}

std::int64_t Engine::elements(Memory memory, std::int64_t count) const {
    const std::int64_t blocks =
        (static_cast<std::int64_t>(program_.cells[memory]) + program_.chunks - 1) / program_.chunks;
    return blocks * count;
}

void Engine::begin(const Call& call) {
    prepare(call);
    begin_again();
}

void Engine::begin_again() {
    choose_way();
    running_ = 0;
    for (std::size_t b = 0; b < positions_.size(); ++b) {
        const auto& block = program_.blocks[b];
        const bool empty = cut_.tiles == 0 || block.begin == block.end;
        positions_[b] = {block.begin, 0, empty};
        running_ += empty ? 0 : 1;
    }
    for (std::size_t s = 0; s < senders_.size(); ++s) first_number_[s] = senders_[s]->next();
    ++iteration_;
    has_pulled_ = false;
    if (cut_.left_over > 0) load_tail();
    phase_ = Phase::kRunning;
}

bool Engine::advance() {
    bool moved = false;
    if (phase_ == Phase::kRunning) {
        for (std::size_t b = 0; b < positions_.size(); ++b) moved |= advance_block(b);
        if (running_ == 0) phase_ = Phase::kDraining;
    }
    if (phase_ == Phase::kDraining && drained()) {
        finish();
        moved = true;
    }
    return moved;
}

// Others still read what they pull from this rank: until they have, it is not the caller's again.
bool Engine::drained() {
    if (!pulls_) return true;
    for (auto* sender : senders_) {
        if (!sender->has_consumed_all()) return false;
    }
    return true;
}

void Engine::finish() {
    if (cut_.left_over > 0) store_tail();
    if (call_.op == ReduceOp::kAverage) divide_outputs();
    phase_ = Phase::kDone;
    ++went_[static_cast<std::size_t>(way_)];
    if (!has_choice_) return;
    const std::chrono::duration<double> took = Clock::now() - began_;
    fabric_->ways().end(took.count() / static_cast<double>(cut_.chunk * cut_.item));
}

// Who got as far as this has checked his memory; what is wrong here is a caller's mistake.
void Engine::check(const Call& call) const {
    const auto item = static_cast<std::int64_t>(item_size(call.type));
    if (call.count < 0) throw std::invalid_argument("a negative count");
    for (const auto memory : {kInput, kOutput}) {
        if (call.bytes[memory] != elements(memory, call.count) * item) {
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

// Bytes of a message at most. What need not stay in a cache has all the room there is.
std::int64_t Engine::tile_room(bool can_attach) const {
    if (way_ == Way::kAttached && can_attach) return kAttachedBytes;
    return way_ == Way::kStreamed ? fabric_->shape().fifo.slot_bytes : room_.slot_bytes;
}

// Which way messages go is found out by trying, where all ranks share a host and nobody ends the
// call before all have begun it. Else the kernel copies large ones where nothing is reduced: a
// reduction wants its operands in a cache.
void Engine::choose_way() {
    const auto bytes = cut_.chunk * cut_.item;
    const bool can_attach = fabric_->is_attached && is_one_host_ && program_.all_pullable &&
                            bytes >= kLeastPiece;
    has_choice_ = is_one_host_ && program_.needs_all && bytes >= kLeastChoice;
    if (has_choice_) {
        const std::size_t ways = can_attach ? 3 : 2;
        way_ = fabric_->ways().begin(alike(call_.record, bytes), ways);
        began_ = Clock::now();
    } else {
        const bool attaches = fabric_->is_attached && !program_.reduces && bytes >= kLeastChunk;
        way_ = attaches ? Way::kAttached : Way::kCached;
    }
    cut_.tile = tile_room(can_attach) / program_.max_count / cut_.item;
    cut_.full_tiles = (cut_.chunk + cut_.tile - 1) / cut_.tile;
    cut_.tiles = cut_.full_tiles + (cut_.left_over > 0 ? 1 : 0);
    choose_pulled();
}

void Engine::prepare(const Call& call) {
    call_ = call;
    cut_ = {};
    cut_.item = static_cast<std::int64_t>(item_size(call.type));
    cut_.chunk = call.count / program_.chunks;
    cut_.left_over = call.count % program_.chunks;
    signature_ = call.record.signature();
    mismatched_ = -1;
    has_failed_ = false;
    went_ = {};
    combine_ = combine_kernel(call.type, call.op);
    constexpr std::int64_t kWord = sizeof(std::uint64_t);
    const auto words = [](std::int64_t bytes) {
        return static_cast<std::size_t>((bytes + kWord - 1) / kWord);
    };
    const auto grow = [](std::vector<std::uint64_t>& memory, std::size_t size) {
        if (memory.size() < size) memory.resize(size);
    };
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
    if (cut_.chunk > kMost / (std::max(1, program_.cells[kScratch]) * cut_.item)) {
        throw std::bad_alloc();
    }
    grow(scratch_, words(program_.cells[kScratch] * cut_.chunk * cut_.item));
    if (fabric_->is_attached) grow(fabric_->landing, kLandingBytes / sizeof(std::uint64_t));
    base_[kInput] = call.memory[kInput];
    base_[kOutput] = call.memory[kOutput];
    base_[kScratch] = reinterpret_cast<std::byte*>(scratch_.data());
    const auto written = (call.bytes[kInput] + call.bytes[kOutput]) * fabric_->local_ranks();
    streams_ = written > last_level_cache_bytes();
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

// Pulled are messages whose data lie, in one piece, in memory that the receiver can read.
void Engine::choose_pulled() {
    for (const auto memory : {kInput, kOutput}) {
        heap_[memory] =
            fabric_->in_heap(call_.memory[memory], static_cast<std::size_t>(call_.bytes[memory]));
    }
    pulls_ = false;
    const bool whole = cut_.full_tiles == 1 && cut_.left_over == 0;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
        const auto& in = program_.instructions[i];
        const auto memory = in.op == Op::kSend ? in.src_memory : in.dst_memory;
        const bool one_piece = in.count == 1 || (whole && !in.shifted);
        const bool in_heap = heap_[memory] != 0 && way_ != Way::kStreamed;
        pulled_[i] = in.pullable && one_piece && (in_heap || is_attached(in));
        pulls_ |= pulled_[i] != 0;
    }
}

// Whether the receiver has a message copied out of this process by the kernel.
bool Engine::is_attached(const Instruction& in) const {
    if (way_ != Way::kAttached) return false;
    const auto connection = program_.senders[static_cast<std::size_t>(in.send)];
    if (fabric_->is_remote(connections_[static_cast<std::size_t>(connection)].dst)) return false;
    return in.count * std::min(cut_.tile, cut_.chunk) * cut_.item >= kLeastPiece;
}

// Runs a block as far as it gets, but not for ever: the other blocks want their turn, and the
// other ranks a sign of life. Says whether it got anywhere.
bool Engine::advance_block(std::size_t block) {
    constexpr int kBurst = 256;
    auto& at = positions_[block];
    int done = 0;
    while (done < kBurst && !at.done && obstacle(at).reason == Reason::kNone) {
        const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
        if (!perform(in, at.tile)) return false;
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
            at.done = ++at.tile == cut_.tiles;
            at.instruction = range.begin;
        }
    } else if (++at.tile == cut_.tiles) {
        at.tile = 0;
        at.done = ++at.instruction == range.end;
    }
    if (at.done) --running_;
}

Engine::Obstacle Engine::obstacle(const Position& at) {
    const auto& in = program_.instructions[static_cast<std::size_t>(at.instruction)];
    for (auto w = in.wait_begin; w < in.wait_end; ++w) {
        const auto& wait = program_.waits[static_cast<std::size_t>(w)];
        if (!finished(wait, at.tile)) return {Reason::kInstruction, wait.instruction};
    }
    if (in.recv >= 0 && !receivers_[static_cast<std::size_t>(in.recv)]->has_message()) {
        return {Reason::kMessage, program_.receivers[static_cast<std::size_t>(in.recv)]};
    }
    for (auto h = in.hold_begin; pulls_ && h < in.hold_end; ++h) {
        const auto held = program_.holds[static_cast<std::size_t>(h)];
        if (has_been_read(held, at.tile)) continue;
        const auto send = program_.instructions[static_cast<std::size_t>(held)].send;
        return {Reason::kReading, program_.senders[static_cast<std::size_t>(send)]};
    }
    if (in.send < 0) return {Reason::kNone, -1};
    auto& sender = *senders_[static_cast<std::size_t>(in.send)];
    const bool has_room = is_pulled(in, at.tile)
                              ? sender.has_envelope()
                              : sender.has_slot(static_cast<std::size_t>(room_.slots));
    if (has_room) return {Reason::kNone, -1};
    return {Reason::kSlot, program_.senders[static_cast<std::size_t>(in.send)]};
}

// Whether the message of an instruction, if it is pulled, has been consumed.
bool Engine::has_been_read(std::int32_t instruction, std::int64_t tile) {
    const auto& in = program_.instructions[static_cast<std::size_t>(instruction)];
    if (!is_pulled(in, tile)) return true;
    const auto send = static_cast<std::size_t>(in.send);
    const auto number = program_.tile_major
                            ? tile * program_.messages[send] + in.turn
                            : static_cast<std::int64_t>(in.turn) * cut_.tiles + tile;
    return senders_[send]->has_consumed(first_number_[send] + static_cast<std::uint64_t>(number));
}

// A block's position says what it has finished: all before it, in the plan's loop order.
bool Engine::finished(const Wait& wait, std::int64_t tile) const {
    const auto& at = positions_[static_cast<std::size_t>(wait.block)];
    if (at.done) return true;
    if (program_.tile_major) {
        return at.tile > tile || (at.tile == tile && at.instruction > wait.instruction);
    }
    return at.instruction > wait.instruction ||
           (at.instruction == wait.instruction && at.tile > tile);
}

std::vector<Stuck> Engine::stuck() {
    std::vector<Stuck> list;
    for (const auto& at : positions_) {
        if (phase_ != Phase::kRunning || at.done) continue;
        const auto obstacle = this->obstacle(at);
        if (obstacle.reason == Reason::kNone) continue;
        list.push_back({at.instruction, at.tile, obstacle.reason, obstacle.target});
    }
    for (std::size_t s = 0; phase_ == Phase::kDraining && s < senders_.size(); ++s) {
        if (senders_[s]->has_consumed_all()) continue;
        list.push_back({-1, 0, Reason::kReading, program_.senders[s]});
    }
    return list;
}

}  // namespace sley
