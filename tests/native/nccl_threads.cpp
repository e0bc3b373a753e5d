// sley's library under a sanitizer, over the stand-in: communicators come and go in several
// threads, each with groups of its own, while another thread asks for their state and aborts them.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "nccl/abi.hpp"

using namespace sley::nccl;

#define OWN(result, name, since, parameters, arguments) extern "C" result nccl##name parameters;
#define PASSED OWN
#include "nccl/functions.def"

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s: %s\n", what, ncclGetLastError(nullptr));
    std::abort();
}
#define CHECK(condition) check(condition, #condition)

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
        Config config{};
        config.size = offsetof(Config, cgaClusterSize);
        config.magic = kMagic;
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

}  // namespace

int main() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) threads.emplace_back(make_and_use, rank);
    threads.emplace_back(watch_and_abort);
    for (auto& thread : threads) thread.join();
}
