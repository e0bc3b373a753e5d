// The calls of a rank of a communicator on a device: which plan runs each, and its start.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "devices/plan_call.hpp"
#include "engine/ready.hpp"

namespace sley {

// The kind of a collective, by number; its root, or 0.
struct CallKind {
    int kind;
    bool in_place;
    int root;
};

// A kernel's type and operation, by number, and whether inputs are multiplied by a factor.
struct CallProgram {
    int dtype, op;
    bool scales;
};

enum class StartOutcome { kStarted, kGivenUp, kLacksProgram, kLacksScratch };

// Any threads may share it. After the first call of a plan, type, operation and number of threads
// nothing is allocated; nor then memory of a device.
class DeviceCalls {
public:
    // order, memory: of the rank alone. together: see PlanCall.
    DeviceCalls(std::shared_ptr<CallOrder> order, std::shared_ptr<MemoryIndex> memory, int rank,
                bool together);

    // Returns the plan's number: from 0 on.
    int add_plan(std::shared_ptr<const DevicePlan> plan);

    // The plans of the calls of a kind, by size: plans[k] up to ends[k] bytes, which ascend, and the
    // last one for larger calls. A kind that has none in place has plans that are right there, too.
    void set_table(const CallKind& kind, std::vector<std::uint64_t> ends, std::vector<int> plans);

    // The kernels of a plan's calls; see PlanCall::Place.
    void set_program(int plan, const CallProgram& program, std::uintptr_t run,
                     std::uintptr_t divide);

    // The plan of a call. size_bytes: of the largest buffer of any rank.
    int plan_of(const CallKind& kind, std::uint64_t size_bytes) const;
    // Whether a call lacks nothing; equal on all ranks that have the same tables, kernels and scratch.
    bool is_ready(const CallKind& kind, const CallProgram& program, std::uint64_t size_bytes,
                  const CallValues& values) const;

    // Of each of a kind's ranges of sizes: the calls that were started, and their bytes.
    struct Tally {
        std::uint64_t calls = 0, bytes = 0;
    };
    std::vector<Tally> tallies(const CallKind& kind) const;

    // Starts a call on a stream; without a launch if size_bytes is 0, which all ranks know. buffers:
    // the rank's, whose number is set here. keeps: see Launch. What the call lacks, it lacks before
    // anything is started. Throws Refusal, and what devices throw.
    StartOutcome start(const CallKind& kind, const CallProgram& program, std::uint64_t size_bytes,
                       CallValues values, RankBuffers buffers, Device::Stream stream,
                       const std::shared_ptr<void>& keeps);

    // Starts a call of arrays; one that is its own output has one memory. Nothing if they don't fit
    // the collective, if only the root sees how they lie, or if an address needs a closer look.
    std::optional<StartOutcome> start(const Kind& kind, const Elements& input,
                                      const Elements& output, ReduceOp op, int root,
                                      Device::Stream stream, const std::shared_ptr<void>& keeps);

    // Of the plans, which must be there.
    const Device& device() const { return plans_.front()->device(); }

private:
    // Whether the rank has the scratch that any rank needs in the call: where ranks are threads of a
    // process, all must lack it in the same call, to allocate it together.
    bool has_scratch(int plan, const CallValues& values) const;

    struct Row {
        std::vector<std::uint64_t> ends;
        std::vector<int> plans;
        mutable std::vector<Tally> tallies;

        std::size_t range_of(std::uint64_t size_bytes) const;
    };

    struct Program {
        std::uintptr_t run, divide;
    };

    bool has_row(const CallKind& kind) const;
    const Row& row_of(const CallKind& kind) const;
    // Null without a program. threads: of a block.
    PlanCall* call_of(const std::array<int, 4>& key, unsigned threads);

    std::shared_ptr<CallOrder> order_;
    std::shared_ptr<MemoryIndex> memory_;
    bool together_;
    mutable std::mutex lock_;
    std::vector<std::shared_ptr<const DevicePlan>> plans_;
    std::map<std::array<int, 3>, Row> rows_;  // by kind
    // By plan and program; the calls from their first start on, since most are never made, and by the
    // threads of a block.
    std::map<std::array<int, 4>, Program> programs_;
    std::map<std::pair<std::array<int, 4>, unsigned>, PlanCall> calls_;
    std::vector<RankBuffers> buffers_;  // of the call that starts
    std::vector<Device::Stream> streams_;
};

}  // namespace sley
