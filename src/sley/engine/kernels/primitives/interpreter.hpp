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

#if SLEY_RUNS
SLEY_INLINE void interpret_row(i32 n, Step s, const Instruction& in, From from, To to) {
    const u32 flags = in.flags;
    switch (in.op) {
        case 1: set_row<Send>(n, s, flags, from, in.src, in.dst, to); break;
        case 2: set_row<Recv>(n, s, flags, from, in.src, in.dst, to); break;
        case 3: set_row<Copy>(n, s, flags, from, in.src, in.dst, to); break;
        case 4: set_row<Reduce>(n, s, flags, from, in.src, in.dst, to); break;
        case 5: set_row<RecvReduceCopy>(n, s, flags, from, in.src, in.dst, to); break;
        case 6: set_row<RecvCopySend>(n, s, flags, from, in.src, in.dst, to); break;
        case 7: set_row<RecvReduceSend>(n, s, flags, from, in.src, in.dst, to); break;
        case 8: set_row<RecvReduceCopySend>(n, s, flags, from, in.src, in.dst, to); break;
        case 9: set_row<CopySend>(n, s, flags, from, in.src, in.dst, to); break;
    }
}

SLEY_FUNCTION void interpret_run(i32 tile, i32 number, const Instruction& first) {
    Step s = step(static_cast<u32>(number)).waits(first.waits);
    for (i32 k = 0; k < first.run; ++k) {
        if (!settles(k) && !publishes(k)) continue;
        const Instruction& in = steps[number + k];
        const Step own = step(static_cast<u32>(number + k)).averages(in.divisor);
        const bool stays = in.to_message < 0;
        const To to{in.to, stays ? -1 - in.to_message : in.to_message, stays};
        interpret_row(k, own, in, {in.from, in.from_message, in.pulled}, to);
    }
    if ((steps[number + first.run - 1].flags & kPosts) != 0) s = s.posts();
    run(tile, s, first.run);
}
#endif

// Executes an instruction, or the run that begins with it. Returns the number of instructions.
SLEY_INLINE i32 interpret(i32 tile, i32 number) {
    const Instruction& in = steps[number];
    if (in.waits > 0) set_conditions(in);
#if SLEY_RUNS
    if (!kScales && in.run > 1) {
        interpret_run(tile, number, in);
        return in.run;
    }
#endif
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
        return 1;
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
    return 1;
}

}  // namespace sley

SLEY_KERNEL(sley_run) {
    using namespace sley;
    const bool stale = enter(call);
    load_steps(call.setup);
    settle(stale);
    const i32 count = state.block.steps;
    for (i32 tile = 0; more(tile); tile += slices()) {
        for (i32 number = 0; number < count;) number += interpret(tile, number);
    }
    end();
}
