// Messages, credits, states and failures, as frames.
#include "network/pump.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace sley {
namespace {

// How often a rank sends its state: much shorter than any timeout, and long enough to cost nothing.
constexpr auto kStatePeriod = std::chrono::milliseconds(50);
constexpr std::uint64_t kMostKinds = 255;              // of failures
constexpr auto kNap = std::chrono::microseconds(200);  // between the rounds of `close`
constexpr std::chrono::nanoseconds kShortDoze = std::chrono::milliseconds(1);

std::uint64_t load(const std::atomic<std::uint64_t>& value) {
    return value.load(std::memory_order_acquire);
}

}  // namespace

Pump::Pump(Fabric& fabric, std::unique_ptr<Wire> wire)
    : fabric_(fabric),
      wire_(std::move(wire)),
      address_(wire_->address()),
      losses_(static_cast<std::size_t>(fabric.shape().ranks())) {
    const auto& shape = fabric_.shape();
    window_ = static_cast<std::uint64_t>(std::min(shape.fifo.slots, shape.fifo.envelopes));
    for (std::int32_t r = 0; r < shape.ranks(); ++r) {
        const bool remote = fabric_.is_remote(r);
        peer_of_.push_back(remote ? static_cast<std::int32_t>(peers_.size()) : -1);
        if (remote) {
            peers_.emplace_back();
            peers_.back().rank = r;
        } else {
            locals_.push_back(r);
        }
    }
}

void Pump::connect(const Meeting& meeting) {
    const std::lock_guard lock(mutex_);
    if (meeting.addresses.size() != peer_of_.size()) {
        throw std::invalid_argument("not one address for each rank");
    }
    wire_->connect(meeting, *this);
    if (locals_.size() == 1) {
        fabric_.control().doze = [this](std::chrono::nanoseconds most) { doze(most); };
    }
}

Pump::Peer& Pump::peer(std::int32_t rank) {
    return peers_[static_cast<std::size_t>(peer_of_[static_cast<std::size_t>(rank)])];
}

Pump::Incoming& Pump::incoming(Peer& peer, std::int32_t index) {
    const auto [found, is_new] = peer.incoming_of.try_emplace(index, peer.incoming.size());
    if (is_new) peer.incoming.push_back({index, fabric_.fifo(peer.rank, index)});
    return peer.incoming[found->second];
}

void Pump::open_sender(std::int32_t peer_rank, std::int32_t index) {
    const std::lock_guard lock(mutex_);
    Peer& to = peer(peer_rank);
    if (to.outgoing_of.try_emplace(index, to.outgoing.size()).second) {
        to.outgoing.push_back({index, fabric_.fifo(fabric_.rank(), index)});
    }
}

void Pump::open_receiver(std::int32_t peer_rank, std::int32_t index) {
    const std::lock_guard lock(mutex_);
    incoming(peer(peer_rank), index);
}

bool Pump::progress() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || closed_) return false;
    const auto caller = std::this_thread::get_id();
    is_shared_ = is_shared_ || (caller_ != std::thread::id() && caller_ != caller);
    caller_ = caller;
    return round();
}

// Other threads of this rank make progress meanwhile, and may take what this one waits for before it
// sleeps: so it sleeps only briefly if there are any.
void Pump::doze(std::chrono::nanoseconds most) {
    std::vector<pollfd> arrivals;
    {
        const std::lock_guard lock(mutex_);
        if (!closed_) arrivals = wire_->arrivals();
        if (is_shared_) most = std::min(most, kShortDoze);
    }
    if (arrivals.empty()) return;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec time{static_cast<std::time_t>(seconds.count()),
                        static_cast<long>((most - seconds).count())};
    ppoll(arrivals.data(), static_cast<nfds_t>(arrivals.size()), &time, nullptr);
}

// Receives first: credits may let senders go on.
bool Pump::round() {
    moved_ = false;  // frames that arrive whole set it
    const bool received = wire_->receive(*this);
    moved_ = moved_ || received;
    const auto now = Clock::now();
    note_state(now);
    bool posted = false;
    for (auto& peer : peers_) posted = post_messages(peer) || posted;
    moved_ = moved_ || posted;
    for (auto& peer : peers_) {
        post_credits(peer, !moved_);
        post_news(peer);
    }
    return wire_->send() || moved_;
}

bool Pump::has_message(const Outgoing& out) {
    const auto envelopes = static_cast<std::uint64_t>(out.memory.shape.envelopes);
    return load(out.memory.envelopes[out.next % envelopes].sequence) == out.next + 1;
}

bool Pump::may_send(const Outgoing& out) const {
    return out.next - out.consumed < window_ && has_message(out);
}

void Pump::post_message(Peer& peer, Outgoing& out) {
    const auto envelopes = static_cast<std::uint64_t>(out.memory.shape.envelopes);
    const Envelope& envelope = out.memory.envelopes[out.next % envelopes];
    if (envelope.bytes > static_cast<std::uint64_t>(out.memory.shape.slot_bytes)) {
        throw std::length_error("a message to another host that is longer than a slot");
    }
    FrameHeader header;
    header.kind = FrameKind::kData;
    header.index = out.index;
    header.bytes = envelope.bytes;
    header.signature = envelope.signature;
    header.number = out.next++;
    const auto* data = fabric_.resolve(fabric_.rank(), envelope.where, envelope.bytes);
    wire_->post(peer.rank, header, data);
}

// Posts one message of each connection in turn, so that none waits for all messages of another.
bool Pump::post_messages(Peer& peer) {
    const auto count = peer.outgoing.size();
    bool posted = false;
    for (std::size_t idle = 0; idle < count;) {
        Outgoing& out = peer.outgoing[peer.turn % count];
        if (may_send(out)) {
            if (!wire_->has_room(peer.rank, FrameKind::kData)) break;
            post_message(peer, out);
            posted = true;
            idle = 0;
        } else {
            ++idle;
        }
        peer.turn = (peer.turn + 1) % count;
    }
    if (posted) post_credits(peer, true);  // in the same system call
    return posted;
}

// Each credit is a frame, so while messages flow, credits wait until half of the slots are free.
void Pump::post_credits(Peer& peer, bool all) {
    const auto enough = all ? 1 : std::max<std::uint64_t>(window_ / 2, 1);
    for (auto& in : peer.incoming) {
        const auto consumed = load(in.memory.counters->consumed);
        if (consumed - in.credited < enough) continue;
        if (!wire_->has_room(peer.rank, FrameKind::kCredit)) return;
        FrameHeader header;
        header.kind = FrameKind::kCredit;
        header.index = in.index;
        header.number = in.credited = consumed;
        wire_->post(peer.rank, header, nullptr);
    }
}

// Sends the beats of this host's ranks only: with those of others, two hosts would keep each
// other's beats alive for ever.
void Pump::note_state(Clock::time_point now) {
    const auto rank = fabric_.rank();
    const auto& own = fabric_.state(rank);
    const auto closed = static_cast<std::int32_t>(load(own.closed));
    const auto arrived = load(own.arrived);
    const bool is_urgent = closed != state_.index || arrived != state_.state[0];
    if (now - noted_ < kStatePeriod && !is_urgent) return;
    noted_ = now;
    wire_->watch(*this);
    std::uint64_t beats = 0;
    for (const auto r : locals_) beats += fabric_.state(r).beat.load(std::memory_order_relaxed);
    const auto call = fabric_.control().call_of(rank);
    FrameHeader state;
    state.kind = FrameKind::kState;
    state.index = closed;
    state.state = {arrived,    beats,      call.sequence,
                   call.what, call.count, load(own.call_ended)};
    const bool is_same = state.index == state_.index && state.state == state_.state;
    // An unchanged state is sent too, so that a wire always has data to be acknowledged: only a
    // missing acknowledgement shows that a network is cut.
    if (is_same && now - renewed_ < kHeartbeat) return;
    state.number = state_.number + 1;
    state_ = state;
    renewed_ = now;
}

// `Control::fail` writes to the copies of the peers' memory too: these failures are sent to the
// peers.
void Pump::post_news(Peer& peer) {
    const auto failure = load(fabric_.state(peer.rank).failure);
    if (failure != 0 && !peer.has_sent_failure && wire_->has_room(peer.rank, FrameKind::kFailure)) {
        FrameHeader header;
        header.kind = FrameKind::kFailure;
        header.index = static_cast<std::int32_t>(failure);
        header.number = failure >> 32;
        wire_->post(peer.rank, header, nullptr);
        peer.has_sent_failure = true;
    }
    if (peer.sent_state != state_.number && wire_->has_room(peer.rank, FrameKind::kState)) {
        wire_->post(peer.rank, state_, nullptr);
        peer.sent_state = state_.number;
    }
}

bool Pump::is_settled(const Peer& peer) const {
    if (wire_->is_lost(peer.rank)) return true;
    for (const auto& out : peer.outgoing) {
        if (has_message(out)) return false;
    }
    for (const auto& in : peer.incoming) {
        if (load(in.memory.counters->consumed) != in.credited) return false;
    }
    return true;
}

bool Pump::is_settled() {
    const std::lock_guard lock(mutex_);
    if (closed_) return true;
    for (const auto& peer : peers_) {
        if (!is_settled(peer)) return false;
    }
    return wire_->is_sent();
}

void Pump::close(double wait_s) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    fabric_.control().close();
    const auto end = Clock::now() + to_duration<Clock::duration>(wait_s);
    const auto is_informed = [this](const Peer& peer) {
        const bool is_done = is_settled(peer) || fabric_.control().failed();
        return wire_->is_lost(peer.rank) || (is_done && peer.sent_state == state_.number);
    };
    for (;;) {
        round();
        if (std::all_of(peers_.begin(), peers_.end(), is_informed) && wire_->is_delivered()) break;
        if (Clock::now() >= end) break;
        std::this_thread::sleep_for(kNap);
    }
    closed_ = true;
    wire_.reset();
}

std::byte* Pump::place(std::int32_t rank, const FrameHeader& header) {
    const auto& shape = fabric_.shape();
    if (header.kind != FrameKind::kData || header.index < 0 ||
        header.index >= shape.fifos[static_cast<std::size_t>(rank)] ||
        header.bytes > static_cast<std::uint64_t>(shape.fifo.slot_bytes)) {
        return nullptr;
    }
    const FifoMemory& memory = incoming(peer(rank), header.index).memory;
    // `consumed` orders the reads of the slot's last message before this.
    if (header.number - load(memory.counters->consumed) >= window_) return nullptr;
    const auto slot = header.number % static_cast<std::uint64_t>(shape.fifo.slots);
    return memory.slots + slot * shape.fifo.stride();
}

bool Pump::accept(std::int32_t rank, const FrameHeader& header) {
    Peer& from = peer(rank);
    switch (header.kind) {
        case FrameKind::kData:
            return take_message(from, header);
        case FrameKind::kCredit:
            return take_credit(from, header);
        case FrameKind::kState:
            return take_state(from, header);
        case FrameKind::kFailure:
            return take_failure(from, header);
    }
    return false;
}

bool Pump::take_message(Peer& peer, const FrameHeader& header) {
    const FifoMemory& memory = incoming(peer, header.index).memory;
    const auto slots = static_cast<std::uint64_t>(memory.shape.slots);
    const auto envelopes = static_cast<std::uint64_t>(memory.shape.envelopes);
    Envelope& envelope = memory.envelopes[header.number % envelopes];
    envelope.where = memory.slots_where + header.number % slots * memory.shape.stride();
    envelope.bytes = header.bytes;
    envelope.signature = header.signature;
    envelope.sequence.store(header.number + 1, kPublish);
    return moved_ = true;
}

bool Pump::take_credit(Peer& peer, const FrameHeader& header) {
    const auto found = peer.outgoing_of.find(header.index);
    if (found == peer.outgoing_of.end()) return false;
    Outgoing& out = peer.outgoing[found->second];
    if (header.number > out.next) return false;
    if (header.number <= out.consumed) return true;  // overtaken
    out.consumed = header.number;
    out.memory.counters->consumed.store(header.number, kPublish);
    return moved_ = true;
}

bool Pump::take_state(Peer& peer, const FrameHeader& header) {
    if (header.number <= peer.received_state) return true;  // overtaken
    peer.received_state = header.number;
    auto& state = fabric_.state(peer.rank);
    const auto& [arrived, beat, sequence, what, count, ended] = header.state;
    state.looks.fetch_add(1, std::memory_order_relaxed);
    state.arrived.store(arrived, std::memory_order_release);
    state.beat.store(beat, std::memory_order_relaxed);
    state.set_call({sequence, what, count});
    state.call_ended.store(ended, std::memory_order_release);
    state.closed.store(header.index != 0, std::memory_order_release);
    return true;
}

bool Pump::take_failure(Peer& peer, const FrameHeader& header) {
    const auto rank = header.index;
    if (header.number == 0 || header.number > kMostKinds || rank < 0 ||
        rank >= fabric_.shape().ranks()) {
        return false;
    }
    peer.has_sent_failure = true;  // no echo
    fabric_.control().fail(static_cast<Failure>(header.number), rank);
    return true;
}

void Pump::lose(std::int32_t rank, Failure kind) {
    if (load(fabric_.state(rank).closed) != 0) return;
    losses_[static_cast<std::size_t>(rank)].store(kind, std::memory_order_release);
    fabric_.control().fail(kind, rank);
}

Failure Pump::loss_of(std::int32_t rank) const {
    return losses_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
}

}  // namespace sley
