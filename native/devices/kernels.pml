/* A connection of kernels, which calls of several plans share: the counters of layout.hpp, and what
   kernel.hpp, state.hpp and execute.hpp do with them (src/sley/engine/kernels/primitives).

   Two ranks make CALLS calls, a kernel each, of any plans from LEAST on: with messages in slots of either
   division (Simple), in slots with flags (LL), in the sender's memory (Direct), or with none. A rank may
   be a call ahead. At any time somebody may give up. DIFFERENT: the ranks' last calls are of any two plans.

   A message has one word, or two; a block has one thread. Memory is sequentially consistent: fences are
   the matter of the tests of machine code. */

#include "trace.pml"

#ifdef TRACED
#define EPOCH 128  /* numbers, as in tests/native/kernels_test.cpp */
#define START 121
#else
#define EPOCH 8    /* instead of 2^31 */
#define START 1
#endif
#define FLAGS (2 * EPOCH)
#define SLOTS 2
#define OVERWRITTEN 255

/* Of events: the places of slots, of the sender's memories, and of the receiver's. */
#define LENT (SLOTS + call % 2)
#define RECEIVED (SLOTS + 2)

/* Plans. */
#define HELD 0       /* two messages, one after the other in the same memory */
#define DIRECT 1     /* one message */
#define SIMPLE 2     /* two messages, in two slots */
#define UNDIVIDED 3  /* two messages, each in the memory of both slots */
#define FLAGGED 4    /* two messages */
#define IDLE 5       /* none */
#define LENDS(plan) (plan <= DIRECT)
#define MESSAGES(plan) (plan == IDLE -> 0 : (plan == DIRECT -> 1 : 2))
#define SPAN(plan) (plan == HELD || plan >= FLAGGED -> 3 : 2)

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

/* `give_up`. */
inline give_up(me) {
    atomic { IS(me, FAIL, 0, 0) -> abort = true; TAKEN }
}

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

inline write(number) {
    atomic { IS(0, WRITE, LENT, number) -> memory[call % 2] = number; TAKEN }
}
inline fill(slot) {
    atomic { IS(0, WRITE, slot, ticks + message) -> slots[slot] = ticks + message; TAKEN }
}
inline read(from, part) {
    atomic { IS(1, WRITE, RECEIVED, from) -> part = from; TAKEN }
}
inline release(number) {
    atomic { IS(1, RELEASE, 0, number) -> consumed = number; TAKEN }
}

proctype Sender() {
    byte call, plan, cell = START, ticks, message, needed;
    bool is_old;
    for (call : 0 .. CALLS - 1) {
        atomic { begin(0) };
        if
        :: LENDS(plan) ->
            write(ticks + 1);
            lent_plan = plan;
            lent_ticks = ticks
        :: else
        fi;
        for (message : 1 .. MESSAGES(plan)) {
            if
            :: LENDS(plan) && message > 1 ->
                await(consumed >= ticks + message - 1);  /* `hold` */
                write(ticks + message)
            :: LENDS(plan) && message == 1
            :: !LENDS(plan) ->
                needed = (is_old -> ticks : last);
                if
                :: plan == UNDIVIDED && message > 1 -> needed = ticks + message - 1
                :: message > SLOTS -> needed = ticks + message - SLOTS
                :: else
                fi;
                await(consumed >= needed);
                if
                :: plan == FLAGGED ->
                    atomic { IS(0, WRITE, message - 1, ticks + message) ->
                        flagged_slots[message - 1] = ticks + message;
                        flags[message - 1] = (ticks + message) % FLAGS; TAKEN }
                :: plan == SIMPLE -> fill(message - 1)
                :: plan == UNDIVIDED -> fill(0); fill(1)
                fi
            fi;
            if
            :: plan != FLAGGED ->
                atomic { IS(0, PUBLISH, 0, ticks + message) -> published = ticks + message; TAKEN }
            :: else
            fi
        }
        /* `end` */
        if
        :: LENDS(plan) -> await(consumed >= ticks + MESSAGES(plan))
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
        if
        :: LENDS(plan) -> write(OVERWRITTEN)  /* the memory is the caller's again */
        :: else
        fi
    }
    goto ended;
failed:
    give_up(0);
#ifndef TRACED
    memory[0] = OVERWRITTEN;
    memory[1] = OVERWRITTEN;
#endif
ended:
}

proctype Receiver() {
    byte call, plan, cell = START, ticks, message, first, last_part;
    bool is_old;
    for (call : 0 .. CALLS - 1) {
        atomic { begin(1) };
        if
        :: is_old ->  /* `refresh` */
            atomic { IS(1, WRITE, 0, ticks) -> flags[0] = ticks % FLAGS; TAKEN };
            atomic { IS(1, WRITE, 1, ticks) -> flags[1] = ticks % FLAGS; TAKEN };
            release(ticks)
        :: else
        fi;
        for (message : 1 .. MESSAGES(plan)) {
            if
            :: plan == FLAGGED ->
                await(flags[message - 1] == (ticks + message) % FLAGS);
                read(flagged_slots[message - 1], first);
                last_part = first
            :: LENDS(plan) ->
                await(published >= ticks + message);
                if
                :: lent_ticks != ticks || lent_plan != plan -> goto failed  /* `borrow` */
                :: else
                fi;
                read(memory[call % 2], first);
                last_part = memory[call % 2];
                assert(abort || (lent_ticks == ticks && lent_plan == plan))
            :: plan == SIMPLE ->
                await(published >= ticks + message);
                read(slots[message - 1], first);
                last_part = first
            :: plan == UNDIVIDED ->
                await(published >= ticks + message);
                read(slots[0], first);
                read(slots[1], last_part)
            fi;
            /* After a failure the host believes no call of which it has not yet seen the end. */
#ifndef DIFFERENT
            assert(abort || (first == ticks + message && last_part == ticks + message));
#endif
            release(ticks + message);
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
    goto ended;
failed:
    give_up(1);
ended:
}

init {
    byte call, plan;
    atomic {
        for (call : 0 .. CALLS - 1) {
            select(plan : LEAST .. IDLE);
            IS(0, CHOOSE, call, plan) -> TAKEN;
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
    :: give_up(2)
#ifndef DIFFERENT
    :: true
#endif
    fi
}

