// The interpreter's loop and the work of one execution.
#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

namespace sley {

Engine::Engine(std::shared_ptr<Fabric> fabric, std::int32_t rank, const ProgramColumns& columns)
    : fabric_(std::move(fabric)),
      rank_(rank),
      program_(build_program(columns, rank, fabric_->shape())) {
    for (const auto c : program_.senders) {
        senders_.emplace_back(fabric_->fifo(static_cast<std::size_t>(c)));
    }
    for (const auto c : program_.receivers) {
        receivers_.emplace_back(fabric_->fifo(static_cast<std::size_t>(c)));
    }
    positions_.resize(program_.blocks.size());
}

std::int64_t Engine::elements(Memory memory, std::int64_t count) const {
    const std::int64_t blocks =
        (static_cast<std::int64_t>(program_.cells[memory]) + program_.chunks - 1) / program_.chunks;
    return blocks * count;
}

Outcome Engine::run(const Call& call) {
    check(call);
    prepare(call);
    Control& control = fabric_->control();
    Patience patience(control, call.timeout_s);
    Outcome outcome;
    outcome.status = meet(patience, outcome);
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < call.iterations && outcome.status == Status::kDone; ++i) {
        outcome.status = control.failed() ? Status::kAborted : run_once(patience);
    }
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (outcome.status == Status::kStalled || outcome.status == Status::kAborted) {
        outcome.stuck = stuck();
    }
    return outcome;
}

// Who got as far as this has checked his memory; what is wrong here is a caller's mistake.
void Engine::check(const Call& call) const {
    const auto item = static_cast<std::int64_t>(item_size(call.type));
    if (call.count < 0 || call.iterations < 0 || !(call.timeout_s > 0)) {
        throw std::invalid_argument("a negative count, or no time");
    }
    for (const auto memory : {kInput, kOutput}) {
        if (call.bytes[memory] != elements(memory, call.count) * item) {
            throw std::invalid_argument("memory of the wrong size");
        }
        if (reinterpret_cast<std::uintptr_t>(call.memory[memory]) % static_cast<std::size_t>(item)) {
            throw std::invalid_argument("memory that is not aligned to its elements");
        }
    }
    if (fabric_->shape().slot_bytes < program_.max_count * item) {
        throw SlotTooSmall("a slot holds less than one element of every chunk of a message");
    }
}

Cut Engine::cut_of(const Call& call) const {
    Cut cut{};
    cut.item = static_cast<std::int64_t>(item_size(call.type));
    cut.chunk = call.count / program_.chunks;
    cut.left_over = call.count % program_.chunks;
    cut.tile = fabric_->shape().slot_bytes / (program_.max_count * cut.item);
    cut.full_tiles = (cut.chunk + cut.tile - 1) / cut.tile;
    cut.tiles = cut.full_tiles + (cut.left_over > 0 ? 1 : 0);
    return cut;
}

void Engine::prepare(const Call& call) {
    call_ = call;
    cut_ = cut_of(call);
    combine_ = combine_kernel(call.type, call.op);
    constexpr std::int64_t kWord = sizeof(std::uint64_t);
    const auto words = [](std::int64_t bytes) {
        return static_cast<std::size_t>((bytes + kWord - 1) / kWord);
    };
    const auto grow = [](std::vector<std::uint64_t>& memory, std::size_t size) {
        if (memory.size() < size) memory.resize(size);
    };
    grow(scratch_, words(program_.cells[kScratch] * cut_.chunk * cut_.item));
    base_[kInput] = call.memory[kInput];
    base_[kOutput] = call.memory[kOutput];
    base_[kScratch] = reinterpret_cast<std::byte*>(scratch_.data());

    std::size_t total = 0;
    for (const auto cells : program_.cells) total += words(cells * cut_.item);
    grow(tail_memory_, total);
    std::size_t start = 0;
    for (std::size_t m = 0; m < kMemories; ++m) {
        tail_[m] = reinterpret_cast<std::byte*>(tail_memory_.data() + start);
        start += words(program_.cells[m] * cut_.item);
    }
}

Status Engine::meet(Patience& patience, Outcome& outcome) {
    Control& control = fabric_->control();
    const auto epoch = control.arrive(rank_);
    for (;;) {
        outcome.absent = control.absent(epoch);
        if (outcome.absent < 0) return Status::kDone;
        switch (patience.wait()) {
            case Patience::Verdict::kWait: break;
            case Patience::Verdict::kAborted: return Status::kAborted;
            case Patience::Verdict::kTimedOut:
                control.fail(Failure::kStalled, rank_);
                return Status::kAbsent;
        }
    }
}

Status Engine::run_once(Patience& patience) {
    Control& control = fabric_->control();
    restart();
    if (cut_.left_over > 0) load_tail();
    patience.moved();
    while (running_ > 0) {
        bool moved = false;
        for (std::size_t b = 0; b < positions_.size(); ++b) moved |= advance(b);
        if (moved) {
            control.beat(rank_);
            patience.moved();
            continue;
        }
        switch (patience.wait()) {
            case Patience::Verdict::kWait: break;
            case Patience::Verdict::kAborted: return Status::kAborted;
            case Patience::Verdict::kTimedOut:
                control.fail(Failure::kStalled, rank_);
                return Status::kStalled;
        }
    }
    if (cut_.left_over > 0) store_tail();
    if (call_.op == ReduceOp::kAverage) divide_outputs();
    return Status::kDone;
}

void Engine::restart() {
    running_ = 0;
    for (std::size_t b = 0; b < positions_.size(); ++b) {
        const auto& block = program_.blocks[b];
        const bool empty = cut_.tiles == 0 || block.begin == block.end;
        positions_[b] = {block.begin, 0, empty};
        running_ += empty ? 0 : 1;
    }
}

// Runs a block as far as it gets, but not for ever: the other blocks want their turn, and the
// other ranks a sign of life. Says whether it got anywhere.
bool Engine::advance(std::size_t block) {
    constexpr int kBurst = 256;
    auto& at = positions_[block];
    int done = 0;
    while (done < kBurst && !at.done && obstacle(at).reason == Reason::kNone) {
        perform(program_.instructions[static_cast<std::size_t>(at.instruction)], at.tile);
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
    if (in.recv >= 0 && !receivers_[static_cast<std::size_t>(in.recv)].has_message()) {
        return {Reason::kMessage, program_.receivers[static_cast<std::size_t>(in.recv)]};
    }
    if (in.send >= 0 && !senders_[static_cast<std::size_t>(in.send)].has_free_slot()) {
        return {Reason::kSlot, program_.senders[static_cast<std::size_t>(in.send)]};
    }
    return {Reason::kNone, -1};
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

void Engine::perform(const Instruction& in, std::int64_t tile) {
    FifoReceiver* receiver =
        in.recv >= 0 ? &receivers_[static_cast<std::size_t>(in.recv)] : nullptr;
    FifoSender* sender = in.send >= 0 ? &senders_[static_cast<std::size_t>(in.send)] : nullptr;
    work(in, tile, receiver ? receiver->slot() : nullptr, sender ? sender->slot() : nullptr);
    if (receiver) receiver->release();
    if (sender) sender->publish();
}

void Engine::work(const Instruction& in, std::int64_t tile, const std::byte* message,
                  std::byte* out) {
    if (in.op == Op::kNop) return;
    const bool tail = tile == cut_.full_tiles;
    std::int64_t length = tail ? 1 : std::min(cut_.tile, cut_.chunk - tile * cut_.tile);
    std::int64_t pieces = in.count;
    // Neighbouring chunks are one piece where they are taken whole and lie side by side.
    const bool side_by_side = tail || (length == cut_.chunk && cut_.left_over == 0);
    if (side_by_side && !in.shifted) {
        length *= pieces;
        pieces = 1;
    }
    const auto n = static_cast<std::size_t>(length);
    const auto bytes = static_cast<std::size_t>(length * cut_.item);
    for (std::int64_t i = 0; i < pieces; ++i) {
        const auto piece = in.descending ? pieces - 1 - i : i;
        const std::byte* src =
            reads_source(in.op) ? address(in.src_memory, in.src_cell + piece, tile) : nullptr;
        std::byte* dst =
            writes_destination(in.op) ? address(in.dst_memory, in.dst_cell + piece, tile) : nullptr;
        const auto offset = static_cast<std::size_t>(piece) * bytes;
        const std::byte* from = message ? message + offset : nullptr;
        std::byte* to = out ? out + offset : nullptr;
        switch (in.op) {
            case Op::kNop: break;
            case Op::kSend: std::memcpy(to, src, bytes); break;
            case Op::kRecv: std::memcpy(dst, from, bytes); break;
            case Op::kCopy: std::memmove(dst, src, bytes); break;
            case Op::kReduce: combine_(dst, dst, src, n); break;
            case Op::kRecvReduceCopy: combine_(dst, src, from, n); break;
            case Op::kRecvReduceSend: combine_(to, src, from, n); break;
            case Op::kRecvCopySend:
                std::memcpy(dst, from, bytes);
                std::memcpy(to, from, bytes);
                break;
            case Op::kRecvReduceCopySend:
                combine_(dst, src, from, n);
                std::memcpy(to, dst, bytes);
                break;
        }
    }
}

std::byte* Engine::address(Memory memory, std::int64_t cell, std::int64_t tile) const {
    if (tile == cut_.full_tiles) return tail_[memory] + cell * cut_.item;
    std::int64_t element = cell * cut_.chunk + tile * cut_.tile;
    if (cut_.left_over > 0 && memory != kScratch) {
        element += cell / program_.chunks * cut_.left_over;
    }
    return base_[memory] + element * cut_.item;
}

// The tile of what is left over runs on small arrays of one element per chunk: chunks that have
// no such element then need no special case, and nobody leaves the caller's memory.
void Engine::load_tail() {
    move_tail(kInput, true);
    move_tail(kOutput, true);
}

void Engine::store_tail() {
    if (program_.in_place || program_.writes_input) move_tail(kInput, false);
    move_tail(kOutput, false);
}

void Engine::move_tail(Memory memory, bool load) {
    const auto item = static_cast<std::size_t>(cut_.item);
    for (std::int64_t cell = 0; cell < program_.cells[memory]; ++cell) {
        const auto index = cell % program_.chunks;
        if (index >= cut_.left_over) continue;
        const auto element =
            cell / program_.chunks * call_.count + program_.chunks * cut_.chunk + index;
        std::byte* outside = base_[memory] + element * cut_.item;
        std::byte* inside = tail_[memory] + cell * cut_.item;
        std::memcpy(load ? inside : outside, load ? outside : inside, item);
    }
}

void Engine::divide_outputs() {
    const auto divide = divide_kernel(call_.type);
    const Memory memory = program_.in_place ? kInput : kOutput;
    for (std::size_t i = 0; i < program_.divisor.size(); ++i) {
        const auto divisor = program_.divisor[i];
        if (divisor == 1) continue;
        const auto cell = program_.output_base + static_cast<std::int64_t>(i);
        const auto block = cell / program_.chunks, index = cell % program_.chunks;
        std::byte* start = base_[memory] + block * call_.count * cut_.item;
        divide(start + index * cut_.chunk * cut_.item, divisor,
               static_cast<std::size_t>(cut_.chunk));
        if (index < cut_.left_over) {
            divide(start + (program_.chunks * cut_.chunk + index) * cut_.item, divisor, 1);
        }
    }
}

std::vector<Stuck> Engine::stuck() {
    std::vector<Stuck> list;
    for (const auto& at : positions_) {
        if (running_ == 0 || at.done) continue;
        const auto obstacle = this->obstacle(at);
        if (obstacle.reason == Reason::kNone) continue;
        list.push_back({at.instruction, at.tile, obstacle.reason, obstacle.target});
    }
    return list;
}

}  // namespace sley
