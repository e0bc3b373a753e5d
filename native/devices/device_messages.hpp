// Sends and receives of a rank on a device, between pairs of ranks, without a plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/device_calls.hpp"
#include "devices/kernel_layout.hpp"
#include "devices/memory_exchange.hpp"
#include "devices/refusal.hpp"

namespace sley {

// A send to, or a receive from, a rank of the communicator; maybe to itself.
struct DeviceMessage {
    int peer;
    bool sends;
    std::uint64_t address, bytes;
};

// The sends of a rank to another, and its receives from there, match in order: the n-th send that one
// starts is the n-th receive that the other starts, however both group them. Messages without bytes are
// left out on both ends. Calls of a communicator, these and collectives, run in the order in which a
// rank starts them, whatever their streams. Any threads may share it.
class DeviceMessages {
public:
    // What it needs of a rank, and of a device. blocks: that a rank may run at once. kernel:
    // `sley_messages`. together: see PlanCall.
    struct Place {
        int rank, ranks;
        Device* device;
        int blocks;
        std::uintptr_t kernel;
        unsigned threads;
        bool together;
        std::uint64_t abort, timeout_ns;
    };

    // The lanes of a pair in each direction, and the bytes that a rank needs for all of its lanes.
    static int channels(int ranks, int blocks);
    static std::size_t bytes(int ranks, int blocks);

    // memory: `bytes` for each rank, as the device sees it. What it adds to `kept` must last as long as
    // its launches.
    DeviceMessages(const Place& place, std::shared_ptr<CallOrder> order,
                   const std::vector<std::uint64_t>& memory,
                   std::vector<std::shared_ptr<void>>& kept);

    // Starts messages on a stream, all side by side; it doesn't wait for them. Those that don't fit
    // into one launch follow in others, in an order that is right if the other ends start the same
    // ones together. Throws Refusal (N705), before anything is started, if a rank's sends to itself
    // aren't its receives; and what devices throw.
    StartOutcome start(const std::vector<DeviceMessage>& messages, Device::Stream stream);

    // The report of a block that has given up, and why; of several the one that waited too long, for
    // `limit`.
    struct Stuck {
        std::uint64_t status;
        Refusal why;
    };
    std::optional<Stuck> stuck(const std::string& limit) const;

private:
    struct Row;

    // The messages in the order of their launches.
    std::vector<Row> rows_of(const std::vector<DeviceMessage>& messages) const;
    // Of one launch.
    StartOutcome launch(std::vector<Row> rows, Device::Stream stream);

    Place place_;
    int channels_;
    std::uint64_t reports_ = 0;
    std::mutex lock_;
    layout::Messages argument_{};
    std::optional<OrderedCall> call_;
};

}  // namespace sley
