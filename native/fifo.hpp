// A connection: a FIFO of messages between one sending and one receiving rank.
//
// Two counters and a ring of slots in memory that both ranks see. `published` counts the messages
// ever sent, `consumed` those ever taken; message k lies in slot k % slots. Each counter has one
// writer and its own cache line. The counters are never reset, so calls follow one another
// without a barrier: a sender that is a call ahead just finds no free slot.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sley {

constexpr std::size_t kCacheLine = 64;

// SLEY_BREAK_RELEASE exists for the test that the thread sanitizer notices a lost release.
#ifdef SLEY_BREAK_RELEASE
constexpr std::memory_order kPublish = std::memory_order_relaxed;
#else
constexpr std::memory_order kPublish = std::memory_order_release;
#endif

struct FifoCounters {
    alignas(kCacheLine) std::atomic<std::uint64_t> published;
    alignas(kCacheLine) std::atomic<std::uint64_t> consumed;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "counters are shared between processes, where a lock inside an atomic is private");

// Where a connection lies; the same for both ends.
struct FifoMemory {
    FifoCounters* counters = nullptr;
    std::byte* slots = nullptr;
    std::size_t stride = 0;  // bytes from one slot to the next
    std::uint64_t count = 0;
};

// The sending end. Keeps its own sequence number and the last `consumed` it saw, so that the
// other rank's cache line is read only when the FIFO looks full.
class FifoSender {
public:
    explicit FifoSender(const FifoMemory& memory)
        : memory_(memory),
          sequence_(memory.counters->published.load(std::memory_order_relaxed)),
          consumed_(memory.counters->consumed.load(std::memory_order_acquire)) {}

    bool has_free_slot() {
        if (sequence_ - consumed_ < memory_.count) return true;
        consumed_ = memory_.counters->consumed.load(std::memory_order_acquire);
        return sequence_ - consumed_ < memory_.count;
    }

    std::byte* slot() const { return memory_.slots + (sequence_ % memory_.count) * memory_.stride; }

    void publish() { memory_.counters->published.store(++sequence_, kPublish); }

private:
    FifoMemory memory_;
    std::uint64_t sequence_;
    std::uint64_t consumed_;
};

// The receiving end, the mirror image.
class FifoReceiver {
public:
    explicit FifoReceiver(const FifoMemory& memory)
        : memory_(memory),
          sequence_(memory.counters->consumed.load(std::memory_order_relaxed)),
          published_(memory.counters->published.load(std::memory_order_acquire)) {}

    bool has_message() {
        if (published_ != sequence_) return true;
        published_ = memory_.counters->published.load(std::memory_order_acquire);
        return published_ != sequence_;
    }

    const std::byte* slot() const {
        return memory_.slots + (sequence_ % memory_.count) * memory_.stride;
    }

    void release() { memory_.counters->consumed.store(++sequence_, kPublish); }

private:
    FifoMemory memory_;
    std::uint64_t sequence_;
    std::uint64_t published_;
};

}  // namespace sley
