// The fabric of a job, as one rank sees it: every rank's memory, and the connections in it.
//
// A rank's memory has its RankState and the FIFOs of the connections that it sends on. The ranks of
// a host share one segment, of which each process maps the connections that it uses. For a rank of
// another host the memory is a private copy, which a transport keeps up to date. Every process with
// the same FabricShape computes the same layout.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fabric/control.hpp"
#include "fabric/fifo.hpp"
#include "fabric/heap.hpp"
#include "fabric/segment.hpp"
#include "fabric/ways.hpp"

namespace sley {

struct FabricShape {
    std::vector<std::int32_t> fifos;  // of each rank: the number of connections that it may send on
    FifoShape fifo;

    std::int32_t ranks() const { return static_cast<std::int32_t>(fifos.size()); }
    std::size_t fifos_bytes(std::int32_t rank) const {
        return static_cast<std::size_t>(fifos[static_cast<std::size_t>(rank)]) * fifo.bytes();
    }
    // The bytes of some ranks' memory, side by side.
    std::size_t bytes_of(const std::vector<std::int32_t>& some) const;
    // Throws std::invalid_argument for a shape without room, std::bad_alloc if its bytes overflow.
    void check() const;
};

// A rank's memory: the places of its RankState and its FIFOs in a segment.
struct Region {
    std::shared_ptr<Segment> segment;
    std::size_t state = 0, fifos = 0;
};

using Heaps = std::vector<std::shared_ptr<Heap>>;

// Carries messages to and from ranks of other hosts. The engines' threads call it, one at a time.
class Transport {
public:
    virtual ~Transport() = default;
    // This rank will send to another host's rank on its own FIFO `index`, or receive on the peer's.
    virtual void open_sender(std::int32_t peer, std::int32_t index) = 0;
    virtual void open_receiver(std::int32_t peer, std::int32_t index) = 0;
    // Moves what can be moved without waiting; returns whether anything was.
    virtual bool progress() = 0;
    // Whether the other hosts have been sent all that was published or consumed here: between calls
    // nothing makes progress.
    virtual bool is_settled() = 0;
    // How the connection to a rank was lost; any thread may ask.
    virtual Failure loss_of(std::int32_t rank) const = 0;
};

class Fabric {
public:
    // memory: of each rank, without a segment for one on another host. heaps: of each rank, if it
    // lets others read from one.
    Fabric(FabricShape shape, std::int32_t rank, std::vector<Region> memory, Heaps heaps);

    // The regions of all ranks: of `some` in one segment, their states first, and none of others.
    static std::vector<Region> side_by_side(const FabricShape& shape,
                                            const std::shared_ptr<Segment>& segment,
                                            const std::vector<std::int32_t>& some);

    const FabricShape& shape() const { return shape_; }
    std::int32_t rank() const { return control_.rank(); }
    Control& control() { return control_; }
    Ways& ways() { return ways_; }
    RankState& state(std::int32_t rank) const { return control_.state(rank); }

    // The ends of connections, created with their memory at the first request. Any thread may ask,
    // but an end is for one thread at a time.
    FifoSender& sender(std::int32_t dst, std::int32_t index);
    FifoReceiver& receiver(std::int32_t src, std::int32_t index);
    FifoMemory fifo(std::int32_t src, std::int32_t index);

    bool is_remote(std::int32_t rank) const {
        return remote_[static_cast<std::size_t>(rank)];
    }

    std::int32_t local_ranks() const {
        return static_cast<std::int32_t>(std::count(remote_.begin(), remote_.end(), false));
    }

    // The address of the data of a message from `src`; null if there are no addresses left to map
    // them.
    const std::byte* resolve(std::int32_t src, std::uint64_t where, std::size_t bytes) {
        if (where & kInHeap) {
            return heaps_[static_cast<std::size_t>(src)]->at(where & ~kInHeap, bytes);
        }
        const auto index = static_cast<std::int32_t>(where >> shift_);
        auto* memory = fifos_[number(src, index)].load(std::memory_order_acquire);
        if (!memory) memory = try_map(src, index);
        return memory ? memory + (where & mask_) : nullptr;
    }

    // Whether this rank can read all memory of the other processes of its host.
    bool reads_others() const;
    // Whether all ranks can; they have agreed on it.
    bool is_attached = false;
    // Memory of the call that runs: the plan's scratch, as one piece or (with varying counts) by
    // cells, and a landing place for messages read from other processes. It keeps the size of the
    // largest call.
    std::vector<std::uint64_t> scratch, landing;
    std::vector<std::vector<std::uint64_t>> varying_scratch;

    // `where` of data in this rank's heap; 0 for other data.
    std::uint64_t in_heap(const std::byte* data, std::size_t bytes) const {
        const auto& heap = heaps_[static_cast<std::size_t>(rank())];
        const auto offset = heap ? heap->find(data, bytes) : std::nullopt;
        return offset ? kInHeap | *offset : 0;
    }

    void set_transport(std::shared_ptr<Transport> transport) { transport_ = std::move(transport); }
    bool progress() { return transport_ && transport_->progress(); }
    bool is_settled() { return !transport_ || transport_->is_settled(); }
    bool has_lost(std::int32_t rank) const {
        return transport_ && is_remote(rank) && transport_->loss_of(rank) != Failure::kNone;
    }

private:
    // The memory of connections, by `number`: null until it is mapped. Most never are.
    using Fifos = std::unique_ptr<std::atomic<std::byte*>[], decltype(&std::free)>;

    std::size_t number(std::int32_t src, std::int32_t index) const {
        return static_cast<std::size_t>(index) * ranks_ + static_cast<std::size_t>(src);
    }
    std::byte* map(std::int32_t src, std::int32_t index);
    std::byte* try_map(std::int32_t src, std::int32_t index) noexcept;
    void reserve(std::int32_t src, std::int32_t index);

    FabricShape shape_;
    std::size_t ranks_;
    unsigned shift_;  // of the connection's index in `where`
    std::uint64_t mask_;  // of the offset in its memory
    std::vector<Region> memory_;
    Fifos fifos_;
    Heaps heaps_;
    std::vector<bool> remote_;
    Control control_;
    Ways ways_;
    std::shared_ptr<Transport> transport_;
    std::mutex mutex_;  // of the ends
    std::unordered_map<std::size_t, std::unique_ptr<FifoSender>> senders_;
    std::unordered_map<std::size_t, std::unique_ptr<FifoReceiver>> receivers_;
};

}  // namespace sley
