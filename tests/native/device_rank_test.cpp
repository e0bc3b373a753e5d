// Ranks on GPUs without Python, over the stand-in for the driver: ranks are threads or processes of this
// program. Exits with 1 at the first difference.
//
// Arguments: a scenario, the folder of tables and kernels, the version of the tables, and what the
// scenario says.
#include <atomic>

#include "device_rank_members.hpp"

namespace sley::device_rank_test {

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
    expect_in(" (rank 1)", none.at(0));
    // No file, no digests, or other files than these are for.
    for (const auto& [folder, what] : {std::pair("/none", "/digests.toml: No such file"),
                                       {"/cut", ".fatbin: another content than digests.toml says"},
                                       {"/swapped", ".fatbin: another content than digests"}}) {
        const auto kernels = g_arguments.at(0) + folder;
        const auto found = refusals(2, [&](int rank, RankSettings& own) {
            if (rank == 0) own.kernels = kernels;
        });
        expect_all("N653: expected kernels of this version of sley, found " + kernels, found);
        expect_all(what, found);
    }
    const auto cut = refusals(2, [](int rank, RankSettings& own) {
        if (rank == 1) own.tables = g_arguments.at(0) + "/cut";
    });
    expect_all("F425: expected bytes with their digest, found others in " + g_arguments.at(0) +
                   "/cut/2-ranks",
               cut);
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
        {"die", die_after_calls},       {"leave", die_after_calls},
        {"messages", check_messages},   {"message_child", run_message_child},
        {"captured", check_captured_messages},
        {"many_messages", check_many_messages},
        {"refused_messages", check_refused_messages},
        {"stuck_messages", check_stuck_messages}};
    scenarios.at(scenario)();
    return 0;
}

}  // namespace sley::device_rank_test
