// Meetings by a unique id, of ranks that are threads or processes of this program. Exits with 1 at the
// first difference.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "devices/processes.hpp"
#include "network/introduction.hpp"
#include "network/meeting.hpp"

namespace sley::meeting_test {

using Ids = std::vector<UniqueId>;

constexpr auto kLong = std::chrono::seconds(120);  // beyond any wait that ends well
constexpr auto kShort = std::chrono::milliseconds(50);

void expect(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}

// "N601: what was found", or "" if nothing is refused.
std::string refused(const std::function<void()>& what) {
    try {
        what();
    } catch (const Refusal& refusal) {
        return refusal.rule + ": " + refusal.found;
    }
    return "";
}

void expect_refused(const std::string& begin, const std::function<void()>& what) {
    const auto found = refused(what);
    expect(found.rfind(begin, 0) == 0, "expected '" + begin + "', found '" + found + "'");
}

void in_ranks(int ranks, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(what, rank);
    for (auto& each : threads) each.join();
}

UniqueId new_id() {
    UniqueId id{};
    id[3] = std::byte{7};  // NCCL's part
    add_root(id);
    expect(has_root(id) && id[3] == std::byte{7}, "an id with a root");
    return id;
}

RankDescription own(int rank) {
    return {ProcessIdentity::here(), {{"version", "1"}}, {{"rank", std::to_string(rank)}}};
}

// All words of all ranks, of several sizes; long ones don't fit into a socket's memory.
void exchange(Participant& rank, int number, int ranks, std::size_t most = 1000) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, most}) {
        const auto words = [&](int of) { return std::string(size, static_cast<char>('a' + of)); };
        const auto found = rank.gather(words(number));
        expect(found.size() == static_cast<std::size_t>(ranks), "words of all ranks");
        for (int of = 0; of < ranks; ++of) {
            expect(found[static_cast<std::size_t>(of)] == words(of), "the words of a rank");
        }
    }
}

std::ptrdiff_t descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

void check_ranks_meet(int ranks) {
    const auto id = new_id();
    in_ranks(ranks, [&](int rank) {
        Participant self(kLong);
        const auto found = self.meet({id}, rank, ranks, own(rank));
        for (int of = 0; of < ranks; ++of) {
            const auto& one = found.at(static_cast<std::size_t>(of));
            expect(one.offered.at("rank") == std::to_string(of) &&
                       one.process.host == ProcessIdentity::here().host && !one.process.is_gone(),
                   "a description");
        }
        exchange(self, rank, ranks, ranks == 1 ? 4'000'000 : 1000);
        Participant late(kLong);
        expect_refused("N605", [&] { late.meet({id}, rank, ranks, own(rank)); });
        exchange(self, rank, ranks);
    });
}

int connect_to(const UniqueId& id) {
    std::uint16_t port = 0;
    std::memcpy(&port, &id[46], sizeof port);
    const auto to = SocketAddress::parse(reinterpret_cast<const char*>(&id[48]), port);
    const int fd = socket(to.get()->sa_family, SOCK_STREAM, 0);
    expect(connect(fd, to.get(), to.length) == 0, "a stranger connects");
    return fd;
}

// Ids that don't lead to a root, and strangers at one that they lead to.
void check_strangers() {
    const auto id = new_id();
    auto other_version = id, other_secret = id, nowhere = id;
    other_version[44] ^= std::byte{1};
    other_secret[127] ^= std::byte{1};
    nowhere[40] ^= std::byte{1};
    const auto meet = [&](const UniqueId& at) { Participant(kLong).meet({at}, 0, 2, own(0)); };
    expect_refused("N604: version", [&] { meet(other_version); });
    expect_refused("N605: another answer", [&] { meet(other_secret); });
    expect_refused("N605: an id without", [&] { meet(nowhere); });
    const auto greeted = [&] {
        const int fd = connect_to(id);
        const Hello hello;
        Greeting heard;
        expect(write(fd, &hello, sizeof hello) == sizeof hello &&
                   recv(fd, &heard, sizeof heard, MSG_WAITALL) == sizeof heard,
               "a greeting");
        return std::pair(fd, heard);
    };
    const int oldest = greeted().first, foreign = connect_to(id), half = connect_to(id);
    const auto [false_one, heard] = greeted();
    const Hello hello;
    expect(write(foreign, "GET / HTTP/1.0\r\n\r\n", 18) == 18 && write(half, &hello, 9) == 9 &&
               write(false_one, &heard.proof, sizeof heard.proof) == sizeof heard.proof,
           "strangers speak");
    std::vector<int> crowd;  // of more than a root has patience for
    for (int i = 0; i < 1024; ++i) crowd.push_back(connect_to(id));
    char byte;
    for (const int fd : {foreign, false_one, oldest}) expect(read(fd, &byte, 1) <= 0, "it stays");
    in_ranks(2, [&](int rank) {
        Participant self(kLong);
        self.meet({id}, rank, 2, own(rank));
        exchange(self, rank, 2);
    });
    crowd.insert(crowd.end(), {oldest, foreign, half, false_one});
    for (const int fd : crowd) close(fd);
}

// All ranks get the same refusal; and who comes later gets it, too.
void check_ranks_that_differ() {
    const auto check = [](const std::string& rule, const std::function<void(Participant&, int)>& meet) {
        std::vector<std::string> found(3);
        in_ranks(3, [&](int rank) {
            Participant self(kLong);
            found[static_cast<std::size_t>(rank)] = refused([&] { meet(self, rank); });
        });
        expect(std::set<std::string>(found.begin(), found.end()).size() == 1, "other refusals");
        expect(found[0].rfind(rule, 0) == 0, rule + ", not " + found[0]);
    };
    const Ids ids{new_id(), new_id(), new_id(), new_id(), new_id()};
    check("N604: version 2 on rank 1 (process", [&](Participant& self, int rank) {
        auto description = own(rank);
        if (rank == 1) description.agreed["version"] = "2";
        self.meet({ids[0]}, rank, 3, description);
    });
    check("N604: unique ids ", [&](Participant& self, int rank) {
        self.meet({ids[1], ids[rank == 2 ? 3 : 2]}, rank, 3, own(rank));
    });
    check("N603: ", [&](Participant& self, int rank) {
        self.meet({ids[2]}, rank, 3 + rank, own(rank));
    });
    check("N603: process ", [&](Participant& self, int) { self.meet({ids[3]}, 2, 3, own(2)); });
    Participant alone(kShort);
    expect_refused("N601: no sign of rank 1", [&] { alone.meet({ids[4]}, 0, 2, own(0)); });
    const auto late = [&] {
        return refused([&] { Participant(kLong).meet({ids[4]}, 1, 2, own(1)); });
    };
    std::string found;  // the same, until the root listens no more
    while ((found = late()) == "N601: no sign of rank 1") {}
    expect(found.rfind("N605", 0) == 0, found);
    expect_refused("N603", [&] { Participant(kLong).meet({ids[4]}, 2, 2, own(2)); });
}

// In three, of which one rank is in none; over the parent's connections, which outlive it.
void check_splits() {
    const auto id = new_id();
    constexpr int kRanks = 7;
    in_ranks(kRanks, [&](int rank) {
        auto parent = std::make_unique<Participant>(kLong);
        parent->meet({id}, rank, kRanks, own(rank));
        const auto members = parent->members_of(rank == 6 ? -1 : rank % 3, -rank);
        const auto low = rank % 3;
        expect(members == (rank == 6 ? std::vector<int>{} : std::vector<int>{low + 3, low}), "members");
        if (rank == 6) return expect_refused("N603", [&] {
            Participant(kLong).meet(*parent, {1, 2}, own(rank));
        });
        const int number = rank < 3;
        Participant child(kLong), again(kLong), lonely(kShort);
        child.meet(*parent, members, own(rank));
        again.meet(*parent, members, own(rank));
        exchange(again, number, 2);
        exchange(child, number, 2);
        // Without rank 6, which has left the parent.
        expect_refused("N623: it has left", [&] { parent->gather(""); });
        Participant rest(kLong);
        rest.meet(*parent, {0, 1, 2, 3, 4, 5}, own(rank));
        exchange(rest, rank, 6);
        if (rank == 0 || rank == 2) {
            expect_refused("N601: no sign of rank",
                           [&] { lonely.meet(*parent, {0, 1, 2}, own(rank)); });
            const auto why = lonely.end();
            expect(why && why->rule == "N601", "an end that isn't known");
        }
        parent.reset();
        exchange(child, number, 2);
        exchange(rest, rank, 6);
    });
}

// An abort ends what waits, or what will; the others are told.
void check_aborts() {
    auto silent = new_id();
    const auto listener = Socket::listener(reinterpret_cast<const char*>(&silent[48]));
    const auto port = listener.local_port();
    std::memcpy(&silent[46], &port, sizeof port);
    Participant waiting(kLong);
    Socket line;
    std::thread aborts([&] {
        const auto has_come = [](int fd) {
            pollfd entry{fd, POLLIN, 0};
            return poll(&entry, 1, -1) == 1;
        };
        expect(has_come(listener.fd()), "a rank connects");
        line = listener.accept();
        expect(has_come(line.fd()), "a rank says hello");
        std::this_thread::sleep_for(kShort);  // by now nothing else wakes it
        waiting.abort();
    });
    const auto begin = std::chrono::steady_clock::now();
    expect_refused("N608", [&] { waiting.meet({silent}, 0, 1, own(0)); });
    expect(std::chrono::steady_clock::now() - begin < kLong / 2, "an abort that is noticed in the end");
    aborts.join();
    for (int round = 0; round < 10; ++round) {
        const auto id = new_id();
        Participant self(kLong);
        std::thread other([&] { self.abort(); });
        expect_refused("N608", [&] { self.meet({id}, 0, 2, own(0)); });
        other.join();
        Participant late(kShort);  // the first one may not have come before it gave up
        const auto found = refused([&] { late.meet({id}, 1, 2, own(1)); });
        expect(found == "N623: it has left" || found == "N601: no sign of rank 0", found);
    }
    const auto id = new_id();
    in_ranks(3, [&](int rank) {
        Participant self(kLong);
        self.meet({id}, rank, 3, own(rank));
        std::thread other([&] {
            if (rank == 1) self.abort();
        });
        expect_refused(rank == 1 ? "N608" : "N623", [&] {
            for (;;) self.gather("");
        });
        other.join();
        expect(self.end()->rule == (rank == 1 ? "N608" : "N623"), "an end for ever");
    });
}

// Ranks don't wait at meetings for a member that has aborted what they are made of.
void check_members_that_abort() {
    const auto id = new_id();
    in_ranks(3, [&](int rank) {
        Participant parent(kLong), child(kLong), again(kLong), others(kLong);
        parent.meet({id}, rank, 3, own(rank));
        const auto members = parent.members_of(0, rank);
        if (rank == 0) return parent.abort();
        for (auto* each : {&child, &again}) {
            expect_refused("N623: it has aborted what that is made of", [&] { each->meet(parent, members, own(rank)); });
        }
        others.meet(parent, {1, 2}, own(rank));
        exchange(others, rank - 1, 2);
    });
}

void check_refusals_are_told() {
    const auto id = new_id();
    in_ranks(2, [&](int rank) {
        const auto self = std::make_shared<Participant>(kLong);
        self->meet({id}, rank, 2, own(rank));
        Processes processes(2, self);
        expect(processes.gather({{rank, std::to_string(rank)}}) == std::vector<std::string>{"0", "1"},
               "gathered values");
        try {
            if (rank == 0) processes.telling([] { throw Refusal("K509", "one", "other", "at", "do"); });
            processes.gather({{rank, std::string()}});
            expect(false, "a refusal isn't told");
        } catch (const Refusal& refusal) {
            expect(rank == 0 && refusal.rule == "K509", "its own refusal");
        } catch (const Told& told) {
            const auto why = read_refusal(told.refusals.at(0));
            expect(why.rule == "K509" && why.expected == "one" && why.found == "other" &&
                       why.place == "at" && why.remedy == "do",
                   "another refusal");
        }
        exchange(*self, rank, 2);
    });
}

// This program as another process: `how` with an id, a rank and the number of ranks.
pid_t start(const char* how, const UniqueId& id, int rank, int ranks) {
    std::string digits;
    for (const auto byte : id) {
        const auto value = std::to_integer<int>(byte);
        for (const int half : {value >> 4, value & 15}) digits += static_cast<char>('a' + half);
    }
    const auto number = std::to_string(rank), count = std::to_string(ranks);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    execl("/proc/self/exe", "meeting", "meeting", how, digits.c_str(), number.c_str(), count.c_str(),
          nullptr);
    _exit(9);
}

int status_of(pid_t pid) {
    int status = 0;
    expect(waitpid(pid, &status, 0) == pid, "a process");
    return status;
}

// Several processes, and this one, which is the first rank.
void check_processes_meet() {
    const auto id = new_id();
    std::vector<pid_t> others;
    for (int rank = 1; rank < 4; ++rank) others.push_back(start("exchange", id, rank, 4));
    Participant self(kLong);
    self.meet({id}, 0, 4, own(0));
    exchange(self, 0, 4);
    for (const auto pid : others) expect(status_of(pid) == 0, "a rank fails");
}

// The end of a rank's process is known at once, though a child of it has its sockets.
void check_killed_process() {
    const auto id = new_id();
    const auto killed = start("killed", id, 2, 3);
    pid_t child = 0;
    ProcessIdentity identity;
    in_ranks(2, [&](int rank) {
        Participant self(kLong);
        const auto found = self.meet({id}, rank, 3, own(rank));
        const auto said = self.gather("").at(2);
        if (rank == 0) child = std::stoi(said), identity = found.at(2).process;
        expect_refused("N620: its connection has ended", [&] { self.gather(""); });
        expect_refused("N620: its connection has ended", [&] {
            Participant(kLong).meet(self, {0, 1, 2}, own(rank));
        });
        expect(self.end()->expected.find("rank 2 (process " + std::to_string(killed)) == 0, "who");
    });
    expect(WTERMSIG(status_of(killed)) == SIGKILL && identity.pid == killed, "the process");
    expect(identity.is_gone(), "a process that has ended");
    kill(child, SIGKILL);
}

// The process that has made the id ends.
void check_root_ends() {
    int ends[2];
    expect(pipe(ends) == 0, "a pipe");
    const pid_t maker = fork();
    if (maker == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "meeting", "meeting", "make", nullptr);
        _exit(9);
    }
    UniqueId id;
    expect(read(ends[0], id.data(), id.size()) == static_cast<ssize_t>(id.size()), "an id");
    Participant self(kLong), late(kLong);
    self.meet({id}, 0, 2, own(0));
    expect_refused("N605: its connection has ended", [&] { self.gather(""), self.gather(""); });
    expect_refused("N605", [&] { late.meet({id}, 0, 2, own(0)); });
    expect(status_of(maker) == 0, "the maker fails");
    for (const int fd : ends) close(fd);
}

// A forked child can't use what its parent has, and its end disturbs nobody.
void check_forks() {
    const auto id = new_id(), launched = new_id();
    in_ranks(2, [&](int rank) {
        Participant self(kLong);
        self.meet({id}, rank, 2, own(rank));
        self.gather("");
        const pid_t child = fork();
        if (child == 0) {
            bool holds = refused([&] { self.gather(""); }).rfind("N623: the communicator of", 0) == 0;
            self.abort();
            _exit(holds ? 0 : 1);
        }
        expect(status_of(child) == 0, "a child uses a communicator");
        exchange(self, rank, 2);
    });
#ifndef __SANITIZE_THREAD__  // which refuses threads in a forked child
    // Ranks that a launcher forks after it has made the id.
    const auto rank_of = [&](int rank) {
        Participant self(kLong);
        self.meet({launched}, rank, 2, own(rank));
        exchange(self, rank, 2);
    };
    const pid_t child = fork();
    if (child == 0) rank_of(1), _exit(0);
    rank_of(0);
    expect(status_of(child) == 0, "a forked rank");
#endif
}

int as_process(const std::string& how, char** arguments) {
    UniqueId id{};
    if (how == "make") {
        add_root(id);
        expect(write(STDOUT_FILENO, id.data(), id.size()) == static_cast<ssize_t>(id.size()), "write");
        Participant self(kLong);
        self.meet({id}, 1, 2, own(1));
        self.gather("");
        _exit(0);
    }
    for (std::size_t i = 0; i < id.size(); ++i) {
        const auto half = [&](std::size_t at) { return arguments[2][at] - 'a'; };
        id[i] = static_cast<std::byte>(half(2 * i) << 4 | half(2 * i + 1));
    }
    const int rank = std::atoi(arguments[3]), ranks = std::atoi(arguments[4]);
    Participant self(kLong);
    self.meet({id}, rank, ranks, own(rank));
    if (how == "exchange") exchange(self, rank, ranks), _exit(0);
    const pid_t child = fork();
    if (child == 0) {
        for (const int fd : {0, 1, 2}) close(fd);
        alarm(300);  // if the test fails
        for (;;) pause();
    }
    self.gather(std::to_string(child));
    kill(getpid(), SIGKILL);
    return 1;
}

int test(int count, char** arguments) {
    if (count > 1) return as_process(arguments[1], arguments);
    const auto before = descriptors();
    for (const int ranks : {1, 2, 16}) check_ranks_meet(ranks);
    // The thread's pipe remains.
    while (descriptors() > before + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check_strangers();
    check_ranks_that_differ();
    check_splits();
    check_aborts();
    check_members_that_abort();
    check_refusals_are_told();
    check_processes_meet();
    check_killed_process();
    check_root_ends();
    check_forks();
    return 0;
}

}  // namespace sley::meeting_test
