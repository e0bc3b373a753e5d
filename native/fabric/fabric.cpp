// The layout of a fabric, and the ends of its connections.
#include "fabric/fabric.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>

#include "fabric/copy.hpp"

namespace sley {
namespace {

// Gives ranks of other hosts private memory in place of their own.
std::vector<Region> with_copies(const FabricShape& shape, std::vector<Region> memory) {
    for (std::size_t r = 0; r < memory.size(); ++r) {
        if (memory[r].segment) continue;
        const auto rank = static_cast<std::int32_t>(r);
        const auto copy = Segment::sparse(shape.bytes_of({rank}), false);
        memory[r] = Fabric::side_by_side(shape, copy, {rank})[r];
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
        region.segment->reserve(region.state, sizeof(RankState));
        auto* state = region.segment->at(region.state, sizeof(RankState));
        states.push_back(reinterpret_cast<RankState*>(state));
    }
    return states;
}

unsigned bits_of(std::size_t most) {
    unsigned bits = 0;
    while (most >> bits) ++bits;
    return bits;
}

}  // namespace

std::size_t FabricShape::bytes_of(const std::vector<std::int32_t>& some) const {
    std::size_t bytes = 0;
    for (const auto rank : some) bytes += sizeof(RankState) + fifos_bytes(rank);
    return bytes;
}

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
    const auto most = *std::max_element(fifos.begin(), fifos.end());
    if (bits_of(fifo.bytes()) + bits_of(static_cast<std::size_t>(most)) > kWhereBits) {
        throw std::bad_alloc();
    }
}

Fabric::Fabric(FabricShape shape, std::int32_t rank, std::vector<Region> memory, Heaps heaps)
    : shape_(std::move(shape)),
      ranks_(static_cast<std::size_t>(shape_.ranks())),
      shift_(bits_of(shape_.fifo.bytes())),
      mask_((std::uint64_t{1} << shift_) - 1),
      memory_(with_copies(shape_, memory)),
      fifos_(nullptr, &std::free),
      heaps_(std::move(heaps)),
      remote_(without_segment(memory)),
      control_(rank, states_of(memory_), local_ranks() < shape_.ranks()),
      ways_(control_) {
    heaps_.resize(memory_.size());
    const auto most = *std::max_element(shape_.fifos.begin(), shape_.fifos.end());
    const auto count = std::max<std::size_t>(number(0, most), 1);
    // Not a vector, which would write to all of it.
    auto* zeros = static_cast<std::atomic<std::byte*>*>(std::calloc(count, sizeof *fifos_.get()));
    if (!zeros) throw std::bad_alloc();
    fifos_.reset(zeros);
}

std::vector<Region> Fabric::side_by_side(const FabricShape& shape,
                                         const std::shared_ptr<Segment>& segment,
                                         const std::vector<std::int32_t>& some) {
    std::vector<Region> regions(static_cast<std::size_t>(shape.ranks()));
    std::size_t state = 0, fifos = some.size() * sizeof(RankState);
    for (const auto rank : some) {
        regions[static_cast<std::size_t>(rank)] = {segment, state, fifos};
        state += sizeof(RankState);
        fifos += shape.fifos_bytes(rank);
    }
    return regions;
}

std::byte* Fabric::map(std::int32_t src, std::int32_t index) {
    const auto& region = memory_[static_cast<std::size_t>(src)];
    const auto bytes = shape_.fifo.bytes();
    auto* memory = region.segment->at(region.fifos + static_cast<std::size_t>(index) * bytes, bytes);
    fifos_[number(src, index)].store(memory, std::memory_order_release);
    return memory;
}

std::byte* Fabric::try_map(std::int32_t src, std::int32_t index) noexcept {
    try {
        return map(src, index);
    } catch (const std::exception&) {
        return nullptr;
    }
}

FifoMemory Fabric::fifo(std::int32_t src, std::int32_t index) {
    std::byte* data = map(src, index);
    const auto& region = memory_[static_cast<std::size_t>(src)];
    const auto slots = shape_.fifo.slots_offset();
    return {reinterpret_cast<FifoCounters*>(data),
            reinterpret_cast<Envelope*>(data + sizeof(FifoCounters)),
            data + slots,
            static_cast<std::uint64_t>(index) << shift_ | slots,
            shape_.fifo,
            region.segment.get(),
            region.fifos + static_cast<std::size_t>(index) * shape_.fifo.bytes() + slots};
}

// Both ends reserve the memory of a connection's counters and envelopes: either may come first.
void Fabric::reserve(std::int32_t src, std::int32_t index) {
    if (src < 0 || src >= shape_.ranks() || index < 0 ||
        index >= shape_.fifos[static_cast<std::size_t>(src)]) {
        throw std::invalid_argument("a connection that the fabric doesn't have");
    }
    const auto& region = memory_[static_cast<std::size_t>(src)];
    const auto offset = region.fifos + static_cast<std::size_t>(index) * shape_.fifo.bytes();
    try {
        region.segment->reserve(offset, shape_.fifo.slots_offset());
        map(src, index);
    } catch (const std::system_error&) {
        control_.fail(Failure::kNoMemory, rank());  // otherwise the other end waits for this one
        throw;
    }
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

}  // namespace sley
