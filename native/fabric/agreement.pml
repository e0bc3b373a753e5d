/* How ranks agree on a call: the records of control.hpp, the change to varying counts in engine/calls.cpp,
   and the ways of ways.hpp.

   Ranks make CALLS calls, each with equal counts or with varying ones, whatever the others do. If one has
   varying counts, all must run the call with them. All calls of a number have the same ways, and no
   rank ends a call before all have begun it. Memory is sequentially consistent. */

#include "trace.pml"

#ifdef TRACED
#define WORDS 4  /* of the ways of calls; each call looks at one */
#else
#define WORDS 1
#endif
#define EQUAL 1    /* `what` of a call of equal counts */
#define VARYING 2  /* and of the call that may replace it, whose count is VARIES */
#define VARIES 255
#define TALLY (kind == VARYING -> VARIES : call)

byte number[RANKS], what[RANKS], count[RANKS];  /* `RankState::call_...` */
#define NUMBER_OF(call, kind) (2 * (call) + ((kind) == VARYING -> 1 : 0))
byte ways[2 * WORDS];                           /* two buffers, by turns */
byte begun[RANKS];                              /* the last call whose messages the rank sends */

/* What the first rank has done in each call, by which the others must have done the same. */
byte did[CALLS + 1], went[CALLS + 1];

/* `RankState::set_call`. */
inline enter(tally) {
    atomic { IS(me, NUMBER, me, 0) -> number[me] = 0; TAKEN };
    atomic { IS(me, WHAT, me, kind) -> what[me] = kind; TAKEN };
    atomic { IS(me, COUNT, me, tally) -> count[me] = tally; TAKEN };
    atomic { IS(me, NUMBER, me, NUMBER_OF(call, kind)) -> number[me] = NUMBER_OF(call, kind); TAKEN }
}

/* `Control::find_mismatch` of what a rank has seen of another: never, since none makes another call. */
#define IS_MISMATCH (seen_number == call && !(seen_what == kind && seen_count == TALLY) && \
                     !(kind == VARYING && seen_count != VARIES) && \
                     !(kind == EQUAL && seen_what == VARYING))

/* `Control::call_of`. */
inline see(rank) {
    atomic { IS(me, SEE_NUMBER, rank, number[rank]) -> seen_number = number[rank]; TAKEN };
    atomic { IS(me, SEE_WHAT, rank, what[rank]) -> seen_what = what[rank]; TAKEN };
    atomic { IS(me, SEE_COUNT, rank, count[rank]) -> seen_count = count[rank]; TAKEN };
    atomic { IS(me, SEE_NUMBER, rank, number[rank]) ->
        seen_number = (number[rank] == seen_number -> seen_number / 2 : 0);
        assert(!IS_MISMATCH);
        TAKEN }
}
inline forget() {
    seen_number = 0; seen_what = 0; seen_count = 0
}


/* `meet_records`. */
inline meet() {
    for (other : 0 .. RANKS - 1) {
        do
        :: see(other);
           if
           :: atomic { seen_number == call && seen_what == VARYING -> kind = VARYING; forget() };
              goto met
           :: atomic { seen_number >= call && !(seen_number == call && seen_what == VARYING) ->
                  forget() };
              break
           :: atomic { seen_number < call -> forget() }
           fi
        od
    }
met:
}

/* `Ways::begin`, of a call that looks at one of the words. */
inline begin_ways() {
    if
    :: word = 0
#ifdef TRACED
    :: word = 1
    :: word = 2
    :: word = 3
#endif
    fi;
    atomic { IS(me, SEE_WAY, turn * WORDS + word, ways[turn * WORDS + word]) ->
        way = ways[turn * WORDS + word] + 1; turn = 1 - turn; TAKEN };
    if
    :: me == 0 ->
        for (word : 0 .. WORDS - 1) {
            if
#ifdef TRACED
            :: atomic { event / 65536 == SAY_WAY && (event / 256) % 256 == turn * WORDS + word ->
                   ways[turn * WORDS + word] = event % 256; TAKEN }
#else
            :: ways[turn * WORDS + word] = 0
            :: ways[turn * WORDS + word] = 1
#endif
            fi
        }
    :: else
    fi;
    word = 0
}

#define AS_OTHERS(theirs, mine) assert(theirs == 0 || theirs == mine); theirs = mine

proctype Rank(byte me) {
    byte call, kind, other, word, way, turn;
    byte seen_number, seen_what, seen_count;
    for (call : 1 .. CALLS) {
        if
        :: kind = EQUAL; enter(call); meet()
        :: kind = VARYING
        fi;
        begin_ways();
        enter(TALLY);
        atomic {
            begun[me] = call; other = 0;
            AS_OTHERS(did[call], kind); AS_OTHERS(went[call], way); way = 0
        };
        do
        :: other == RANKS -> break
        :: atomic { other < RANKS && begun[other] >= call -> other++ }
#ifdef LOOKS
        :: see((me + 1) % RANKS); forget()
#endif
        od;
        other = 0
    }
}

init {
    byte rank;
    atomic {
        for (rank : 0 .. RANKS - 1) { run Rank(rank) }
    }
}
