// A connection's sender: how many messages it stages, and which slots it may use again.
// Exits with 1 at the first difference.
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "fabric/bell.hpp"
#include "fabric/fifo.hpp"
#include "fabric/segment.hpp"

namespace sley::fifo_test {

constexpr FifoShape kShape{3, 64, 8}, kRoomy{2, 4 * kCacheLine, 8};
constexpr std::size_t kLimit = 2;  // staged messages in flight
constexpr std::size_t kWhole = 64, kSmall = 16;  // bytes of a message

void expect(bool holds, const char* difference) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", difference);
    std::exit(1);
}

struct Connection {
    explicit Connection(const FifoShape& shape = kShape) : memory{&counters, envelopes, slots, 0, shape} {}

    FifoCounters counters{};
    Envelope envelopes[8]{};
    std::byte slots[512]{};
    Bell bell;
    FifoMemory memory;
    FifoSender sender{memory, bell};
    FifoReceiver receiver{memory, bell};

    void send(std::size_t slot) { sender.publish({sender.where(slot), 0, 0}); }
};

void check_limit_of_staged_messages() {
    Connection c;
    for (std::size_t k = 0; k < kLimit; ++k) {
        expect(c.sender.has_slot(kLimit, kWhole), "a message below the limit had no slot");
        c.send(c.sender.take_slot(kWhole));
    }
    expect(!c.sender.has_slot(kLimit, kWhole), "more messages than the limit were staged");
    c.receiver.release();
    expect(c.sender.has_slot(kLimit, kWhole), "a consumed message still counts as staged");
}

void check_shared_slots() {
    Connection one, other;
    const auto first = one.sender.take_slot(kWhole);
    one.send(first);
    expect(one.sender.share(first, other.sender, kLimit), "a spare slot was not shared");
    other.send(first);
    one.receiver.release();
    const auto second = one.sender.take_slot(kWhole);
    one.send(second);
    expect(second != first, "a slot was used again before the other connection consumed it");
    expect(!one.sender.share(second, other.sender, kLimit),
           "fewer slots than the limit were left for the connection's own messages");
    other.receiver.release();
    expect(one.sender.share(second, other.sender, kLimit), "a slot was kept after its last reader");
    expect(one.sender.take_slot(kWhole) == first, "a slot was not used again after its last reader");
}

// A small message that follows one which another connection still reads.
void check_small_message_behind_a_shared_one() {
    Connection one(kRoomy), other(kRoomy);
    std::uint64_t where = 0;
    for (std::int64_t k = 0; k < kRoomy.slots; ++k) {
        const auto slot = one.sender.take_slot(kSmall);
        where = one.sender.where(slot);
        one.send(slot);
        expect(one.sender.share(slot, other.sender, 0), "a spare slot was not shared");
        other.sender.publish({where, 0, 0});
        one.receiver.release();
    }
    const auto behind = one.sender.take_slot(kSmall);
    expect(one.sender.where(behind) > where, "a message overwrites one that another connection reads");
}

// As many small messages are staged as the bytes of `kLimit` whole ones hold.
void check_limit_of_small_messages() {
    expect(kShape.limit(2, 64, 64) == 2, "whole messages have another limit than the plan's");
    expect(kShape.limit(2, 64, 16) == 8, "small messages don't share the room of whole ones");
    expect(kShape.limit(2, 64, 1) == 8, "more messages than envelopes were allowed");
    expect(kShape.limit(2, 64, 4096) == 2, "a large message lowers the plan's limit");
}

// Where no slot is free, small messages follow one another in the last one.
void check_small_messages() {
    constexpr std::size_t kMost = 5;  // one in the first slot, and four lines of the second
    Connection c(kRoomy);
    std::uint64_t last = 0;
    for (std::size_t k = 0; k < kMost; ++k) {
        expect(c.sender.has_slot(8, kSmall), "a small message had no room");
        const auto slot = c.sender.take_slot(kSmall);
        const auto where = c.sender.where(slot);
        expect(k == 0 || where >= last + kCacheLine, "a message overwrites one in flight");
        expect(where + kSmall <= sizeof c.slots, "a message goes beyond the slots");
        last = where;
        c.send(slot);
    }
    expect(!c.sender.has_slot(8, kSmall), "more messages than the slots have room for were staged");
    c.receiver.release();
    expect(c.sender.where(c.sender.take_slot(kSmall)) == 0, "a free slot was not used first");
    c.sender.publish({0, 0, 0});
    for (std::size_t k = 0; k < kMost - 1; ++k) c.receiver.release();
    const auto slot = c.sender.take_slot(kWhole);
    expect(c.sender.where(slot) == kRoomy.stride(), "a free slot is not used from its start");
}

// Slots are divided anew only when no message is in the old ones, not even one that another
// connection still reads.
void check_divided_slots() {
    const auto kAll = kRoomy.slots_bytes();
    Connection one(kRoomy), other(kRoomy);
    const auto slot = one.sender.take_slot(kWhole);
    one.send(slot);
    expect(one.sender.share(slot, other.sender, 0), "a spare slot was not shared");
    other.sender.publish({one.sender.where(slot), 0, 0});
    one.sender.divide(static_cast<std::int64_t>(kAll));
    expect(!one.sender.has_slot(kLimit, kAll), "a slot overlaps one in flight");
    one.receiver.release();
    expect(!one.sender.has_slot(kLimit, kAll), "a slot overlaps one that another connection reads");
    other.receiver.release();
    expect(one.sender.has_slot(kLimit, kAll), "slots without messages are not divided anew");
    const auto large = one.sender.take_slot(kAll);
    expect(one.sender.where(large) == 0, "a slot that is all memory doesn't begin with it");
    one.send(large);
    expect(!one.sender.has_slot(kLimit, kSmall), "there are more slots than memory");
    one.receiver.release();
    one.sender.divide(kSmall);
    expect(one.sender.has_slot(kLimit, kWhole), "smaller slots are not made");
    one.send(one.sender.take_slot(kWhole));
    expect(one.sender.has_slot(kLimit, kWhole), "smaller slots than the shape's were made");
    expect(one.sender.where(one.sender.take_slot(kWhole)) == kRoomy.stride(),
           "smaller slots don't follow one another");
}

// A slot gets memory as far as messages use it, and the memory stays when slots are divided anew.
// Where there is none, no message takes the slot.
void check_memory_of_slots() {
    constexpr FifoShape kLarge{2, 1 << 16, 8};
    constexpr std::size_t kPages = 1 << 14;
    const auto segment = Segment::sparse(2 << 16, true);
    const auto has_bytes = [&] {
        struct stat status;
        fstat(segment->fd(), &status);
        return static_cast<std::size_t>(status.st_blocks) * 512;
    };
    Connection c(kLarge);
    c.memory.segment = segment.get();
    FifoSender sender(c.memory, c.bell);
    sender.take_slot(kSmall);
    expect(has_bytes() > 0 && has_bytes() <= kPages, "a small message takes a slot's memory");
    sender.publish({0, 0, 0});
    c.receiver.release();
    sender.take_slot(1 << 16);
    sender.publish({0, 0, 0});
    c.receiver.release();
    expect(has_bytes() == 1 << 16, "a large message has less than its slot, or more");
    sender.divide(2 << 16);
    expect(sender.has_slot(1, 2 << 16), "slots are not divided anew");
    c.memory.segment->release(0, kPages);
    expect(sender.take_slot(2 << 16) == 0, "a slot has no memory");
    expect(has_bytes() == (2 << 16) - kPages, "memory that a slot had was asked for again");

    c.memory.slots_offset = 2 << 16;  // beyond the segment's end
    FifoSender starved(c.memory, c.bell);
    expect(starved.take_slot(kSmall) == FifoSender::kNoSlot, "a message without memory has a slot");
}

int test(int, char**) {
    check_memory_of_slots();
    check_divided_slots();
    check_limit_of_small_messages();
    check_small_messages();
    check_small_message_behind_a_shared_one();
    check_limit_of_staged_messages();
    check_shared_slots();
    return 0;
}

}  // namespace sley::fifo_test
