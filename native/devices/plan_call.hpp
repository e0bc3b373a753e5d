// Calls of a plan on the devices of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/device_plan.hpp"
#include "devices/memory_index.hpp"

namespace sley {

// A call that is laid out, and then started any number of times; laid out again, it is another. By
// one thread at a time.
class PlanCall {
public:
    // A plan on a device, and the addresses of its kernels there; divide: 0 if calls divide nothing
    // at the end; place: 0 if all launches fit into a call (layout::Call). stamps: rows for each block
    // of the plan (layout::Stamp), or 0.
    struct Place {
        std::shared_ptr<const DevicePlan> plan;
        std::uintptr_t run, divide, place, stamps;
    };

    // memory: of the same ranks. threads: of a block. together: whether all blocks of a launch must
    // be resident.
    PlanCall(std::shared_ptr<CallOrder> order, std::shared_ptr<MemoryIndex> memory,
             std::vector<Place> places, unsigned threads, bool together);

    // False if a rank has too little scratch: then the call can't be started. Throws Refusal. Runs
    // that were started before are as they were.
    bool lay_out(const CallValues& values);

    // What later starts keep until their kernels have ended: see Launch.
    void keep(const std::shared_ptr<void>& what);

    // See OrderedCall. A stream for each launch of each place.
    bool start(const std::vector<Device::Stream>& streams, bool recorded) {
        return call_.start(streams, recorded);
    }

private:
    // A rank's memories, and their numbers for peers.
    struct Found {
        int rank;
        layout::Own own;
    };

    // Adds a rank's to those found; false if it has too little scratch.
    bool look_up(const RankBuffers& own, const CallValues& values);
    const layout::Own& own_of(int rank) const;

    std::shared_ptr<MemoryIndex> memory_;
    std::vector<Place> places_;
    OrderedCall call_;
    std::vector<Found> found_;
};

}  // namespace sley
