// The layout of a fabric, and the ends of its connections.
#include "fabric/fabric.hpp"

#include <limits>
#include <new>
#include <stdexcept>

#include "fabric/copy.hpp"

namespace sley {
namespace {

// Gives ranks of other hosts private memory in place of their own.
std::vector<Region> with_copies(const FabricShape& shape, std::vector<Region> memory) {
    for (std::size_t r = 0; r < memory.size(); ++r) {
        if (memory[r].segment) continue;
        const auto bytes = shape.bytes_of(static_cast<std::int32_t>(r));
        memory[r] = {std::make_shared<Segment>(Segment::sparse(bytes, false)), 0};
    }
    return memory;
}

std::vector<bool> without_segment(const std::vector<Region>& memory) {
    std::vector<bool> remote;
    for (const auto& region : memory) remote.push_back(!region.segment);
    return remote;
}

std::vector<RankState*> states_of(const std::vector<Region>& memory) {
    std::vector<RankState*> states;
    for (const auto& region : memory) {
        states.push_back(reinterpret_cast<RankState*>(region.data()));
    }
    return states;
}

}  // namespace

void FabricShape::check() const {
    if (fifos.empty() || fifo.slots < 1 || fifo.slot_bytes < 1 || fifo.envelopes < 1) {
        throw std::invalid_argument("a fabric needs a rank, a slot and a byte in it");
    }
    constexpr auto kMost = static_cast<double>(std::numeric_limits<std::int64_t>::max()) / 2;
    const double one = static_cast<double>(fifo.slots) * static_cast<double>(fifo.slot_bytes + 64) +
                       static_cast<double>(fifo.envelopes) * sizeof(Envelope) + 64;
    double all = 0;
    for (const auto count : fifos) {
        if (count < 0) throw std::invalid_argument("a rank with fewer than no connections");
        all += one * count;
    }
    if (all > kMost) throw std::bad_alloc();
}

Fabric::Fabric(FabricShape shape, std::int32_t rank, std::vector<Region> memory,
               std::vector<Region> heaps)
    : shape_(std::move(shape)),
      memory_(with_copies(shape_, memory)),
      heaps_(std::move(heaps)),
      remote_(without_segment(memory)),
      control_(rank, states_of(memory_), local_ranks() < shape_.ranks()),
      ways_(control_) {
    heaps_.resize(memory_.size());
}

std::size_t Fabric::bytes_side_by_side(const FabricShape& shape) {
    std::size_t bytes = 0;
    for (std::int32_t r = 0; r < shape.ranks(); ++r) bytes += shape.bytes_of(r);
    return bytes;
}

std::vector<Region> Fabric::side_by_side(const FabricShape& shape,
                                         const std::shared_ptr<Segment>& segment) {
    std::vector<Region> regions;
    std::size_t offset = 0;
    for (std::int32_t r = 0; r < shape.ranks(); ++r) {
        regions.push_back({segment, offset});
        offset += shape.bytes_of(r);
    }
    return regions;
}

std::size_t Fabric::number(std::int32_t src, std::int32_t index) const {
    const auto ranks = static_cast<std::size_t>(shape_.ranks());
    return static_cast<std::size_t>(index) * ranks + static_cast<std::size_t>(src);
}

FifoMemory Fabric::fifo(std::int32_t src, std::int32_t index) const {
    const auto start = shape_.offset(index);
    std::byte* data = memory_[static_cast<std::size_t>(src)].data() + start;
    const auto slots = shape_.fifo.slots_offset();
    return {reinterpret_cast<FifoCounters*>(data),
            reinterpret_cast<Envelope*>(data + sizeof(FifoCounters)), data + slots, start + slots,
            shape_.fifo};
}

// Both ends reserve the connection's memory: either may come first.
void Fabric::reserve(std::int32_t src, std::int32_t index) {
    if (src < 0 || src >= shape_.ranks() || index < 0 ||
        index >= shape_.fifos[static_cast<std::size_t>(src)]) {
        throw std::invalid_argument("a connection that the fabric doesn't have");
    }
    const auto& region = memory_[static_cast<std::size_t>(src)];
    region.segment->reserve(region.offset + shape_.offset(index), shape_.fifo.bytes());
}

FifoSender& Fabric::sender(std::int32_t dst, std::int32_t index) {
    const std::lock_guard lock(mutex_);
    auto& end = senders_[number(rank(), index)];
    if (!end) {
        reserve(rank(), index);
        if (is_remote(dst)) transport_->open_sender(dst, index);
        end = std::make_unique<FifoSender>(fifo(rank(), index), state(dst).bell);
    }
    return *end;
}

FifoReceiver& Fabric::receiver(std::int32_t src, std::int32_t index) {
    const std::lock_guard lock(mutex_);
    auto& end = receivers_[number(src, index)];
    if (!end) {
        reserve(src, index);
        if (is_remote(src)) transport_->open_receiver(src, index);
        end = std::make_unique<FifoReceiver>(fifo(src, index), state(src).bell);
    }
    return *end;
}

bool Fabric::reads_others() const {
    for (std::int32_t r = 0; r < shape_.ranks(); ++r) {
        if (!is_remote(r) && !can_read(state(r))) return false;
    }
    return true;
}

std::uint64_t Fabric::in_heap(const std::byte* data, std::size_t bytes) const {
    const auto& heap = heaps_[static_cast<std::size_t>(rank())];
    if (!heap.segment || data < heap.data() ||
        data + bytes > heap.segment->data() + heap.segment->size()) {
        return 0;
    }
    return kInHeap | static_cast<std::uint64_t>(data - heap.data());
}

}  // namespace sley
