// Posting and matching, and the end of operations that cannot go on.
#include "messages/matching.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "fabric/copy.hpp"

namespace sley {
namespace {

// Shorter data are staged even if they are in the heap: so the sender needn't wait for the
// receiver.
constexpr std::int64_t kLeastPulled = 8192;

}  // namespace

Matching::Matching(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset)
    : fabric_(std::move(fabric)),
      stride_(stride),
      offset_(offset),
      ranks_(fabric_->shape().ranks()),
      signs_(fabric_->control()) {
    if (fabric_->shape().fifo.slot_bytes < static_cast<std::int64_t>(kCacheLine)) {
        throw std::invalid_argument("a slot is too small for a message's header");
    }
    for (std::int32_t r = 0; r < ranks_; ++r) peers_.emplace_back(*fabric_, r);
}

void Matching::open(const Operation& operation) {
    const auto own = fabric_->rank();
    const bool any = operation.peer == kAnySource && !operation.is_send;
    if ((!any && operation.peer < 0) || operation.peer >= ranks_ || operation.bytes < 0) {
        throw std::invalid_argument("a message with an unknown rank or a negative size");
    }
    if (operation.is_send) {
        auto& outgoing = peer(operation.peer).outgoing;
        if (outgoing.is_open() || operation.peer == own) return;
        outgoing.open(fabric_->sender(operation.peer, operation.peer * stride_ + offset_));
        return;
    }
    for (std::int32_t src = 0; src < ranks_; ++src) {
        auto& incoming = peer(src).incoming;
        if (incoming.is_open() || src == own || (!any && src != operation.peer)) continue;
        incoming.open(fabric_->receiver(src, own * stride_ + offset_));
    }
}

// The receives from `src` without a message so far.
OperationList& Matching::receives_from(std::int32_t src) {
    return src == kAnySource ? any_ : peer(src).posted;
}

// The earliest posted receive for a message; or null.
Operation* Matching::first_match(std::int32_t src, std::int64_t tag) {
    auto* one = peer(src).posted.with_tag(tag);
    auto* any = any_.with_tag(tag);
    if (!one || !any) return one ? one : any;
    return one->number < any->number ? one : any;
}

// Removes a receive whose message has come; the time of the next one with its tag begins.
void Matching::take_posted(Operation& receive) {
    auto& receives = receives_from(receive.peer);
    receives.remove(receive);
    auto* next = receives.with_tag(receive.tag);
    if (next) next->watch.reset();
}

void Matching::post(Operation& operation) {
    operation.number = ++operations_;
    if (is_closed_ || fabric_->control().failed()) {
        return operation.end(finished, Status::kAborted);
    }
    operation.is_send ? post_send(operation) : post_receive(operation);
}

void Matching::post_send(Operation& send) {
    if (send.peer == fabric_->rank()) return send_to_self(send);
    if (send.bytes >= kLeastPulled && !fabric_->is_remote(send.peer)) {
        send.heap = fabric_->in_heap(send.data, static_cast<std::size_t>(send.bytes));
    }
    auto& outgoing = peer(send.peer).outgoing;
    outgoing.push(send);
    if (outgoing.is_first(send) && outgoing.advance(finished)) fabric_->control().beat();
}

void Matching::post_receive(Operation& receive) {
    if (take_unexpected(receive)) return;
    receives_from(receive.peer).push(receive);
    if (receive.peer == kAnySource) {
        advance();
    } else if (receive_pieces(receive.peer)) {
        fabric_->control().beat();
    }
}

// A message to the rank itself arrives at once.
void Matching::send_to_self(Operation& send) {
    auto* receive = first_match(send.peer, send.tag);
    if (!receive) {
        copy_bytes(store_unexpected(send.peer, send.tag, send.bytes, send.type), send.data,
                   static_cast<std::size_t>(send.bytes));
        return send.end(finished, Status::kDone, send.peer, send.bytes);
    }
    take_posted(*receive);
    if (!receive->fits(send.bytes, send.type)) {
        const auto expected = receive->bytes;
        mismatch(*receive, send.peer, send.bytes);
        return send.end(finished, Status::kMismatched, send.peer, expected);
    }
    copy_bytes(receive->data, send.data, static_cast<std::size_t>(send.bytes));
    receive->end(finished, Status::kDone, send.peer, send.bytes);
    send.end(finished, Status::kDone, send.peer, send.bytes);
}

std::byte* Matching::store_unexpected(std::int32_t src, std::int64_t tag, std::int64_t bytes,
                                      std::uint8_t type) {
    std::unique_ptr<std::byte[]> data(new std::byte[static_cast<std::size_t>(bytes)]);
    auto& list = peer(src).unexpected;
    list.push_back({tag, bytes, type, std::move(data)});
    return list.back().data.get();
}

// Whether the first message for a receive has been stored before, maybe only in part.
bool Matching::take_unexpected(Operation& receive) {
    const bool any = receive.peer == kAnySource;
    for (std::int32_t i = 0; i < (any ? ranks_ : 1); ++i) {
        const auto src = any ? (turn_ + i) % ranks_ : receive.peer;
        auto& list = peer(src).unexpected;
        const auto found = std::find_if(list.begin(), list.end(), [&](const Unexpected& message) {
            return message.tag == receive.tag;
        });
        if (found == list.end()) continue;
        if (any) turn_ = (src + 1) % ranks_;
        auto& incoming = peer(src).incoming;
        if (!receive.fits(found->bytes, found->type)) {
            mismatch(receive, src, found->bytes);
        } else if (incoming.goes_to(found->data.get())) {
            incoming.hand_over(receive);
            list.erase(found);
        } else {
            copy_bytes(receive.data, found->data.get(), static_cast<std::size_t>(found->bytes));
            receive.end(finished, Status::kDone, src, found->bytes);
            list.erase(found);
        }
        return true;
    }
    return false;
}

void Matching::mismatch(Operation& receive, std::int32_t src, std::int64_t bytes) {
    receive.end(finished, Status::kMismatched, src, bytes);
    fabric_->control().fail(Failure::kMismatched, src);
}

void Matching::close() {
    is_closed_ = true;
    abort_all();
}

void Matching::abort_all() {
    for (auto& peer : peers_) {
        peer.outgoing.abort(finished);
        peer.posted.abort(finished);
        auto* receive = peer.incoming.take_receive();
        if (receive) receive->end(finished, Status::kAborted);
    }
    any_.abort(finished);
}

// Takes a burst of a rank's pieces, as long as a receive waits for the rank.
bool Matching::receive_pieces(std::int32_t src) {
    auto& from = peer(src);
    std::int64_t taken = 0;
    while (taken < kBurst) {
        const bool is_wanted = from.incoming.receive() || !from.posted.empty() || !any_.empty();
        if (!is_wanted || !from.incoming.has_piece()) break;
        const auto bytes = from.incoming.is_under_way() ? from.incoming.take_piece(finished)
                                                        : begin_message(src);
        if (bytes == 0) break;
        taken += bytes;
    }
    return taken > 0;
}

// Takes the first piece of a message; returns its bytes. 0 if the message doesn't fit its receive,
// or has no receive and there is no memory to store it.
std::int64_t Matching::begin_message(std::int32_t src) {
    auto& incoming = peer(src).incoming;
    const auto header = incoming.header();
    const auto bytes = static_cast<std::int64_t>(header.bytes);
    const auto type = static_cast<std::uint8_t>(header.type);
    auto* receive = first_match(src, header.tag);
    std::byte* to = nullptr;
    if (!receive) {
        try {
            to = store_unexpected(src, header.tag, bytes, type);
        } catch (const std::bad_alloc&) {
            return 0;
        }
    } else {
        take_posted(*receive);
        if (!receive->fits(bytes, type)) {
            mismatch(*receive, src, bytes);
            return 0;
        }
        if (receive->peer == kAnySource) turn_ = (src + 1) % ranks_;
        to = receive->data;
    }
    return incoming.begin(header, receive, to, finished);
}

bool Matching::advance() {
    auto& control = fabric_->control();
    if (control.failed()) {
        abort_all();
        return false;
    }
    bool moved = fabric_->progress();
    const auto first = turn_;  // a receive from any source changes it
    for (std::int32_t i = 0; i < ranks_; ++i) {
        const auto rank = first + i < ranks_ ? first + i : first + i - ranks_;
        moved |= peer(rank).outgoing.advance(finished);
        moved |= receive_pieces(rank);
    }
    if (moved) control.beat();
    return moved;
}

void Matching::look(const std::vector<Failure>& gone, Clock::time_point now) {
    signs_.look(now);
    look_for_gone(gone);
    if (!fabric_->control().failed()) look_for_stalled(now);
}

// A rank that is gone no longer sends or consumes; messages that it sent before may still be there.
void Matching::look_for_gone(const std::vector<Failure>& gone) {
    auto& control = fabric_->control();
    std::int32_t silent = -1, others = 0;
    for (std::int32_t r = 0; r < ranks_; ++r) {
        if (r == fabric_->rank()) continue;
        auto& peer = this->peer(r);
        const auto how = gone[static_cast<std::size_t>(r)];
        const bool has_message = peer.incoming.has_piece();
        const bool receives = peer.incoming.receive() || !peer.posted.empty();
        if (how == Failure::kNone || has_message) {
            ++others;
        } else if (receives) {
            return control.fail_for_gone(how, r);
        } else {
            silent = r;
        }
        if (how != Failure::kNone && peer.outgoing.is_pending()) {
            return control.fail_for_gone(how, r);
        }
    }
    if (silent < 0 || others > 0 || any_.empty()) return;
    control.fail_for_gone(gone[static_cast<std::size_t>(silent)], silent);
}

void Matching::look_for_stalled(Clock::time_point now) {
    bool any_is_coming = false;
    for (std::int32_t r = 0; r < ranks_; ++r) {
        auto& peer = this->peer(r);
        // Sends move one after another: only the first one can expire.
        if (auto* send = peer.outgoing.take_expired(now)) return stall(*send, r, now);
        auto* receive = peer.incoming.receive();
        if (receive && receive->watch.has_expired(now, receive->timeout_s)) {
            return stall(*peer.incoming.take_receive(), r, now);
        }
        const bool is_coming = peer.incoming.has_moved();
        any_is_coming |= is_coming;
        if (stall_posted(peer.posted, is_coming, now)) return;
    }
    stall_posted(any_, any_is_coming, now);
}

// The time of a receive stops while another message from its source arrives (`is_coming`), and
// while an earlier receive waits for the same tag.
bool Matching::stall_posted(OperationList& receives, bool is_coming, Clock::time_point now) {
    for (auto* receive = receives.first(); receive; receive = receive->next) {
        if (is_coming) receive->watch.reset();
        if (!receive->watch.has_expired(now, receive->timeout_s)) continue;
        if (receives.with_tag(receive->tag) != receive) {
            receive->watch.reset();
            continue;
        }
        receives.remove(*receive);
        stall(*receive, receive->peer, now);
        return true;
    }
    return false;
}

// Ends an operation; since the fabric has failed, all others end in the next round.
void Matching::stall(Operation& operation, std::int32_t rank, Clock::time_point now) {
    const auto timeout = to_duration<Clock::duration>(operation.timeout_s);
    const bool is_still = rank >= 0 && signs_.is_still(rank, timeout, now);
    operation.end(finished, Status::kStalled, rank);
    auto& control = fabric_->control();
    is_still ? control.fail(Failure::kStill, rank) : control.fail(Failure::kStalled, control.rank());
}

}  // namespace sley
