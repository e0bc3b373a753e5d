// All connections are made in one loop: no order of arrival can block it.
#include "network/handshake.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "network/introduction.hpp"

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGlance = std::chrono::milliseconds(100);
constexpr std::size_t kMostStrangers = 256;  // at once beside the ranks; then the oldest is closed

class Handshake {
public:
    Handshake(const TcpSite& site, const Meeting& meeting)
        : site_(site), meeting_(meeting), links_(site.remote.size()) {}

    std::vector<Socket> run();

private:
    void connect_to(std::int32_t peer);
    void wait();
    void admit();
    bool fits(const Introduction& candidate, const Hello& hello) const;
    void settle();
    std::vector<std::int32_t> absent_ranks() const;
    std::string name(std::int32_t rank) const;

    const TcpSite& site_;
    const Meeting& meeting_;
    std::vector<Socket> links_;
    std::vector<Introduction> candidates_;
    std::vector<bool> is_ready_;  // of each candidate, in this round
};

std::string Handshake::name(std::int32_t rank) const { return "rank " + std::to_string(rank); }

std::vector<Socket> Handshake::run() {
    const auto ranks = static_cast<std::int32_t>(site_.remote.size());
    for (auto r = site_.rank + 1; r < ranks; ++r) {
        if (site_.remote[static_cast<std::size_t>(r)]) connect_to(r);
    }
    for (;;) {
        const auto missing = absent_ranks();
        if (missing.empty()) return std::move(links_);
        if (Clock::now() >= meeting_.deadline) {
            std::string names;
            for (const auto r : missing) names += (names.empty() ? "" : ", ") + name(r);
            raise_network(ETIMEDOUT, names);
        }
        if (meeting_.glance) meeting_.glance();
        wait();
        for (std::size_t i = 0; i < candidates_.size(); ++i) {
            auto& candidate = candidates_[i];
            if (!is_ready_[i]) continue;
            candidate.advance(meeting_.secret,
                              [&](const Hello& hello) { return fits(candidate, hello); });
        }
        settle();
        admit();
    }
}

std::vector<std::int32_t> Handshake::absent_ranks() const {
    std::vector<std::int32_t> ranks;
    for (std::size_t r = 0; r < links_.size(); ++r) {
        if (site_.remote[r] && !links_[r].is_open()) ranks.push_back(static_cast<std::int32_t>(r));
    }
    return ranks;
}

// A peer's address has one line for each of its NICs: address, space, port.
void Handshake::connect_to(std::int32_t peer) {
    std::istringstream lines(meeting_.addresses[static_cast<std::size_t>(peer)]);
    std::vector<std::pair<std::string, std::uint16_t>> doors;
    std::string host;
    for (std::uint16_t port = 0; lines >> host >> port;) doors.emplace_back(host, port);
    if (doors.empty()) raise_network(EINVAL, name(peer) + " gave no address");
    const auto& [there, port] = doors[site_.nic % doors.size()];
    try {
        auto socket = Socket::connecting(site_.nics[site_.nic], SocketAddress::parse(there, port));
        candidates_.emplace_back(std::move(socket), true, site_.rank, peer);
    } catch (const std::system_error& error) {
        raise_network(error.code().value(), name(peer) + " at " + there);
    }
}

void Handshake::wait() {
    std::vector<pollfd> waiting;
    for (const auto& candidate : candidates_) waiting.push_back(candidate.waits_for());
    for (const auto& listener : site_.listeners) waiting.push_back({listener.fd(), POLLIN, 0});
    poll(waiting.data(), static_cast<nfds_t>(waiting.size()), static_cast<int>(kGlance.count()));
    is_ready_.clear();
    for (const auto& entry : waiting) is_ready_.push_back(entry.revents != 0);
}

void Handshake::admit() {
    for (const auto& listener : site_.listeners) {
        for (;;) {
            auto socket = listener.accept();
            if (!socket.is_open()) break;
            candidates_.emplace_back(std::move(socket), false, site_.rank);
        }
    }
    const auto is_stranger = [](const Introduction& c) { return !c.connects(); };
    auto strangers = std::count_if(candidates_.begin(), candidates_.end(), is_stranger);
    const auto most = kMostStrangers + site_.remote.size();
    for (; static_cast<std::size_t>(strangers) > most; --strangers) {
        candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_stranger));
    }
}

// Whether a hello is of a rank that this one still needs.
bool Handshake::fits(const Introduction& candidate, const Hello& hello) const {
    if (hello.peer != site_.rank) return false;
    if (candidate.connects()) return hello.rank == candidate.peer();
    return hello.rank >= 0 && hello.rank < site_.rank &&
           site_.remote[static_cast<std::size_t>(hello.rank)] &&
           !links_[static_cast<std::size_t>(hello.rank)].is_open();
}

// Keeps completed links; closes refused candidates, and silent ones.
void Handshake::settle() {
    using Step = Introduction::Step;
    const auto now = Clock::now();
    for (auto& candidate : candidates_) {
        const auto peer = candidate.peer();
        if (candidate.step() == Step::kDone) {
            links_[static_cast<std::size_t>(peer)] = candidate.take_socket();
        }
        if (candidate.step() != Step::kRefused || !candidate.connects()) continue;
        if (candidate.error() != 0) raise_network(candidate.error(), name(peer));
        raise_network(ECONNREFUSED, name(peer) + " did not answer as a rank of this job");
    }
    const auto is_over = [now](const Introduction& c) {
        return c.step() == Step::kDone || c.step() == Step::kRefused || c.is_silent(now);
    };
    const auto end = std::remove_if(candidates_.begin(), candidates_.end(), is_over);
    candidates_.erase(end, candidates_.end());
}

}  // namespace

std::string TcpSite::address() const {
    std::string lines;
    for (std::size_t i = 0; i < nics.size(); ++i) {
        lines += nics[i] + " " + std::to_string(listeners[i].local_port()) + "\n";
    }
    return lines;
}

std::vector<Socket> shake_hands(const TcpSite& site, const Meeting& meeting) {
    return Handshake(site, meeting).run();
}

}  // namespace sley
