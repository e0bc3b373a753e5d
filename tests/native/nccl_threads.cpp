// sley's library under a sanitizer, over stand-ins for NVIDIA's NCCL (SLEY_NCCL_LIBRARY) and for ranks
// on devices. The first argument names the test.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nccl/group.hpp"
#include "nccl/passing.hpp"
#include "nccl_rank.hpp"
#include "network/introduction.hpp"

#define OWN(result, name, since, parameters, arguments) \
    namespace sley::nccl {                              \
    extern "C" result nccl##name parameters;            \
    }
#define PASSED OWN
#include "nccl/functions.def"

namespace sley::nccl_test {
namespace {

constexpr int kManyThreads = 1 << 30;
std::atomic<int> threads_left{kManyThreads};

}  // namespace
}  // namespace sley::nccl_test

extern "C" int pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*run)(void*),
                              void* with) {
    static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, __func__));
    return sley::nccl_test::threads_left-- > 0 ? next(made, how, run, with) : EAGAIN;
}

namespace sley::nccl_test {
namespace {

using namespace sley::nccl;
using nccl::UniqueId;

void check(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s: %s\n", what.c_str(), ncclGetLastError(nullptr));
    std::abort();
}
#define CHECK(condition) check(condition, #condition)

void pause(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

void in_ranks(int ranks, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(what, rank);
    for (auto& thread : threads) thread.join();
}

UniqueId new_id() {
    UniqueId id{};
    CHECK(ncclGetUniqueId(&id) == Result::kSuccess);
    return id;
}

Config blocking(bool blocks) {
    Config config{};
    config.size = offsetof(Config, cgaClusterSize);
    config.magic = kMagic;
    config.blocking = blocks;
    return config;
}

// As PyTorch waits for what it has begun.
Result wait(Handle* comm, Result result = Result::kInProgress) {
    while (result == Result::kInProgress) {
        pause(1);
        CHECK(ncclCommGetAsyncError(comm, &result) == Result::kSuccess);
    }
    return result;
}

bool is_sleys(Handle* comm) { return Comm::find(comm).comm->engine() != nullptr; }

// A stand-in's function.
template <class Function>
Function* stand_in(const char* name) {
    static void* library = dlopen(std::getenv("SLEY_NCCL_LIBRARY"), RTLD_NOW);
    return reinterpret_cast<Function*>(dlsym(library, name));
}
std::string journal() { return stand_in<const char*()>("stand_in_journal")(); }

// What a group has launched, by their sizes.
thread_local std::vector<std::size_t> launched;
Result note_launch(nccl::Part&, const Collective& call) {
    launched.push_back(call.size_bytes);
    return Result::kSuccess;
}
Collective numbered(std::size_t number) {
    Collective made{};
    made.size_bytes = number;
    return made;
}
Result collective(Handle* comm, std::size_t number) {
    return group.add(Comm::find(comm).comm->part(), numbered(number), note_launch);
}

// ---- Communicators that the real library has alone.

constexpr int kRounds = 40;

void make_and_use(int rank) {
    for (int round = 0; round < kRounds; ++round) {
        Handle *comm = nullptr, *child = nullptr, *none = nullptr;
        CHECK(ncclCommInitRank(&comm, 8, UniqueId{}, rank) == Result::kSuccess);
        RedOp op{};
        CHECK(ncclRedOpCreatePreMulSum(&op, nullptr, rank, 0, comm) == Result::kSuccess);
        CHECK(ncclGroupStart() == Result::kSuccess);
        CHECK(ncclAllReduce(nullptr, nullptr, 1, 7, op, comm, nullptr) == Result::kSuccess);
        CHECK(ncclCommSplit(comm, 0, rank, &child, nullptr) == Result::kSuccess);
        CHECK(ncclCommSplit(comm, -1, rank, &none, nullptr) == Result::kSuccess);
        CHECK(ncclRedOpDestroy(op, comm) == Result::kSuccess);
        CHECK(ncclGroupEnd() == Result::kSuccess);
        int number = -1;
        CHECK(ncclCommCount(child, &number) == Result::kSuccess && number == 100 + rank);
        CHECK(none == nullptr);
        CHECK(ncclCommDestroy(child) == Result::kSuccess);
        CHECK(ncclCommDestroy(comm) == Result::kSuccess);
        CHECK(ncclCommDestroy(comm) == Result::kInvalidArgument);
        CHECK(ncclGetLastError(comm) != nullptr);
    }
}

// As PyTorch's watchdog: it asks for the state of a communicator while its owner splits it, and
// aborts it, perhaps before the owner's last call.
void watch_and_abort() {
    for (int round = 0; round < kRounds; ++round) {
        auto config = blocking(false);
        Handle* comm = nullptr;
        CHECK(ncclCommInitRankConfig(&comm, 8, UniqueId{}, 0, &config) == Result::kInProgress);
        std::atomic<bool> is_split{false};
        std::thread watchdog([&, comm] {
            auto state = Result::kInProgress;
            // Ends with the stand-in's thread, which makes the child.
            while (!is_split || state == Result::kInProgress) ncclCommGetAsyncError(comm, &state);
            CHECK(ncclCommAbort(comm) == Result::kSuccess);
        });
        Handle* child = nullptr;
        CHECK(ncclCommSplit(comm, 0, 1, &child, nullptr) == Result::kSuccess);
        is_split = true;
        ncclCommFinalize(comm);
        watchdog.join();
        CHECK(ncclCommFinalize(comm) == Result::kInvalidArgument);
        CHECK(ncclCommDestroy(child) == Result::kSuccess);
    }
}

void test_passed_on() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) threads.emplace_back(make_and_use, rank);
    threads.emplace_back(watch_and_abort);
    for (auto& thread : threads) thread.join();
}

// ---- Communicators that are opened.

// From init to destroy, of threads; and splits and what is left of a communicator.
void test_life() {
    for (const bool blocks : {true, false}) {
        const auto id = new_id();
        in_ranks(4, [&](int rank) {
            auto config = blocking(blocks);
            Handle *comm = nullptr, *half = nullptr, *most = nullptr, *foreign = nullptr;
            const auto result = ncclCommInitRankConfig(&comm, 4, id, rank, &config);
            CHECK(result == (blocks ? Result::kSuccess : Result::kInProgress));
            CHECK(wait(comm, result) == Result::kSuccess && is_sleys(comm));
            CHECK(collective(comm, 1) == Result::kSuccess);
            wait(comm, ncclCommSplit(comm, rank % 2, -rank, &half, nullptr));
            const auto& its = *Comm::find(half).comm;
            CHECK(is_sleys(half) && its.ranks == 2 && its.rank == 1 - rank / 2);
            wait(comm, ncclCommSplit(comm, rank == 3 ? -1 : 0, rank, &most, nullptr));
            CHECK((most == nullptr) == (rank == 3));
            if (rank < 3) {
                int out = 1, none = 3;
                CHECK(ncclCommShrink(most, &none, 1, &foreign, nullptr, 0) ==
                      Result::kInvalidArgument);
                if (rank != 1) wait(most, ncclCommShrink(most, &out, 1, &foreign, nullptr, 0));
                if (rank != 1) CHECK(is_sleys(foreign) && Comm::find(foreign).comm->rank == rank / 2);
                if (rank != 1) CHECK(ncclCommDestroy(foreign) == Result::kSuccess);
                CHECK(ncclCommDestroy(most) == Result::kSuccess);
            }
            wait(half, ncclCommFinalize(half));
            CHECK(ncclCommFinalize(half) == Result::kInvalidArgument);
            for (Handle* one : {half, comm}) {
                CHECK(ncclCommDestroy(one) == Result::kSuccess);
                CHECK(ncclCommDestroy(one) == Result::kInvalidArgument);
                CHECK(std::string(ncclGetLastError(one)).rfind("N703", 0) == 0);
            }
        });
    }
}

// One thread has all ranks, as with ncclCommInitAll.
void test_one_thread() {
    constexpr int kRanks = 4;
    std::array<Handle*, kRanks> comms{}, parts{}, all{};
    const auto id = new_id();
    CHECK(ncclGroupStart() == Result::kSuccess && ncclGroupStart() == Result::kSuccess);
    for (int rank = 0; rank < kRanks; ++rank) {
        CHECK(ncclCommInitRank(&comms[rank], kRanks, id, rank) == Result::kSuccess);
    }
    CHECK(ncclGroupEnd() == Result::kSuccess && !is_sleys(comms[0]));
    CHECK(ncclGroupEnd() == Result::kSuccess);
    CHECK(ncclCommInitAll(all.data(), kRanks, nullptr) == Result::kSuccess);
    ncclGroupStart();
    for (int rank = 0; rank < kRanks; ++rank) {
        CHECK(collective(comms[rank], rank) == Result::kSuccess);
        CHECK(ncclCommSplit(comms[rank], 0, rank, &parts[rank], nullptr) == Result::kSuccess);
    }
    CHECK(launched.empty() && ncclGroupEnd() == Result::kSuccess);
    CHECK(launched == (std::vector<std::size_t>{0, 1, 2, 3}));
    // Two communicators' calls, of half of the ranks the other way round: round by round, alike.
    launched.clear();
    ncclGroupStart();
    for (int rank = 0; rank < kRanks; ++rank) {
        for (int turn = 0; turn < 4; ++turn) {
            const bool is_part = (rank + turn / 2) % 2 == 1;
            CHECK(collective((is_part ? parts : comms)[rank], 2 * (turn % 2) + is_part) ==
                  Result::kSuccess);
        }
    }
    CHECK(ncclGroupEnd() == Result::kSuccess);
    const std::size_t first = launched.front();
    for (std::size_t i = 0; i < 4 * kRanks; ++i) {
        CHECK(launched[i] == i / (2 * kRanks) * 2 + (first + i / kRanks) % 2);
    }
    journal();
    // A call that is refused in the middle.
    Handle* failed = nullptr;
    ncclGroupStart();
    CHECK(collective(comms[0], 9) == Result::kSuccess);
    CHECK(ncclCommSplit(comms[0], 0, 0, &failed, nullptr) == Result::kSuccess && failed != nullptr);
    void* window = nullptr;
    CHECK(ncclCommWindowRegister(comms[0], &window, 8, &window, 0) == Result::kSuccess);
    Handle* gone = all[0];
    for (Handle* one : all) CHECK(is_sleys(one) && ncclCommDestroy(one) == Result::kSuccess);
    CHECK(ncclAllReduce(nullptr, nullptr, 1, 7, RedOp{}, gone, nullptr) == Result::kInvalidArgument);
    CHECK(ncclGroupEnd() == Result::kInvalidArgument);
    CHECK(failed == nullptr && launched.size() == 4 * kRanks);
    const auto told = journal();
    CHECK(told.find("AllReduce 0 0 0 0 op0 null 0\nGroupEnd") != std::string::npos);
    CHECK(told.find("CommInitRank") == std::string::npos);
    for (Handle* one : parts) CHECK(ncclCommFinalize(one) == Result::kSuccess);
    for (Handle* one : parts) CHECK(ncclCommDestroy(one) == Result::kSuccess);
    // What a group destroys is closed after its calls.
    std::atomic<int> closes{0};
    script.at = [&](const auto& where, int) { closes += where == std::string("close"); };
    ncclGroupStart();
    for (Handle* one : comms) CHECK(ncclCommDestroy(one) == Result::kSuccess);
    pause(20);
    CHECK(closes == 0 && ncclGroupEnd() == Result::kSuccess && closes == kRanks);
    script.at = [](const auto&, int) {};
}

// What each rank's communicator is run by; ranks that differ don't disagree.
std::set<bool> runs(int ranks, const std::function<UniqueId(int)>& id_of) {
    std::vector<char> found(ranks);
    in_ranks(ranks, [&](int rank) {
        Handle* comm = nullptr;
        CHECK(ncclCommInitRank(&comm, ranks, id_of(rank), rank) == Result::kSuccess);
        found[rank] = is_sleys(comm);
        CHECK(ncclCommDestroy(comm) == Result::kSuccess);
    });
    return {found.begin(), found.end()};
}

void test_agreement() {
    const std::set<bool> sley{true}, nccl{false};
    auto id = new_id();
    CHECK(runs(3, [&](int rank) { return pause(20 * rank), id; }) == sley);
    // The root has served its ranks. NCCL's own root has, too: it is NCCL's to refuse them.
    CHECK(runs(3, [&](int) { return id; }) == nccl);
    CHECK(runs(2, [](int) { return UniqueId{}; }) == nccl);
    id = new_id();
    ++id.bytes[44];  // the version of the root's words
    CHECK(runs(2, [&](int) { return id; }) == nccl);
    script.refuses = "too little";
    id = new_id();
    CHECK(runs(3, [&](int) { return id; }) == nccl);
    script.refuses = "";
    script.lacks = "no driver";
    id = new_id();
    CHECK(runs(3, [&](int) { return id; }) == nccl);
    script.lacks = "";
    for (const char* which : {"off", "AllReduce,NoSuch"}) {
        id = new_id();
        setenv("SLEY_NCCL", which, 1);
        CHECK(runs(2, [&](int) { return id; }) == nccl);
        unsetenv("SLEY_NCCL");
    }
    Handle* one = nullptr;
    Handle* other = nullptr;
    id = new_id();
    ncclGroupStart();
    setenv("SLEY_SAME_BITS", "1", 1);
    CHECK(ncclCommInitRank(&one, 2, id, 0) == Result::kSuccess);
    unsetenv("SLEY_SAME_BITS");
    CHECK(ncclCommInitRank(&other, 2, id, 1) == Result::kSuccess);
    CHECK(is_error(ncclGroupEnd()) && one == nullptr && other == nullptr);
    CHECK(std::string(ncclGetLastError(one)).find("SLEY_SAME_BITS on all") != std::string::npos);
    setenv("SLEY_NCCL", "AllReduce,AlltoAll,Recv", 1);
    id = new_id();
    CHECK(ncclCommInitRank(&one, 1, id, 0) == Result::kSuccess);
    const auto& its = *Comm::find(one).comm;
    CHECK(its.runs("all_reduce") && its.runs("all_to_all") && !its.runs("reduce"));
    CHECK(its.runs("send_recv"));  // both ends
    CHECK(ncclCommDestroy(one) == Result::kSuccess);
    // Without NCCL: what sley doesn't run is refused, and so is a communicator that it can't run.
    setenv("SLEY_NCCL", "only", 1);
    id = new_id();
    CHECK(ncclCommInitRank(&one, 1, id, 0) == Result::kSuccess && is_sleys(one));
    int count = 0;
    CHECK(ncclCommCount(one, &count) == Result::kSuccess && count == 1);
    CHECK(ncclSignal(0, 0, 0, 0, one, nullptr) == Result::kInvalidUsage);
    CHECK(std::string(ncclGetLastError(one)).find("SLEY_NCCL=only") != std::string::npos);
    CHECK(ncclCommDestroy(one) == Result::kSuccess);
    script.refuses = "too little";
    id = new_id();
    CHECK(ncclCommInitRank(&one, 1, id, 0) == Result::kSystemError && one == nullptr);
    CHECK(std::string(ncclGetLastError(one)).find("too little") != std::string::npos);
    script.refuses = "";
    unsetenv("SLEY_NCCL");
    // Times that are longer than clocks count are long ones.
    setenv("SLEY_TIMEOUT_S", "inf", 1);
    setenv("SLEY_NCCL_WAIT_S", "1e300", 1);
    id = new_id();
    CHECK(runs(2, [&](int) { return id; }) == sley);
    unsetenv("SLEY_TIMEOUT_S");
    // A configuration that says a wrong size.
    struct {
        Config config = blocking(true);
        char behind[256];
    } wrong{};
    wrong.config.size = std::size_t{1} << 40;
    CHECK(ncclCommInitRankConfig(&one, 1, new_id(), 0, &wrong.config) == Result::kSuccess);
    CHECK(ncclCommDestroy(one) == Result::kSuccess);
    // A rank without sley waits in NCCL for one with it.
    setenv("SLEY_NCCL_WAIT_S", "0.05", 1);
    id = new_id();
    CHECK(ncclCommInitRank(&one, 2, id, 0) == Result::kSuccess && !is_sleys(one));
    CHECK(ncclCommDestroy(one) == Result::kSuccess);
    unsetenv("SLEY_NCCL_WAIT_S");
    // A root that has heard a rank, and ends: what the others know, this one doesn't.
    id = new_id();
    const auto listener = Socket::listener("127.0.0.1");
    const auto port = listener.local_port();
    Secret secret;
    std::memcpy(&id.bytes[46], &port, sizeof port);
    std::strcpy(&id.bytes[48], "127.0.0.1");
    std::memcpy(secret.data(), &id.bytes[96], secret.size());
    std::thread root([&] {
        Socket heard;
        while (!heard.is_open()) heard = listener.accept(), pause(1);
        Introduction rank(std::move(heard), false, -1);
        char word;
        const auto is_done = [&rank] { return rank.step() == Introduction::Step::kDone; };
        for (; !is_done(); pause(1)) rank.advance(secret, [](const Hello&) { return true; });
        while (recv(rank.socket().fd(), &word, 1, 0) != 1) pause(1);
    });
    CHECK(ncclCommInitRank(&one, 2, id, 0) == Result::kRemoteError && one == nullptr);
    CHECK(std::string(ncclGetLastError(one)).rfind("N605: ", 0) == 0);
    root.join();
    // Several ids; a rank that has others is told.
    std::array<UniqueId, 3> ids{new_id(), new_id(), new_id()};
    in_ranks(2, [&](int rank) {
        Handle* comm = nullptr;
        CHECK(ncclCommInitRankScalable(&comm, 2, rank, 2, ids.data(), nullptr) == Result::kSuccess);
        CHECK(is_sleys(comm) && ncclCommDestroy(comm) == Result::kSuccess);
    });
    ids[0] = new_id();
    in_ranks(2, [&](int rank) {
        auto own = ids;
        if (rank == 1) own[1] = ids[2];
        Handle* comm = nullptr;
        const auto result = ncclCommInitRankScalable(&comm, 2, rank, 2, own.data(), nullptr);
        CHECK(result == Result::kInvalidArgument && comm == nullptr);
    });
}

// ---- What a process lacks.

// As long as it lives, the process gets so many more threads.
struct FewThreads {
    explicit FewThreads(int number) { threads_left = number; }
    ~FewThreads() { threads_left = kManyThreads; }
};

void check_refused(Result result, const char* rule) {
    CHECK(result == Result::kSystemError);
    CHECK(std::string(ncclGetLastError(nullptr)).rfind(rule, 0) == 0);
}

std::atomic<bool> sees_signals;

void test_few_threads() {
    std::array<Handle*, 2> comms{};
    UniqueId id{};
    auto config = blocking(false);
    setenv("SLEY_NCCL", "only", 1);
    {
        const FewThreads none(0);
        check_refused(ncclGetUniqueId(&id), "N610: ");  // no root
    }
    id = new_id();
    {
        const FewThreads none(0);
        check_refused(ncclCommInitRank(&comms[0], 1, id, 0), "N610: ");  // nobody watches it
        CHECK(comms[0] == nullptr);
        check_refused(ncclCommInitRankConfig(&comms[0], 1, id, 0, &config), "N610: ");
        CHECK(comms[0] == nullptr);
    }
    script.at = [](const auto& where, int) {
        sigset_t blocked;
        pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
        if (where == std::string("open") && sigismember(&blocked, SIGTERM) == 0) sees_signals = true;
    };
    // One rank of a thread waits for the other one, for longer than a test may take.
    setenv("SLEY_NCCL_WAIT_S", "10000", 1);
    for (const int number : {0, 1, kManyThreads}) {
        id = new_id();
        const FewThreads few(number);
        ncclGroupStart();
        CHECK(ncclCommInitRank(&comms[0], 2, id, 0) == Result::kSuccess);
        CHECK(ncclCommInitRank(&comms[1], 2, id, 1) == Result::kSuccess);
        const auto result = ncclGroupEnd();
        if (number < kManyThreads) check_refused(result, "N610: ");
        for (Handle* one : comms) CHECK((one == nullptr) == is_error(result));
    }
    CHECK(!sees_signals);
    // So does its end.
    for (Handle* one : comms) {
        const FewThreads none(0);
        CHECK(ncclCommDestroy(one) == Result::kSuccess);
    }
    id = new_id();
    CHECK(ncclCommInitRank(&comms[0], 1, id, 0) == Result::kSuccess);
    CHECK(ncclCommDestroy(comms[0]) == Result::kSuccess);
    script.at = [](const auto&, int) {};
    unsetenv("SLEY_NCCL");
    unsetenv("SLEY_NCCL_WAIT_S");
}

// ---- The real communicator, which is made when a call needs it.

constexpr int kRanks = 3;

int count(const std::string& text, const std::string& word) {
    int found = 0;
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++found;
    return found;
}

// A call that needs it, of all ranks.
Result need(Handle* comm) {
    static char memory[8];
    static thread_local void* window;
    return ncclCommWindowRegister(comm, memory, 8, &window, 0);
}

bool has_real(Handle* comm) { return Comm::find(comm).comm->real() != nullptr; }

bool says(const std::string& words) {
    return std::string(ncclGetLastError(nullptr)).find(words) != std::string::npos;
}

std::array<Handle*, kRanks> opened(bool blocks = true) {
    std::array<Handle*, kRanks> comms{};
    const auto id = new_id();
    in_ranks(kRanks, [&](int rank) {
        auto config = blocking(blocks);
        CHECK(!is_error(ncclCommInitRankConfig(&comms[rank], kRanks, id, rank, &config)));
        CHECK(wait(comms[rank]) == Result::kSuccess && is_sleys(comms[rank]));
    });
    return comms;
}

void destroy(const std::array<Handle*, kRanks>& comms) {
    in_ranks(kRanks, [&](int rank) { CHECK(ncclCommDestroy(comms[rank]) == Result::kSuccess); });
}

void test_made_when_needed(bool blocks) {
    journal();
    const auto comms = opened(blocks);
    std::array<Handle*, kRanks> before{}, after{};
    std::uint64_t value = 0;
    UniqueId id;
    in_ranks(kRanks, [&](int rank) {
        Handle* comm = comms[rank];
        CHECK(collective(comm, 1) == Result::kSuccess);
        wait(comm, ncclCommSplit(comm, 0, -rank, &before[rank], nullptr));
        wait(before[rank]);
        // Nothing to release; calls of one rank alone can't have it made.
        CHECK(ncclCommSuspend(comm, 1) == Result::kSuccess);
        CHECK(ncclCommResume(comm) == Result::kSuccess);
        CHECK(ncclCommMemStats(comm, 0, &value) == Result::kInvalidUsage && says("SLEY_NCCL=eager"));
        CHECK(ncclCommGetUniqueId(comm, &id) == Result::kInvalidUsage && says("SLEY_NCCL=eager"));
        CHECK(ncclTeamWorld(comm).ranks == 0);
    });
    CHECK(count(journal(), "Comm") == 0);
    in_ranks(kRanks, [&](int rank) {
        const auto result = need(comms[rank]);
        CHECK(result == (blocks ? Result::kSuccess : Result::kInProgress));
        CHECK(wait(comms[rank], result) == Result::kSuccess && has_real(comms[rank]));
    });
    auto told = journal();
    CHECK(count(told, "CommInitRankConfig") == kRanks && count(told, "CommWindowRegister") == kRanks);
    CHECK(told.rfind("CommInitRank") < told.find("CommWindowRegister comm"));
    // Of what was made before nothing is made, and what is made of the real one is, too.
    in_ranks(kRanks, [&](int rank) {
        Handle* comm = comms[rank];
        CHECK(wait(comm, need(comm)) == Result::kSuccess);
        CHECK(ncclCommMemStats(comm, 0, &value) == Result::kSuccess);
        wait(comm, ncclCommSplit(comm, 0, rank, &after[rank], nullptr));
        wait(after[rank]);
        CHECK(!has_real(before[rank]) && has_real(after[rank]));
    });
    told = journal();
    CHECK(count(told, "CommInitRank") == 0 && count(told, "CommSplit") == kRanks);
    in_ranks(kRanks, [&](int rank) {
        CHECK(wait(before[rank], need(before[rank])) == Result::kSuccess && has_real(before[rank]));
        CHECK(wait(comms[rank], ncclCommFinalize(comms[rank])) == Result::kSuccess);
    });
    CHECK(count(journal(), "CommInitRankConfig") == kRanks);
    for (const auto& each : {before, after, comms}) destroy(each);
    CHECK(count(journal(), "CommDestroy comm") == 3 * kRanks);
}

// A child that sley can't run has one at once, though its parent has none.
void test_made_for_a_child() {
    const auto comms = opened();
    std::array<Handle*, kRanks> children{};
    journal();
    script.refuses = "too little";
    in_ranks(kRanks, [&](int rank) {
        CHECK(ncclCommSplit(comms[rank], 0, rank, &children[rank], nullptr) == Result::kSuccess);
        CHECK(!is_sleys(children[rank]) && has_real(children[rank]) && !has_real(comms[rank]));
        CHECK(need(children[rank]) == Result::kSuccess);
    });
    CHECK(count(journal(), "CommInitRank") == kRanks);
    stand_in<void(const char*, Result)>("stand_in_fail")("CommInitRankConfig", Result::kSystemError);
    in_ranks(kRanks, [&](int rank) {
        Handle* none = nullptr;
        CHECK(ncclCommSplit(comms[rank], 0, rank, &none, nullptr) == Result::kSystemError);
        CHECK(none == nullptr);
    });
    stand_in<void(const char*, Result)>("stand_in_fail")("CommInitRankConfig", Result::kSuccess);
    script.refuses = "";
    for (const auto& each : {children, comms}) destroy(each);
}

// One thread has all ranks: nothing is made before the end of its group.
void test_made_in_a_group() {
    for (const bool blocks : {true, false}) {
        const auto comms = opened(blocks);
        std::array<Handle*, kRanks> parts{};
        journal();
        launched.clear();
        // What a group calls when it has failed is not made, nor what it only simulates.
        ncclGroupStart();
        CHECK(!is_error(need(comms[0])) && !is_error(need(comms[1])));
        CHECK(ncclDevCommCreate(comms[0], nullptr, nullptr) == Result::kInvalidUsage);
        CHECK(ncclGroupEnd() == Result::kInvalidUsage);
        ncclGroupStart();
        CHECK(!is_error(need(comms[0])));
        CHECK(ncclGroupSimulateEnd(nullptr) == Result::kSuccess);
        CHECK(wait(comms[0]) == Result::kSuccess);
        ncclGroupStart();
        ncclGroupStart();
        for (int rank = 0; rank < kRanks; ++rank) {
            CHECK(!is_error(need(comms[rank])));
            CHECK(collective(comms[rank], 1) == Result::kSuccess);
            CHECK(!is_error(ncclCommSplit(comms[rank], 0, rank, &parts[rank], nullptr)));
            CHECK(!is_error(need(comms[rank])));
        }
        ncclGroupEnd();
        CHECK(count(journal(), "Comm") == 0 && launched.empty());
        CHECK(ncclGroupEnd() == (blocks ? Result::kSuccess : Result::kInProgress));
        for (Handle* comm : comms) CHECK(wait(comm) == Result::kSuccess && has_real(comm));
        for (Handle* part : parts) CHECK(wait(part) == Result::kSuccess && !has_real(part));
        CHECK(launched.size() == kRanks);
        const auto told = journal();
        CHECK(count(told, "CommInitRank") == kRanks);
        CHECK(count(told, "CommWindowRegister comm") == 2 * kRanks);
        CHECK(told.rfind("CommWindowRegister") < told.rfind("GroupEnd"));
        for (const auto& each : {parts, comms}) destroy(each);
    }
}

void fail(const char* function, Result result) {
    stand_in<void(const char*, Result)>("stand_in_fail")(function, result);
}
void hold(const char* function) { stand_in<void(const char*)>("stand_in_hold")(function); }

// All ranks fail, whatever fails on one, and run sley's calls as before.
void test_not_made() {
    const auto comms = opened();
    const auto all_fail = [&](Result own, Result others) {
        in_ranks(kRanks, [&](int rank) { CHECK(need(comms[rank]) == (rank == 1 ? own : others)); });
        for (Handle* comm : comms) CHECK(!has_real(comm) && collective(comm, 1) == Result::kSuccess);
    };
    // What is known before the ranks begin may be otherwise next time.
    fail("GetUniqueId", Result::kSystemError);
    all_fail(Result::kInvalidUsage, Result::kInvalidUsage);
    CHECK(says("ncclGetUniqueId returned 2, the stand-in's error on rank 0"));
    fail("GetUniqueId", Result::kSuccess);
    // NCCL would wait for rank 1.
    fail("CommInitRankConfig1", Result::kUnhandledCudaError);
    hold("CommInitRankConfig0");
    all_fail(Result::kUnhandledCudaError, Result::kRemoteError);
    fail("CommInitRankConfig1", Result::kSuccess);
    hold("");
    journal();
    all_fail(Result::kInvalidUsage, Result::kInvalidUsage);  // for good
    CHECK(count(journal(), "GetUniqueId") == 0);
    destroy(comms);
    // A rank that doesn't come.
    setenv("SLEY_TIMEOUT_S", "0.1", 1);
    const auto others = opened();
    unsetenv("SLEY_TIMEOUT_S");
    in_ranks(2, [&](int rank) { CHECK(need(others[rank]) == Result::kRemoteError); });
    CHECK(says("N601") && need(others[2]) == Result::kRemoteError);
    destroy(others);
    // The rank that is first may wait for those without a thread, or the one that NCCL has begun with.
    for (const int number : {0, 1, kRanks + 1}) {
        const auto few = opened();
        {
            const FewThreads left(number);
            ncclGroupStart();
            for (Handle* comm : few) CHECK(need(comm) == Result::kSuccess);
            const auto result = ncclGroupEnd();
            CHECK(is_error(result) && (number > 1 || says("N610: ")));
            for (Handle* comm : few) CHECK(!has_real(comm));
        }
        destroy(few);
    }
}

// While it is made, one rank ends its communicator or leaves its use.
void test_ended_while_made() {
    for (const bool blocks : {true, false}) {
        for (auto* end : {ncclCommAbort, ncclCommDestroy,
                          +[](Handle* comm) { return ncclCommRevoke(comm, 0); }}) {
            if (blocks && end == ncclCommDestroy) continue;  // no other thread may do that
            const auto comms = opened(blocks);
            hold("CommInitRankConfig");
            std::thread watchdog([&] {
                while (stand_in<int()>("stand_in_waiting")() < kRanks) pause(1);
                CHECK(end(comms[0]) == Result::kSuccess);
            });
            in_ranks(kRanks, [&](int rank) {
                auto result = need(comms[rank]);
                if (!blocks && rank == 0) watchdog.join();
                if (rank > 0) result = wait(comms[rank], result);
                CHECK(is_error(result) || (rank == 0 && !blocks));
            });
            if (blocks) watchdog.join();
            hold("");
            for (Handle* comm : comms) ncclCommAbort(comm);
        }
    }
}

void test_lazy() {
    setenv("SLEY_NCCL", "eager", 1);
    journal();
    destroy(opened());
    CHECK(count(journal(), "CommInitRankConfig") == kRanks);
    unsetenv("SLEY_NCCL");
    for (const bool blocks : {true, false}) test_made_when_needed(blocks);
    test_made_for_a_child();
    test_made_in_a_group();
    test_not_made();
    test_ended_while_made();
}

// Where the ranks of `test_aborts` stop: rank 1 until it may go on.
std::atomic<const char*> stop{""};
std::atomic<bool> is_there[2], goes_on;

void come(const std::string& where, int rank) {
    if (where != stop.load()) return;
    is_there[rank < 0 ? 0 : rank] = true;
    while (rank == 1 && !goes_on) pause(1);
}

// Another thread aborts a communicator of rank 0, at the latest while `blocked` waits for rank 1.
void abort_while(const char* where, Handle* const& comm, const std::function<bool()>& is_time,
                 const std::function<Result()>& blocked) {
    std::thread watchdog([&] {
        while (!is_time()) pause(1);
        Handle* const seen = comm;
        auto state = Result::kSuccess;
        ncclCommGetAsyncError(seen, &state);
        check(ncclCommAbort(seen) == Result::kSuccess, where);
        CHECK(ncclCommGetAsyncError(seen, &state) == Result::kInvalidArgument);
        CHECK(ncclCommFinalize(seen) == Result::kInvalidArgument);
        goes_on = true;
    });
    check(blocked() != Result::kSuccess, where);
    watchdog.join();
}

Result init(Handle** comm, const UniqueId& id, int rank, bool blocks, bool in_group) {
    auto config = blocking(blocks);
    if (in_group) ncclGroupStart();
    const auto result = ncclCommInitRankConfig(comm, 2, id, rank, &config);
    return in_group ? ncclGroupEnd() : result;
}

// While its rank waits for a rank that never comes, one that opens, all ranks' last word.
void test_aborts_of_inits() {
    for (const char* where : {"offer", "open", "opened"}) {
        for (const int way : {0, 1, 2, 3}) {
            const bool blocks = way % 2 == 0, in_group = way / 2 == 1, is_alone = where[1] == 'f';
            stop = where;
            is_there[0] = is_there[1] = goes_on = false;
            const auto id = new_id();
            Handle *victim = nullptr, *other = nullptr;
            std::thread rank_1([&] {
                if (is_alone) return;
                auto result = init(&other, id, 1, blocks, in_group);
                // The last word may have come before rank 0 left: then it is told afterwards.
                while (other != nullptr && !is_error(result)) result = wait(other);
                CHECK(is_error(result));
            });
            abort_while(where, victim, [&] { return is_there[0] && (is_alone || is_there[1]); },
                        [&] { return init(&victim, id, 0, blocks, in_group); });
            rank_1.join();
        }
    }
    stop = "";
}

// While the real library makes its part.
void test_aborts_in_the_real_library() {
    goes_on = false;
    setenv("SLEY_NCCL", "eager", 1);
    stand_in<void(const char*)>("stand_in_hold")("CommInitRankConfig");
    const auto id = new_id();
    in_ranks(2, [&](int rank) {
        Handle* comm = nullptr;
        const auto waiting = stand_in<int()>("stand_in_waiting");
        abort_while("real", comm, [&] { return waiting() == 2 || goes_on; },
                    [&] { return init(&comm, id, rank, true, false); });
    });
    stand_in<void(const char*)>("stand_in_hold")("");
    unsetenv("SLEY_NCCL");
}

// Until it is given up.
Result spin(nccl::Part& part, const Collective&) {
    is_there[0] = true;
    while (!part.engine().error()) pause(1);
    return Result::kInternalError;
}

// While a call runs, in a group and outside; while its ranks split; while they close. Then the others
// are told.
void test_aborts_of_calls() {
    for (const std::string what : {"call", "group", "split", "finalize"}) {
        const auto id = new_id();
        std::array<Handle*, 2> comms{};
        in_ranks(2, [&](int rank) {
            CHECK(init(&comms[rank], id, rank, true, false) == Result::kSuccess);
        });
        is_there[0] = goes_on = false;
        auto& comm = *Comm::find(comms[0]).comm;
        Handle* child = nullptr;
        stop = what == "finalize" ? "close" : "";
        abort_while(what.c_str(), comms[0], [&] { return is_there[0] || what == "split"; }, [&] {
            if (what == "split") return ncclCommSplit(comms[0], 0, 0, &child, nullptr);
            if (what == "finalize") return ncclCommFinalize(comms[0]), Result::kInternalError;
            if (what == "group") ncclGroupStart();
            const auto result = group.add(comm.part(), numbered(1), spin);
            return what == "group" ? ncclGroupEnd() : result;
        });
        stop = "";
        auto state = Result::kSuccess;
        while (state == Result::kSuccess) ncclCommGetAsyncError(comms[1], &state);
        CHECK(state == Result::kRemoteError);
        CHECK(ncclCommDestroy(comms[1]) == Result::kSuccess);
    }
}

void test_aborts() {
    script.at = come;
    test_aborts_of_inits();
    test_aborts_in_the_real_library();
    test_aborts_of_calls();
    script.at = [](const auto&, int) {};
}

// ---- Processes.

// What happens to a rank.
enum Trait {
    kNormal, kOff, kOnly, kEager, kList, kLacks, kRefuses, kWithout, kLate, kNone, kFails, kTraits,
    kAborts = kTraits, kDiesBefore, kDiesOpening, kDiesOpened, kDiesMaking, kAllTraits
};
// Of sley's ranks that need a real communicator some get one, or an error.
enum Outcome : int { kUnknown, kSley, kSleyAlone, kNccl, kError, kDead };

// What a rank's user wants.
std::string setting_of(Trait trait) {
    switch (trait) {
        case kOff: return "off";
        case kOnly: return "only";
        case kEager: return "eager";
        case kList: return "AllReduce";
        default: return "";
    }
}

struct Mix {
    UniqueId id;
    std::atomic<bool> has_id;
    std::atomic<int> outcomes[4];
};

// A handle that CommInitRank may be storing just now, as NCCL does: what watches over it can't wait.
__attribute__((no_sanitize("thread"), noinline)) Handle* seen_early(Handle* const* comm) {
    return __atomic_load_n(comm, __ATOMIC_ACQUIRE);
}

// A rank of a mix, in a process of its own; it ends with it.
[[noreturn]] void take_part(Mix& mix, int rank, int ranks, Trait trait, unsigned seed) {
    alarm(60);  // far beyond what a rank waits
    setenv("SLEY_NCCL", setting_of(trait).c_str(), 1);
    if (trait == kNone) setenv("SLEY_NCCL_LIBRARY", "/none", 1);
    if (trait == kLacks) script.lacks = "no driver";
    if (trait == kRefuses) script.refuses = "too little";
    const auto die = [&] {
        mix.outcomes[rank] = kDead;
        _exit(0);
    };
    script.at = [&](const std::string& at, int) {
        if (trait == kDiesOpening && at == "open") die();
        if (trait == kDiesOpened && at == "opened") die();
    };
    if (rank == 0) {
        // Who can't make an id has none to give.
        mix.id = trait == kWithout ? UniqueId{} : new_id();
        mix.has_id = true;
    }
    while (!mix.has_id) pause(1);
    if (trait == kDiesBefore) die();
    if (trait == kLate) pause(static_cast<int>(seed % 150));
    if (trait == kWithout) {  // it goes to NCCL at once
        mix.outcomes[rank] = kNccl;
        _exit(0);
    }
    Handle* comm = nullptr;
    std::thread watchdog([&] {
        if (trait != kAborts) return;
        pause(static_cast<int>(seed % 40));
        Handle* const seen = seen_early(&comm);
        if (seen != nullptr) ncclCommAbort(seen);
    });
    auto result = ncclCommInitRank(&comm, ranks, mix.id, rank);
    auto outcome = kError;
    if (result == Result::kSuccess) {
        if (trait != kAborts) outcome = is_sleys(comm) ? kSley : kNccl;
        if (trait == kFails) fail("CommInitRank", Result::kSystemError);
        std::thread killer([&] {
            if (trait == kDiesMaking) pause(static_cast<int>(seed % 10)), die();
        });
        const auto made = need(comm);
        if (made != Result::kSuccess && outcome == kSley) outcome = kSleyAlone;
        killer.join();
    }
    watchdog.join();
    if (trait == kAborts) die();
    mix.outcomes[rank] = outcome;
    if (seed % 2 == 0 && result == Result::kSuccess) ncclCommDestroy(comm);
    std::exit(0);
}

// Ranks never disagree about who runs what, and none waits for ever.
void test_mixes(int first, int count) {
    constexpr int kAtOnce = 8;
    int by_sley = 0, alone = 0;
    struct Running {
        Mix* mix;
        int number, ranks;
        std::array<Trait, 4> traits;
        std::array<pid_t, 4> processes;
    };
    for (int done = 0; done < count; done += kAtOnce) {
        std::vector<Running> running;
        for (int number = first + done; number < first + std::min(done + kAtOnce, count); ++number) {
            std::mt19937 random(number);
            Running one{static_cast<Mix*>(mmap(nullptr, sizeof(Mix), PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
                        number, 2 + static_cast<int>(random() % 3), {}, {}};
            // Half of the mixes have ranks that die or abort, too.
            const auto most = number % 2 == 0 ? kTraits : kAllTraits;
            std::array<unsigned, 4> seeds{};
            for (int rank = 0; rank < one.ranks; ++rank) {
                const bool is_normal = random() % 2 == 0;
                one.traits[rank] = is_normal ? kNormal : static_cast<Trait>(random() % most);
                seeds[rank] = random();
            }
            // A busy machine makes every rank late: in some mixes where all come they wait long.
            const auto last = one.traits.begin() + one.ranks;
            const auto comes = [](Trait trait) { return trait < kTraits && trait != kWithout; };
            const bool all_come = number % 4 > 0 && std::all_of(one.traits.begin(), last, comes);
            setenv("SLEY_NCCL_WAIT_S", all_come ? "30" : "0.1", 1);
            for (int rank = 0; rank < one.ranks; ++rank) {
                one.processes[rank] = fork();
                if (one.processes[rank] == 0) {
                    take_part(*one.mix, rank, one.ranks, one.traits[rank], seeds[rank]);
                }
            }
            running.push_back(one);
        }
        for (auto& one : running) {
            std::set<int> found;
            std::string told = "mix " + std::to_string(one.number) + ":";
            bool ended = true;
            for (int rank = 0; rank < one.ranks; ++rank) {
                int status = 0;
                waitpid(one.processes[rank], &status, 0);
                ended = ended && status == 0;
                found.insert(one.mix->outcomes[rank]);
                told += " " + std::to_string(one.traits[rank]) + "->" +
                        std::to_string(one.mix->outcomes[rank]) + "(" + std::to_string(status) + ")";
            }
            check(ended && found.count(kUnknown) == 0, told);
            // Of sley's ranks one may end in the middle of the last word about NCCL's communicator.
            const bool ends = std::any_of(one.traits.begin(), one.traits.begin() + one.ranks,
                                          [](Trait trait) { return trait >= kTraits; });
            if (ends && found.erase(kSleyAlone) > 0) found.insert(kSley);
            check(found.count(kSley) + found.count(kSleyAlone) + found.count(kNccl) < 2, told);
            const auto can = [&](Trait trait) {
                return trait != kOff && trait != kLacks && trait != kRefuses && trait != kWithout &&
                       setting_of(trait) == setting_of(one.traits[0]);
            };
            const auto last = one.traits.begin() + one.ranks;
            const bool by_ours = found.count(kSley) + found.count(kSleyAlone) > 0;
            check(!by_ours || std::all_of(one.traits.begin(), last, can), told);
            by_sley += found.count(kSley) > 0;
            alone += found.count(kSleyAlone) > 0;
            munmap(one.mix, sizeof(Mix));
        }
    }
    CHECK(by_sley > 0 && alone > 0);
}

// A child of a fork has no communicators, and its end disturbs nobody. An exit without destroy does: the
// others are told.
void test_processes() {
    auto* mix = static_cast<Mix*>(mmap(nullptr, sizeof(Mix), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const auto other = fork();
    Handle* comm = nullptr;
    if (other == 0) {
        while (!mix->has_id) pause(1);
        CHECK(ncclCommInitRank(&comm, 2, mix->id, 1) == Result::kSuccess && is_sleys(comm));
        while (mix->outcomes[1] == kUnknown) pause(1);
        std::exit(0);
    }
    mix->id = new_id();
    mix->has_id = true;
    CHECK(ncclCommInitRank(&comm, 2, mix->id, 0) == Result::kSuccess && is_sleys(comm));
    const auto child = fork();
    auto state = Result::kSuccess;
    if (child == 0) {
        for (auto* call : {ncclCommFinalize, ncclCommDestroy, ncclCommAbort}) {
            CHECK(call(comm) == Result::kInvalidArgument);
        }
        CHECK(ncclCommGetAsyncError(comm, &state) == Result::kInvalidArgument);
        CHECK(std::string(ncclGetLastError(comm)).find("forked this one") != std::string::npos);
        CHECK(runs(2, [id = new_id()](int) { return id; }) == std::set<bool>{true});
        std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    pause(100);
    CHECK(ncclCommGetAsyncError(comm, &state) == Result::kSuccess && state == Result::kSuccess);
    mix->outcomes[1] = kDead;
    waitpid(other, &status, 0);
    CHECK(status == 0);
    while (state == Result::kSuccess) ncclCommGetAsyncError(comm, &state);
    CHECK(state == Result::kRemoteError);
    CHECK(std::string(ncclGetLastError(comm)).rfind("N620", 0) == 0);
    CHECK(ncclCommDestroy(comm) == Result::kSuccess);
}

}  // namespace
}  // namespace sley::nccl_test

// A thread may get the memory that glibc had for another one's variables of a library.
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

int main(int count, char** arguments) {
    using namespace sley::nccl_test;
    const std::string test = count > 1 ? arguments[1] : "";
    setenv("SLEY_NCCL_TABLES", "/none", 1);
    setenv("SLEY_NCCL_KERNELS", "/none", 1);
    if (test == "passed_on") test_passed_on();
    if (test == "life") test_life();
    if (test == "one_thread") test_one_thread();
    if (test == "agreement") test_agreement();
    if (test == "aborts") test_aborts();
    if (test == "lazy") test_lazy();
    if (test == "few_threads") test_few_threads();
    if (test == "processes") test_processes();
    if (test == "mixes") test_mixes(std::atoi(arguments[2]), std::atoi(arguments[3]));
}
