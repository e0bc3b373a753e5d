// Links to all remote ranks, looked at with one system call.
#include "network/tcp.hpp"

#include <algorithm>
#include <stdexcept>

namespace sley {

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
