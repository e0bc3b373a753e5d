// The begin and the end of every kernel, and the kernel that divides.
#pragma once

namespace sley {

SLEY_INLINE void begin(const Call& call) {
    if (thread() == 0) {
        state.setup = call.setup;
        state.block = call.setup.blocks[block_index()];
        state.own = call.buffers[state.block.rank];
        state.call = &call;
        const char* immediate = reinterpret_cast<const char*>(&call.setup.factor);
        const char* factor = call.setup.factor_at;
        if (kScales) state.factor = load_element(factor != nullptr ? factor : immediate);
        state.tiles_before = state.block.memory->tiles;
        state.tiles = state.setup.tiles;
        state.given_up = 0;
        state.failed = false;
    }
    barrier();
    const Block& b = state.block;
    for (i32 i = thread(); i < b.senders; i += threads()) {
        state.senders[i] = {call.setup.peers[b.first_sender + i], 0};
    }
    for (i32 i = thread(); i < b.receivers; i += threads()) {
        state.receivers[i] = {call.setup.peers[b.first_receiver + i], 0};
    }
    barrier();
}

// Waits until receivers have read all messages of the block; false if it gave up. After the call
// they must not read the caller's memory.
SLEY_INLINE bool drain() {
    const u64 tiles = state.tiles_before + static_cast<u64>(state.tiles);
    bool is_fine = true;
    for (i32 i = 0; i < state.block.senders; ++i) {
        if (thread() != waiter(i)) continue;
        End& end = state.senders[i];
        const u32 of_rank = static_cast<u32>(state.block.first_sender + i - state.block.rank_sender);
        is_fine &= reached(end, end.consumed, tiles * static_cast<u64>(end.messages),
                           state.block.steps - 1, state.tiles - 1, kReading, of_rank);
    }
    return is_fine;
}

SLEY_INLINE void end() {
    if (state.failed) return;
    if constexpr (kProtocol == kDirect) {
        if (any_thread(!drain())) return;
    }
    if (thread() == 0) {
        state.block.memory->tiles = state.tiles_before + static_cast<u64>(state.tiles);
    }
}

struct Divided {
    i32 divisor;
    template <class Unit>
    SLEY_METHOD Unit operator()(Unit, Unit in) const { return divide_words(in, divisor); }
};

SLEY_INLINE void divide_elements(char* first, i64 length, i32 divisor) {
    if (thread() >= workers()) return;
    for (i64 done = 0; done < length; done += kMerged) {
        const i64 rest = length - done;
        char* at = first + done * kItem;
        const i32 part = static_cast<i32>(rest < kMerged ? rest : kMerged);
        const Piece p{at, nullptr, at, nullptr, part, divisor};
        carry_elements<false, false>(p, Divided{divisor});
    }
}

}  // namespace sley

// The division of the chunks whose sums are operands of others, after every rank has them. Blocks
// share the chunks.
SLEY_KERNEL(sley_divide) {
    using namespace sley;
    if (thread() == 0) state.setup = call.setup;
    barrier();
    const Setup& c = state.setup;
    for (i32 d = block_index(); d < c.division_count; d += blocks()) {
        const Division division = c.divisions[d];
        const Buffers& buffers = call.buffers[division.rank];
        const u32 within = (division.chunk.bits & 0x3FFFFFFFu) % static_cast<u32>(c.chunks);
        char* first = address(buffers, division.chunk, 0, 0);
        divide_elements(first, length_of(within), division.divisor);
    }
}
