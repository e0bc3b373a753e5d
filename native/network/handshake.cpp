// All connections are made in one loop: no order of arrival can block it.
#include "network/handshake.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStrangerWait = std::chrono::seconds(5);  // for the hello of a new connection
constexpr auto kGlance = std::chrono::milliseconds(100);
constexpr std::size_t kMostStrangers = 256;  // at once beside the ranks; then the oldest is closed

// The first message of both ends.
struct Hello {
    std::array<char, 4> magic{'s', 'l', 'e', 'y'};
    std::uint32_t version = 2;  // of the handshake and the frames
    std::int32_t rank = -1;
    std::int32_t peer = -1;
    Nonce nonce{};
};

// What each end gets from the other: its hello, and the proof that it knows the secret.
struct Greeting {
    Hello hello;
    Digest proof{};
};

static_assert(sizeof(Greeting) == 64, "the same on every machine");

// The proof of one end. who: the end, so that nobody can send an end its own proof.
Digest prove(const Secret& secret, std::string_view who, const Hello& connects,
             const Hello& accepts) {
    return hmac(secret, {who, bytes_of(connects), bytes_of(accepts)});
}

enum class Step { kConnecting, kHello, kProof, kDone, kRefused };

// A socket that may become a link.
struct Candidate {
    Socket socket;
    std::int32_t peer;  // -1: whoever has connected, and hasn't proven anything yet
    Step step;
    Clock::time_point since;
    bool connects;
    Hello own{};
    Greeting theirs{};
    std::size_t bytes = 0;  // of `theirs` so far
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
    void send(Candidate& candidate, std::string_view bytes);
    void say_hello(Candidate& candidate, std::int32_t peer);
    void read(Candidate& candidate);
    bool fits(const Candidate& candidate) const;
    Digest proof(const Candidate& candidate, bool of_connecting) const;
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
        candidates_.push_back({std::move(socket), peer, Step::kConnecting, Clock::now(), true});
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
            candidates_.push_back({std::move(socket), -1, Step::kHello, Clock::now(), false});
        }
    }
    const auto is_stranger = [](const Candidate& c) { return c.peer < 0; };
    auto strangers = std::count_if(candidates_.begin(), candidates_.end(), is_stranger);
    const auto most = kMostStrangers + site_.remote.size();
    for (; static_cast<std::size_t>(strangers) > most; --strangers) {
        candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_stranger));
    }
}

void Handshake::advance(Candidate& candidate) {
    if (candidate.step != Step::kConnecting) return read(candidate);
    const int error = candidate.socket.take_error();
    if (error != 0) raise_network(error, name(candidate.peer));
    candidate.step = Step::kHello;
    say_hello(candidate, candidate.peer);
    send(candidate, bytes_of(candidate.own));
}

void Handshake::say_hello(Candidate& candidate, std::int32_t peer) {
    candidate.own.rank = site_.rank;
    candidate.own.peer = peer;
    candidate.own.nonce = make_nonce();
}

// The buffer of a new socket has room for all that the handshake sends.
void Handshake::send(Candidate& candidate, std::string_view bytes) {
    const auto sent = ::send(candidate.socket.fd(), bytes.data(), bytes.size(), kSendFlags);
    if (sent != static_cast<ssize_t>(bytes.size())) candidate.step = Step::kRefused;
}

Digest Handshake::proof(const Candidate& candidate, bool of_connecting) const {
    const auto& theirs = candidate.theirs.hello;
    return prove(meeting_.secret, of_connecting ? "connects" : "accepts",
                 candidate.connects ? candidate.own : theirs,
                 candidate.connects ? theirs : candidate.own);
}

// Takes what has come, and answers a whole hello and a whole proof.
void Handshake::read(Candidate& candidate) {
    auto& theirs = candidate.theirs;
    auto* bytes = reinterpret_cast<char*>(&theirs);
    const auto more = recv(candidate.socket.fd(), bytes + candidate.bytes,
                           sizeof theirs - candidate.bytes, 0);
    if (more < 0 && (would_block(errno) || errno == EINTR)) return;
    if (more > 0) candidate.bytes += static_cast<std::size_t>(more);
    const auto magic = std::min(candidate.bytes, theirs.hello.magic.size());
    if (more <= 0 || std::memcmp(bytes, Hello{}.magic.data(), magic) != 0) {
        candidate.step = Step::kRefused;
        return;
    }
    if (candidate.step == Step::kHello && candidate.bytes >= sizeof theirs.hello) {
        candidate.step = fits(candidate) ? Step::kProof : Step::kRefused;
        if (candidate.step == Step::kProof && !candidate.connects) {
            say_hello(candidate, theirs.hello.rank);
            send(candidate, bytes_of(Greeting{candidate.own, proof(candidate, false)}));
        }
    }
    if (candidate.step != Step::kProof || candidate.bytes < sizeof theirs) return;
    const bool is_right = is_same(theirs.proof, proof(candidate, !candidate.connects));
    candidate.step = is_right ? Step::kDone : Step::kRefused;
    if (is_right && candidate.connects) send(candidate, bytes_of(proof(candidate, true)));
    if (is_right) candidate.peer = theirs.hello.rank;
}

// Whether a hello is of a rank that this one still needs.
bool Handshake::fits(const Candidate& candidate) const {
    const auto& hello = candidate.theirs.hello;
    if (hello.version != Hello{}.version || hello.peer != site_.rank) return false;
    if (candidate.connects) return hello.rank == candidate.peer;
    return hello.rank >= 0 && hello.rank < site_.rank &&
           site_.remote[static_cast<std::size_t>(hello.rank)] &&
           !links_[static_cast<std::size_t>(hello.rank)].is_open();
}

// Keeps completed links; closes refused candidates, and those that don't even say hello. A rank
// that has said it may be stopped for a while.
void Handshake::settle() {
    const auto now = Clock::now();
    for (auto& candidate : candidates_) {
        if (candidate.step == Step::kDone) {
            links_[static_cast<std::size_t>(candidate.peer)] = std::move(candidate.socket);
        }
        if (candidate.step == Step::kRefused && candidate.peer > site_.rank) {
            raise_network(ECONNREFUSED,
                          name(candidate.peer) + " did not answer as a rank of this job");
        }
    }
    const auto is_over = [now](const Candidate& c) {
        return c.step == Step::kDone || c.step == Step::kRefused ||
               (c.peer < 0 && c.step == Step::kHello && now - c.since > kStrangerWait);
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
