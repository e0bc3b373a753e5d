// A connection's sender: how many messages it stages, and which slots it may use again.
// Exits with 1 at the first difference.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "fabric/bell.hpp"
#include "fabric/fifo.hpp"

namespace {

using namespace sley;

constexpr FifoShape kShape{3, 64, 8};
constexpr std::size_t kLimit = 2;  // staged messages in flight

void expect(bool holds, const char* difference) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", difference);
    std::exit(1);
}

struct Connection {
    FifoCounters counters{};
    Envelope envelopes[kShape.envelopes]{};
    std::byte slots[kShape.slots * kShape.slot_bytes]{};
    Bell bell;
    FifoMemory memory{&counters, envelopes, slots, 0, kShape};
    FifoSender sender{memory, bell};
    FifoReceiver receiver{memory, bell};

    void send(std::size_t slot) { sender.publish({sender.where(slot), 0, 0}); }
};

void check_limit_of_staged_messages() {
    Connection c;
    for (std::size_t k = 0; k < kLimit; ++k) {
        expect(c.sender.has_slot(kLimit), "a message below the limit had no slot");
        c.send(c.sender.take_slot());
    }
    expect(!c.sender.has_slot(kLimit), "more messages than the limit were staged");
    c.receiver.release();
    expect(c.sender.has_slot(kLimit), "a consumed message still counts as staged");
}

void check_shared_slots() {
    Connection one, other;
    const auto first = one.sender.take_slot();
    one.send(first);
    expect(one.sender.share(first, other.sender, kLimit), "a spare slot was not shared");
    other.send(first);
    one.receiver.release();
    const auto second = one.sender.take_slot();
    one.send(second);
    expect(second != first, "a slot was used again before the other connection consumed it");
    expect(!one.sender.share(second, other.sender, kLimit),
           "fewer slots than the limit were left for the connection's own messages");
    other.receiver.release();
    expect(one.sender.share(second, other.sender, kLimit), "a slot was kept after its last reader");
    expect(one.sender.take_slot() == first, "a slot was not used again after its last reader");
}

}  // namespace

int main() {
    check_limit_of_staged_messages();
    check_shared_slots();
}
