// Ranks on GPUs without Python, over the stand-in for the driver: ranks are threads or processes of this
// program. Exits with 1 at the first difference.
//
// Arguments: a scenario, the folder of tables and kernels, the version of the tables, and what the
// scenario says.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "devices/device_rank.hpp"

namespace sley::device_rank_test {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);  // beyond any wait that ends well
constexpr auto kSoon = std::chrono::seconds(20);      // for what mustn't take so long
constexpr int kFloat32 = 2, kInt32 = 6, kSum = 0;     // numbers of engine/reduce.hpp

constexpr std::size_t kMostCount = 40000;  // of floats of a part

RankSettings g_settings;
std::vector<std::string> g_arguments;
std::function<void()> g_met;  // called behind the ranks' first meeting

void expect(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(1);
}

// A function by which tests steer the stand-in.
template <class Function>
Function* fake(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function*>(dlsym(driver, name));
}

long long set(const char* name, long long value) {
    return fake<long long(const char*, long long)>("fake_set")(name, value);
}

// The bytes that a device has given away; -1 is the host.
long long used(int device) { return fake<long long(int)>("fake_used")(device); }

// "K506: expected ..., found ...", or "" if nothing is refused.
std::string refused(const std::function<void()>& what) {
    try {
        what();
    } catch (const Refusal& refusal) {
        return refusal.what();
    }
    return "";
}

void expect_in(const std::string& words, const std::string& text) {
    expect(text.find(words) != std::string::npos, "'" + words + "' isn't in '" + text + "'");
}

CudaDevice& device_of(int ordinal) {
    static std::vector<std::unique_ptr<CudaDevice>> devices = [] {
        std::vector<std::unique_ptr<CudaDevice>> made;
        for (int k = 0; k < CudaDevice::count(); ++k) made.emplace_back(new CudaDevice(k));
        return made;
    }();
    return *devices.at(static_cast<std::size_t>(ordinal));
}

// A rank with data of its own.
struct Member {
    Member(const UniqueId& id, int rank, int ranks, CudaDevice& device, const RankSettings& settings,
           std::shared_ptr<Participant> by = std::make_shared<Participant>(kPatience))
        : rank(rank), ranks(ranks), device(device), participant(std::move(by)) {
        // Before any kernel runs: an allocation waits for kernels, which may wait for this rank's.
        for (auto* const each : {&input, &output}) {
            *each = device.allocate(kMostCount * static_cast<std::size_t>(ranks) * sizeof(float));
        }
        stream = device.stream();
        const auto all = participant->meet({id}, rank, ranks,
                                           {ProcessIdentity::here(), {}, DeviceRank::offer(device)});
        if (g_met) g_met();
        opened = std::make_unique<DeviceRank>(participant, rank, all, device, settings);
    }

    // Which of the floats it has.
    static float value(int rank, std::size_t at) { return static_cast<float>(rank + 1 + at % 5); }

    StartOutcome start(const std::string& name, int root, std::size_t count) {
        for (const auto& row : opened->tables().rows) {
            if (row.name != name || row.call.root != root) continue;
            const auto parts = [&](int has) { return has ? static_cast<std::size_t>(ranks) : 1; };
            const auto from = count * parts(row.kind.input_parts);
            const auto to = count * parts(row.kind.output_parts);
            std::vector<float> data(from);
            for (std::size_t k = 0; k < from; ++k) data[k] = value(rank, k);
            device.write(input.address, data.data(), from * sizeof(float));
            RankBuffers buffers{rank, {input.address, output.address},
                                {from * sizeof(float), to * sizeof(float)}};
            CallValues values;
            values.item_bytes = sizeof(float);
            values.count = static_cast<std::int64_t>(count);
            const int type = row.kind.reduces ? kFloat32 : kInt32;
            return opened->calls().start(row.call, {type, kSum, false}, std::max(from, to) * sizeof(float),
                                         values, buffers, stream.address, nullptr);
        }
        expect(false, "no row " + name);
        return {};
    }

    std::vector<float> outcome(std::size_t count) {
        device.synchronize(stream.address);
        std::vector<float> found(count);
        device.read(found.data(), output.address, count * sizeof(float));
        return found;
    }

    // Calls of several kinds and sizes.
    void check_calls() {
        for (const std::size_t count : {std::size_t{3}, std::size_t{2000}, kMostCount}) {
            expect(start("all_reduce", 0, count) == StartOutcome::kStarted, "no all_reduce");
            auto found = outcome(count);
            for (std::size_t k = 0; k < count; ++k) expect(found[k] == sum(k), "a wrong sum");
            expect(start("reduce_scatter", 0, count) == StartOutcome::kStarted, "no reduce_scatter");
            found = outcome(count);
            const auto first = static_cast<std::size_t>(rank) * count;
            for (std::size_t k = 0; k < count; ++k) {
                expect(found[k] == sum(first + k), "a wrong part of a sum");
            }
            expect(start("broadcast", 1, count) == StartOutcome::kStarted, "no broadcast");
            found = outcome(count);
            for (std::size_t k = 0; k < count; ++k) expect(found[k] == value(1, k), "wrong data");
        }
        expect(!opened->error(), "an error of calls that are right");
    }

    float sum(std::size_t at) const {
        float all = 0;
        for (int r = 0; r < ranks; ++r) all += value(r, at);
        return all;
    }

    int rank, ranks;
    CudaDevice& device;
    std::shared_ptr<Participant> participant;
    std::unique_ptr<DeviceRank> opened;
    Resource stream, input, output;
};

UniqueId new_id() {
    UniqueId id{};
    add_root(id);
    return id;
}

// Each rank is a thread.
void in_ranks(int ranks, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(what, rank);
    for (auto& each : threads) each.join();
}

// What the opening of ranks refuses; `change` their settings.
std::vector<std::string> refusals(int ranks,
                                  const std::function<void(int, RankSettings&)>& change = {}) {
    const auto id = new_id();
    const int devices = CudaDevice::count();
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    in_ranks(ranks, [&](int rank) {
        auto settings = g_settings;
        if (change) change(rank, settings);
        found[static_cast<std::size_t>(rank)] = refused([&] {
            Member member(id, rank, ranks, device_of(rank % devices), settings);
            member.opened->close(true);
        });
    });
    return found;
}

void expect_all(const std::string& words, const std::vector<std::string>& found) {
    for (const auto& each : found) expect_in(words, each);
}

// The number of ranks, which are on as many devices as there are.
void check_calls() {
    const int ranks = std::stoi(g_arguments.at(0)), devices = CudaDevice::count();
    for (int time = 0; time < 2; ++time) {
        const auto id = new_id();
        in_ranks(ranks, [&](int rank) {
            Member member(id, rank, ranks, device_of(rank % devices), g_settings);
            member.check_calls();
            member.opened->close(true);
            member.opened->close(true);
        });
        for (int device = -1; device < devices; ++device) {
            expect(used(device) == 0, "closed ranks keep memory");
        }
    }
}

// A folder with other tables. In each rank the same, though only one can't run.
void check_refusals() {
    expect_all("", refusals(2));
    const auto none = refusals(2, [](int rank, RankSettings& own) {
        if (rank == 1) own.tables = "/nowhere";
    });
    expect_all("N653: expected tables for 2 ranks on such devices, found /nowhere/2-ranks", none);
    expect_all(".tables: No such file", none);
    expect_all("N653: expected kernels of this version", refusals(2, [](int rank, RankSettings& own) {
                   if (rank == 0) own.kernels = "/nowhere";
               }));
    expect_all("F425: expected tables of sley 0.0", refusals(2, [](int rank, RankSettings& own) {
                   if (rank == 0) own.version = "0.0";
               }));
    const auto other = refusals(2, [](int rank, RankSettings& own) {
        if (rank == 1) own.tables = g_arguments.at(0);
    });
    expect_all("N604: expected tables 2-ranks", other);
    expect_all(" on rank 1", other);
    set("peer_access", 0);
    expect_all("K509: ", refusals(2));
    set("peer_access", 1);
    const auto memory = set("memory_bytes", 1 << 20);
    expect_all("K507: expected cuMemCreate to succeed, allocating ", refusals(2));
    set("memory_bytes", memory);
    expect_all("", refusals(2));
}

// Words of the refusal of two ranks.
void check_refusal() { expect_all(g_arguments.at(0), refusals(2)); }

void soon(const std::string& what, const std::function<bool()>& holds) {
    for (const auto until = Clock::now() + kSoon; !holds();) {
        expect(Clock::now() < until, what);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Rank 0's kernels wait for a call that rank 1 doesn't make.
void check_failed_calls() {
    for (const bool in_time : {true, false}) {
        const auto id = new_id();
        std::atomic<bool> is_started{false};
        std::atomic<int> told{0};
        in_ranks(2, [&](int rank) {
            auto settings = g_settings;
            if (!in_time) settings.timeout_s = 0.05;
            Member member(id, rank, 2, device_of(rank), settings);
            auto& opened = *member.opened;
            if (rank == 0) {
                expect(member.start("all_reduce", 0, 100) == StartOutcome::kStarted, "no start");
                is_started = true;
            }
            soon("the start", [&] { return is_started.load(); });
            if (in_time && rank == 1) {
                opened.give_up(Refusal("N608", "a communicator in use", "it was aborted"));
                opened.give_up(Refusal("N620", "a later reason", ""));
            }
            soon("an error", [&] { return opened.error().has_value(); });
            const std::string found = opened.error()->what();
            ++told;
            soon("the others' errors", [&] { return told == 2; });  // before one leaves
            if (in_time) {
                expect_in(rank == 1 ? "found it was aborted" : "N608: expected calls that all ranks "
                                                               "make, found rank 1 gave up",
                          found);
            } else if (rank == 0) {
                expect_in("K508: expected no instruction to wait longer than 0.05 s in a call of 400 "
                          "bytes a block of ",
                          found);
                expect_in("found rank 0, block ", found);
                expect_in("from rank 1", found);
            } else {
                expect_in("K508: ", found);
            }
            expect(member.start("all_reduce", 0, 100) == StartOutcome::kGivenUp, "a later call");
            opened.close(true);
            expect(opened.error()->what() == found, "the failure changes");
        });
    }
}

// A process of this program with a rank; it meets the others by an id.
class Child {
public:
    Child(const std::string& scenario, const UniqueId& id, int rank, int ranks,
          const std::string& further = {}) {
        std::string hex;
        for (const auto byte : id) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
            hex += digits;
        }
        std::vector<std::string> words{"device_rank", "device_rank", scenario, g_settings.tables,
                                       g_settings.version, hex, std::to_string(rank),
                                       std::to_string(ranks), further};
        std::vector<char*> arguments;
        for (auto& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            execv("/proc/self/exe", arguments.data());
            _exit(3);
        }
    }

    // Its status, as of waitpid.
    int end() const {
        int status = 0;
        waitpid(pid_, &status, 0);
        return status;
    }

private:
    pid_t pid_;
};

// A rank of a child, or of this process beside its children.
struct Joined {
    static Joined of_arguments() {
        Joined joined{{}, std::stoi(g_arguments.at(1)), std::stoi(g_arguments.at(2))};
        for (std::size_t k = 0; k < joined.id.size(); ++k) {
            joined.id[k] = std::byte(std::stoi(g_arguments[0].substr(2 * k, 2), nullptr, 16));
        }
        return joined;
    }
    CudaDevice& device() const { return device_of(rank % CudaDevice::count()); }

    UniqueId id;
    int rank, ranks;
};

void run_member(const Joined& joined) {
    Member member(joined.id, joined.rank, joined.ranks, joined.device(), g_settings);
    member.check_calls();
    member.opened->close(true);
}

void check_processes() {
    const int ranks = std::stoi(g_arguments.at(0));
    const auto id = new_id();
    std::vector<Child> children;
    for (int rank = 1; rank < ranks; ++rank) children.emplace_back("child", id, rank, ranks);
    run_member({id, 0, ranks});
    for (const auto& each : children) expect(each.end() == 0, "a process failed");
}

// Gives calls up when the ranks can't meet any more, as the library does; returns then.
void watched(Member& member, const std::function<void()>& what) {
    std::thread watch([&] {
        soon("the end of the others", [&] { return member.participant->end().has_value(); });
        member.opened->give_up(*member.participant->end());
    });
    what();
    watch.join();
}

// What a rank is told that can't go on with the others, in its opening or beside a call.
std::string told(const UniqueId& id, int rank, int ranks,
                 const std::shared_ptr<Participant>& participant) {
    return refused([&] {
        Member member(id, rank, ranks, device_of(rank % 2), g_settings, participant);
        watched(member, [&] { member.start("all_reduce", 0, 100); });
        throw Refusal(*member.opened->error());
    });
}

// Another thread aborts a rank at any time.
void check_aborts() {
    for (const int delay_us : {0, 300, 1000, 3000, 10000, 30000}) {
        const auto id = new_id();
        std::atomic<bool> have_met{false};
        g_met = [&] { have_met = true; };
        in_ranks(2, [&](int rank) {
            const auto participant = std::make_shared<Participant>(kPatience);
            std::thread aborts([&] {
                soon("the meeting", [&] { return have_met.load(); });
                std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
                if (rank == 1) participant->abort();
            });
            expect_in(rank == 1 ? "N608: " : "N6", told(id, rank, 2, participant));
            participant->abort();
            aborts.join();
        });
    }
}

// A process ends during the opening, at any time; beside a call; or behind it.
void check_deaths() {
    const auto begin = Clock::now();
    for (const int delay_us : {0, 1000, 3000, 10000, 30000, 100000}) {
        const auto id = new_id();
        const Child child("open", id, 1, 3, std::to_string(delay_us));
        in_ranks(2, [&](int number) {
            const int rank = 2 * number;
            expect_in("N620: ", told(id, rank, 3, std::make_shared<Participant>(kPatience)));
        });
        child.end();
    }
    for (const char* const scenario : {"die", "leave"}) {
        const auto id = new_id();
        const Child child(scenario, id, 1, 2);
        Member member(id, 0, 2, device_of(0), g_settings);
        member.check_calls();
        watched(member, [&] {
            if (scenario[0] == 'd') member.start("all_reduce", 0, 100);
            const auto found = refused([&] { member.opened->close(true); });
            const auto error = member.opened->error();
            expect_in("N620: ", error ? error->what() : found);
        });
        child.end();
    }
    expect(Clock::now() - begin < 6 * kSoon, "it takes long to notice that a process has ended");
}

// Scenarios of children.
void run_child() { run_member(Joined::of_arguments()); }

void die_at_any_time() {
    const auto joined = Joined::of_arguments();
    g_met = [delay = std::chrono::microseconds(std::stoi(g_arguments.at(3)))] {
        std::thread([delay] {
            std::this_thread::sleep_for(delay);
            kill(getpid(), SIGKILL);
        }).detach();
    };
    Member member(joined.id, joined.rank, joined.ranks, joined.device(), g_settings);
    pause();
}

void die_after_calls() {
    const auto joined = Joined::of_arguments();
    Member member(joined.id, joined.rank, joined.ranks, joined.device(), g_settings);
    member.check_calls();
    std::_Exit(0);
}

// How many communicators of two ranks. Prints what each takes.
void check_many() {
    const int many = std::stoi(g_arguments.at(0));
    std::vector<std::vector<std::unique_ptr<Member>>> every(2);
    const auto open = [&] {
        const auto id = new_id();
        std::vector<std::unique_ptr<Member>> made(2);
        in_ranks(2, [&](int rank) {
            auto& own = made[static_cast<std::size_t>(rank)];
            own = std::make_unique<Member>(id, rank, 2, device_of(rank), g_settings);
        });
        for (std::size_t r = 0; r < 2; ++r) every[r].push_back(std::move(made[r]));
    };
    const auto milliseconds = [](Clock::time_point since) {
        return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
    };
    auto begin = Clock::now();
    open();
    std::printf("the first: %.1f ms\n", milliseconds(begin));
    open();
    begin = Clock::now();
    for (int k = 0; k < many; ++k) open();
    std::printf("each further one: %.2f ms\n", milliseconds(begin) / many);
    in_ranks(2, [&](int rank) {
        for (auto& member : every[static_cast<std::size_t>(rank)]) {
            if (member->start("all_reduce", 0, 10) != StartOutcome::kStarted) expect(false, "a call");
            expect(member->outcome(10)[9] == member->sum(9), "a wrong sum");
        }
        for (auto& member : every[static_cast<std::size_t>(rank)]) member->opened->close(true);
    });
}

int test(int count, char** arguments) {
    expect(count > 3, "a scenario, a folder and a version");
    const std::string scenario = arguments[1];
    g_settings.tables = g_settings.kernels = arguments[2];
    g_settings.version = arguments[3];
    for (int k = 4; k < count; ++k) g_arguments.emplace_back(arguments[k]);
    cuda::start();
    const std::map<std::string, void (*)()> scenarios{
        {"calls", check_calls},         {"processes", check_processes},
        {"refusals", check_refusals},   {"refusal", check_refusal},
        {"failed", check_failed_calls}, {"aborts", check_aborts},
        {"deaths", check_deaths},       {"many", check_many},
        {"child", run_child},           {"open", die_at_any_time},
        {"die", die_after_calls},       {"leave", die_after_calls}};
    scenarios.at(scenario)();
    return 0;
}

}  // namespace sley::device_rank_test
