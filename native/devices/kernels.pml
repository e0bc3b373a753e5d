/* A connection of kernels, which calls of several plans share: the counters of layout.hpp, and what
   kernel.hpp, state.hpp and execute.hpp do with them (src/sley/engine/kernels/primitives).

   Two ranks make CALLS calls, a kernel each, of any plans from LEAST on: with messages in slots of either
   division (Simple), in slots with flags (LL), in the sender's memory (Direct), or with none. A rank may
   be a call ahead. At any time somebody may give up. DIFFERENT: the ranks' last calls are of any two plans.

   A message has one word, or two; a block has one thread. Memory is sequentially consistent: fences are
   the matter of the tests of machine code. */

#define SLOTS 2
#define EPOCH 8    /* instead of 2^31 */
#define FLAGS 16   /* instead of 2^32 */
#define OVERWRITTEN 255

/* Plans. */
#define DIRECT 0     /* one message */
#define SIMPLE 1     /* two messages, in two slots */
#define UNDIVIDED 2  /* two messages, each in the memory of both slots */
#define FLAGGED 3    /* two messages */
#define IDLE 4       /* none */
#define MESSAGES(plan) (plan == IDLE -> 0 : (plan == DIRECT -> 1 : 2))
#define SPAN(plan) (plan >= FLAGGED -> 3 : 2)

/* The ends' counters: `value`, and of the sender `last` and of both `last_flagged`. */
byte published, consumed;
byte last, last_flagged[2];
byte slots[SLOTS], flagged_slots[SLOTS], flags[SLOTS];
/* What the sender lends: the place, and the call that it says. */
byte lent_ticks, lent_plan, memory[2];  /* memories of a call, by turns */
bool abort;

/* Plans of calls, of both ranks. */
byte plans[CALLS * 2];
#define PLAN(rank, call) plans[2 * (call) + (rank)]

#define IS_ONE_EPOCH(one, other) ((one) / EPOCH == (other) / EPOCH)
/* `ticks_after`. */
#define AFTER(before, span) \
    (IS_ONE_EPOCH(before, (before) + (span)) -> (before) : ((before) + (span)) / EPOCH * EPOCH)

/* Waits, as `reach` does. */
inline await(condition) {
    if
    :: condition
    :: abort -> goto failed
    fi
}

/* `enter`: the numbers of the call, and whether the slots have flags of another epoch. */
inline begin(rank) {
    plan = PLAN(rank, call);
    ticks = AFTER(cell, SPAN(plan));
    is_old = plan == FLAGGED && !IS_ONE_EPOCH(last_flagged[rank], ticks)
}

proctype Sender() {
    byte call, plan, cell = 1, ticks, message, needed;
    bool is_old;
    for (call : 0 .. CALLS - 1) {
        atomic { begin(0) };
        if
        :: plan == DIRECT ->
            memory[call % 2] = ticks + 1;
            lent_plan = plan;
            lent_ticks = ticks
        :: else
        fi;
        for (message : 1 .. MESSAGES(plan)) {
            if
            :: plan == DIRECT
            :: plan != DIRECT ->
                needed = (is_old -> ticks : last);
                if
                :: plan == UNDIVIDED && message > 1 -> needed = ticks + message - 1
                :: message > SLOTS -> needed = ticks + message - SLOTS
                :: else
                fi;
                await(consumed >= needed);
                if
                :: plan == FLAGGED ->
                    atomic {
                        flagged_slots[message - 1] = ticks + message;
                        flags[message - 1] = (ticks + message) % FLAGS
                    }
                :: plan == SIMPLE -> slots[message - 1] = ticks + message
                :: plan == UNDIVIDED -> slots[0] = ticks + message; slots[1] = ticks + message
                fi
            fi;
            if
            :: plan != FLAGGED -> published = ticks + message
            :: else
            fi
        }
        /* `end` */
        if
        :: plan == DIRECT -> await(consumed >= ticks + 1)
        :: else
        fi;
        atomic {
            if
            :: plan != IDLE -> last = ticks + MESSAGES(plan)
            :: else
            fi;
            if
            :: plan == FLAGGED -> last_flagged[0] = last
            :: else
            fi;
            cell = ticks + SPAN(plan) + 1;
            needed = 0; ticks = 0; is_old = false
        };
        memory[call % 2] = OVERWRITTEN  /* the caller's again */
    }
    goto ended;
failed:
    memory[0] = OVERWRITTEN;
    memory[1] = OVERWRITTEN;
ended:
}

proctype Receiver() {
    byte call, plan, cell = 1, ticks, message, first, last_part;
    bool is_old;
    for (call : 0 .. CALLS - 1) {
        atomic { begin(1) };
        if
        :: is_old ->  /* `refresh` */
            flags[0] = ticks % FLAGS;
            flags[1] = ticks % FLAGS;
            consumed = ticks
        :: else
        fi;
        for (message : 1 .. MESSAGES(plan)) {
            if
            :: plan == FLAGGED ->
                await(flags[message - 1] == (ticks + message) % FLAGS);
                first = flagged_slots[message - 1];
                last_part = first
            :: plan == DIRECT ->
                await(published >= ticks + 1);
                if
                :: lent_ticks != ticks || lent_plan != plan -> abort = true; goto failed  /* `borrow` */
                :: else
                fi;
                first = memory[call % 2];
                last_part = memory[call % 2];
                assert(abort || (lent_ticks == ticks && lent_plan == plan))
            :: plan == SIMPLE ->
                await(published >= ticks + message);
                first = slots[message - 1];
                last_part = first
            :: plan == UNDIVIDED ->
                await(published >= ticks + message);
                first = slots[0];
                last_part = slots[1]
            fi;
            /* After a failure the host believes no call of which it has not yet seen the end. */
#ifndef DIFFERENT
            assert(abort || (first == ticks + message && last_part == ticks + message));
#endif
            consumed = ticks + message;
            first = 0;
            last_part = 0
        }
        atomic {
            if
            :: plan == FLAGGED -> last_flagged[1] = ticks + MESSAGES(plan)
            :: else
            fi;
            cell = ticks + SPAN(plan) + 1;
            ticks = 0; is_old = false
        }
    }
failed:
}

init {
    byte call, plan;
    atomic {
        for (call : 0 .. CALLS - 1) {
            select(plan : LEAST .. IDLE);
            PLAN(0, call) = plan;
            PLAN(1, call) = plan
        }
#ifdef DIFFERENT
        select(plan : LEAST .. IDLE);
        PLAN(1, CALLS - 1) = plan;
#endif
        run Sender();
        run Receiver()
    }
    if  /* at any time: a host gives up, another block does, or a wait has been too long */
    :: abort = true
#ifndef DIFFERENT
    :: true
#endif
    fi
}

