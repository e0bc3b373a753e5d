#include "engine/execution.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "fabric/copy.hpp"

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

// Each copy by the kernel is a system call that looks up every page, so it pays only for large
// pieces. Tiles that need no slots are larger than a slot.
constexpr std::int64_t kLeastPiece = 128 << 10, kLeastChunk = 2 << 20, kAttachedBytes = 512 << 10;
// Small enough that data landed there stay in a cache.
constexpr std::size_t kLandingWords = (128 << 10) / sizeof(std::uint64_t);
// Smaller calls end before the way makes a difference.
constexpr std::int64_t kLeastChoice = 4 << 10;

// A number that calls of one plan, type and operation with chunks of similar size have in common.
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

Execution::Execution(Fabric& fabric, const Program& program,
                     const std::vector<Connection>& connections, Room room)
    : fabric_(fabric),
      program_(program),
      room_(room),
      is_one_host_(fabric.local_ranks() == fabric.shape().ranks()),
      layout_(program, fabric.scratch) {
    const auto& fifo = fabric_.shape().fifo;
    if (room_.slots < 1 || room_.slots > fifo.slots_of(room_.slot_bytes)) {
        throw std::invalid_argument("more room than the fabric's connections have");
    }
    for (const auto c : program_.senders) {
        const auto& connection = connections[static_cast<std::size_t>(c)];
        auto& end = fabric_.sender(connection.dst, connection.index);
        senders_.push_back({&end, c, connection.dst});
    }
    for (const auto c : program_.receivers) {
        const auto& connection = connections[static_cast<std::size_t>(c)];
        auto& end = fabric_.receiver(connection.src, connection.index);
        receivers_.push_back({&end, c, connection.src});
    }
    pulled_.resize(program_.instructions.size());
    first_number_.resize(senders_.size());
    // A tile is gone when a connection's slots have all been reused. Across hosts, messages that
    // share many slots delay one another (4 hosts of 2 ranks: 1.16 times the links' bound instead
    // of 1.09).
    shared_tiles_ = is_one_host_ ? fifo.slots : 1;
    staged_.resize(static_cast<std::size_t>(program_.payloads * shared_tiles_));
}

void Execution::begin(const Call& call) {
    layout_.begin(call);
    if (fabric_.is_attached && fabric_.landing.size() < kLandingWords) {
        fabric_.landing.resize(kLandingWords);
    }
    call_ = call;
    signature_ = call.record.signature();
    combine_ = combine_kernel(call.type, call.op);
    varies_ = call.parts != nullptr;
    if (varies_) {
        if (!varying_) varying_.emplace(program_, fabric_.varying_scratch);
        varying_->begin(*call.parts, room_.slot_bytes / program_.max_count / cut().item,
                        cut().item);
    }
    const auto written = (call.bytes[kInput] + call.bytes[kOutput]) * fabric_.local_ranks();
    streams_ = written > last_level_cache_bytes();
    mismatched_ = -1;
    has_failed_ = false;
    way_counts_ = {};
}

void Execution::begin_iteration() {
    choose_way();
    choose_pulled();
    for (std::size_t s = 0; s < senders_.size(); ++s) {
        auto& fifo = *senders_[s].fifo;
        fifo.divide(room_.slot_bytes);
        first_number_[s] = fifo.next();
    }
    ++iteration_;
    has_pulled_ = false;
    if (varies_) varying_->begin_iteration();
}

void Execution::end_iteration() {
    if (call_.op == ReduceOp::kAverage) layout_.divide_outputs(call_.type);
    ++way_counts_[static_cast<std::size_t>(way_)];
    if (!has_choice_) return;
    const std::chrono::duration<double> took = Clock::now() - began_;
    fabric_.ways().end(took.count() / static_cast<double>(cut().chunk * cut().item));
}

// The most bytes of a message. A way that doesn't rely on caches uses the whole slot.
std::int64_t Execution::tile_room(bool can_attach) const {
    if (way_ == Way::kAttached && can_attach) return kAttachedBytes;
    const auto whole = std::max(room_.slot_bytes, fabric_.shape().fifo.slot_bytes);
    return way_ == Way::kStreamed ? whole : room_.slot_bytes;
}

// If all ranks share a host and none can end the call before all have begun it, the copy method is
// chosen by timing each on real calls. Otherwise the kernel copies large messages if that spares the
// busiest rank work and nothing is reduced: a reduction needs its operands in a cache.
void Execution::choose_way() {
    const auto bytes = cut().chunk * cut().item;
    const bool can_attach = fabric_.is_attached && is_one_host_ && program_.all_pullable &&
                            bytes >= kLeastPiece;
    has_choice_ = is_one_host_ && program_.needs_all && bytes >= kLeastChoice;
    if (has_choice_) {
        const std::size_t ways = can_attach ? 3 : 2;
        way_ = fabric_.ways().begin(alike(call_.record, bytes), ways);
        began_ = Clock::now();
    } else {
        const bool attaches = fabric_.is_attached && !program_.reduces &&
                              program_.gains_attached && bytes >= kLeastChunk;
        way_ = attaches ? Way::kAttached : Way::kCached;
    }
    layout_.cut_tiles(tile_room(can_attach) / program_.max_count / cut().item);
    const auto tile_bytes = program_.max_count * std::min(cut().tile, cut().chunk) * cut().item;
    const auto most = varies_ ? room_.slot_bytes : tile_bytes;
    most_bytes_ = static_cast<std::size_t>(most);
    limit_ = fabric_.shape().fifo.limit(room_.slots, room_.slot_bytes, most);
}

// A message is pulled if its data are in one piece, in memory that the receiver can read.
void Execution::choose_pulled() {
    for (const auto memory : {kInput, kOutput}) {
        heap_[memory] =
            fabric_.in_heap(call_.memory[memory], static_cast<std::size_t>(call_.bytes[memory]));
    }
    pulls_ = false;
    // A hold would have to know which messages are skipped.
    if (varies_ || layout_.has_runs()) return;
    const bool has_heap = (heap_[kInput] | heap_[kOutput]) != 0 && way_ != Way::kStreamed;
    if (!has_heap && way_ != Way::kAttached) return;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
        const auto& in = program_.instructions[i];
        const auto memory = sends_source(in.op) ? in.src_memory : in.dst_memory;
        const bool one_piece = in.count == 1 || (layout_.is_adjacent() && !in.shifted);
        const bool in_heap = has_heap && heap_[memory] != 0;
        pulled_[i] = in.pullable && one_piece && (in_heap || is_attached(in));
        pulls_ |= pulled_[i] != 0;
    }
}

// Whether the receiver lets the kernel copy a message out of this process.
bool Execution::is_attached(const Instruction& in) const {
    if (way_ != Way::kAttached) return false;
    if (fabric_.is_remote(senders_[static_cast<std::size_t>(in.send)].dst)) return false;
    return in.count * std::min(cut().tile, cut().chunk) * cut().item >= kLeastPiece;
}

// The connection of an unread message that an execution must not overwrite; or -1.
std::int32_t Execution::unread_hold(const Instruction& in, std::int64_t tile) {
    for (auto h = in.hold_begin; h < in.hold_end; ++h) {
        const auto row = static_cast<std::size_t>(program_.holds[static_cast<std::size_t>(h)]);
        const auto& held = program_.instructions[row];
        if (has_been_read(held, tile)) continue;
        return senders_[static_cast<std::size_t>(held.send)].connection;
    }
    return -1;
}

// Whether the message of an instruction, if it is pulled, has been consumed.
bool Execution::has_been_read(const Instruction& in, std::int64_t tile) {
    if (!is_pulled(in)) return true;
    const auto send = static_cast<std::size_t>(in.send);
    const auto number = program_.tile_major
                            ? tile * program_.messages[send] + in.turn
                            : static_cast<std::int64_t>(in.turn) * cut().tiles + tile;
    const auto first = first_number_[send];
    return senders_[send].fifo->has_consumed(first + static_cast<std::uint64_t>(number));
}

bool Execution::is_read() const {
    const auto is_consumed = [](const Sender& sender) { return sender.fifo->has_consumed_all(); };
    return !pulls_ || std::all_of(senders_.begin(), senders_.end(), is_consumed);
}

std::vector<std::int32_t> Execution::unread_connections() const {
    std::vector<std::int32_t> found;
    for (const auto& sender : senders_) {
        if (!sender.fifo->has_consumed_all()) found.push_back(sender.connection);
    }
    return found;
}

bool Execution::perform(const Instruction& in, std::int64_t tile) {
    if (in.op == Op::kNop) return true;
    Incoming incoming;
    if (in.recv >= 0) {
        const auto& from = receivers_[static_cast<std::size_t>(in.recv)];
        const auto message = from.fifo->message();
        const auto bytes = bytes_of(in, tile);
        if (message.signature != signature_ || message.bytes != bytes) {
            mismatched_ = from.src;
            return false;
        }
        const auto place = message.where & (kInHeap | kInProcess);
        has_pulled_ |= place != 0;
        if (place == kInProcess) {
            incoming = {nullptr, from.src, message.where & ~kInProcess};
        } else {
            incoming.data = from.fifo->find(message.where);
            if (!incoming.data) {
                incoming.data = fabric_.resolve(from.src, message.where, message.bytes);
            }
            if (!incoming.data) return fail_without_memory();
        }
    }
    if (in.send >= 0) {
        if (!send(in, tile, incoming)) return false;
    } else {
        if (!work(in, tile, incoming, nullptr)) return false;
        forget_overwritten(in, tile);
    }
    if (in.recv >= 0) receivers_[static_cast<std::size_t>(in.recv)].fifo->release();
    return true;
}

// Does the work of an instruction that sends, and sends the message: pulled, in a slot where it has
// been staged before, or staged. A shared slot still counts as a turn, so that a connection holds
// no more messages than the plan was proven for.
bool Execution::send(const Instruction& in, std::int64_t tile, const Incoming& incoming) {
    auto& sender = *senders_[static_cast<std::size_t>(in.send)].fifo;
    const auto bytes = static_cast<std::uint32_t>(bytes_of(in, tile));
    if (is_pulled(in)) {
        if (in.op != Op::kSend && !work(in, tile, incoming, nullptr)) return false;
        forget_overwritten(in, tile);
        publish_pulled(in, tile, bytes);
        return true;
    }
    if (const auto* staged = find_staged(in, tile)) {
        auto& owner = *senders_[static_cast<std::size_t>(staged->sender)].fifo;
        if (owner.share(staged->slot, sender, static_cast<std::size_t>(room_.slots))) {
            sender.take_turn();
            sender.publish({owner.where(staged->slot), bytes, signature_});
            return true;
        }
    }
    const auto slot = sender.take_slot(most_bytes_);
    if (slot == FifoSender::kNoSlot) return fail_without_memory();
    if (!work(in, tile, incoming, sender.data(slot))) return false;
    forget_overwritten(in, tile);
    if (in.payload >= 0) {
        staged_[staged_index(in.payload, tile)] = {
            iteration_, tile, in.send, slot, sender.next()};
    }
    sender.publish({sender.where(slot), bytes, signature_});
    return true;
}

bool Execution::fail_without_memory() {
    fabric_.control().fail(Failure::kNoMemory, fabric_.rank());
    has_failed_ = true;
    return false;
}

void Execution::publish_pulled(const Instruction& in, std::int64_t tile, std::uint32_t bytes) {
    const bool own = sends_source(in.op);
    const auto memory = own ? in.src_memory : in.dst_memory;
    const auto cell = own ? in.src_cell : in.dst_cell;
    const std::byte* data = layout_.address(memory, cell, tile * cut().tile);
    const auto where = heap_[memory] != 0
                           ? heap_[memory] + static_cast<std::uint64_t>(data - layout_.base(memory))
                           : kInProcess | reinterpret_cast<std::uint64_t>(data);
    senders_[static_cast<std::size_t>(in.send)].fifo->publish({where, bytes, signature_});
}

// The slot with the payload of a send for the same tile, if it still has it; else null. The
// messages to one peer may be tiles ahead of those to another.
const Execution::Staged* Execution::find_staged(const Instruction& in, std::int64_t tile) const {
    if (in.op != Op::kSend || in.payload < 0) return nullptr;
    // With varying counts every instruction must learn its lengths; and one chunk of several may have
    // been replaced by a shorter one, whose write to this tile is skipped.
    if (varies_ && (tile == 0 || in.count > 1)) return nullptr;
    const auto& staged = staged_[staged_index(in.payload, tile)];
    if (staged.iteration != iteration_ || staged.tile != tile) return nullptr;
    const auto& owner = *senders_[static_cast<std::size_t>(staged.sender)].fifo;
    return owner.holds(staged.slot, staged.number) ? &staged : nullptr;
}

std::size_t Execution::staged_index(std::int32_t payload, std::int64_t tile) const {
    return static_cast<std::size_t>(payload * shared_tiles_ + tile % shared_tiles_);
}

void Execution::forget_overwritten(const Instruction& in, std::int64_t tile) {
    for (auto o = in.overwrites_begin; o < in.overwrites_end; ++o) {
        const auto payload = program_.overwrites[static_cast<std::size_t>(o)];
        auto& staged = staged_[staged_index(payload, tile)];
        if (staged.tile == tile) staged.tile = -1;
    }
}

// False if the message can no longer be read.
bool Execution::work(const Instruction& in, std::int64_t tile, const Incoming& message,
                     std::byte* slot) {
    if (varies_) return work_varying(in, tile, message.data, slot);
    const bool reads = reads_source(in.op);
    const auto memory = reads ? in.src_memory : in.dst_memory;
    const std::int64_t first = reads ? in.src_cell : in.dst_cell;
    // Chunks that are adjacent in memory are one piece.
    if (layout_.is_adjacent() && !in.shifted) {
        const auto length = layout_.length_of(memory, first, in.count, tile);
        return length == 0 || work_run(in, 0, {0, length}, message, slot);
    }
    std::int64_t offset = in.descending ? bytes_of(in, tile) : 0;
    for (std::int64_t i = 0; i < in.count; ++i) {
        const auto piece = in.descending ? in.count - 1 - i : i;
        if (in.descending) offset -= layout_.length_of(memory, first + piece, 1, tile) * cut().item;
        auto end = offset;
        for (int number = 0; number < layout_.runs(); ++number) {
            const auto run = layout_.run_of(memory, first + piece, tile, number);
            if (run.length() == 0) continue;
            const auto from = message.from(static_cast<std::size_t>(end));
            if (!work_run(in, piece, run, from, slot ? slot + end : nullptr)) return false;
            end += run.length() * cut().item;
        }
        if (!in.descending) offset = end;
    }
    return true;
}

// The work on a run of chunk `piece` of an instruction. False as for `work`.
bool Execution::work_run(const Instruction& in, std::int64_t piece, Run run,
                         const Incoming& message, std::byte* slot) {
    Operands at{nullptr, nullptr, message.data, slot};
    if (writes_destination(in.op)) {
        at.dst = layout_.address(in.dst_memory, in.dst_cell + piece, run.begin);
    }
    if (reads_source(in.op)) {
        at.src = layout_.address(in.src_memory, in.src_cell + piece, run.begin);
    }
    const auto n = static_cast<std::size_t>(run.length());
    if (message.sender >= 0) return work_fetched(in, message, at, n);
    compute(in, at, n);
    return true;
}

// The work in a call of varying counts, whose messages are all in slots. False if a chunk doesn't
// fit its place, or there is no memory for it.
bool Execution::work_varying(const Instruction& in, std::int64_t tile, const std::byte* message,
                             std::byte* slot) {
    if (tile == 0) {
        try {
            return varying_->pass_lengths(in, message, slot);
        } catch (const std::exception&) {  // of vectors: no memory, or too long
            return fail_without_memory();
        }
    }
    std::size_t offset = 0;
    for (std::int32_t i = 0; i < in.count; ++i) {
        const auto piece = in.descending ? in.count - 1 - i : i;
        const auto n = static_cast<std::size_t>(varying_->length_of(in, piece, tile));
        if (n == 0) continue;
        Operands at{nullptr, nullptr, message ? message + offset : nullptr,
                    slot ? slot + offset : nullptr};
        if (writes_destination(in.op)) {
            at.dst = varying_->address(in.dst_memory, in.dst_cell + piece, tile);
        }
        if (reads_source(in.op)) {
            at.src = varying_->address(in.src_memory, in.src_cell + piece, tile);
        }
        compute(in, at, n);
        offset += n * static_cast<std::size_t>(cut().item);
    }
    return true;
}

// Works on a message in another process: a recv copies it to its destination, other instructions
// fetch and process it part by part.
bool Execution::work_fetched(const Instruction& in, const Incoming& message, Operands at,
                             std::size_t n) {
    const auto item = static_cast<std::size_t>(cut().item);
    if (in.op == Op::kRecv) return fetch(message, at.dst, n * item);
    auto& words = fabric_.landing;
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

bool Execution::fetch(const Incoming& message, std::byte* to, std::size_t bytes) {
    const auto& sender = fabric_.state(message.sender);
    const auto end = read_memory(sender, message.address, to, bytes);
    if (end == ReadEnd::kDone) return true;
    const auto failure = end == ReadEnd::kDied ? Failure::kDied : Failure::kUnreadable;
    fabric_.control().fail(failure, end == ReadEnd::kNowhere ? fabric_.rank() : message.sender);
    has_failed_ = true;
    return false;
}

void Execution::compute(const Instruction& in, const Operands& at, std::size_t n) const {
    const auto bytes = n * static_cast<std::size_t>(cut().item);
    switch (in.op) {
        case Op::kNop: break;
        case Op::kSend: stage(at.slot, at.src, bytes); break;
        case Op::kRecv: copy(in, at.dst, at.message, bytes); break;
        case Op::kCopy: copy(in, at.dst, at.src, bytes); break;
        case Op::kCopySend:
            if (at.slot) stage(at.slot, at.src, bytes);
            copy(in, at.dst, at.src, bytes);
            break;
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

// Copies data into a slot.
void Execution::stage(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (way_ == Way::kStreamed && bytes >= kLeastStreamed) {
        stream_bytes(to, from, bytes);
    } else {
        std::memcpy(to, from, bytes);
    }
}

// Results that this rank doesn't read bypass the caches if they don't fit: they would only evict
// other data.
void Execution::copy(const Instruction& in, std::byte* to, const std::byte* from,
                     std::size_t bytes) const {
    if (streams_ && in.is_final && bytes >= kLeastStreamed && !in.shifted) {
        stream_bytes(to, from, bytes);
    } else {
        std::memmove(to, from, bytes);
    }
}

}  // namespace sley
