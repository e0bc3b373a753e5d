// A connection: a FIFO of messages from one rank to another.
//
// It is in memory of the sending rank that both ranks see: a counter of all messages consumed so
// far, a ring of envelopes, and a ring of slots. Message k has envelope k % envelopes, which names
// the place of its data: a slot, a slot that another connection of the sender shares with this one,
// or an address in the sender's heap or process. The envelope's `sequence` publishes the message,
// so that one cache line brings both the news and the place. Nothing is ever reset, so calls follow
// one another without a barrier: a sender that is a call ahead finds no room.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "fabric/bell.hpp"
#include "fabric/segment.hpp"

namespace sley {

constexpr std::size_t kCacheLine = 64;

// For the tests that the thread sanitizer notices a lost release: a program that can publish
// without.
#ifdef SLEY_RELEASE_MAY_BREAK
inline const std::memory_order kPublish =
    std::getenv("SLEY_BREAK_RELEASE") ? std::memory_order_relaxed : std::memory_order_release;
#else
constexpr std::memory_order kPublish = std::memory_order_release;
#endif

// Bits of `where`, which else is a connection of the sender and an offset in its memory
// (`Fabric::resolve`): an offset in its heap, or an address in its process.
constexpr std::uint64_t kInHeap = std::uint64_t{1} << 63, kInProcess = std::uint64_t{1} << 62;
constexpr unsigned kWhereBits = 62;  // the others

struct alignas(kCacheLine) Envelope {
    std::atomic<std::uint64_t> sequence;  // the message's number + 1, once it is published
    std::uint64_t where;
    std::uint32_t bytes;
    std::uint32_t signature;  // of the call
};

struct alignas(kCacheLine) FifoCounters {
    std::atomic<std::uint64_t> consumed;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "counters are shared between processes: a lock inside an atomic would be private");

inline std::size_t whole_lines(std::size_t bytes) {
    return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

struct FifoShape {
    std::int64_t slots = 0;
    std::int64_t slot_bytes = 0;
    std::int64_t envelopes = 0;

    std::size_t stride() const {
        return whole_lines(static_cast<std::size_t>(slot_bytes));
    }
    std::size_t slots_offset() const {
        return sizeof(FifoCounters) + static_cast<std::size_t>(envelopes) * sizeof(Envelope);
    }
    std::size_t slots_bytes() const { return static_cast<std::size_t>(slots) * stride(); }
    // The distance of slots of at least so many bytes, and how many the memory has room for.
    std::size_t stride_of(std::int64_t least_bytes) const {
        return std::max(whole_lines(static_cast<std::size_t>(least_bytes)), stride());
    }
    std::int64_t slots_of(std::int64_t least_bytes) const {
        return static_cast<std::int64_t>(slots_bytes() / stride_of(least_bytes));
    }
    std::size_t bytes() const { return slots_offset() + slots_bytes(); }

    // How many messages of `message_bytes` may be staged at a time where `messages` of `most_bytes`
    // may: as many as fit in the same memory. With more ranks than cores, a root that may run ahead
    // causes fewer context switches.
    std::size_t limit(std::int64_t messages, std::int64_t most_bytes,
                      std::int64_t message_bytes) const {
        const auto fitting = messages * most_bytes / std::max<std::int64_t>(message_bytes, 1);
        return static_cast<std::size_t>(
            std::clamp(fitting, messages, std::max(messages, envelopes)));
    }
};

// A connection's memory, as one process sees it.
struct FifoMemory {
    FifoCounters* counters = nullptr;
    Envelope* envelopes = nullptr;
    std::byte* slots = nullptr;
    std::uint64_t slots_where = 0;  // of the first slot
    FifoShape shape;
    // Where the sender allocates memory for the slots that it uses; they have it without a segment.
    Segment* segment = nullptr;
    std::size_t slots_offset = 0;
};

struct Message {
    std::uint64_t where;
    std::uint32_t bytes;
    std::uint32_t signature;
};

// The sending end, which rings the receiver's bell. Messages are numbered from 0. It keeps the last
// `consumed` that it read, and reads the other rank's cache line again only if that doesn't
// suffice. Where no slot is free, a small message follows the last one in its slot.
class FifoSender {
public:
    static constexpr auto kNoSlot = ~std::size_t{0};

    FifoSender(const FifoMemory& memory, Bell& receiver)
        : memory_(memory),
          receiver_(receiver),
          turns_(static_cast<std::size_t>(std::max(memory.shape.slots, memory.shape.envelopes))),
          stride_(memory.shape.stride()),
          wanted_(stride_),
          uses_(static_cast<std::size_t>(memory.shape.slots)),
          allocated_(static_cast<std::size_t>(memory.shape.slots)) {}

    // Divides the memory into slots of at least so many bytes: fewer than the shape's, or these. As
    // long as one of the old slots is in use, no message has a slot.
    void divide(std::int64_t least_bytes) { wanted_ = memory_.shape.stride_of(least_bytes); }

    std::uint64_t next() const { return next_; }

    bool has_consumed(std::uint64_t number) {
        if (number < consumed_) return true;
        consumed_ = memory_.counters->consumed.load(std::memory_order_acquire);
        return number < consumed_;
    }

    bool has_consumed_all() { return next_ == 0 || has_consumed(next_ - 1); }

    bool has_envelope() {
        const auto room = static_cast<std::uint64_t>(memory_.shape.envelopes);
        return next_ < room || has_consumed(next_ - room);
    }

    // Whether the next message, of `bytes`, may be staged: fewer than `limit` staged messages are in
    // flight, and a slot has room.
    bool has_slot(std::size_t limit, std::size_t bytes) {
        return has_envelope() && has_turn(limit) && is_divided() && find_slot(bytes) < uses_.size();
    }

    // Takes room in a slot for the next message; after `has_slot`. kNoSlot if the system has no
    // memory for it.
    std::size_t take_slot(std::size_t bytes) {
        const auto slot = find_slot(bytes);
        auto& use = uses_[slot];
        const auto begin = is_free(use) ? 0 : use.end;
        if (begin + bytes > use.allocated && !allocate(slot, begin + bytes)) return kNoSlot;
        use.begin = begin;
        use.end = begin + whole_lines(bytes);
        use.taken = true;
        use.number = next_;
        last_ = slot;
        take_turn();
        return slot;
    }

    // Counts the next message as staged, although its data are elsewhere.
    void take_turn() { turns_[turn_++ % turns_.size()] = next_; }

    // Address of the slot's last message.
    std::byte* data(std::size_t slot) const { return memory_.slots + offset(slot); }
    std::uint64_t where(std::size_t slot) const { return memory_.slots_where + offset(slot); }

    // Whether message `number` is the last one that took the slot.
    bool holds(std::size_t slot, std::uint64_t number) const {
        return uses_[slot].taken && uses_[slot].number == number;
    }

    // Keeps a slot until the next message of `other` has been consumed too. False if too few slots
    // would be left for `limit` staged messages of this connection: it must never wait for another
    // connection, since the plan's proof doesn't know of such waits.
    bool share(std::size_t slot, FifoSender& other, std::size_t limit) {
        std::size_t kept = is_kept(uses_[slot]) ? 0 : 1;
        for (auto& use : uses_) kept += is_kept(use);
        if (kept + limit > uses_.size()) return false;
        uses_[slot].shared.emplace_back(&other, other.next());
        return true;
    }

    void publish(const Message& message) {
        const auto count = static_cast<std::uint64_t>(memory_.shape.envelopes);
        Envelope& envelope = memory_.envelopes[next_ % count];
        envelope.where = message.where;
        envelope.bytes = message.bytes;
        envelope.signature = message.signature;
        envelope.sequence.store(++next_, kPublish);
        receiver_.ring();
    }

private:
    // The last message that took a slot, where it is there, and the messages of other connections
    // that point to it. allocated: the slot has memory up to there.
    struct Use {
        std::uint64_t number = 0;
        bool taken = false;
        std::size_t begin = 0, end = 0, allocated = 0;
        std::vector<std::pair<FifoSender*, std::uint64_t>> shared;
    };

    bool has_turn(std::size_t limit) {
        return turn_ < limit || has_consumed(turns_[(turn_ - limit) % turns_.size()]);
    }

    bool is_kept(Use& use) {
        while (!use.shared.empty()) {
            auto& [sender, number] = use.shared.back();
            if (!sender->has_consumed(number)) return true;
            use.shared.pop_back();
        }
        return false;
    }

    bool is_free(Use& use) {
        return (!use.taken || has_consumed(use.number)) && !is_kept(use);
    }

    // Whether the slots are those of the last `divide`.
    bool is_divided() {
        if (stride_ == wanted_) return true;
        for (auto& use : uses_) {
            if (!is_free(use)) return false;
        }
        stride_ = wanted_;
        uses_.assign(memory_.shape.slots_bytes() / stride_, {});
        last_ = 0;
        return true;
    }

    // Allocates memory of a slot up to `end`, at least twice as much as it has.
    bool allocate(std::size_t slot, std::size_t end) {
        auto& allocated = uses_[slot].allocated;
        const auto most = std::min(stride_, std::max(end, 2 * allocated));
        if (memory_.segment) {
            try {
                allocate_range(slot * stride_ + allocated, slot * stride_ + most);
            } catch (const std::system_error&) {
                return false;
            }
        }
        allocated = most;
        return true;
    }

    // The slots of the shape remember what they have, however the memory is divided.
    void allocate_range(std::size_t begin, std::size_t end) {
        const auto unit = memory_.shape.stride();
        for (auto u = begin / unit; u * unit < end; ++u) {
            const auto old = u * unit + allocated_[u], upto = std::min(end, (u + 1) * unit);
            if (upto <= old) continue;
            memory_.segment->reserve(memory_.slots_offset + old, upto - old);
            allocated_[u] = upto - u * unit;
        }
    }

    // The first free slot: the one used last is still in the cache. Or else the last one, if it has
    // room behind its messages.
    std::size_t find_slot(std::size_t bytes) {
        for (std::size_t s = 0; s < uses_.size(); ++s) {
            if (is_free(uses_[s])) return s;
        }
        const bool fits = uses_[last_].end + bytes <= stride_;
        return fits ? last_ : uses_.size();
    }

    std::size_t offset(std::size_t slot) const {
        return slot * stride_ + uses_[slot].begin;
    }

    FifoMemory memory_;
    Bell& receiver_;
    std::uint64_t next_ = 0;
    std::uint64_t consumed_ = 0;
    std::size_t turn_ = 0;  // staged messages so far
    std::vector<std::uint64_t> turns_;  // the numbers of the last staged messages
    std::size_t stride_, wanted_;  // bytes of a slot, now and after the last `divide`
    std::vector<Use> uses_;
    std::vector<std::size_t> allocated_;  // bytes of the shape's slots, from their start on
    std::size_t last_ = 0;  // the slot of the last staged message
};

// The receiving end, which rings the sender's bell.
class FifoReceiver {
public:
    FifoReceiver(const FifoMemory& memory, Bell& sender)
        : memory_(memory), sender_(sender), slots_bytes_(memory.shape.slots_bytes()) {}

    bool has_message() const {
        return envelope().sequence.load(std::memory_order_acquire) == next_ + 1;
    }

    Message message() const {
        const Envelope& e = envelope();
        return {e.where, e.bytes, e.signature};
    }

    // The address of data in a slot of this connection; null for data that are elsewhere.
    const std::byte* find(std::uint64_t where) const {
        const auto offset = where - memory_.slots_where;
        return offset < slots_bytes_ ? memory_.slots + offset : nullptr;
    }

    void release() {
        memory_.counters->consumed.store(++next_, kPublish);
        sender_.ring();
    }

private:
    const Envelope& envelope() const {
        return memory_.envelopes[next_ % static_cast<std::uint64_t>(memory_.shape.envelopes)];
    }

    FifoMemory memory_;
    Bell& sender_;
    std::size_t slots_bytes_;
    std::uint64_t next_ = 0;
};

}  // namespace sley
