// Calls of a plan on the devices of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/device_plan.hpp"

namespace sley {

// A call that is laid out, and then started any number of times; laid out again, it is another. By
// one thread at a time.
class PlanCall {
public:
    // A plan on a device, the addresses of its kernels there (divide: 0 if calls divide nothing at
    // the end), and of the device's table of registered memory.
    struct Place {
        std::shared_ptr<const DevicePlan> plan;
        std::uintptr_t run, divide;
        std::uint64_t shifts;
    };

    // threads: of a block. together: whether all blocks of a launch must be resident. keeps: see
    // Launch.
    PlanCall(std::shared_ptr<CallOrder> order, std::vector<Place> places, unsigned threads,
             bool together, const std::shared_ptr<void>& keeps);

    // Throws Refusal. Runs that were started before are as they were.
    void lay_out(const CallValues& values);

    // See OrderedCall. A stream for each launch of each place.
    bool start(const std::vector<Device::Stream>& streams, bool recorded) {
        return call_.start(streams, recorded);
    }

private:
    std::vector<Place> places_;
    OrderedCall call_;
    layout::Call argument_{};
};

}  // namespace sley
