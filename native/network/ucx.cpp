// Endpoints, and frames as active messages that begin with a stamp.
#include "network/ucx.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "network/socket.hpp"

namespace sley {
namespace {

// The most frames being sent to a peer: messages stay in their FIFOs until there is room.
constexpr int kMostUcxData = 16, kMostUcxFrames = 64;
constexpr auto kUcxGlance = std::chrono::milliseconds(100);
constexpr auto kUcxNap = std::chrono::microseconds(200);
constexpr auto kAnswerWait = std::chrono::milliseconds(250);
constexpr auto kCloseWait = std::chrono::seconds(1);  // for UCX to close its endpoints

// An address has the number of the rank's NIC, and each NIC's part, preceded by its length.
void put(std::string& bytes, std::size_t number) {
    const auto word = static_cast<std::uint32_t>(number);
    bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
}

std::size_t take(const std::string& bytes, std::size_t& at) {
    std::uint32_t word = 0;
    if (at + sizeof word > bytes.size()) throw std::invalid_argument("an address cut short");
    std::memcpy(&word, bytes.data() + at, sizeof word);
    at += sizeof word;
    return word;
}

struct RemoteAddress {
    std::size_t nic;
    std::vector<std::string> parts;
};

RemoteAddress parse_address(const std::string& bytes) {
    std::size_t at = 0;
    RemoteAddress address{take(bytes, at), {}};
    while (at < bytes.size()) {
        const auto length = take(bytes, at);
        if (length > bytes.size() - at) throw std::invalid_argument("an address cut short");
        address.parts.push_back(bytes.substr(at, length));
        at += length;
    }
    if (address.parts.empty()) throw std::invalid_argument("an address without a NIC");
    return address;
}

}  // namespace

UcxWire::UcxWire(std::int32_t rank, const std::vector<bool>& remote, UcxSettings settings)
    : rank_(rank),
      settings_(std::move(settings)),
      library_(std::make_shared<const UcxLibrary>(settings_.library)) {
    if (settings_.nic >= settings_.nics.size()) {
        throw std::invalid_argument("a NIC that the host doesn't have");
    }
    const auto count = static_cast<std::size_t>(std::count(remote.begin(), remote.end(), true));
    for (std::size_t r = 0; r < remote.size(); ++r) {
        peers_.push_back(remote[r] ? std::make_unique<Peer>() : nullptr);
        if (remote[r]) peers_[r]->wire = this;
        if (remote[r]) peers_[r]->rank = static_cast<std::int32_t>(r);
    }
    for (const auto& nic : settings_.nics) {
        rails_.push_back(std::make_unique<UcxRail>(library_, nic, count, settings_));
        rails_.back()->handle(kFrames, on_frame, this);
        rails_.back()->handle(kGreetings, on_greeting, this);
    }
}

// Waits for the library only, not for peers: it ends the sends of a closed endpoint in later rounds.
UcxWire::~UcxWire() {
    const auto& f = (*library_)();
    ucp::RequestParams force{};
    force.attribute_mask = ucp::RequestParams::kFlags;
    force.flags = ucp::RequestParams::kForceClose;
    std::vector<ucp::Request> closing;
    for (const auto& peer : peers_) {
        if (!peer || peer->endpoint == nullptr) continue;
        const auto request = f.ucp_ep_close_nbx(peer->endpoint, &force);
        if (ucp::is_pending(request)) closing.push_back(request);
    }
    const auto end = Clock::now() + kCloseWait;
    const auto is_open = [&](ucp::Request request) {
        return f.ucp_request_check_status(request) == ucp::Status::kInProgress;
    };
    const auto is_busy = [&] {
        return free_.size() < transfers_.size() ||
               std::any_of(closing.begin(), closing.end(), is_open);
    };
    while (is_busy() && Clock::now() < end) progress();
    // Destroying a worker with unfinished sends corrupts the heap (UCX 1.20).
    if (free_.size() < transfers_.size()) {
        for (auto& rail : rails_) static_cast<void>(rail.release());
    }
    for (const auto request : closing) f.ucp_request_free(request);
    rails_.clear();
}

std::string UcxWire::address() const {
    std::string bytes;
    put(bytes, settings_.nic);
    for (const auto& rail : rails_) {
        const auto part = rail->address();
        put(bytes, part.size());
        bytes += part;
    }
    return bytes;
}

// As with TCP, the lower rank's NIC decides.
void UcxWire::open(Peer& peer, const std::string& bytes) {
    const auto address = parse_address(bytes);
    const auto nic = rank_ < peer.rank ? settings_.nic : address.nic;
    peer.rail = rails_[nic % rails_.size()].get();
    if (std::find(used_.begin(), used_.end(), peer.rail) == used_.end()) {
        used_.push_back(peer.rail);
    }
    const auto& part = address.parts[nic % address.parts.size()];
    ucp::EndpointParams params{};
    params.field_mask = ucp::EndpointParams::kRemoteAddress | ucp::EndpointParams::kErrorMode |
                        ucp::EndpointParams::kErrorHandler;
    params.address = reinterpret_cast<const ucp::Address*>(part.data());
    params.error_mode = ucp::EndpointParams::kPeerErrors;
    params.error_handler = {on_error, &peer};
    const auto status = (*library_)().ucp_ep_create(peer.rail->worker(), &params, &peer.endpoint);
    if (status != ucp::Status::kOk) lose(peer);
    peer.last_frame = Clock::now();
}

void UcxWire::connect(const Meeting& meeting, FrameSink& sink) {
    secret_ = meeting.secret;
    nonce_ = make_nonce();
    for (const auto& peer : peers_) {
        if (!peer) continue;
        peer->key_to = key(rank_, peer->rank);
        peer->key_from = key(peer->rank, rank_);
        open(*peer, meeting.addresses[static_cast<std::size_t>(peer->rank)]);
        if (peer->loss == Failure::kNone) greet(*peer, Word::kHello);
    }
    auto glanced = Clock::now();
    const auto is_met = [](const auto& peer) { return !peer || peer->is_met; };
    while (!std::all_of(peers_.begin(), peers_.end(), is_met) || !is_sent()) {
        const auto now = Clock::now();
        raise_absent(now >= meeting.deadline);
        if (meeting.glance && now - glanced >= kUcxGlance) {
            glanced = now;
            meeting.glance();
        }
        sink_ = &sink;
        progress();
        sink_ = nullptr;
        std::this_thread::sleep_for(kUcxNap);
    }
}

void UcxWire::raise_absent(bool is_late) const {
    std::string lost, absent;
    for (const auto& peer : peers_) {
        if (!peer) continue;
        const auto name = "rank " + std::to_string(peer->rank);
        if (peer->loss != Failure::kNone) lost += (lost.empty() ? "" : ", ") + name;
        if (!peer->is_met) absent += (absent.empty() ? "" : ", ") + name;
    }
    if (!lost.empty()) raise_network(ECONNREFUSED, lost);
    if (is_late) raise_network(ETIMEDOUT, absent);
}

UcxWire::Peer* UcxWire::peer(std::int32_t rank) {
    return peers_[static_cast<std::size_t>(rank)].get();
}

const UcxWire::Peer* UcxWire::peer(std::int32_t rank) const {
    return peers_[static_cast<std::size_t>(rank)].get();
}

bool UcxWire::has_room(std::int32_t rank, FrameKind kind) const {
    const auto* to = peer(rank);
    if (!to->is_met || to->loss != Failure::kNone || to->frames >= kMostUcxFrames) return false;
    return kind != FrameKind::kData || to->data < kMostUcxData;
}

bool UcxWire::is_lost(std::int32_t rank) const {
    return !peer(rank)->is_met || peer(rank)->loss != Failure::kNone;
}

UcxWire::Transfer* UcxWire::take_transfer(Peer& peer) {
    if (free_.empty()) {
        transfers_.push_back(std::make_unique<Transfer>());
        free_.push_back(transfers_.back().get());
    }
    auto* transfer = free_.back();
    free_.pop_back();
    transfer->peer = &peer;
    return transfer;
}

void UcxWire::post(std::int32_t rank, const FrameHeader& header, const std::byte* payload) {
    auto* transfer = take_transfer(*peer(rank));
    transfer->frame = {{peer(rank)->key_to, rank_, rank}, header};
    transfer->is_data = header.kind == FrameKind::kData;
    send(transfer, kFrames, &transfer->frame, sizeof transfer->frame, payload, header.bytes);
}

// asked: of a kProof, the nonce that it answers.
void UcxWire::greet(Peer& peer, Word word, const Nonce& asked) {
    auto* transfer = take_transfer(peer);
    const bool is_stamped = word == Word::kBye || word == Word::kByeConfirmed;
    auto& greeting = transfer->greeting;
    greeting = {{is_stamped ? peer.key_to : 0, rank_, peer.rank}, word, nonce_, asked, {}};
    if (word == Word::kProof) greeting.proof = proof(greeting);
    transfer->is_data = false;
    send(transfer, kGreetings, &transfer->greeting, sizeof transfer->greeting, nullptr, 0);
}

void UcxWire::send(Transfer* transfer, unsigned id, const void* header, std::size_t header_bytes,
                   const void* payload, std::size_t bytes) {
    Peer& to = *transfer->peer;
    ++to.frames;
    if (transfer->is_data) ++to.data;
    ucp::RequestParams params{};
    params.attribute_mask = ucp::RequestParams::kCallback | ucp::RequestParams::kUserData;
    params.callback.sent = on_sent;
    params.user_data = transfer;
    const auto request = (*library_)().ucp_am_send_nbx(to.endpoint, id, header, header_bytes,
                                                       payload, bytes, &params);
    if (ucp::is_pending(request)) return;
    end_sending(transfer);
    if (ucp::is_error(request)) lose(to);
}

void UcxWire::end_sending(Transfer* transfer) {
    --transfer->peer->frames;
    if (transfer->is_data) --transfer->peer->data;
    free_.push_back(transfer);
}

void UcxWire::on_sent(ucp::Request request, ucp::Status, void* user_data) {
    auto* transfer = static_cast<Transfer*>(user_data);
    auto& wire = *transfer->peer->wire;
    wire.moved_ = wire.moved_ || transfer->is_data;
    wire.end_sending(transfer);
    (*wire.library_)().ucp_request_free(request);
}

void UcxWire::on_error(void* argument, ucp::Endpoint, ucp::Status) {
    auto& peer = *static_cast<Peer*>(argument);
    peer.wire->lose(peer);
}

// The library reports the same error for a peer that has ended and for one that is out of reach.
// But a live peer sends several frames a second.
void UcxWire::lose(Peer& peer) {
    if (peer.loss != Failure::kNone) return;
    const bool is_silent = Clock::now() - peer.last_frame >= settings_.silence;
    peer.loss = is_silent ? Failure::kCut : Failure::kDied;
}

void UcxWire::progress() {
    for (auto* rail : used_) {
        while ((*library_)().ucp_worker_progress(rail->worker()) != 0) {
        }
    }
}

bool UcxWire::receive(FrameSink& sink) {
    moved_ = false;
    sink_ = &sink;
    progress();
    sink_ = nullptr;
    for (const auto& peer : peers_) {
        if (!peer || peer->loss == Failure::kNone || peer->is_loss_reported) continue;
        peer->is_loss_reported = true;
        sink.lose(peer->rank, peer->loss);
    }
    return moved_;
}

std::vector<pollfd> UcxWire::arrivals() {
    std::vector<pollfd> found;
    for (auto* rail : used_) {
        if ((*library_)().ucp_worker_arm(rail->worker()) == ucp::Status::kBusy) return {};
        found.push_back({rail->descriptor(), POLLIN, 0});
    }
    return found;
}

bool UcxWire::is_sent() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
        return !peer || peer->frames == 0 || peer->loss != Failure::kNone;
    });
}

// Sent frames may still be in the kernel, which drops them if this end closes with unread data. So
// peers are asked for confirmation; but a peer between calls doesn't answer.
bool UcxWire::is_delivered() {
    if (asked_ == Clock::time_point{}) asked_ = Clock::now();
    bool is_answered = true;
    for (const auto& peer : peers_) {
        if (!peer || is_lost(peer->rank)) continue;
        if (!peer->has_sent_bye) greet(*peer, Word::kBye);
        peer->has_sent_bye = true;
        is_answered = is_answered && peer->is_bye_confirmed;
    }
    return (is_answered || Clock::now() - asked_ >= kAnswerWait) && is_sent();
}

// The proof of a greeting's sender, for its receiver and the nonces of both.
Digest UcxWire::proof(const Greeting& greeting) const {
    const auto& [_, from, to] = greeting.stamp;
    const std::string_view what = "greets";
    return hmac(secret_, {what, bytes_of(from), bytes_of(to), bytes_of(greeting.own),
                          bytes_of(greeting.asked)});
}

// Frames may overtake greetings, so their stamps contain no nonce.
std::uint64_t UcxWire::key(std::int32_t from, std::int32_t to) const {
    const std::string_view what = "sends frames";
    const Digest digest = hmac(secret_, {what, bytes_of(from), bytes_of(to)});
    std::uint64_t key = 0;
    std::memcpy(&key, digest.data(), sizeof key);
    return key;
}

// The peer that a stamp names; nullptr for one that doesn't exist.
UcxWire::Peer* UcxWire::sender(const Stamp& stamp) {
    const auto ranks = static_cast<std::int32_t>(peers_.size());
    if (stamp.to != rank_ || stamp.from < 0 || stamp.from >= ranks) return nullptr;
    return peer(stamp.from);
}

// The same; nullptr also for a stamp that the peer hasn't made.
UcxWire::Peer* UcxWire::stamped_sender(const Stamp& stamp) {
    Peer* from = sender(stamp);
    return from != nullptr && from->key_from == stamp.key && stamp.key != 0 ? from : nullptr;
}

ucp::Status UcxWire::on_greeting(void* argument, const void* header, std::size_t header_length,
                                 void*, std::size_t, const ucp::ActiveMessageParams*) {
    auto& wire = *static_cast<UcxWire*>(argument);
    Greeting greeting;
    if (header_length != sizeof greeting) return ucp::Status::kOk;
    std::memcpy(&greeting, header, sizeof greeting);
    const bool is_stamped = greeting.word == Word::kBye || greeting.word == Word::kByeConfirmed;
    Peer* from = is_stamped ? wire.stamped_sender(greeting.stamp) : wire.sender(greeting.stamp);
    if (from == nullptr) return ucp::Status::kOk;
    switch (greeting.word) {
        case Word::kHello:
            // Sent to the peer of this number, whoever has asked.
            if (from->loss == Failure::kNone && from->frames < kMostUcxFrames) {
                wire.greet(*from, Word::kProof, greeting.own);
            }
            break;
        case Word::kProof:
            if (greeting.asked == wire.nonce_ && is_same(greeting.proof, wire.proof(greeting))) {
                from->is_met = true;
            }
            break;
        case Word::kBye:
            if (!wire.is_lost(from->rank)) wire.greet(*from, Word::kByeConfirmed);
            break;
        case Word::kByeConfirmed:
            from->is_bye_confirmed = true;
            break;
    }
    return ucp::Status::kOk;
}

ucp::Status UcxWire::on_frame(void* argument, const void* header, std::size_t header_length,
                              void* data, std::size_t length,
                              const ucp::ActiveMessageParams* params) {
    auto& wire = *static_cast<UcxWire*>(argument);
    StampedFrame frame;
    if (header_length != sizeof frame || wire.sink_ == nullptr) return ucp::Status::kOk;
    std::memcpy(&frame, header, sizeof frame);
    Peer* from = wire.stamped_sender(frame.stamp);
    if (from == nullptr || from->loss != Failure::kNone) return ucp::Status::kOk;
    from->last_frame = Clock::now();
    const bool is_rendezvous = params->attributes & ucp::ActiveMessageParams::kRendezvous;
    const bool is_data = frame.header.kind == FrameKind::kData;
    bool is_right = length == frame.header.bytes && (is_data || length == 0);
    if (is_right && is_data) {
        std::byte* place = wire.sink_->place(from->rank, frame.header);
        is_right = place != nullptr;
        if (is_right && is_rendezvous) return wire.fetch(*from, frame, data, place);
        if (is_right) std::memcpy(place, data, length);
    }
    is_right = is_right && !is_rendezvous && wire.sink_->accept(from->rank, frame.header);
    if (!is_right) from->loss = Failure::kCut;
    return ucp::Status::kOk;
}

// Fetches a long message, which UCX sends only now that its place is known.
ucp::Status UcxWire::fetch(Peer& from, const StampedFrame& frame, void* descriptor,
                           std::byte* place) {
    auto* transfer = take_transfer(from);
    transfer->frame = frame;
    ucp::RequestParams params{};
    params.attribute_mask = ucp::RequestParams::kCallback | ucp::RequestParams::kUserData;
    params.callback.received = on_received;
    params.user_data = transfer;
    const auto request = (*library_)().ucp_am_recv_data_nbx(
        from.rail->worker(), descriptor, place, frame.header.bytes, &params);
    if (ucp::is_pending(request)) return ucp::Status::kInProgress;
    end_fetch(transfer, !ucp::is_error(request));
    return ucp::Status::kInProgress;
}

void UcxWire::end_fetch(Transfer* transfer, bool is_whole) {
    Peer& from = *transfer->peer;
    if (!is_whole) {
        lose(from);
    } else if (sink_ != nullptr) {
        sink_->accept(from.rank, transfer->frame.header);
    }
    free_.push_back(transfer);
}

void UcxWire::on_received(ucp::Request request, ucp::Status status, std::size_t, void* user_data) {
    auto* transfer = static_cast<Transfer*>(user_data);
    auto& wire = *transfer->peer->wire;
    wire.end_fetch(transfer, status == ucp::Status::kOk);
    (*wire.library_)().ucp_request_free(request);
}

}  // namespace sley
