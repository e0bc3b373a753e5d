// The fabric of a job: one segment with the control block and all connections.
//
// Layout: ControlBlock | RankState per rank | FifoCounters per connection | slots of connection 0,
// of connection 1, ... Every process that attaches computes the same layout from the same numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "control.hpp"
#include "fifo.hpp"
#include "segment.hpp"

namespace sley {

struct Connection {
    std::int32_t src;
    std::int32_t dst;
};

struct FabricShape {
    std::int32_t ranks;
    std::vector<Connection> connections;
    std::int64_t slots;
    std::int64_t slot_bytes;

    std::size_t stride() const {
        return (static_cast<std::size_t>(slot_bytes) + kCacheLine - 1) / kCacheLine * kCacheLine;
    }
    std::size_t header_bytes() const {
        return sizeof(ControlBlock) + static_cast<std::size_t>(ranks) * sizeof(RankState) +
               connections.size() * sizeof(FifoCounters);
    }
    // Throws std::bad_alloc where the sum does not even fit in a number.
    std::size_t bytes() const {
        constexpr auto kMost = static_cast<double>(std::numeric_limits<std::int64_t>::max()) / 2;
        const double slots_bytes = static_cast<double>(connections.size()) *
                                   static_cast<double>(slots) * static_cast<double>(slot_bytes + 64);
        if (slots_bytes > kMost) throw std::bad_alloc();
        return header_bytes() + connections.size() * static_cast<std::size_t>(slots) * stride();
    }
};

class Fabric {
public:
    Fabric(FabricShape shape, Segment segment)
        : shape_(std::move(shape)),
          segment_(std::move(segment)),
          control_(reinterpret_cast<ControlBlock*>(segment_.data()),
                   reinterpret_cast<RankState*>(segment_.data() + sizeof(ControlBlock)),
                   shape_.ranks) {}

    static FabricShape checked(FabricShape shape) {
        if (shape.ranks < 1 || shape.slots < 1 || shape.slot_bytes < 1) {
            throw std::invalid_argument("a fabric needs a rank, a slot and a byte in it");
        }
        for (const auto& c : shape.connections) {
            if (c.src < 0 || c.src >= shape.ranks || c.dst < 0 || c.dst >= shape.ranks) {
                throw std::invalid_argument("a connection's end is no rank");
            }
        }
        return shape;
    }

    const FabricShape& shape() const { return shape_; }
    const Segment& segment() const { return segment_; }
    Control& control() { return control_; }

    FifoMemory fifo(std::size_t connection) const {
        std::byte* counters = segment_.data() + sizeof(ControlBlock) +
                              static_cast<std::size_t>(shape_.ranks) * sizeof(RankState) +
                              connection * sizeof(FifoCounters);
        std::byte* slots = segment_.data() + shape_.header_bytes() +
                           connection * static_cast<std::size_t>(shape_.slots) * shape_.stride();
        return {reinterpret_cast<FifoCounters*>(counters), slots, shape_.stride(),
                static_cast<std::uint64_t>(shape_.slots)};
    }

private:
    FabricShape shape_;
    Segment segment_;
    Control control_;
};

}  // namespace sley
