// What carries frames between this rank and the ranks of other hosts. A pump makes frames of what
// is in the FIFOs; a wire (TCP, UCX) knows nothing of FIFOs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fabric/control.hpp"

namespace sley {

// kData: message `number` of the sender's FIFO `index`, with its payload.
// kCredit: `number` messages of the receiver of this frame, of its FIFO `index`, were consumed.
// kState: the sender's RankState; `number` counts such frames, `index` is `closed`.
// kFailure: `number` is the Failure, `index` the rank.
enum class FrameKind : std::uint32_t { kData, kCredit, kState, kFailure };

// The head of a frame, as it goes over the network: little-endian, without holes. Frames between
// two ranks may overtake one another.
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
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are sent as they lie in memory");

// Where frames go that arrive.
class FrameSink {
public:
    // Where the payload of a data frame belongs, or nullptr for a frame that cannot be right.
    virtual std::byte* place(std::int32_t peer, const FrameHeader& header) = 0;
    // A frame with all its payload; says whether it can be right.
    virtual bool arrived(std::int32_t peer, const FrameHeader& header) = 0;
    // Nothing more will come from this peer.
    virtual void lost(std::int32_t peer, Failure kind) = 0;

protected:
    ~FrameSink() = default;
};

constexpr std::size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;

// In a time that doesn't depend on where they differ.
inline bool is_same(const Secret& a, const Secret& b) {
    volatile std::byte difference{0};
    for (std::size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
    return difference == std::byte{0};
}

// How the wires of all ranks find one another.
struct Meeting {
    std::vector<std::string> addresses;  // what `Wire::address` says on each rank
    Secret secret{};                     // the job's
    std::chrono::steady_clock::time_point deadline;
    std::function<void()> glance;  // called several times a second; may throw
};

// Not safe for threads: the pump calls one function at a time.
class Wire {
public:
    virtual ~Wire() = default;

    virtual std::string address() const = 0;
    // Throws std::system_error, naming the rank that did not come. Who has come may send at once.
    virtual void connect(const Meeting& meeting, FrameSink& sink) = 0;

    // Whether a frame may be posted; never for a peer that is lost.
    virtual bool has_room(std::int32_t peer, FrameKind kind) const = 0;
    // Whether a peer is not, or no more, connected.
    virtual bool is_lost(std::int32_t peer) const = 0;
    // Takes a frame; its payload must stay as it is until the peer says that it has arrived.
    virtual void post(std::int32_t peer, const FrameHeader& header, const std::byte* payload) = 0;

    // Move what can be moved without waiting; say whether any payload was.
    virtual bool send() = 0;
    virtual bool receive(FrameSink& sink) = 0;
    // Looks, now and then, for peers that the network doesn't reach any more.
    virtual void watch(FrameSink& sink) = 0;
    // Whether all that was posted is on its way; whether it has reached the other hosts.
    virtual bool is_sent() const = 0;
    virtual bool is_delivered() = 0;
};

}  // namespace sley
