// Messages of pairs of ranks without a plan: sends and receives, each with its partner at another rank.
//
// A message is in one lane, or in parts in several. In a lane, tiles pass one after the other. A block
// serves some of the launch's lanes, always one that can go on: so no lane waits for another one.
#pragma once

namespace sley {

// A lane that the block serves. row, end: its message, and the end of its messages. done, stop: of the
// message's bytes, the first one that isn't moved, and the end of the lane's part. last: the number of
// the last tile; seen: the last value seen of the counter that the other end writes.
struct Served {
    Lane lane;
    i32 channel, row, end;
    i64 done, stop, shift;
    u64 last, seen;
};

// A tile that the block moves, if there is one. label: where the sender writes it.
struct Turn {
    bool goes;
    Piece piece;
    Counter* published;
    Counter* consumed;
    Label* label;
    Label written;
    u64 number;
};

SLEY_SHARED Served served[kMessages];
SLEY_SHARED Turn turns[2];
SLEY_SHARED i32 left;   // of the lanes
SLEY_SHARED i32 first;  // the one that is looked at first

// Turns a lane to its next message from row `row` on; whether there is one.
SLEY_INLINE bool turn_to(const Messages& call, Served& at, i32 row) {
    for (; row < at.end; ++row) {
        const i64 bytes = call.messages[row].bytes, parts = call.messages[row].parts;
        if (at.channel >= parts) continue;
        const i64 part = ((bytes + parts - 1) / parts + 127) / 128 * 128;
        at.row = row;
        at.done = at.channel * part;
        at.stop = at.done + part < bytes ? at.done + part : bytes;
        at.shift = static_cast<i64>(reinterpret_cast<u64>(call.messages[row].address) % 16);
        return true;
    }
    return false;
}

SLEY_INLINE void serve(const Messages& call) {
    state.setup = call.setup;
    state.block.report = call.reports + block_index();
    state.given_up = 0;
    left = first = 0;
    i32 number = 0;
    for (i32 row = 0; row < static_cast<i32>(call.count); row = call.messages[row].next) {
        const Message& message = call.messages[row];
        for (i32 channel = 0; channel < message.most_parts; ++channel) {
            if (number++ % blocks() != block_index()) continue;
            Served& at = served[left++];
            at.lane = call.lanes[message.lane + channel];
            at.channel = channel;
            at.end = message.next;
            at.last = (at.lane.sends != 0 ? at.lane.consumed : at.lane.published)->last;
            at.seen = 0;
            turn_to(call, at, row);
        }
    }
}

// Whether the next tile's slot is free, or the tile has come.
SLEY_INLINE bool is_ready(Served& at) {
    const bool sends = at.lane.sends != 0;
    const u64 ahead = sends ? kLaneSlots : 0, needed = at.last + 1;
    if (at.seen + ahead < needed) {
        at.seen = acquire(sends ? &at.lane.consumed->value : &at.lane.published->value);
    }
    return at.seen + ahead >= needed;
}

// Gives up in a lane. said: the bytes that the sender said.
SLEY_INLINE void fail(const Messages& call, const Served& at, u64 verdict, u32 reason, i64 said) {
    state.setup.call = static_cast<u64>(call.messages[at.row].bytes);
    state.ticks = static_cast<u64>(said);
    give_up(verdict, 0, 0, reason, static_cast<u32>(at.lane.rank), 0);
}

// The tile of a lane that is ready; false if the sender's message has other bytes.
SLEY_INLINE bool take_turn(const Messages& call, Served& at, Turn& turn) {
    const Message& message = call.messages[at.row];
    const u64 number = ++at.last;
    char* const slot = at.lane.slots + static_cast<i64>((number - 1) % kLaneSlots) * kLaneSlot;
    Label* const label = reinterpret_cast<Label*>(slot + kLaneLabel);
    const bool sends = at.lane.sends != 0;
    const i64 rest = at.stop - at.done;
    const i32 length = static_cast<i32>(rest < kLaneTile ? rest : kLaneTile);
    if (!sends) {
        const Label there = *label;
        if (there.bytes != message.bytes) {
            fail(call, at, 1, kBytes, there.bytes);
            return false;
        }
        at.shift = there.shift;
    }
    char* const own = message.address + at.done;
    char* const there = slot + at.shift;
    turn.piece = {sends ? there : own, nullptr, sends ? own : there, nullptr, length, 1};
    turn.published = sends ? at.lane.published : nullptr;
    turn.consumed = at.lane.consumed;
    turn.label = label;
    turn.written = {message.bytes, at.shift};
    turn.number = number;
    at.done += length;
    return true;
}

// Waits for a lane that can go on. Not if all lanes are done, or the block gives up.
SLEY_FUNCTION bool choose(const Messages& call, Turn& turn) {
    Patience patience{0, 0};
    while (left > 0) {
        for (i32 n = 0; n < left; ++n) {
            Served& at = served[(first + n) % left];
            if (!is_ready(at)) continue;
            first = (first + n + 1) % left;
            if (!take_turn(call, at, turn)) return false;
            if (at.done == at.stop && !turn_to(call, at, at.row + 1)) {
                (at.lane.sends != 0 ? at.lane.consumed : at.lane.published)->last = at.last;
                at = served[--left];
            }
            return true;
        }
        if (const u64 verdict = patience.verdict()) {
            const Served& at = served[first % left];
            fail(call, at, verdict, at.lane.sends != 0 ? kSlot : kMessage, 0);
            return false;
        }
    }
    return false;
}

SLEY_INLINE void publish_turn(const Turn& turn) {
    if (turn.published == nullptr) {
        publish_read(&turn.consumed->value, turn.number);
        return;
    }
    *turn.label = turn.written;
    fence();
    publish(&turn.published->value, turn.number);
}

}  // namespace sley

SLEY_KERNEL_OF(sley_messages, Messages) {
    using namespace sley;
    if (thread() == 0) serve(call);
    for (i32 number = 0;; ++number) {
        // The publisher reads it while thread 0 chooses the next one.
        Turn& turn = turns[number % 2];
        if (thread() == 0) turn.goes = choose(call, turn);
        if (thread() < workers()) {
            any_worker(false);
            if (turn.goes) carry_elements<false, false>(turn.piece);
        }
        barrier();
        if (!turn.goes) break;
        if (thread() == publisher()) publish_turn(turn);
    }
}
