// Wires, which carry frames between this rank and the ranks of other hosts, over TCP or UCX. A pump
// makes frames of the content of FIFOs; a wire knows no FIFOs.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fabric/control.hpp"
#include "network/hmac.hpp"

namespace sley {

// kData: message `number` of the sender's FIFO `index`, with its payload.
// kCredit: `number` messages of the frame receiver's FIFO `index` have been consumed.
// kState: the sender's RankState; `number` counts such frames, `index` is `closed`.
// kFailure: `number` is the Failure, `index` the rank.
enum class FrameKind : std::uint32_t { kData, kCredit, kState, kFailure };

// The head of a frame, as sent over the network: little-endian, without padding. Frames between two
// ranks may overtake one another.
struct FrameHeader {
    FrameKind kind = FrameKind::kData;
    std::int32_t index = 0;
    std::uint32_t bytes = 0;  // of the payload
    std::uint32_t signature = 0;
    std::uint64_t number = 0;
    // arrived, beat, call_sequence, call_what, call_count, call_ended
    std::array<std::uint64_t, 6> state{};
};

static_assert(sizeof(FrameHeader) == 72, "the same on every machine");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are sent as they are in memory");

// The receiver of arriving frames.
class FrameSink {
public:
    // The address for the payload of a data frame, or nullptr for an invalid frame.
    virtual std::byte* place(std::int32_t peer, const FrameHeader& header) = 0;
    // Takes a frame whose payload is in place; returns whether the frame is valid.
    virtual bool accept(std::int32_t peer, const FrameHeader& header) = 0;
    // No more frames will come from this peer.
    virtual void lose(std::int32_t peer, Failure kind) = 0;

protected:
    ~FrameSink() = default;
};

// What the wires of all ranks need to connect.
struct Meeting {
    std::vector<std::string> addresses;  // `Wire::address` of each rank
    Secret secret{};                     // the job's
    std::chrono::steady_clock::time_point deadline;
    std::function<void()> glance;  // called several times a second; may throw
};

// Not thread-safe: the pump calls one function at a time.
class Wire {
public:
    virtual ~Wire() = default;

    virtual std::string address() const = 0;
    // Throws std::system_error, which names absent ranks. A connected peer may send at once.
    virtual void connect(const Meeting& meeting, FrameSink& sink) = 0;

    // Whether a frame may be posted; never for a peer that is lost.
    virtual bool has_room(std::int32_t peer, FrameKind kind) const = 0;
    // Whether a peer is not, or no longer, connected.
    virtual bool is_lost(std::int32_t peer) const = 0;
    // Takes a frame; its payload must not change until the peer acknowledges the message.
    virtual void post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) = 0;

    // Move what can be moved without waiting; return whether any payload was.
    virtual bool send() = 0;
    virtual bool receive(FrameSink& sink) = 0;
    // What to poll until something can be received or sent; empty if it can be at once.
    virtual std::vector<pollfd> arrivals() = 0;
    // Called now and then: checks for peers that the network no longer reaches.
    virtual void watch(FrameSink& sink) = 0;
    // Whether all posted frames have been sent; whether they have reached the other hosts.
    virtual bool is_sent() const = 0;
    virtual bool is_delivered() = 0;
};

}  // namespace sley
