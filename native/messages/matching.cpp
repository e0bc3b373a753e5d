// Posting and matching, and what ends operations that cannot go on.
#include "messages/matching.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "fabric/copy.hpp"

namespace sley {
namespace {

// Shorter data are staged though they lie in the heap: the sender needn't wait for the receiver.
constexpr std::int64_t kLeastPulled = 8192;

}  // namespace

Operation* OperationList::with_tag(std::int64_t tag) const {
    auto* operation = first_;
    while (operation && operation->tag != tag) operation = operation->next;
    return operation;
}

void OperationList::push(Operation& operation) {
    operation.previous = last_;
    operation.next = nullptr;
    (last_ ? last_->next : first_) = &operation;
    last_ = &operation;
}

void OperationList::remove(Operation& operation) {
    (operation.previous ? operation.previous->next : first_) = operation.next;
    (operation.next ? operation.next->previous : last_) = operation.previous;
}

Matching::Matching(std::shared_ptr<Fabric> fabric, std::int32_t stride, std::int32_t offset)
    : fabric_(std::move(fabric)),
      stride_(stride),
      offset_(offset),
      ranks_(fabric_->shape().ranks()),
      slots_(static_cast<std::size_t>(fabric_->shape().fifo.slots)),
      slot_bytes_(std::min<std::int64_t>(fabric_->shape().fifo.slot_bytes,
                                         std::numeric_limits<std::int32_t>::max())),
      peers_(static_cast<std::size_t>(ranks_)) {
    if (slot_bytes_ < static_cast<std::int64_t>(kCacheLine)) {
        throw std::invalid_argument("a slot has no room for a message's header");
    }
}

void Matching::open(const Operation& operation) {
    const auto own = fabric_->rank();
    const bool any = operation.peer == kAnySource && !operation.is_send;
    if ((!any && operation.peer < 0) || operation.peer >= ranks_ || operation.bytes < 0) {
        throw std::invalid_argument("a message to or from no rank, or of no size");
    }
    if (operation.is_send) {
        auto& sender = peer(operation.peer).sender;
        if (sender || operation.peer == own) return;
        sender = &fabric_->sender(operation.peer, operation.peer * stride_ + offset_);
        return;
    }
    for (std::int32_t src = 0; src < ranks_; ++src) {
        auto& receiver = peer(src).receiver;
        if (receiver || src == own || (!any && src != operation.peer)) continue;
        receiver = &fabric_->receiver(src, own * stride_ + offset_);
    }
}

// Receives from `src` that no message has come for.
OperationList& Matching::posted(std::int32_t src) {
    return src == kAnySource ? any_ : peer(src).posted;
}

// The posted receive, the earliest, that a message is for.
Operation* Matching::first_match(std::int32_t src, std::int64_t tag) {
    auto* one = peer(src).posted.with_tag(tag);
    auto* any = any_.with_tag(tag);
    if (!one || !any) return one ? one : any;
    return one->number < any->number ? one : any;
}

// A message has come for a receive; the next one of its tag has its turn.
void Matching::take_posted(Operation& receive) {
    auto& receives = posted(receive.peer);
    receives.remove(receive);
    auto* next = receives.with_tag(receive.tag);
    if (next) next->watch.moved();
}

void Matching::post(Operation& operation) {
    operation.number = ++operations_;
    if (is_closed_ || fabric_->control().failed()) return end(operation, Status::kAborted);
    operation.is_send ? post_send(operation) : post_receive(operation);
}

void Matching::post_send(Operation& send) {
    if (send.peer == fabric_->rank()) return send_to_self(send);
    if (send.bytes >= kLeastPulled && !fabric_->is_remote(send.peer)) {
        send.heap = fabric_->in_heap(send.data, static_cast<std::size_t>(send.bytes));
    }
    auto& sends = peer(send.peer).sends;
    sends.push(send);
    if (sends.first() == &send && send_pieces(send.peer)) fabric_->control().beat();
}

void Matching::post_receive(Operation& receive) {
    if (take_unexpected(receive)) return;
    posted(receive.peer).push(receive);
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
        copy_bytes(store_unexpected(send.peer, send.tag, send.bytes), send.data,
                   static_cast<std::size_t>(send.bytes));
        return end(send, Status::kDone, send.peer, send.bytes);
    }
    take_posted(*receive);
    if (const auto expected = receive->bytes; expected != send.bytes) {
        mismatch(*receive, send.peer, send.bytes);
        return end(send, Status::kMismatched, send.peer, expected);
    }
    copy_bytes(receive->data, send.data, static_cast<std::size_t>(send.bytes));
    end(*receive, Status::kDone, send.peer, send.bytes);
    end(send, Status::kDone, send.peer, send.bytes);
}

std::byte* Matching::store_unexpected(std::int32_t src, std::int64_t tag, std::int64_t bytes) {
    std::unique_ptr<std::byte[]> data(new std::byte[static_cast<std::size_t>(bytes)]);
    auto& list = peer(src).unexpected;
    list.push_back({tag, bytes, std::move(data)});
    return list.back().data.get();
}

// Whether the first message for a receive is among those taken before, be it only in part.
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
        auto& coming = peer(src).coming;
        if (found->bytes != receive.bytes) {
            mismatch(receive, src, found->bytes);
        } else if (coming.is_active && coming.to == found->data.get()) {
            copy_bytes(receive.data, coming.to, static_cast<std::size_t>(coming.at));
            coming.to = receive.data;
            coming.receive = &receive;
            list.erase(found);
        } else {
            copy_bytes(receive.data, found->data.get(), static_cast<std::size_t>(found->bytes));
            end(receive, Status::kDone, src, found->bytes);
            list.erase(found);
        }
        return true;
    }
    return false;
}

// The operation is on no list any more.
void Matching::end(Operation& operation, Status status, std::int32_t rank, std::int64_t bytes) {
    operation.outcome.status = status;
    operation.outcome.rank = rank;
    operation.outcome.bytes = bytes;
    operation.is_done = true;
    if (operation.ticket) finished.push(operation);
}

void Matching::mismatch(Operation& receive, std::int32_t src, std::int64_t bytes) {
    end(receive, Status::kMismatched, src, bytes);
    fabric_->control().fail(Failure::kMismatched, src);
}

void Matching::abort(OperationList& list) {
    while (!list.empty()) {
        auto& operation = *list.first();
        list.remove(operation);
        end(operation, Status::kAborted);
    }
}

void Matching::close() {
    is_closed_ = true;
    abort_all();
}

void Matching::abort_all() {
    for (auto& peer : peers_) {
        abort(peer.sends);
        abort(peer.pulled);
        abort(peer.posted);
        auto* receive = std::exchange(peer.coming.receive, nullptr);
        if (receive) end(*receive, Status::kAborted);
    }
    abort(any_);
}

bool Matching::advance() {
    auto& control = fabric_->control();
    if (control.failed()) {
        abort_all();
        return false;
    }
    bool moved = fabric_->progress();
    const auto first = turn_;  // a receive from any source moves it on
    for (std::int32_t i = 0; i < ranks_; ++i) {
        const auto rank = first + i < ranks_ ? first + i : first + i - ranks_;
        moved |= send_pieces(rank);
        moved |= receive_pieces(rank);
    }
    if (moved) control.beat();
    return moved;
}

void Matching::look(const std::vector<Failure>& gone, Clock::time_point now) {
    look_for_gone(gone);
    if (!fabric_->control().failed()) look_for_stalled(now);
}

// A rank that is gone sends and consumes no more; what it sent before may still be there.
void Matching::look_for_gone(const std::vector<Failure>& gone) {
    auto& control = fabric_->control();
    std::int32_t silent = -1, others = 0;
    for (std::int32_t r = 0; r < ranks_; ++r) {
        if (r == fabric_->rank()) continue;
        auto& peer = this->peer(r);
        const auto how = gone[static_cast<std::size_t>(r)];
        const bool has_message = peer.receiver && peer.receiver->has_message();
        const bool receives = peer.coming.receive || !peer.posted.empty();
        if (how == Failure::kNone || has_message) {
            ++others;
        } else if (receives) {
            return control.fail(how, r);
        } else {
            silent = r;
        }
        if (how != Failure::kNone && (!peer.sends.empty() || peer.is_unread())) {
            return control.fail(how, r);
        }
    }
    if (silent < 0 || others > 0 || any_.empty()) return;
    control.fail(gone[static_cast<std::size_t>(silent)], silent);
}

void Matching::look_for_stalled(Clock::time_point now) {
    bool any_is_coming = false;
    for (std::int32_t r = 0; r < ranks_; ++r) {
        auto& peer = this->peer(r);
        if (stall_first(peer.sends, r, now) || stall_first(peer.pulled, r, now)) return;
        auto* receive = peer.coming.receive;
        if (receive && receive->watch.has_expired(now, receive->timeout_s)) {
            peer.coming.receive = nullptr;
            return stall(*receive, r);
        }
        const bool is_coming = std::exchange(peer.coming.has_moved, false);
        any_is_coming |= is_coming;
        if (stall_posted(peer.posted, is_coming, now)) return;
    }
    stall_posted(any_, any_is_coming, now);
}

// Sends move one after another: the time of the first one runs.
bool Matching::stall_first(OperationList& sends, std::int32_t dst, Clock::time_point now) {
    auto* send = sends.first();
    if (!send || !send->watch.has_expired(now, send->timeout_s)) return false;
    sends.remove(*send);
    stall(*send, dst);
    return true;
}

// The time of a receive doesn't run while another message from there is on its way (`is_coming`),
// nor before its turn: an earlier one takes the next message of this tag.
bool Matching::stall_posted(OperationList& receives, bool is_coming, Clock::time_point now) {
    for (auto* receive = receives.first(); receive; receive = receive->next) {
        if (is_coming) receive->watch.moved();
        if (!receive->watch.has_expired(now, receive->timeout_s)) continue;
        if (receives.with_tag(receive->tag) != receive) {
            receive->watch.moved();
            continue;
        }
        receives.remove(*receive);
        stall(*receive, receive->peer);
        return true;
    }
    return false;
}

// The operation ends, and in the next round, since the fabric has failed, all others.
void Matching::stall(Operation& operation, std::int32_t rank) {
    end(operation, Status::kStalled, rank);
    fabric_->control().fail(Failure::kStalled, fabric_->rank());
}

}  // namespace sley
