// All connections are made in one loop: no order of arrival can block it.
#include "network/handshake.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStrangerWait = std::chrono::seconds(5);  // for the greeting of a new connection
constexpr auto kGlance = std::chrono::milliseconds(100);
constexpr std::size_t kMostStrangers = 256;  // at once; then the oldest is closed

// The first message of both ends.
struct Greeting {
    std::array<char, 4> magic{'s', 'l', 'e', 'y'};
    std::uint32_t version = 1;  // of the frames
    std::int32_t rank = -1;
    std::int32_t peer = -1;
    Secret secret{};
};

static_assert(sizeof(Greeting) == 48, "the same on every machine");

enum class Step { kConnecting, kGreeting, kDone, kRefused };

// A socket that may become a link.
struct Candidate {
    Socket socket;
    std::int32_t peer;  // -1: unknown so far
    Step step;
    Clock::time_point since;
    Greeting greeting{};
    std::size_t greeting_bytes = 0;
};

class Handshake {
public:
    Handshake(const TcpSite& site, const Meeting& meeting)
        : site_(site), meeting_(meeting), links_(site.remote.size()) {}

    std::vector<Socket> run();

private:
    void connect_to(std::int32_t peer);
    void wait();
    void admit();
    void advance(Candidate& candidate);
    void send_greeting(Candidate& candidate);
    void read_greeting(Candidate& candidate);
    bool is_right(const Candidate& candidate) const;
    void settle();
    std::vector<std::int32_t> absent_ranks() const;
    std::string name(std::int32_t rank) const;

    const TcpSite& site_;
    const Meeting& meeting_;
    std::vector<Socket> links_;
    std::vector<Candidate> candidates_;
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
            if (is_ready_[i]) advance(candidates_[i]);
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
        candidates_.push_back({std::move(socket), peer, Step::kConnecting, Clock::now()});
    } catch (const std::system_error& error) {
        raise_network(error.code().value(), name(peer) + " at " + there);
    }
}

void Handshake::wait() {
    std::vector<pollfd> waiting;
    for (const auto& candidate : candidates_) {
        const bool connects = candidate.step == Step::kConnecting;
        const auto events = static_cast<short>(connects ? POLLOUT : POLLIN);
        waiting.push_back({candidate.socket.fd(), events, 0});
    }
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
            candidates_.push_back({std::move(socket), -1, Step::kGreeting, Clock::now()});
        }
    }
    const auto is_stranger = [](const Candidate& c) { return c.peer < 0; };
    auto strangers = std::count_if(candidates_.begin(), candidates_.end(), is_stranger);
    for (; static_cast<std::size_t>(strangers) > kMostStrangers; --strangers) {
        candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_stranger));
    }
}

void Handshake::advance(Candidate& candidate) {
    if (candidate.step == Step::kConnecting) {
        const int error = candidate.socket.take_error();
        if (error != 0) raise_network(error, name(candidate.peer));
        send_greeting(candidate);
        candidate.step = Step::kGreeting;
    } else {
        read_greeting(candidate);
    }
}

// The buffer of a new socket has room for a whole greeting.
void Handshake::send_greeting(Candidate& candidate) {
    Greeting greeting;
    greeting.rank = site_.rank;
    greeting.peer = candidate.peer;
    greeting.secret = meeting_.secret;
    const auto sent = ::send(candidate.socket.fd(), &greeting, sizeof greeting, kSendFlags);
    if (sent != static_cast<ssize_t>(sizeof greeting)) candidate.step = Step::kRefused;
}

void Handshake::read_greeting(Candidate& candidate) {
    auto* bytes = reinterpret_cast<char*>(&candidate.greeting);
    const auto more = recv(candidate.socket.fd(), bytes + candidate.greeting_bytes,
                           sizeof candidate.greeting - candidate.greeting_bytes, 0);
    if (more < 0 && (would_block(errno) || errno == EINTR)) return;
    if (more > 0) candidate.greeting_bytes += static_cast<std::size_t>(more);
    const auto magic = std::min(candidate.greeting_bytes, candidate.greeting.magic.size());
    const bool foreign = std::memcmp(bytes, Greeting{}.magic.data(), magic) != 0;
    const bool whole = candidate.greeting_bytes == sizeof candidate.greeting;
    if (more <= 0 || foreign || (whole && !is_right(candidate))) {
        candidate.step = Step::kRefused;
        return;
    }
    if (!whole) return;
    if (candidate.peer < 0) {
        candidate.peer = candidate.greeting.rank;
        send_greeting(candidate);
        if (candidate.step == Step::kRefused) return;
    }
    candidate.step = Step::kDone;
}

bool Handshake::is_right(const Candidate& candidate) const {
    const auto& greeting = candidate.greeting;
    if (!is_same(greeting.secret, meeting_.secret)) return false;
    if (greeting.version != Greeting{}.version || greeting.peer != site_.rank) return false;
    if (candidate.peer >= 0) return greeting.rank == candidate.peer;
    return greeting.rank >= 0 && greeting.rank < site_.rank &&
           site_.remote[static_cast<std::size_t>(greeting.rank)] &&
           !links_[static_cast<std::size_t>(greeting.rank)].is_open();
}

// Keeps completed links; closes refused and silent candidates.
void Handshake::settle() {
    const auto now = Clock::now();
    for (auto& candidate : candidates_) {
        if (candidate.step == Step::kDone) {
            links_[static_cast<std::size_t>(candidate.peer)] = std::move(candidate.socket);
        }
        if (candidate.step == Step::kRefused && candidate.peer > site_.rank) {
            raise_network(ECONNREFUSED, name(candidate.peer) + " did not accept the greeting");
        }
    }
    const auto is_over = [now](const Candidate& c) {
        return c.step == Step::kDone || c.step == Step::kRefused ||
               (c.peer < 0 && now - c.since > kStrangerWait);
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
