// The work of one execution: messages in and out, copies and reductions.
#include <algorithm>
#include <cstring>

#include "engine/engine.hpp"
#include "fabric/attach.hpp"
#include "fabric/copy.hpp"

namespace sley {

// False if the message is not of this call, or can't be read any more.
bool Engine::perform(const Instruction& in, std::int64_t tile) {
    if (in.op == Op::kNop) return true;
    Incoming incoming;
    if (in.recv >= 0) {
        const auto connection = program_.receivers[static_cast<std::size_t>(in.recv)];
        const auto src = connections_[static_cast<std::size_t>(connection)].src;
        const auto message = receivers_[static_cast<std::size_t>(in.recv)]->message();
        const auto bytes = in.count * length_of(tile) * cut_.item;
        if (message.signature != signature_ || message.bytes != bytes) {
            mismatched_ = src;
            return false;
        }
        const auto place = message.where & (kInHeap | kInProcess);
        has_pulled_ |= place != 0;
        if (place == kInProcess) {
            incoming = {nullptr, src, message.where & ~kInProcess};
        } else {
            incoming.data = fabric_->resolve(src, message.where);
        }
    }
    if (in.send >= 0) {
        if (!send(in, tile, incoming)) return false;
    } else {
        if (!work(in, tile, incoming, nullptr)) return false;
        forget_overwritten(in, tile);
    }
    if (in.recv >= 0) receivers_[static_cast<std::size_t>(in.recv)]->release();
    return true;
}

// The work of an instruction that sends, and its message: pulled, shared with one that has been
// staged already, or staged. A shared one takes its turn among the slots all the same, so that
// connections hold as many messages as the plan was proven for.
bool Engine::send(const Instruction& in, std::int64_t tile, const Incoming& incoming) {
    auto& sender = *senders_[static_cast<std::size_t>(in.send)];
    const auto bytes = static_cast<std::uint32_t>(in.count * length_of(tile) * cut_.item);
    if (is_pulled(in, tile)) {
        if (in.op != Op::kSend && !work(in, tile, incoming, nullptr)) return false;
        forget_overwritten(in, tile);
        const bool own = in.op == Op::kSend;
        const auto memory = own ? in.src_memory : in.dst_memory;
        const auto* data = address(memory, own ? in.src_cell : in.dst_cell, tile);
        const auto where = heap_[memory] != 0
                               ? heap_[memory] + static_cast<std::uint64_t>(data - base_[memory])
                               : kInProcess | reinterpret_cast<std::uint64_t>(data);
        sender.publish({where, bytes, signature_});
        return true;
    }
    const auto limit = static_cast<std::size_t>(room_.slots);
    if (const auto* staged = shared(in, tile)) {
        auto& owner = *senders_[static_cast<std::size_t>(staged->sender)];
        if (owner.share(staged->slot, sender, limit)) {
            sender.take_turn();
            sender.publish({owner.where(staged->slot), bytes, signature_});
            return true;
        }
    }
    const auto slot = sender.take_slot();
    if (!work(in, tile, incoming, sender.data(slot))) return false;
    forget_overwritten(in, tile);
    if (in.payload >= 0) {
        staged_[staged_index(in.payload, tile)] = {
            iteration_, tile, in.send, slot, sender.next()};
    }
    sender.publish({sender.where(slot), bytes, signature_});
    return true;
}

// Where the payload of a send has been staged for the same tile, if it is still there. The messages
// to one peer may be tiles ahead of those to another.
const Engine::Staged* Engine::shared(const Instruction& in, std::int64_t tile) const {
    if (in.op != Op::kSend || in.payload < 0) return nullptr;
    const auto& staged = staged_[staged_index(in.payload, tile)];
    if (staged.call != iteration_ || staged.tile != tile) return nullptr;
    const auto& owner = *senders_[static_cast<std::size_t>(staged.sender)];
    return owner.holds(staged.slot, staged.number) ? &staged : nullptr;
}

std::size_t Engine::staged_index(std::int32_t payload, std::int64_t tile) const {
    return static_cast<std::size_t>(payload * shared_tiles_ + tile % shared_tiles_);
}

void Engine::forget_overwritten(const Instruction& in, std::int64_t tile) {
    for (auto o = in.overwrites_begin; o < in.overwrites_end; ++o) {
        const auto payload = program_.overwrites[static_cast<std::size_t>(o)];
        auto& staged = staged_[staged_index(payload, tile)];
        if (staged.tile == tile) staged.tile = -1;
    }
}

// Elements that a chunk has in a tile.
std::int64_t Engine::length_of(std::int64_t tile) const {
    if (tile == cut_.full_tiles) return 1;
    return std::min(cut_.tile, cut_.chunk - tile * cut_.tile);
}

// False if the message can't be read any more.
bool Engine::work(const Instruction& in, std::int64_t tile, const Incoming& message,
                  std::byte* slot) {
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
    for (std::int64_t i = 0; i < pieces; ++i) {
        const auto piece = in.descending ? pieces - 1 - i : i;
        const auto offset = static_cast<std::size_t>(piece * length * cut_.item);
        const auto from = message.from(offset);
        const Operands at{
            writes_destination(in.op) ? address(in.dst_memory, in.dst_cell + piece, tile) : nullptr,
            reads_source(in.op) ? address(in.src_memory, in.src_cell + piece, tile) : nullptr,
            from.data, slot ? slot + offset : nullptr};
        if (from.sender < 0) {
            compute(in, at, n);
        } else if (!work_fetched(in, from, at, n)) {
            return false;
        }
    }
    return true;
}

// On a message in another process: what only has to be here is copied to its place, else it is
// worked on part by part.
bool Engine::work_fetched(const Instruction& in, const Incoming& message, Operands at,
                          std::size_t n) {
    const auto item = static_cast<std::size_t>(cut_.item);
    if (in.op == Op::kRecv) return fetch(message, at.dst, n * item);
    auto& words = fabric_->landing;
    const auto landing = reinterpret_cast<std::byte*>(words.data());
    const auto most = words.size() * sizeof(std::uint64_t) / item;
    at.message = landing;
    for (std::size_t done = 0; done < n; done += most) {
        const auto part = std::min(most, n - done), bytes = part * item;
        if (!fetch(message.from(done * item), landing, bytes)) return false;
        compute(in, at, part);
        if (at.dst) at.dst += bytes;
        if (at.src) at.src += bytes;
        if (at.slot) at.slot += bytes;
    }
    return true;
}

bool Engine::fetch(const Incoming& message, std::byte* to, std::size_t bytes) {
    const auto& sender = fabric_->state(message.sender);
    const auto end = read_memory(sender, message.address, to, bytes);
    if (end == ReadEnd::kDone) return true;
    const auto failure = end == ReadEnd::kDied ? Failure::kDied : Failure::kUnreadable;
    fabric_->control().fail(failure,
                            end == ReadEnd::kNowhere ? fabric_->rank() : message.sender);
    has_failed_ = true;
    return false;
}

void Engine::compute(const Instruction& in, const Operands& at, std::size_t n) const {
    const auto bytes = n * static_cast<std::size_t>(cut_.item);
    switch (in.op) {
        case Op::kNop: break;
        case Op::kSend: stage(at.slot, at.src, bytes); break;
        case Op::kRecv: copy(in, at.dst, at.message, bytes); break;
        case Op::kCopy: copy(in, at.dst, at.src, bytes); break;
        case Op::kReduce: combine_(at.dst, at.dst, at.src, n); break;
        case Op::kRecvReduceCopy: combine_(at.dst, at.src, at.message, n); break;
        case Op::kRecvReduceSend: combine_(at.slot, at.src, at.message, n); break;
        case Op::kRecvCopySend:
            std::memcpy(at.dst, at.message, bytes);
            if (at.slot) stage(at.slot, at.message, bytes);
            break;
        case Op::kRecvReduceCopySend:
            combine_(at.dst, at.src, at.message, n);
            if (at.slot) stage(at.slot, at.dst, bytes);
            break;
    }
}

constexpr std::size_t kLeastStreamed = 4096;

// Into a slot.
void Engine::stage(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (way_ == Way::kStreamed && bytes >= kLeastStreamed) {
        stream_bytes(to, from, bytes);
    } else {
        std::memcpy(to, from, bytes);
    }
}

// Results that nobody here reads soon bypass the caches where they would only push others out.
void Engine::copy(const Instruction& in, std::byte* to, const std::byte* from,
                  std::size_t bytes) const {
    if (streams_ && in.is_final && bytes >= kLeastStreamed && !in.shifted) {
        stream_bytes(to, from, bytes);
    } else {
        std::memmove(to, from, bytes);
    }
}

std::byte* Engine::address(Memory memory, std::int64_t cell, std::int64_t tile) const {
    if (tile == cut_.full_tiles) return tail_[memory] + cell * cut_.item;
    const auto first = memory == kScratch ? cell * cut_.chunk : first_element(cell);
    return base_[memory] + (first + tile * cut_.tile) * cut_.item;
}

// Chunk i of a block begins at element i * count / chunks of it.
std::int64_t Engine::first_element(std::int64_t cell) const {
    const auto elements = cell * cut_.chunk;
    if (cut_.left_over == 0) return elements;
    const auto block = cell / program_.chunks, index = cell % program_.chunks;
    return elements + block * cut_.left_over + index * cut_.left_over / program_.chunks;
}

// Whether a chunk has one element more than `cut_.chunk`: its last.
bool Engine::has_one_more(std::int64_t cell) const {
    const auto index = cell % program_.chunks;
    return index * cut_.left_over % program_.chunks >= program_.chunks - cut_.left_over;
}

// The tile of the chunks' last elements runs on small arrays of one element per chunk: chunks that
// have no such element then need no special case, and nobody leaves the caller's memory.
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
        if (!has_one_more(cell)) continue;
        std::byte* outside = base_[memory] + (first_element(cell) + cut_.chunk) * cut_.item;
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
        const auto length = cut_.chunk + (has_one_more(cell) ? 1 : 0);
        divide(base_[memory] + first_element(cell) * cut_.item, divisor,
               static_cast<std::size_t>(length));
    }
}

}  // namespace sley
