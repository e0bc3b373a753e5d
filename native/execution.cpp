// The work of one execution: messages in and out, copies and reductions.
#include <algorithm>
#include <cstring>

#include "attach.hpp"
#include "copy.hpp"
#include "engine.hpp"

namespace sley {

// False if the message is not of this call.
bool Engine::perform(const Instruction& in, std::int64_t tile) {
    if (in.op == Op::kNop) return true;
    const std::byte* from = nullptr;
    landed_ = nullptr;
    if (in.recv >= 0) {
        const auto connection = program_.receivers[static_cast<std::size_t>(in.recv)];
        const auto src = connections_[static_cast<std::size_t>(connection)].src;
        const auto message = receivers_[static_cast<std::size_t>(in.recv)]->message();
        const auto bytes = in.count * length_of(tile) * cut_.item;
        if (message.signature != signature_ || message.bytes != bytes) {
            mismatched_ = src;
            return false;
        }
        has_pulled_ |= (message.where & (kInHeap | kInProcess)) != 0;
        if ((message.where & (kInHeap | kInProcess)) == kInProcess) {
            from = fetch(in, tile, src, message.where & ~kInProcess);
            if (!from) return false;
        } else {
            from = fabric_->resolve(src, message.where);
        }
    }
    if (in.send >= 0) {
        send(in, tile, from);
    } else {
        if (!landed_) work(in, tile, from, nullptr);
        forget_overwritten(in);
    }
    if (in.recv >= 0) receivers_[static_cast<std::size_t>(in.recv)]->release();
    return true;
}

// A message out of another process' memory: where it is to be, if it only has to be there (then it
// is one piece, as what is read), or else here for a moment. Null if it can't be read.
const std::byte* Engine::fetch(const Instruction& in, std::int64_t tile, std::int32_t src,
                               std::uint64_t where) {
    const auto bytes = static_cast<std::size_t>(in.count * length_of(tile) * cut_.item);
    landed_ = in.op == Op::kRecv ? address(in.dst_memory, in.dst_cell, tile) : nullptr;
    auto* to = landed_ ? landed_ : reinterpret_cast<std::byte*>(bounce_.data());
    if (read_memory(fabric_->state(src), where, to, bytes)) return to;
    fabric_->control().fail(Failure::kDied, src);
    return nullptr;
}

// The work of an instruction that sends, and its message: pulled, shared with one that has been
// staged already, or staged. A shared one takes its turn among the slots all the same, so that
// connections hold as many messages as the plan was proven for.
void Engine::send(const Instruction& in, std::int64_t tile, const std::byte* from) {
    auto& sender = *senders_[static_cast<std::size_t>(in.send)];
    const auto bytes = static_cast<std::uint32_t>(in.count * length_of(tile) * cut_.item);
    if (is_pulled(in, tile)) {
        if (in.op != Op::kSend) work(in, tile, from, nullptr);
        forget_overwritten(in);
        const bool own = in.op == Op::kSend;
        const auto memory = own ? in.src_memory : in.dst_memory;
        const auto* data = address(memory, own ? in.src_cell : in.dst_cell, tile);
        const auto where = heap_[memory] != 0
                               ? heap_[memory] + static_cast<std::uint64_t>(data - base_[memory])
                               : kInProcess | reinterpret_cast<std::uint64_t>(data);
        sender.publish({where, bytes, signature_});
        return;
    }
    const auto limit = static_cast<std::size_t>(room_.slots);
    if (const auto* staged = shared(in, tile)) {
        auto& owner = *senders_[static_cast<std::size_t>(staged->sender)];
        if (owner.share(staged->slot, sender, limit)) {
            sender.take_turn();
            sender.publish({owner.where(staged->slot), bytes, signature_});
            return;
        }
    }
    const auto slot = sender.take_slot();
    work(in, tile, from, sender.data(slot));
    forget_overwritten(in);
    if (in.payload >= 0) {
        staged_[static_cast<std::size_t>(in.payload)] = {tile, in.send, slot, sender.next()};
    }
    sender.publish({sender.where(slot), bytes, signature_});
}

// Where the payload of a send has been staged for the same tile, if it is still there.
const Engine::Staged* Engine::shared(const Instruction& in, std::int64_t tile) const {
    if (in.op != Op::kSend || in.payload < 0) return nullptr;
    const auto& staged = staged_[static_cast<std::size_t>(in.payload)];
    if (staged.tile != tile) return nullptr;
    const auto& owner = *senders_[static_cast<std::size_t>(staged.sender)];
    return owner.holds(staged.slot, staged.number) ? &staged : nullptr;
}

void Engine::forget_overwritten(const Instruction& in) {
    for (auto o = in.overwrites_begin; o < in.overwrites_end; ++o) {
        staged_[static_cast<std::size_t>(program_.overwrites[static_cast<std::size_t>(o)])].tile = -1;
    }
}

// Elements that a chunk has in a tile.
std::int64_t Engine::length_of(std::int64_t tile) const {
    if (tile == cut_.full_tiles) return 1;
    return std::min(cut_.tile, cut_.chunk - tile * cut_.tile);
}

// Results that nobody here reads soon bypass the caches where they would only push others out.
void Engine::copy(const Instruction& in, std::byte* to, const std::byte* from,
                  std::size_t bytes) const {
    constexpr std::size_t kLeast = 4096;
    if (streams_ && in.is_final && bytes >= kLeast && !in.shifted) {
        stream_bytes(to, from, bytes);
    } else {
        std::memmove(to, from, bytes);
    }
}

void Engine::work(const Instruction& in, std::int64_t tile, const std::byte* message,
                  std::byte* out) {
    const bool tail = tile == cut_.full_tiles;
    std::int64_t length = length_of(tile);
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
            case Op::kRecv: copy(in, dst, from, bytes); break;
            case Op::kCopy: copy(in, dst, src, bytes); break;
            case Op::kReduce: combine_(dst, dst, src, n); break;
            case Op::kRecvReduceCopy: combine_(dst, src, from, n); break;
            case Op::kRecvReduceSend: combine_(to, src, from, n); break;
            case Op::kRecvCopySend:
                std::memcpy(dst, from, bytes);
                if (to) std::memcpy(to, from, bytes);
                break;
            case Op::kRecvReduceCopySend:
                combine_(dst, src, from, n);
                if (to) std::memcpy(to, dst, bytes);
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

}  // namespace sley
