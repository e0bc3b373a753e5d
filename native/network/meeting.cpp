#include "network/meeting.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "network/meeting_root.hpp"
#include "network/own_thread.hpp"

namespace sley {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kMostRanks = 65536;
constexpr auto kMostPatience = std::chrono::hours(24 * 365);  // points in time don't overflow
// How much longer ranks wait for the root's answer than it waits for them.
constexpr auto kGrace = std::chrono::seconds(2);
constexpr std::size_t kMostNew = 1024;  // connections without a proof; then the oldest is closed
constexpr auto kAcceptPause = Milliseconds(100);  // after a failure, such as no descriptors
constexpr auto kGlanceAtNew = std::chrono::seconds(1);
constexpr std::size_t kPlaceAt = 40;  // NCCL's own address lies before

// Where a root is: bytes 40 to 127 of an id.
struct RootPlace {
    std::array<char, 4> magic{'s', 'l', 'e', 'y'};
    std::uint16_t version = 1;  // of all that is said at meetings
    std::uint16_t port = 0;
    std::array<char, 48> address{};  // numeric, and zeros
    Secret secret{};
};

static_assert(sizeof(RootPlace) == std::tuple_size_v<UniqueId> - kPlaceAt, "it fills the rest");

RootPlace place_of(const UniqueId& id) {
    RootPlace place;
    std::memcpy(&place, &id[kPlaceAt], sizeof place);
    return place;
}

// Guards all that is said here. A child's copy is unlocked when it is forked.
std::mutex g_meeting_lock;

}  // namespace

// Serves the roots and the connections of this process, for as long as it lives.
struct MeetingThread {
    MeetingThread();

    // Lets the thread look at what has changed.
    void wake();
    // In a forked child: its copies of the sockets would hide that its parent has ended.
    void close_copies();

    std::condition_variable changed;
    std::vector<std::shared_ptr<MeetingRoot>> roots;
    std::vector<std::shared_ptr<MeetingLine>> lines;

private:
    void run();
    void admit(const std::shared_ptr<MeetingRoot>& root);
    Clock::time_point look();

    int wakes_[2];
    bool is_woken_ = false;
    Clock::time_point accepts_ = Clock::time_point::min();  // from when on
};

struct Participant::State {
    Milliseconds patience;
    int rank = -1;
    MeetingThread* thread = nullptr;  // of the process that has met
    std::shared_ptr<MeetingLine> line;
    std::uint64_t communicator = 0;                   // its number at the root
    std::vector<int> members;                         // their ranks in the id's; none for all
    std::map<std::vector<int>, std::uint64_t> turns;  // how often which members have met
    MeetingInbox inbox;
};

namespace {

// Never freed: the thread runs until the process has ended.
MeetingThread* g_meeting_thread = nullptr;

void in_forked_child() {
    if (g_meeting_thread != nullptr) g_meeting_thread->close_copies();
    g_meeting_thread = nullptr;
    g_meeting_lock.unlock();
}

// A forked child has no such thread, and gets one of its own at its first use.
MeetingThread& meeting_thread() {
    static const int failed = pthread_atfork([] { g_meeting_lock.lock(); },
                                             [] { g_meeting_lock.unlock(); }, in_forked_child);
    if (failed != 0) raise_network(failed, "pthread_atfork");
    if (g_meeting_thread == nullptr) g_meeting_thread = new MeetingThread;
    return *g_meeting_thread;
}

}  // namespace

MeetingThread::MeetingThread() {
    // A root has a socket for each rank of each communicator, and 1,024 is a usual limit. NCCL's own
    // root raises it, too.
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (pipe(wakes_) != 0) raise_network(errno, "pipe");
    for (const int fd : wakes_) fcntl(fd, F_SETFD, FD_CLOEXEC);
    try {
        own_thread([this] { run(); }).detach();
    } catch (const Refusal&) {
        for (const int fd : wakes_) close(fd);
        throw;
    }
}

void MeetingThread::wake() {
    if (!std::exchange(is_woken_, true)) (void)!write(wakes_[1], "", 1);
}

// The descriptors stay, for their owners to close.
void MeetingThread::close_copies() {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const auto& root : roots) dup2(nothing, root->listener.fd());
    for (const auto& line : lines) dup2(nothing, line->introduction.socket().fd());
    close(nothing);
}

void MeetingThread::run() {
    std::unique_lock<std::mutex> held(g_meeting_lock);
    for (;;) {
        const auto next = look();
        const auto seen_lines = lines;  // others may come while this waits
        const auto seen_roots = roots;
        const bool accepts = accepts_ <= Clock::now();
        std::vector<pollfd> waiting{{wakes_[0], POLLIN, 0}};
        for (const auto& line : seen_lines) waiting.push_back(line->waits_for());
        // Descriptors below 0 are not waited for.
        for (const auto& root : seen_roots) {
            waiting.push_back({accepts ? root->listener.fd() : -1, POLLIN, 0});
        }
        int timeout = -1;
        if (next != Clock::time_point::max()) {  // rounded up, so that it is late then
            const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
            timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000));
        }
        held.unlock();
        poll(waiting.data(), static_cast<nfds_t>(waiting.size()), timeout);
        held.lock();
        char byte;
        if (waiting[0].revents != 0 && read(wakes_[0], &byte, 1) == 1) is_woken_ = false;
        auto entry = waiting.begin() + 1;
        for (const auto& line : seen_lines) {
            if ((entry++)->revents != 0) line->serve();
        }
        for (const auto& root : seen_roots) {
            if ((entry++)->revents != 0) admit(root);
        }
        changed.notify_all();
    }
}

void MeetingThread::admit(const std::shared_ptr<MeetingRoot>& root) {
    try {
        for (;;) {
            auto socket = root->listener.accept();
            if (!socket.is_open()) break;
            lines.push_back(std::make_shared<MeetingLine>(
                MeetingLine{{std::move(socket), false, -1}, root->secret, root, {}, {}, {}, {}}));
        }
    } catch (const std::system_error&) {  // until descriptors are free again
        accepts_ = Clock::now() + kAcceptPause;
    }
    auto count = std::count_if(lines.begin(), lines.end(),
                               [](const auto& line) { return line->is_new(); });
    for (auto line = lines.begin(); static_cast<std::size_t>(count) > kMostNew; ++line) {
        if (!(*line)->is_new()) continue;
        (*line)->lose("too many connections");
        --count;
    }
}

// Closes what is over; returns when to look again.
Clock::time_point MeetingThread::look() {
    const auto now = Clock::now();
    auto next = accepts_ > now ? accepts_ : Clock::time_point::max();
    for (const auto& line : lines) {
        if (line->is_new()) {
            const bool is_late = !line->root->listener.is_open();
            if (is_late || line->introduction.is_silent(now)) line->lose("silence");
            next = std::min(next, now + kGlanceAtNew);
        }
        if (line->is_left && (line->out.empty() || !line->is_proven())) line->lose("it was left");
    }
    for (const auto& root : roots) next = std::min(next, root->look(now));
    const auto is_lost = [](const auto& line) { return line->lost.has_value(); };
    lines.erase(std::remove_if(lines.begin(), lines.end(), is_lost), lines.end());
    // A root is needed by its connections, which hold it, and by ranks to come.
    const auto is_over = [](const auto& root) {
        return !root->listener.is_open() && root.use_count() == 1;
    };
    roots.erase(std::remove_if(roots.begin(), roots.end(), is_over), roots.end());
    return next;
}

namespace {

// The settings are marked as agreed or offered.
std::string description(const RankDescription& one) {
    const auto& its = one.process;
    Texts texts{its.host, its.machine, its.host_name, its.pids, std::to_string(its.pid),
                std::to_string(its.started)};
    for (const auto& [name, value] : one.agreed) texts.insert(texts.end(), {"a", name, value});
    for (const auto& [name, value] : one.offered) texts.insert(texts.end(), {"o", name, value});
    return pack(texts);
}

RankDescription description_of(std::string_view packed) {
    const auto texts = unpack(packed);
    RankDescription one{{texts.at(0), texts.at(1), texts.at(2), texts.at(3),
                         std::stol(texts.at(4)), std::stoll(texts.at(5))}, {}, {}};
    for (std::size_t i = 6; i < texts.size(); i += 3) {
        (texts[i] == "a" ? one.agreed : one.offered)[texts.at(i + 1)] = texts.at(i + 2);
    }
    return one;
}

// Refuses the first difference from rank 0: all ranks find the same one.
void check_agreement(const std::vector<RankDescription>& ranks) {
    const auto& first = ranks[0].agreed;
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        const auto& other = ranks[r].agreed;
        const auto [one, two] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
        if (one == first.end() && two == other.end()) continue;
        const auto text = [](const auto& settings, const auto& at) {
            return at == settings.end() ? "no other setting" : at->first + " " + at->second;
        };
        throw Refusal("N604", text(first, one) + " on all ranks, as on rank 0",
                      text(other, two) + " on rank " + std::to_string(r) + " (" +
                          ranks[r].process.name() + ")");
    }
}

// A number for parts, of which no two have the same.
std::uint64_t number_of(std::initializer_list<std::string_view> parts) {
    const auto digest = sha256(parts);
    std::uint64_t number = 0;
    std::memcpy(&number, digest.data(), sizeof number);
    return number;
}

// Before a participant's first words.
void use(Participant::State& state, MeetingThread* thread, const std::shared_ptr<MeetingLine>& line,
         std::uint64_t communicator, int rank) {
    if (state.line != nullptr) throw Refusal("R508", "one meeting of a participant", "a second one");
    state.thread = thread;
    state.line = line;
    state.communicator = communicator;
    state.rank = rank;
    const bool is_here = thread == g_meeting_thread && line != nullptr && !state.inbox.end;
    if (is_here) line->inboxes[communicator] = &state.inbox;
}

// The answer to some words. Throws what `Participant`'s functions throw.
Texts ask(Participant::State& state, Said said, const Texts& texts) {
    std::unique_lock<std::mutex> held(g_meeting_lock);
    auto& [answer, end] = state.inbox;
    if (state.thread != nullptr && state.thread != g_meeting_thread) {
        throw Refusal("N623", "a communicator that is open",
                      "the communicator of the process that forked this one");
    }
    if (state.line == nullptr) throw Refusal("R508", "ranks that have met", "this rank has not");
    if (state.line->lost && !end) end = state.line->lost;
    if (end) throw Refusal(*end);
    state.line->post(said, state.communicator, pack(texts));
    if (!state.line->out.empty()) state.thread->wake();
    // At the last moment the root's own time is over, too: the grace is for its answer.
    state.thread->changed.wait_for(held, state.patience + kGrace,
                                   [&inbox = state.inbox] { return inbox.answer || inbox.end; });
    if (!answer && !end) end = no_root("none in time");
    if (!answer) throw Refusal(*end);
    return *std::exchange(answer, std::nullopt);
}

}  // namespace

void add_root(UniqueId& id) {
    const auto root = std::make_shared<MeetingRoot>();
    RootPlace place;
    try {
        const auto address = own_address();
        for (std::size_t at = 0; at < kSecretBytes; at += sizeof(Nonce)) {
            const auto nonce = make_nonce();
            std::memcpy(&root->secret[at], &nonce, sizeof nonce);
        }
        place.secret = root->secret;
        std::memcpy(place.address.data(), address.data(), address.size());
        const std::lock_guard<std::mutex> held(g_meeting_lock);
        root->listener = Socket::listener(address);
        place.port = root->listener.local_port();
        meeting_thread().roots.push_back(root);
        meeting_thread().wake();
    } catch (const std::system_error& error) {
        throw Refusal("N605", "a root for a unique id", error.what());
    }
    std::memcpy(&id[kPlaceAt], &place, sizeof place);
}

bool has_root(const UniqueId& id) {
    const auto place = place_of(id);
    if (place.magic != RootPlace{}.magic) return false;
    if (place.version == RootPlace{}.version) return true;
    throw Refusal("N604", "a unique id of version " + std::to_string(RootPlace{}.version),
                  "version " + std::to_string(place.version));
}

Refusal read_refusal(const std::string& packed) { return refusal_of(unpack(packed)); }

Participant::Participant(Milliseconds patience) : state_(new State{}) { set_patience(patience); }

void Participant::set_patience(Milliseconds patience) {
    state_->patience = std::min<Milliseconds>(patience, kMostPatience);
}

int Participant::rank() const { return state_->rank; }

Participant::~Participant() { leave(); }

std::vector<RankDescription> Participant::meet(const std::vector<UniqueId>& ids, int rank,
                                               int ranks, RankDescription own) {
    if (rank < 0 || rank >= ranks || ranks > kMostRanks) {
        throw Refusal("N603", "a rank from 0 on, below the number of ranks, which is at most " +
                                  std::to_string(kMostRanks),
                      "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    }
    if (!has_root(ids.at(0))) throw no_root("an id without one");
    const std::string_view all(reinterpret_cast<const char*>(ids.data()),
                               ids.size() * sizeof ids[0]);
    own.agreed["unique ids"] = std::to_string(number_of({all}));
    const auto place = place_of(ids[0]);
    const std::string address(place.address.data(),
                              strnlen(place.address.data(), place.address.size()));
    const bool is_v6 = address.find(':') != std::string::npos;
    try {
        const std::lock_guard<std::mutex> held(g_meeting_lock);
        auto& thread = meeting_thread();
        auto socket = Socket::connecting(is_v6 ? "::" : "0.0.0.0",
                                         SocketAddress::parse(address, place.port));
        const auto line = std::make_shared<MeetingLine>(
            MeetingLine{{std::move(socket), true, -1}, place.secret, {}, {}, {}, {}, {}});
        use(*state_, &thread, line, 0, rank);
        thread.lines.push_back(line);
        thread.wake();
    } catch (const std::system_error& error) {
        throw no_root(error.what() + std::string(" at ") + address);
    }
    return join(ranks, own, {});
}

std::vector<RankDescription> Participant::meet(Participant& parent,
                                               const std::vector<int>& members,
                                               RankDescription own) {
    auto& its = *parent.state_;
    const auto place = std::find(members.begin(), members.end(), its.rank);
    if (place == members.end()) {
        throw Refusal("N603", "rank " + std::to_string(its.rank) + " among the members",
                      name_ranks(members));
    }
    Texts origin;
    {
        const std::lock_guard<std::mutex> held(g_meeting_lock);
        origin.push_back(std::to_string(its.communicator));
        for (const int member : members) {
            const bool is_first = its.members.empty();
            state_->members.push_back(is_first ? member : its.members.at(std::size_t(member)));
            origin.push_back(std::to_string(state_->members.back()));
        }
        const auto turn = its.turns[members]++;
        const std::string_view ranks(reinterpret_cast<const char*>(members.data()),
                                     members.size() * sizeof members[0]);
        // No other communicator of this root has this number, and all members find it.
        const auto number = number_of({bytes_of(its.communicator), bytes_of(turn), ranks});
        use(*state_, its.thread, its.line, number, static_cast<int>(place - members.begin()));
    }
    return join(static_cast<int>(members.size()), own, origin);
}

std::vector<RankDescription> Participant::join(int ranks, const RankDescription& own,
                                               const std::vector<std::string>& origin) {
    Texts texts{std::to_string(state_->rank), std::to_string(ranks),
                std::to_string(state_->patience.count()), own.process.name(), description(own)};
    texts.insert(texts.end(), origin.begin(), origin.end());
    std::vector<RankDescription> found;
    for (const auto& each : ask(*state_, Said::kJoin, texts)) {
        found.push_back(description_of(each));
    }
    check_agreement(found);
    return found;
}

std::vector<int> Participant::members_of(int color, int key) {
    std::vector<std::pair<int, int>> members;  // key, rank
    int rank = 0;
    for (const auto& said : gather(std::to_string(color) + " " + std::to_string(key))) {
        const auto blank = said.find(' ');
        if (color >= 0 && std::stoi(said) == color) {
            members.emplace_back(std::stoi(said.substr(blank)), rank);
        }
        ++rank;
    }
    std::sort(members.begin(), members.end());
    std::vector<int> ranks;
    for (const auto& [_, each] : members) ranks.push_back(each);
    return ranks;
}

std::vector<std::string> Participant::gather(const std::string& message) {
    return ask(*state_, Said::kSay, {std::to_string(state_->patience.count()), message});
}

std::string Participant::refusal(const std::exception_ptr& problem) {
    try {
        std::rethrow_exception(problem);
    } catch (const Refusal& refusal) {
        return pack(refusal);
    } catch (const Told&) {
        return "";
    } catch (const std::exception& other) {
        return pack(Refusal("N608", "rank " + std::to_string(state_->rank) + " to continue",
                            other.what()));
    }
}

void Participant::leave() { end(false); }

void Participant::abort() { end(true); }

void Participant::end(bool aborts) {
    const std::lock_guard<std::mutex> held(g_meeting_lock);
    auto& end = state_->inbox.end;
    if (!end) end = Refusal("N608", "a communicator in use", "it was aborted or closed");
    if (state_->thread == nullptr || state_->thread != g_meeting_thread) return;
    if (state_->line) state_->line->leave(state_->communicator, aborts);
    state_->thread->wake();  // which wakes those that wait, too
}

bool Participant::has_reached_root() const {
    const std::lock_guard<std::mutex> held(g_meeting_lock);
    return state_->line != nullptr && state_->line->is_proven();
}

std::optional<Refusal> Participant::end() const {
    const std::lock_guard<std::mutex> held(g_meeting_lock);
    return state_->inbox.end;
}

}  // namespace sley
