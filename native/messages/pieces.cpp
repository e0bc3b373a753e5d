// The pieces of messages: out of a send, and into the receive that they are for.
#include <algorithm>
#include <cstring>
#include <new>

#include "fabric/copy.hpp"
#include "messages/matching.hpp"

namespace sley {
namespace {

struct Header {
    std::int64_t tag, bytes;
};

// A peer is served for so long before the next one's turn, and data in the heap are cut so.
constexpr std::int64_t kBurst = std::int64_t{1} << 20;

}  // namespace

bool Matching::send_pieces(std::int32_t dst) {
    auto& to = peer(dst);
    bool moved = false;
    for (std::int64_t sent = 0; sent < kBurst && !to.sends.empty();) {
        auto& send = *to.sends.first();
        const auto bytes = send_piece(*to.sender, send);
        if (bytes == 0) break;
        sent += bytes;
        moved = true;
        send.watch.moved();
        if (send.sent < send.bytes) continue;
        to.sends.remove(send);
        if (send.heap == 0) {
            end(send, Status::kDone, dst, send.bytes);
        } else {
            send.last_piece = to.sender->next() - 1;
            to.pulled.push(send);
        }
    }
    while (!to.pulled.empty() && !to.is_unread()) {
        auto& send = *to.pulled.first();
        to.pulled.remove(send);
        end(send, Status::kDone, dst, send.bytes);
        moved = true;
    }
    return moved;
}

// Publishes the header or the next piece, if there is room. Returns the bytes that it took.
std::int64_t Matching::send_piece(FifoSender& sender, Operation& send) const {
    if (send.heap != 0 && send.sent >= 0) {
        if (!sender.has_envelope()) return 0;
        const auto piece = std::min(kBurst, send.bytes - send.sent);
        sender.publish({send.heap + static_cast<std::uint64_t>(send.sent),
                        static_cast<std::uint32_t>(piece), 0});
        send.sent += piece;
        return piece;
    }
    if (!sender.has_slot(slots_)) return 0;
    const auto slot = sender.take_slot();
    auto* to = sender.data(slot);
    std::int64_t bytes = 0;
    if (send.sent < 0) {
        const Header header{send.tag, send.bytes};
        std::memcpy(to, &header, sizeof header);
        bytes = sizeof header;
        send.sent = 0;
    }
    const auto piece = send.heap != 0 ? 0 : std::min(slot_bytes_ - bytes, send.bytes - send.sent);
    copy_bytes(to + bytes, send.data + send.sent, static_cast<std::size_t>(piece));
    bytes += piece;
    send.sent += piece;
    sender.publish({sender.where(slot), static_cast<std::uint32_t>(bytes), 0});
    return bytes;
}

bool Matching::receive_pieces(std::int32_t src) {
    auto& from = peer(src);
    if (!from.receiver) return false;
    bool moved = false;
    for (std::int64_t taken = 0; taken < kBurst;) {
        const bool is_wanted = from.coming.receive || !from.posted.empty() || !any_.empty();
        if (!is_wanted || !from.receiver->has_message()) break;
        const auto message = from.receiver->message();
        if (from.coming.is_active) {
            const bool is_pulled = (message.where & kInHeap) != 0;
            take_piece(src, fabric_->resolve(src, message.where), message.bytes, is_pulled);
        } else if (!begin_message(src)) {
            break;
        }
        taken += message.bytes;
        moved = true;
    }
    return moved;
}

// Takes the header and what is behind it. False if the message cannot be taken: it doesn't fit its
// receive, or there is no memory for a message that nobody has asked for.
bool Matching::begin_message(std::int32_t src) {
    auto& from = peer(src);
    const auto message = from.receiver->message();
    const auto* data = fabric_->resolve(src, message.where);
    Header header;
    std::memcpy(&header, data, sizeof header);
    auto* receive = first_match(src, header.tag);
    std::byte* to = nullptr;
    if (!receive) {
        try {
            to = store_unexpected(src, header.tag, header.bytes);
        } catch (const std::bad_alloc&) {
            return false;
        }
    } else {
        take_posted(*receive);
        if (receive->bytes != header.bytes) {
            mismatch(*receive, src, header.bytes);
            return false;
        }
        if (receive->peer == kAnySource) turn_ = (src + 1) % ranks_;
        to = receive->data;
    }
    from.coming = {true, true, receive, to, header.bytes, 0};
    take_piece(src, data + sizeof header, message.bytes - static_cast<std::int64_t>(sizeof header),
               false);
    return true;
}

// A large pulled message goes past the caches: with 32 MiB of them and 16 MiB of data, 20 GB/s
// instead of 14 were measured (with 4 MiB it lost). Staged ones lost at any size.
void Matching::take_piece(std::int32_t src, const std::byte* from, std::int64_t bytes,
                          bool is_pulled) {
    auto& coming = peer(src).coming;
    if (is_pulled && coming.bytes >= std::max(last_level_cache_bytes() / 2, kBurst)) {
        stream_bytes(coming.to + coming.at, from, static_cast<std::size_t>(bytes));
    } else {
        copy_bytes(coming.to + coming.at, from, static_cast<std::size_t>(bytes));
    }
    peer(src).receiver->release();
    coming.at += bytes;
    coming.has_moved = true;
    if (coming.receive) coming.receive->watch.moved();
    if (coming.at < coming.bytes) return;
    if (coming.receive) end(*coming.receive, Status::kDone, src, coming.bytes);
    coming = {};
}

}  // namespace sley
