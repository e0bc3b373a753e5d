// Ranks as threads over one segment, or over a wire, for the tests of point-to-point messages.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "messages/point_to_point.hpp"

namespace sley::messages_test {

constexpr double kLong = 100.0;  // seconds that no sound test waits
constexpr std::size_t kHeapBytes = std::size_t{1} << 25;

inline void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

// Carries messages between ranks as if each were on a host of its own: slowly, and a side's part
// only while that side makes progress.
class Wire {
public:
    void open(std::int32_t src, std::int32_t dst, bool is_sender, const FifoMemory& memory) {
        const std::lock_guard lock(mutex_);
        auto& link = links_[{src, dst}];
        (is_sender ? link.sent : link.received) = memory;
    }

    bool progress(std::int32_t rank) {
        const std::lock_guard lock(mutex_);
        if (++calls_ % kSlowness != 0) return false;
        bool moved = false;
        for (auto& [ranks, link] : links_) {
            if (ranks.first == rank && has_unsent(link)) moved = deliver(link);
            if (ranks.second == rank && has_unacknowledged(link)) moved = acknowledge(link);
        }
        return moved;
    }

    bool is_settled(std::int32_t rank) {
        const std::lock_guard lock(mutex_);
        for (auto& [ranks, link] : links_) {
            if (ranks.first == rank && has_unsent(link)) return false;
            if (ranks.second == rank && has_unacknowledged(link)) return false;
        }
        return true;
    }

private:
    static constexpr int kSlowness = 40;
    struct Link {
        FifoMemory sent, received;  // where the sender has it, and the receiver's copy
        std::uint64_t next = 0;
        std::uint64_t acknowledged = 0;
    };

    static Envelope& envelope(const Link& link, const FifoMemory& memory) {
        return memory.envelopes[link.next % static_cast<std::uint64_t>(memory.shape.envelopes)];
    }
    static bool has_unsent(const Link& link) {
        return link.sent.counters &&
               envelope(link, link.sent).sequence.load(std::memory_order_acquire) == link.next + 1;
    }
    static bool has_unacknowledged(const Link& link) {
        return link.received.counters &&
               link.received.counters->consumed.load(std::memory_order_acquire) >
                   link.acknowledged;
    }
    static bool deliver(Link& link) {
        if (!link.received.counters) return false;
        const auto& from = envelope(link, link.sent);
        auto& to = envelope(link, link.received);
        const auto offset = from.where - link.sent.slots_where;
        std::memcpy(link.received.slots + offset, link.sent.slots + offset, from.bytes);
        to.where = from.where;
        to.bytes = from.bytes;
        to.signature = from.signature;
        to.sequence.store(++link.next, std::memory_order_release);
        return true;
    }
    static bool acknowledge(Link& link) {
        link.acknowledged = link.received.counters->consumed.load(std::memory_order_acquire);
        link.sent.counters->consumed.store(link.acknowledged, std::memory_order_release);
        return true;
    }

    std::mutex mutex_;
    int calls_ = 0;
    std::map<std::pair<std::int32_t, std::int32_t>, Link> links_;
};

class WireEnd : public Transport {
public:
    WireEnd(std::shared_ptr<Wire> wire, Fabric& fabric)
        : wire_(std::move(wire)), fabric_(fabric) {}

    void open_sender(std::int32_t peer, std::int32_t index) override {
        wire_->open(fabric_.rank(), peer, true, fabric_.fifo(fabric_.rank(), index));
    }
    void open_receiver(std::int32_t peer, std::int32_t index) override {
        wire_->open(peer, fabric_.rank(), false, fabric_.fifo(peer, index));
    }
    bool progress() override { return wire_->progress(fabric_.rank()); }
    bool is_settled() override { return wire_->is_settled(fabric_.rank()); }
    Failure loss_of(std::int32_t) const override { return Failure::kNone; }

private:
    std::shared_ptr<Wire> wire_;
    Fabric& fabric_;
};

struct World {
    World(std::int32_t ranks, FifoShape fifo, bool apart = false) {
        FabricShape shape;
        shape.fifos.assign(static_cast<std::size_t>(ranks), ranks);
        shape.fifo = fifo;
        std::vector<std::int32_t> all;
        Heaps heaps;
        for (std::int32_t r = 0; r < ranks; ++r) {
            all.push_back(r);
            heaps.push_back(std::make_shared<Heap>());
            const auto offset = heaps.back()->grow(kHeapBytes);
            heap.push_back(heaps.back()->at(offset, kHeapBytes));
        }
        const auto memory = Segment::create(shape.bytes_of(all), false);
        const auto wire = std::make_shared<Wire>();
        for (std::int32_t r = 0; r < ranks; ++r) {
            auto regions = Fabric::side_by_side(shape, memory, all);
            for (std::size_t other = 0; apart && other < regions.size(); ++other) {
                if (other != static_cast<std::size_t>(r)) regions[other] = {};
            }
            fabric.push_back(std::make_shared<Fabric>(shape, r, regions, heaps));
            auto& own = *fabric.back();
            if (apart) own.set_transport(std::make_shared<WireEnd>(wire, own));
            messages.push_back(std::make_unique<PointToPoint>(fabric.back(), 1, 0));
        }
    }

    PointToPoint& of(std::int32_t rank) { return *messages[static_cast<std::size_t>(rank)]; }
    Control& control(std::int32_t rank) {
        return fabric[static_cast<std::size_t>(rank)]->control();
    }

    void run(const std::function<void(std::int32_t)>& life) {
        std::vector<std::thread> threads;
        for (std::size_t r = 0; r < fabric.size(); ++r) {
            threads.emplace_back(life, static_cast<std::int32_t>(r));
        }
        for (auto& thread : threads) thread.join();
    }

    std::vector<std::shared_ptr<Fabric>> fabric;
    std::vector<std::unique_ptr<PointToPoint>> messages;
    std::vector<std::byte*> heap;
};

// Random messages among random ranks; exits if one differs from what was sent.
void test_random_traffic(unsigned seed);

}  // namespace sley::messages_test
