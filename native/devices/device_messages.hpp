// Sends and receives of a rank on a device, between pairs of ranks, without a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "devices/device.hpp"
#include "devices/device_calls.hpp"

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
    ~DeviceMessages();

    // Starts messages on a stream, all side by side; it doesn't wait for them. Those that don't fit
    // into one launch follow in others, in an order that is right if the other ends start the same
    // ones together. Refuses (K518), before anything is started, a rank's messages to itself if
    // its sends aren't its receives. Throws what devices throw.
    StartOutcome start(const std::vector<DeviceMessage>& messages, Device::Stream stream);

private:
    friend class DeviceRank;
    struct State;
    explicit DeviceMessages(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

}  // namespace sley
