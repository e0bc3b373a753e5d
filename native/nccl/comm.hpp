// Communicators as callers hold them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nccl/abi.hpp"
#include "nccl/part.hpp"
#include "nccl/settings.hpp"

namespace sley::nccl {

class OwnConfig;
struct Opening;

// The real library writes `real`, too: that of a split from a thread of its own, any time until the
// parent is ready. So a Comm stays where it is for the life of the process; after its end another
// communicator takes its place, the oldest place first.
class Comm {
public:
    // Null until there is a real one; the real library refuses calls with a null.
    Handle* real() const { return __atomic_load_n(&real_, __ATOMIC_ACQUIRE); }
    Handle** place() { return &real_; }
    Handle* handle();  // what callers hold

    // Reductions that were made for this communicator have numbers of sley's: the real library's
    // are known only to its own communicator, which may come later than sley's.
    static constexpr std::size_t kMostOps = 32767;  // so that numbers stay below 2^31
    struct Op {
        RedOp real{};                 // a built-in one: none
        int type = 0;                 // of the data and the factor
        std::uint64_t factor = 0;     // the bits
        std::uint64_t factor_at = 0;  // or where the device has it
    };
    RedOp add_op(const Op& op);  // a built-in one if there are as many as there can be
    // None for one that isn't this communicator's.
    std::optional<Op> op_of(RedOp number, bool forgets = false);
    // In place of one that is this communicator's the real library's, which it makes at the first use.
    Result real_op(RedOp& number);

    // A communicator without a real one yet; null if there are as many as there can be.
    static Comm* make();
    void end();

    struct Found {
        Comm* comm;  // null unless it is sley's, alive, and of this process
        bool is_sleys;
        bool is_inherited;  // of the process that forked this one
    };
    // Never looks into a handle: the real library calls back with its own.
    static Found find(const Handle* handle);

    // Of a communicator that was opened; otherwise the real library knows them.
    int ranks = 0, rank = -1, device = -1;
    bool blocks = true;
    Settings settings;
    std::shared_ptr<OwnConfig> config;  // NCCL keeps a pointer to its name
    std::string title;       // for the log
    std::string lacks_real;  // why there is none
    // All ranks make the real one at the first call for which they need it (Completion).
    bool is_lazy = false;
    bool awaits_real() const { return is_lazy && real() == nullptr && !lacks_for_good_; }
    // The refusal of a call of the real one. expected: "NVIDIA's NCCL for ncclSend".
    Result refuse_without_real(const std::string& expected) const;

    // What runs its calls; null if the real library runs all. Whoever uses it holds `part`
    // meanwhile, because another thread may abort the communicator.
    DeviceRank* engine() const { return engine_.load(std::memory_order_acquire); }
    std::shared_ptr<Part> part();
    // Whether its user wants sley to run the calls of a kind ("all_reduce").
    bool runs(const std::string& kind) const { return engine() != nullptr && settings.runs(kind); }

    // Whether it was opened with the other ranks' agreement, not by the real library at once.
    bool is_opened() const { return is_opened_; }
    bool is_aborted() const { return is_aborted_; }
    bool is_revoked() const { return is_revoked_; }
    // As ncclCommGetAsyncError, without the real one's state: in progress while it is opened or
    // finalized; then why it can't be used any more.
    Result state();
    // Why a call can't be made: "one that is being made"; null if it can.
    const char* unready();

    // An opening lasts from `begin` to `finish`, which returns its result: an error if another thread
    // has aborted the communicator meanwhile. `*out` gets null if none was made; out: null if its
    // caller doesn't wait.
    void begin();
    Result finish(Result result, Handle** out);
    // Lets `abort` end what an opening waits for. Throws Refusal (N608) if it was aborted before.
    void wait_on(const std::shared_ptr<Participant>& participant);
    void start(const std::shared_ptr<Part>& part);
    // The real one is being made, by a function that blocks and writes it before.
    void make_real(bool begins) { makes_real_ = begins; }
    // A completion lasts from `begin_completion`, which another one refuses, to `end_completion`.
    bool begin_completion() { return !is_completing_.exchange(true); }
    void end_completion(Result result);
    // The real one that was made in it; false if the communicator was aborted meanwhile.
    bool take_real(Handle* made);
    // Ends all calls, on all ranks, and a completion.
    void give_up(const Refusal& why);
    // There will be no real one.
    void give_up_real(const std::string& why);
    // The openings of those that are made of this one end with it.
    void add_child(Opening* child);
    void remove_child(Opening* child);

    // Ends what other threads wait for, and all calls under way, on all ranks; never waits itself.
    void interrupt();
    // What NCCL's functions of these names do, with the real one too, for one that was opened.
    Result abort();
    Result destroy();
    Result finalize();
    Result revoke(int flags);
    // Ends what was made of the real one, once.
    Result abort_real();

private:
    explicit Comm(std::size_t number) : number_(number) {}

    void clear();
    std::shared_ptr<Part> detach();  // the part, which is to be closed
    void wait_for_children();

    Handle* real_ = nullptr;
    const std::size_t number_;  // of its place
    unsigned process_ = 0;      // that made it, by the number of forks before
    std::mutex mutex_;
    std::vector<std::optional<Op>> ops_;  // none: a free number
    std::shared_ptr<Part> part_, closing_;
    std::shared_ptr<Participant> waits_on_;  // of the opening
    std::set<Opening*> children_;
    std::atomic<DeviceRank*> engine_{nullptr};
    std::atomic<Result> state_{Result::kSuccess};
    std::atomic<bool> is_opened_{false}, is_opening_{false}, makes_real_{false}, is_aborted_{false};
    std::atomic<bool> is_real_aborted_{false}, is_finalized_{false}, is_revoked_{false};
    std::atomic<bool> is_completing_{false}, lacks_for_good_{false};
};

}  // namespace sley::nccl
