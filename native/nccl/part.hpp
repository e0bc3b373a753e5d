// A rank of a communicator whose calls sley runs, from its opening until it is closed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "devices/device_rank.hpp"
#include "nccl/abi.hpp"
#include "network/meeting.hpp"

namespace sley::nccl {

// What the caller of NCCL's functions gets for a refusal.
Result result_of(const Refusal& refusal);

// It outlives its handle: ranks of one process, which one thread may close in turn, wait for one
// another only at the end of the last (`close`). A thread of the process watches all parts: if
// another rank has ended, or left without closing, the calls under way are given up.
class Part : public std::enable_shared_from_this<Part> {
public:
    // communicator: the same on all its ranks, and on no others. processes: of all ranks.
    static std::shared_ptr<Part> make(std::shared_ptr<Participant> participant,
                                      std::unique_ptr<DeviceRank> engine,
                                      const std::string& communicator,
                                      std::vector<ProcessIdentity> processes);

    Participant& participant() { return *participant_; }
    const std::string& communicator() const { return communicator_; }
    DeviceRank& engine() { return *engine_; }

    // Looks whether the other ranks are there and calls have failed. Never waits.
    void look();
    Result failure() const { return failure_; }
    // What the engine's error is to a caller. The devices may tell that another rank gave up before
    // the network does.
    Result result_for(const Refusal& error) const;
    // Gives up all calls under way, on all ranks.
    void give_up(const Refusal& why);

    // Begins to close, in a thread; meets: with the other ranks, unless calls have failed.
    void close(bool meets);
    bool is_closed() const { return is_closed_; }
    // The last rank of the process waits for the calls of all of them, and until all are closed, if
    // that doesn't take long.
    void wait_for_close();

    std::atomic<bool> has_said_lacking{false};  // that sley has no kernels for a call

private:
    struct Siblings;  // the ranks of one communicator in this process

    Part() = default;
    std::optional<Refusal> ended() const;

    std::string communicator_;
    std::vector<ProcessIdentity> processes_;
    std::shared_ptr<Participant> participant_;
    std::unique_ptr<DeviceRank> engine_;
    std::shared_ptr<Siblings> siblings_;
    std::mutex looking_;
    std::atomic<Result> failure_{Result::kSuccess};
    std::atomic<bool> closes_{false}, is_closed_{false};
};

}  // namespace sley::nccl
