// The stream of bytes of a socket as frames.
#include "network/link.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sley {
namespace {

// Frames in the queue. Messages stay in their FIFOs until there is room, so that credits, which go
// in front of them, have room always.
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

// Frames without a payload go before all messages of which nothing has been sent.
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
            send_error_ = errno;  // what the peer still had to say comes first
            queue_.clear();
        } else {
            blocked_ = static_cast<std::size_t>(done) < bytes;
            moved = forget_sent(static_cast<std::size_t>(done)) || moved;
        }
    }
    return moved;
}

// Whether there was payload in these bytes.
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
        if (static_cast<std::size_t>(done) < asked) break;  // there is no more
    }
    return moved;
}

void Link::take_read(std::size_t bytes) {
    const auto direct = std::min(left_, bytes);
    place_ += direct;
    left_ -= direct;
    end_ += bytes - direct;
}

// Takes the frames in the buffer; false for what no rank of this version sends.
bool Link::parse(FrameSink& sink) {
    for (;;) {
        if (place_ == nullptr) {
            if (end_ - start_ < sizeof header_) break;
            std::memcpy(&header_, buffer_.data() + start_, sizeof header_);
            start_ += sizeof header_;
            if (header_.kind != FrameKind::kData) {
                if (header_.bytes != 0 || !sink.arrived(peer_, header_)) return false;
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
        if (!sink.arrived(peer_, header_)) return false;
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
    sink.lost(peer_, kind);
}

}  // namespace sley
