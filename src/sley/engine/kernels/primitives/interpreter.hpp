// The interpreter (MSCCLang 6.2, figure 5): reads instructions from memory and calls the
// primitives, as generated code does. If they fit, a block's instructions are first copied into
// shared memory: the primitives' acquires would invalidate the cache that holds them. To choose
// block by block would take registers, since the compiler knows the memory of `steps` then no more.
#pragma once

namespace sley {

#if SLEY_STEPS > 0
SLEY_SHARED Instruction steps_of_block[SLEY_STEPS];
SLEY_SHARED Condition conditions_of_block[SLEY_STEPS];
#endif
SLEY_SHARED const Instruction* steps;
SLEY_SHARED const Condition* conditions;

// As part of `enter`: it needs the row alone, so its loads are of the second round.
SLEY_INLINE void load_steps(const Setup& c) {
    const Block& b = row_of(c);
    const Instruction* rows = c.instructions + b.first_step;
    const Condition* all = c.conditions + b.first_condition;
#if SLEY_STEPS > 0
    copy_words(steps_of_block, rows, b.steps * static_cast<i32>(sizeof *rows));
    copy_words(conditions_of_block, all, b.conditions * static_cast<i32>(sizeof *all));
    rows = steps_of_block;
    all = conditions_of_block;
#endif
    if (thread() == 0) {
        steps = rows;
        conditions = all;
    }
}

SLEY_INLINE void set_conditions(const Instruction& in) {
    for (i32 w = 0; w < in.waits; ++w) {
        const Condition c = conditions[in.first_wait - state.block.first_condition + w];
        if (c.held) {
            hold(w, c.target, c.number);
        } else {
            wait(w, c.target, c.number);
        }
    }
}

#if SLEY_GROUPS
SLEY_INLINE void interpret_group(i32 tile, Step s, const Instruction& in, Group from, Group to) {
    switch (in.op) {
        case 1: send(tile, s, in.src, to, in.count); break;
        case 2: recv(tile, s, from, in.dst, in.count); break;
        case 5: recv_reduce_copy(tile, s, from, in.src, in.dst, in.count); break;
        case 6: recv_copy_send(tile, s, from, in.dst, to, in.count); break;
        case 7: recv_reduce_send(tile, s, from, in.src, to, in.count); break;
        case 8: recv_reduce_copy_send(tile, s, from, in.src, in.dst, to, in.count); break;
        case 9: copy_send(tile, s, in.src, in.dst, to, in.count); break;
    }
}
#endif

SLEY_INLINE void interpret(i32 tile, i32 number) {
    const Instruction& in = steps[number];
    if (in.waits > 0) set_conditions(in);
    Step s = step(static_cast<u32>(number)).waits(in.waits);
    if ((in.flags & kPosts) != 0) s = s.posts();
    s = s.averages(kScales ? in.flags : in.divisor);
    const bool pulls = !kScales || (in.flags & kReceivesScaled) == 0;
    const bool stays = in.to_message < 0 && !(kScales && (in.flags & kSendsScaled) != 0);
    const From from{in.from, in.from_message, pulls ? in.pulled : nowhere()};
    const To to{in.to, in.to_message < 0 ? -1 - in.to_message : in.to_message, stays};
#if SLEY_GROUPS
    if (in.from_members > 1 || in.to_members > 1) {
        interpret_group(tile, s, in, from.of(in.from_members), to.of(in.to_members));
        return;
    }
#endif
    switch (in.op) {
        case 0: nop(tile, s); break;
        case 1: send(tile, s, in.src, to, in.count); break;
        case 2: recv(tile, s, from, in.dst, in.count); break;
        case 3: copy(tile, s, in.src, in.dst, in.count); break;
        case 4: reduce(tile, s, in.src, in.dst, in.count); break;
        case 5: recv_reduce_copy(tile, s, from, in.src, in.dst, in.count); break;
        case 6: recv_copy_send(tile, s, from, in.dst, to, in.count); break;
        case 7: recv_reduce_send(tile, s, from, in.src, to, in.count); break;
        case 8: recv_reduce_copy_send(tile, s, from, in.src, in.dst, to, in.count); break;
        case 9: copy_send(tile, s, in.src, in.dst, to, in.count); break;
    }
}

}  // namespace sley

SLEY_KERNEL(sley_run) {
    using namespace sley;
    const bool stale = enter(call);
    load_steps(call.setup);
    settle(stale);
    const i32 count = state.block.steps;
    for (i32 tile = 0; more(tile); tile += slices()) {
        for (i32 number = 0; number < count; ++number) interpret(tile, number);
    }
    end();
}
