// Links, each a socket's stream of bytes as frames; and the wire, which polls them in one system
// call.
#include "network/tcp.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace sley {
namespace {

// The most frames in the queue. Messages stay in their FIFOs until there is room, so that credits,
// which go before them, always have room.
constexpr std::size_t kMostData = 16, kMostFrames = 64;

Failure kind_of(int error) {
    switch (error) {
        case ETIMEDOUT:
        case EHOSTUNREACH:
        case ENETUNREACH:
        case ENETDOWN:
            return Failure::kCut;
        default:
            return Failure::kDied;
    }
}

iovec piece(const void* data, std::size_t bytes) { return {const_cast<void*>(data), bytes}; }

}  // namespace

bool Link::has_room(FrameKind kind) const {
    const auto most = kind == FrameKind::kData ? kMostData : kMostFrames;
    return is_open() && send_error_ == 0 && queue_.size() < most;
}

// Frames without a payload go before all messages that have not been sent in part.
void Link::post(const FrameHeader& header, const std::byte* payload) {
    const Frame frame{header, payload};
    if (header.kind == FrameKind::kData) {
        queue_.push_back(frame);
        return;
    }
    const auto is_data = [](const Frame& f) { return f.header.kind == FrameKind::kData; };
    const auto first = queue_.begin() + (sent_ > 0 ? 1 : 0);
    queue_.insert(std::find_if(first, queue_.end(), is_data), frame);
}

bool Link::send() {
    bool moved = false;
    while (!queue_.empty() && !blocked_) {
        std::array<iovec, 2 * kMostFrames> pieces;
        std::size_t count = 0, bytes = 0, skip = sent_;
        const auto add = [&](const void* data, std::size_t size) {
            const auto skipped = std::min(skip, size);
            skip -= skipped;
            if (size == skipped) return;
            pieces[count++] = piece(static_cast<const std::byte*>(data) + skipped, size - skipped);
            bytes += size - skipped;
        };
        for (const auto& frame : queue_) {
            add(&frame.header, sizeof frame.header);
            add(frame.payload, frame.header.bytes);
        }
        msghdr message{};
        message.msg_iov = pieces.data();
        message.msg_iovlen = count;
        const auto done = sendmsg(socket_.fd(), &message, kSendFlags);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && would_block(errno)) {
            blocked_ = true;
        } else if (done < 0) {
            send_error_ = errno;  // frames that the peer has sent are still received
            queue_.clear();
        } else {
            blocked_ = static_cast<std::size_t>(done) < bytes;
            moved = forget_sent(static_cast<std::size_t>(done)) || moved;
        }
    }
    return moved;
}

// Removes sent bytes from the queue; returns whether any were payload.
bool Link::forget_sent(std::size_t bytes) {
    sent_ += bytes;
    bool payload = false;
    auto frame = queue_.begin();
    for (; frame != queue_.end(); ++frame) {
        const auto size = sizeof frame->header + frame->header.bytes;
        payload = payload || (frame->header.bytes > 0 && sent_ > sizeof frame->header);
        if (sent_ < size) break;
        sent_ -= size;
    }
    queue_.erase(queue_.begin(), frame);
    return payload;
}

bool Link::receive(FrameSink& sink) {
    bool moved = false;
    while (is_open()) {
        const iovec pieces[2] = {piece(place_, left_),
                                 piece(buffer_.data() + end_, buffer_.size() - end_)};
        const auto asked = left_ + buffer_.size() - end_;
        const bool payload = left_ > 0;
        const auto done = payload ? readv(socket_.fd(), pieces, 2)
                                  : recv(socket_.fd(), pieces[1].iov_base, pieces[1].iov_len, 0);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && would_block(errno)) break;
        if (done <= 0) {
            const int error = done < 0 ? errno : 0;
            end(sink, kind_of(send_error_ != 0 ? send_error_ : error));
            break;
        }
        moved = moved || payload;
        take_read(static_cast<std::size_t>(done));
        if (!parse(sink)) end(sink, Failure::kCut);
        if (static_cast<std::size_t>(done) < asked) break;  // no more data
    }
    return moved;
}

void Link::take_read(std::size_t bytes) {
    const auto direct = std::min(left_, bytes);
    place_ += direct;
    left_ -= direct;
    end_ += bytes - direct;
}

// Takes the frames in the buffer; false for frames that no rank of this version sends.
bool Link::parse(FrameSink& sink) {
    for (;;) {
        if (place_ == nullptr) {
            if (end_ - start_ < sizeof header_) break;
            std::memcpy(&header_, buffer_.data() + start_, sizeof header_);
            start_ += sizeof header_;
            if (header_.kind != FrameKind::kData) {
                if (header_.bytes != 0 || !sink.accept(peer_, header_)) return false;
                continue;
            }
            place_ = sink.place(peer_, header_);
            if (place_ == nullptr) return false;
            left_ = header_.bytes;
        }
        const auto bytes = std::min(left_, end_ - start_);
        std::memcpy(place_, buffer_.data() + start_, bytes);
        start_ += bytes;
        place_ += bytes;
        left_ -= bytes;
        if (left_ > 0) break;
        place_ = nullptr;
        if (!sink.accept(peer_, header_)) return false;
    }
    std::memmove(buffer_.data(), buffer_.data() + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
    return true;
}

void Link::watch(FrameSink& sink, std::chrono::milliseconds limit) {
    if (is_open() && silence_.is_cut(socket_, limit)) end(sink, Failure::kCut);
}

void Link::end(FrameSink& sink, Failure kind) {
    socket_ = Socket();
    queue_.clear();
    sink.lose(peer_, kind);
}

TcpWire::TcpWire(std::int32_t rank, std::vector<bool> remote, std::vector<std::string> nics,
                 std::size_t nic, std::chrono::milliseconds silence)
    : silence_(silence), link_of_(remote.size(), -1) {
    if (nic >= nics.size()) throw std::invalid_argument("a NIC that the host doesn't have");
    site_.rank = rank;
    site_.remote = std::move(remote);
    site_.nic = nic;
    for (const auto& address : nics) site_.listeners.push_back(Socket::listener(address));
    site_.nics = std::move(nics);
}

void TcpWire::connect(const Meeting& meeting, FrameSink&) {
    auto sockets = shake_hands(site_, meeting);
    for (std::size_t r = 0; r < sockets.size(); ++r) {
        if (!sockets[r].is_open()) continue;
        sockets[r].tune();
        link_of_[r] = static_cast<std::int32_t>(links_.size());
        polled_.push_back({sockets[r].fd(), POLLIN, 0});
        links_.emplace_back(static_cast<std::int32_t>(r), std::move(sockets[r]));
    }
    site_.listeners.clear();
}

const Link* TcpWire::link(std::int32_t peer) const {
    const auto number = link_of_[static_cast<std::size_t>(peer)];
    return number < 0 ? nullptr : &links_[static_cast<std::size_t>(number)];
}

bool TcpWire::has_room(std::int32_t peer, FrameKind kind) const {
    const auto* to = link(peer);
    return to != nullptr && to->has_room(kind);
}

bool TcpWire::is_lost(std::int32_t peer) const {
    const auto* to = link(peer);
    return to == nullptr || !to->is_open();
}

void TcpWire::post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) {
    const auto number = static_cast<std::size_t>(link_of_[static_cast<std::size_t>(peer)]);
    links_[number].post(header, payload);
}

bool TcpWire::send() {
    bool moved = false;
    for (auto& link : links_) moved = link.send() || moved;
    return moved;
}

bool TcpWire::receive(FrameSink& sink) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        const auto blocked = links_[i].is_blocked() ? POLLOUT : 0;
        polled_[i].events = static_cast<short>(POLLIN | blocked);
    }
    if (poll(polled_.data(), static_cast<nfds_t>(polled_.size()), 0) <= 0) return false;
    bool moved = false;
    for (std::size_t i = 0; i < links_.size(); ++i) {
        const auto news = polled_[i].revents;
        if (news == 0) continue;
        if (news & POLLOUT) links_[i].unblock();
        if (news & ~POLLOUT) moved = links_[i].receive(sink) || moved;
        if (!links_[i].is_open()) polled_[i].fd = -1;
    }
    return moved;
}

void TcpWire::watch(FrameSink& sink) {
    for (std::size_t i = 0; i < links_.size(); ++i) {
        links_[i].watch(sink, silence_);
        if (!links_[i].is_open()) polled_[i].fd = -1;
    }
}

bool TcpWire::is_sent() const {
    return std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.is_sent(); });
}

bool TcpWire::is_delivered() {
    return std::all_of(links_.begin(), links_.end(), [](const Link& link) {
        return !link.is_open() || (link.is_sent() && link.socket().undelivered_bytes() == 0);
    });
}

}  // namespace sley
