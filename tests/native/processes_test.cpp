// Processes of a communicator, which are threads here: their meetings, what they say, the descriptors
// that they pass, and memory of all. Exits with 1 at the first difference.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "devices/descriptor_box.hpp"
#include "devices/links.hpp"
#include "devices/threads_device.hpp"

namespace sley::processes_test {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// Each process is a thread with one rank.
void in_processes(int processes, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int k = 0; k < processes; ++k) threads.emplace_back(what, k);
    for (auto& each : threads) each.join();
}

std::string rule_of(const std::function<void()>& refused) {
    try {
        refused();
    } catch (const Refusal& refusal) {
        return refusal.rule;
    } catch (const Told& told) {
        return "told " + told.refusals.at(0);
    }
    return "";
}

// Nobody who goes to an exchange, behind a meeting, waits there for one that has given up.
void check_meetings_take_place_for_all_or_none(int processes, unsigned seed) {
    std::vector<Barrier::Word> memory(Barrier::bytes(processes) / sizeof(Barrier::Word));
    std::atomic<int> exchanging{0};
    in_processes(processes, [&](int rank) {
        Barrier barrier(memory.data(), processes, {rank}, 60);
        std::mt19937 random(seed + static_cast<unsigned>(rank));
        const int last = static_cast<int>(random() % 40);
        const bool leaves = random() % 2 == 0;
        std::thread aborts;
        const auto found = rule_of([&] {
            for (int meeting = 1; meeting <= last || !leaves; ++meeting) {
                if (meeting == last + 1) aborts = std::thread([&] { barrier.give_up(0); });
                barrier.meet();
                ++exchanging;
                while (exchanging < processes * meeting) std::this_thread::yield();
            }
        });
        if (aborts.joinable()) aborts.join();
        expect(found == "K508" || found == "K514" || (leaves && found.empty()), "another rule");
        barrier.leave(0);
        barrier.wait_for_others();
    });
    expect(exchanging % processes == 0, "an exchange of some processes");
}

void check_who_is_late() {
    std::vector<Barrier::Word> memory(Barrier::bytes(3) / sizeof(Barrier::Word));
    in_processes(2, [&](int rank) {
        Barrier barrier(memory.data(), 3, {rank}, 0.01);
        try {
            barrier.meet();
        } catch (const Refusal& refusal) {
            // The other one may be late, too.
            const auto name = refusal.found.substr(refusal.found.size() - 2);
            expect(refusal.rule == std::string("K514") && name == "2)",
                   "the late process isn't named");
        }
        expect(barrier.is_given_up(), "the others go on without a late process");
    });
    Barrier late(memory.data(), 3, {2}, 60);
    expect(rule_of([&] { late.meet(); }) == "K508", "a late process isn't told");
}

void check_who_has_left_stays_away() {
    std::vector<Barrier::Word> memory(Barrier::bytes(2) / sizeof(Barrier::Word));
    Barrier first(memory.data(), 2, {0}, 0.01), second(memory.data(), 2, {1}, 0.01);
    first.leave(0);
    expect(rule_of([&] { first.meet(); }) == "K514", "a meeting after leaving");
    second.leave(0);
    expect(rule_of([&] { second.wait_for_others(); }).empty() && !second.is_given_up(),
           "a process that left is waited for");
}

class Meeting {
public:
    explicit Meeting(int members) : said_(static_cast<std::size_t>(members)) {}

    std::vector<std::string> gather(int member, const std::string& message) {
        std::unique_lock<std::mutex> held(lock_);
        said_[static_cast<std::size_t>(member)] = message;
        const auto turn = turn_;
        if (++come_ == said_.size()) {
            answers_ = said_;
            come_ = 0;
            ++turn_;
            changed_.notify_all();
        }
        changed_.wait(held, [&] { return turn_ != turn; });
        return answers_;
    }

private:
    std::mutex lock_;
    std::condition_variable changed_;
    std::vector<std::string> said_, answers_;
    std::size_t come_ = 0, turn_ = 0;
};

class MemberExchange : public Exchange {
public:
    MemberExchange(Meeting& meeting, int member) : meeting_(meeting), member_(member) {}

    std::vector<std::string> gather(const std::string& message) override {
        return meeting_.gather(member_, message);
    }
    // The rule.
    std::string refusal(const std::exception_ptr& problem) override {
        return rule_of([&] { std::rethrow_exception(problem); });
    }

private:
    Meeting& meeting_;
    int member_;
};

struct Member {
    Member(Meeting& meeting, int members, int number, Device& device, bool has_lines = true)
        : processes(std::make_shared<Processes>(
              members, std::make_shared<MemberExchange>(meeting, number))),
          memory(processes, {{number, &device}}, has_lines) {}

    std::shared_ptr<Processes> processes;
    MemoryExchange memory;
};

void check_memory_of_all() {
    constexpr int kMembers = 3;
    Meeting meeting(kMembers);
    in_processes(kMembers, [&](int rank) {
        ThreadsDevice device;
        Member own(meeting, kMembers, rank, device);
        const auto host = own.memory.allocate_host(64);
        const auto made = own.memory.allocate({8, 0, 24});
        const auto at = [](std::uintptr_t address) {
            return reinterpret_cast<std::atomic<int>*>(address);
        };
        at(host.address)[rank] = rank + 1;
        for (const auto address : made.found.at(&device)) at(address)[0] += 1 << rank;
        own.processes->meet();
        expect(at(host.address)[0] == 1 && at(host.address)[2] == 3, "the host's memory is shared");
        expect(at(made.own.at(rank).address)[0] == 7, "each rank's memory is all processes'");
        expect(made.seen[static_cast<std::size_t>(rank)] == made.found.at(&device), "what is seen");
        own.memory.detach();
        const std::size_t last = rank == 2 ? 9 : 8;
        expect(rule_of([&] { own.memory.allocate({8, 8, last}); }) ==
                   (rank == 2 ? "told R503" : "R503"),
               "other sizes");
        own.memory.allocate({8, 8, 8});
    });
}

class NoLines : public ThreadsDevice {
    std::string identity() const override { return "without lines"; }
};

class WithLines : public ThreadsDevice {
    bool carries_lines(const std::string& identity) const override {
        return identity != "without lines";
    }
};

void check_problems_are_told() {
    Meeting meeting(2);
    in_processes(2, [&](int rank) {
        NoLines without;
        WithLines with;
        auto& device = rank == 0 ? static_cast<Device&>(without) : with;
        Member own(meeting, 2, rank, device);
        expect(rule_of([&] { own.memory.allocate({8, 8}); }) ==
                   (rank == 0 ? "told K523" : "K523"),
               "both refuse, one by itself");
        Member words(meeting, 2, rank, device, false);
        words.memory.allocate({8, 8});
    });
}

// Of more than a box holds.
void check_descriptors_reach_all() {
    constexpr int kMembers = 16;
    std::vector<DescriptorBox> boxes(kMembers);
    const auto file_of = [](int fd) {
        struct stat status {};
        fstat(fd, &status);
        return status.st_ino;
    };
    ThreadsDevice device;
    const auto memory = device.allocate_shared(8);
    const Descriptor file(device.export_memory(memory));
    in_processes(kMembers, [&](int rank) {
        std::set<std::string> paths;
        std::set<int> others;
        for (int other = 0; other < kMembers; ++other) {
            if (other == rank) continue;
            others.insert(other);
            paths.insert(boxes[static_cast<std::size_t>(other)].path());
        }
        const auto found = boxes[static_cast<std::size_t>(rank)].pass({{rank, file.fd()}}, paths, others);
        expect(found.size() == others.size(), "a descriptor is missing");
        for (const auto& [_, each] : found) {
            expect(file_of(each.fd()) == file_of(file.fd()), "another file");
        }
    });
    const auto late = std::chrono::milliseconds(1);
    const DescriptorBox box;
    const auto pass = [&](const std::map<int, int>& own, const std::set<std::string>& paths) {
        return rule_of([&] { box.pass(own, paths, {1}, late); });
    };
    expect(pass({}, {}) == "K514", "a descriptor that nobody sends");
    expect(pass({{0, file.fd()}}, {"/nowhere/box"}) == "K514", "as between containers");
    // A process that has no number free for a descriptor is told at once.
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    const int next = dup(file.fd());
    close(next);
    const rlimit few{static_cast<rlim_t>(next), files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    try {
        box.pass({{1, file.fd()}}, {box.path()}, {1});
        expect(false, "a descriptor without a number");
    } catch (const Refusal& refusal) {
        expect(refusal.found.rfind("no number", 0) == 0, "another refusal");
    }
    setrlimit(RLIMIT_NOFILE, &files);
}

// A device whose memory others must map, and may be unable to.
class OwnMemory : public ThreadsDevice {
public:
    explicit OwnMemory(bool shows) : shows_(shows), memory_(allocate_shared(64)) {}

    std::uintptr_t address() const { return memory_.address; }
    Shown show(std::uintptr_t address, std::size_t bytes) const override {
        if (address == 0) throw Refusal("K519", "an array", "none");
        if (!shows_) return {address, bytes};
        return {memory_.address, 64, 1, "", export_memory(memory_)};
    }
    bool lends(std::uintptr_t, const Device&) const override { return false; }
    Resource attach(int descriptor, std::size_t bytes) override {
        auto made = ThreadsDevice::attach(descriptor, bytes);
        const auto count = attached;
        ++*count;
        made.owner = {nullptr, [count, owner = made.owner](void*) { --*count; }};
        return made;
    }
    Resource allocate(std::size_t bytes) override {
        if (bytes > most) throw Refusal("K507", "memory", "none");
        return ThreadsDevice::allocate(bytes);
    }

    std::shared_ptr<std::atomic<int>> attached = std::make_shared<std::atomic<int>>(0);
    std::size_t most = 1 << 20;

private:
    bool shows_;
    Resource memory_;
};

// The last of them can't be mapped by others.
void check_registered_memory() {
    constexpr int kMembers = 3;
    Meeting meeting(kMembers);
    in_processes(kMembers, [&](int rank) {
        OwnMemory device(rank < 2);
        const auto exchange = std::make_shared<MemberExchange>(meeting, rank);
        const auto memory = std::make_shared<MemoryExchange>(
            std::make_shared<Processes>(kMembers, exchange),
            std::map<int, Device*>{{rank, &device}}, false);
        const auto index = std::make_shared<MemoryIndex>(
            kMembers, std::vector<std::pair<int, Device*>>{{rank, &device}});
        Registrations registrations(memory, index);
        const auto at = device.address();
        *reinterpret_cast<int*>(at + 8) = rank + 1;
        const auto add = [&](std::uintptr_t address, std::size_t bytes) {
            const auto made = registrations.add({{rank, {address, bytes}}});
            const std::vector<int> others = rank == 0 ? std::vector{1, 2} : std::vector{0, 2};
            expect(made.readers.at(rank) == (rank < 2 ? others : std::vector<int>{}), "readers");
            return made.number;
        };
        const auto refused = [&](std::uint64_t number) {
            return rule_of([&] { registrations.remove(number); });
        };
        const auto first = add(at + 8, 8), second = add(at, 64);
        const auto row = index->number(rank, at + 8, 4);
        const auto* shifts = reinterpret_cast<const std::uint64_t*>(index->table(device)) +
                             std::size_t{row} * kMembers;
        for (const int other : index->readers(row)) {
            expect(*reinterpret_cast<int*>(at + 8 + shifts[other]) == rank + 1, "another's memory");
        }
        expect((row > 1) == (rank < 2), "what others read has a number");
        expect(*device.attached == (rank < 2 ? 1 : 2), "an allocation is mapped once");
        memory->processes().meet();
        expect(refused(rank == 1 ? second : first) == "R503", "different registrations");
        registrations.remove(first);
        expect(index->number(rank, at + 8, 4) == row && *device.attached > 0, "one is still there");
        registrations.remove(second);
        expect(index->number(rank, at, 4) == 1 && *device.attached == 0, "all have ended");
        expect(rank == 2 || shifts[rank] == layout::kHidden, "graphs still find it");
        expect(refused(second) == "R503", "one that has ended");
        const auto told = [&] { registrations.add({{rank, {rank == 1 ? 0 : at, 8}}}); };
        expect(rule_of(told) == (rank == 1 ? "K519" : "told K519"), "a refusal is told");
        registrations.remove(add(at, 8));  // the last row of the first table
        const auto table = index->table(device);
        device.most = rank == 0 ? 0 : device.most;
        expect(rule_of([&] { add(at, 8); }) == (rank == 0 ? "K507" : "told K507"), "no memory");
        device.most = 1 << 20;
        add(at, 8);
        expect(rank == 2 || index->table(device) != table, "a table that wasn't there is used");
        registrations.detach();
        expect(*device.attached == 0, "detached memory is mapped");
    });
}

// A rank of two, and what its links are made of.
struct LinkMember {
    LinkMember(Meeting& meeting, int rank, Device& device)
        : rank(rank), device(device),
          processes(std::make_shared<Processes>(2, std::make_shared<MemberExchange>(meeting, rank))),
          memory(std::make_shared<MemoryExchange>(
              processes, std::map<int, Device*>{{rank, &device}}, false)),
          abort(memory->allocate_host(Barrier::bytes(2))),
          words(reinterpret_cast<Barrier::Word*>(abort.address)),
          index(std::make_shared<MemoryIndex>(
              2, std::vector<std::pair<int, Device*>>{{rank, &device}})) {}

    std::unique_ptr<Links> links(const Links::Tables& tables) const {
        return std::make_unique<Links>(
            memory, index, std::make_shared<Barrier>(words, 2, std::vector<int>{rank}, 60),
            std::make_shared<CallOrder>(words), abort.address, std::vector<std::size_t>{64, 64},
            tables, std::vector<Links::Place>{{&device, {{rank}}, {}}}, 0);
    }

    int rank;
    Device& device;
    std::shared_ptr<Processes> processes;
    std::shared_ptr<MemoryExchange> memory;
    Resource abort;
    Barrier::Word* words;
    std::shared_ptr<MemoryIndex> index;
};

void check_a_rank_without_memory_for_plans_tells() {
    struct FullDevice : ThreadsDevice {
        Resource allocate(std::size_t bytes) override {
            if (is_full) throw Refusal("K507", "memory", "none");
            return ThreadsDevice::allocate(bytes);
        }
        bool is_full = false;
    };
    Meeting meeting(2);
    in_processes(2, [&](int rank) {
        FullDevice device;
        const LinkMember own(meeting, rank, device);
        device.is_full = rank == 1;
        const auto found = rule_of([&] {
            const auto links = own.links({std::make_shared<PlanTables>()});
            own.processes->meet();
        });
        expect(found == (rank == 0 ? "told K507" : "K507"), "the other one isn't told");
    });
}

void check_links_end_together() {
    Meeting meeting(2);
    std::vector<std::weak_ptr<int>> kept(2);
    in_processes(2, [&](int rank) {
        ThreadsDevice device;
        LinkMember own(meeting, rank, device);
        const auto made = own.links({});
        auto& links = *made;
        const auto& processes = own.processes;
        const auto memory_of_calls = std::make_shared<int>();
        links.keep(memory_of_calls);
        links.keep(own.abort.owner);
        kept[static_cast<std::size_t>(rank)] = memory_of_calls;
        expect(links.check() && links.mailboxes().count(rank) == 1, "links without a call");
        processes->meet();
        if (rank == 0) links.give_up(0);
        while (links.check()) std::this_thread::yield();
        expect(rule_of([&] { processes->meet(); }) == "K508", "a meeting after an abort");
        links.end();
        links.fail("why");
        expect(rule_of([&] { links.check(); }) == "R508", "a failed call is forgotten");
        links.close(true);
        expect(rule_of([&] { links.check_open(); }) == "R508", "closed links look open");
    });
    // One of the threads may have freed for both.
    for (const auto& each : kept) expect(each.expired(), "closed links keep memory");
}

int test(int, char**) {
    for (unsigned seed = 0; seed < 30; ++seed) check_meetings_take_place_for_all_or_none(3, seed);
    check_who_is_late();
    check_who_has_left_stays_away();
    check_memory_of_all();
    check_problems_are_told();
    check_descriptors_reach_all();
    check_registered_memory();
    check_a_rank_without_memory_for_plans_tells();
    check_links_end_together();
    return 0;
}

}  // namespace sley::processes_test
