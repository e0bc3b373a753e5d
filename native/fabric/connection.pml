/* Connections of a rank, and how ranks wait for each other: fifo.hpp, bell.hpp, `Control::fail`, and the
   loops around them in engine/calls.cpp and engine/execution.cpp.

   Rank 0 makes CALLS calls, each with one message to each of ranks 1 and 2, of the same data. With
   slots, the second message may share the slot of the first one. PULLED: the data stay in the caller's
   memory, which the caller overwrites after each call. ABORTS: a thread of rank 2 gives up at any time.

   SPIN's memory is sequentially consistent. BUFFERED: others see later that a message was published or
   released, but before the thread's next atomic read and write. LIMITED: sleeps end by themselves. */

#define RANKS (1 + RECEIVERS)
#define PLACES (SLOTS * LINES)  /* of a connection: lines of 64 bytes, one for each message */
#define BUFFER (2 * PLACES)     /* the caller's memory, of each rank */
#define OVERWRITTEN 255

#include "trace.pml"

/* What ranks share. Messages and calls are numbered from 1 on: message n is of call n. */
typedef Connection {
    byte consumed, sequence[ENVELOPES], where[ENVELOPES];
}
Connection connections[2];
byte content[BUFFER + RANKS];
byte sleepers[RANKS];
bool rung[RANKS];    /* since the rank's thread has last read `rings` */
bool asleep[RANKS];  /* in the kernel, which must wake it */
bool failure[RANKS];
#define SEQUENCE(c, number) connections[c].sequence[((number) - 1) % ENVELOPES]
#define WHERE(c, number) connections[c].where[((number) - 1) % ENVELOPES]

#ifdef BUFFERED
/* What others don't see yet: messages published on each connection, and released. */
byte late_published[2], late_released[2];
#define IS_FLUSHED(me) (me == 0 -> late_published[0] + late_published[1] == 0 : \
                        me == 3 || late_released[me - 1] == 0)
#define PUBLISH_IT(c, number) late_published[c] = number
#define RELEASE_IT(c, number) late_released[c] = number

inline flush(c) {
    if
    :: atomic { late_published[c] != 0 ->
           SEQUENCE(c, late_published[c]) = late_published[c]; late_published[c] = 0 }
    :: atomic { late_released[c] != 0 ->
           connections[c].consumed = late_released[c]; late_released[c] = 0 }
    fi
}
active proctype Memory() {
end:
    do
    :: flush(0)
    :: flush(1)
    od
}
#else
#define IS_FLUSHED(me) true
#define PUBLISH_IT(c, number) SEQUENCE(c, number) = number
#define RELEASE_IT(c, number) connections[c].consumed = number
#endif

/* `Bell::ring`. */
inline ring(me, to) {
#ifdef PARKS
    if
    :: atomic { sleepers[to] == 0 && IS(me, RING, to, 0) -> TAKEN }
    :: atomic { sleepers[to] != 0 && IS(me, RING, to, 1) -> TAKEN };
       atomic { IS_FLUSHED(me) && IS(me, RUNG, to, 0) -> rung[to] = true; TAKEN };
       atomic { IS(me, WAKE, to, 0) -> asleep[to] = false; TAKEN }
    fi
#else
    skip
#endif
}

/* `Control::fail`. */
inline fail(me) {
    for (other : 0 .. RANKS - 1) {
        atomic { IS(me, FAIL, other, 0) -> failure[other] = true; TAKEN }
    }
    for (other : 0 .. RANKS - 1) { ring(me, other) }
}

/* How a rank waits: entered, so that others ring; and since it read the bell's rings, the connections
   that it has looked at, and whether it has looked for a failure. */
typedef Wait {
    bool entered, moved, fresh[2], checked;
}
Wait waits[RANKS];

inline begin_anew(me) {
    waits[me].fresh[0] = false; waits[me].fresh[1] = false; waits[me].checked = false
}
inline hear(me) {
    atomic { IS(me, HEAR, me, 0) ->
        rung[me] = false; begin_anew(me); TAKEN }
}
inline enter(me) {
    atomic { IS_FLUSHED(me) && IS(me, ENTER, me, 0) ->
        sleepers[me]++; waits[me].entered = true; TAKEN };
    hear(me)
}
inline leave(me) {
    atomic { IS_FLUSHED(me) && IS(me, LEAVE, me, 0) ->
        sleepers[me]--; waits[me].entered = false; waits[me].moved = false; rung[me] = false;
        begin_anew(me); TAKEN }
}
inline sleep(me) {
    atomic { IS(me, SLEEP, me, 0) -> asleep[me] = !rung[me]; TAKEN };
    do
    :: !asleep[me] -> break
#ifdef LIMITED
    :: asleep[me] -> asleep[me] = false
#endif
    od;
    hear(me)
}
#ifdef UNQUIET
#define OR_UNQUIET(me) || waits[me].entered
#else
#define OR_UNQUIET(me)
#endif
/* A look for a failure that finds none. */
inline check(me) {
    atomic { !failure[me] && IS(me, CHECK, me, 0) -> waits[me].checked = waits[me].entered; TAKEN }
}
inline leave_if_entered(me) {
    if
    :: waits[me].entered -> leave(me)
    :: else
    fi
}

/* ---- The sender */

/* A slot's last message, where it begins and ends, and the last message of the other connection there. */
typedef Use {
    byte number, begin, end, shared;
}
Use uses[2 * SLOTS];
byte seen[2];    /* of each connection, the messages that the sender has seen consumed */
byte sent[2];    /* and has published */
byte newest[2];  /* the slot of the last one */
byte call;

#define OTHER(c) (1 - (c))
#define USE(c, s) uses[(c) * SLOTS + (s)]
#define KNOWN(c) seen[c]
#define FRESH(c) (waits[0].fresh[c] -> seen[c] : 255)  /* what it hasn't looked at hinders nothing */

/* By what the sender knows of a connection. */
#define IS_KEPT(c, s, known) (USE(c, s).shared > known(OTHER(c)))
#define IS_FREE(c, s, known) (USE(c, s).number <= known(c) && !IS_KEPT(c, s, known))
#define HAS_ROOM(c) (USE(c, newest[c]).end < LINES)
#if SLOTS == 2
#define HAS_FREE(c, known) (IS_FREE(c, 0, known) || IS_FREE(c, 1, known))
#define KEPT(c) (IS_KEPT(c, 0, KNOWN) + IS_KEPT(c, 1, KNOWN))
#else
#define HAS_FREE(c, known) (IS_FREE(c, 0, known) || IS_FREE(c, 1, known) || IS_FREE(c, 2, known))
#define KEPT(c) (IS_KEPT(c, 0, KNOWN) + IS_KEPT(c, 1, KNOWN) + IS_KEPT(c, 2, KNOWN))
#endif

/* `Execution::obstacle`: the call's message can be sent. */
#ifdef PULLED
#define HAS_SLOT(c, known) true
#else
#define HAS_SLOT(c, known) (sent[c] < known(c) + LIMIT && (HAS_FREE(c, known) || HAS_ROOM(c)))
#endif
#define IS_READY(c, known) \
    (sent[c] < call && sent[c] < known(c) + ENVELOPES && HAS_SLOT(c, known))
#define ARE_SENT (sent[0] == call && sent[1] == call)

/* `Execution::is_read`: the caller gets its memory back. */
#ifdef PULLED
#define ARE_READ(known) (known(0) >= call && known(1) >= call)
#else
#define ARE_READ(known) true
#endif
#define IS_DONE(known) (ARE_SENT && ARE_READ(known))
#define CAN_MOVE(known) (IS_READY(0, known) || IS_READY(1, known) || IS_DONE(known))

/* Whether the other connection's slot s has the call's data, and may be kept: `FifoSender::share`. */
#define MAY_SHARE(c, s) (USE(c, s).number == call && \
                         KEPT(c) + (IS_KEPT(c, s, KNOWN) -> 0 : 1) + ROOM <= SLOTS)

inline share(c, s) {
    USE(c, s).shared = call;
    place = (c) * PLACES + (s) * LINES + USE(c, s).begin
}

inline stage(c, s) {
    USE(c, s).begin = (IS_FREE(c, s, KNOWN) -> 0 : USE(c, s).end);
    USE(c, s).end = USE(c, s).begin + 1;
    USE(c, s).number = call;
    newest[c] = s;
    place = (c) * PLACES + (s) * LINES + USE(c, s).begin;
    IS(0, WRITE, place, call) -> content[place] = call;
    TAKEN
}

inline publish(c) {
    atomic { IS(0, PUBLISH, (c) * 16 + place, call) ->
        WHERE(c, call) = place;
        PUBLISH_IT(c, call);
        sent[c] = call; place = 0;
        TAKEN };
    ring(0, c + 1)
}

/* `Execution::send`. */
inline send(c) {
    if
#ifdef PULLED
    :: place = BUFFER
#else
    :: atomic { MAY_SHARE(OTHER(c), 0) -> share(OTHER(c), 0) }
    :: atomic { MAY_SHARE(OTHER(c), 1) -> share(OTHER(c), 1) }
    :: atomic { IS_FREE(c, 0, KNOWN) -> stage(c, 0) }
    :: atomic { IS_FREE(c, 1, KNOWN) -> stage(c, 1) }
#if SLOTS == 3
    :: atomic { MAY_SHARE(OTHER(c), 2) -> share(OTHER(c), 2) }
    :: atomic { IS_FREE(c, 2, KNOWN) -> stage(c, 2) }
#endif
    :: atomic { HAS_ROOM(c) -> stage(c, newest[c]) }
#endif
    fi;
    publish(c)
}

/* Without sleeps, a wait in which nothing new is seen is an end: SPIN finds who waits for ever. */
#ifdef PARKS
#define MAY_LOOK(is_news) true
#else
#define MAY_LOOK(is_news) (is_news)
#endif
inline look(c) {
    atomic { IS(0, LOOK, c, connections[c].consumed) ->
        seen[c] = connections[c].consumed; waits[0].fresh[c] = waits[0].entered; TAKEN }
}

active proctype Sender() {
    byte place, other;
    for (call : 1 .. CALLS) {
#ifdef PULLED
        atomic { IS(0, WRITE, BUFFER, call) -> content[BUFFER] = call; TAKEN };
#endif
#if RECEIVERS == 1
        sent[1] = call; seen[1] = call;
#endif
        do
        :: IS_DONE(KNOWN) -> break
        :: IS_READY(0, KNOWN) -> send(0); waits[0].moved = waits[0].entered
        :: IS_READY(1, KNOWN) -> send(1); waits[0].moved = waits[0].entered
        :: atomic { failure[0] && IS(0, CHECK, 0, 1) -> TAKEN }; goto aborted
        :: MAY_LOOK(seen[0] != connections[0].consumed) -> look(0)
        :: MAY_LOOK(seen[1] != connections[1].consumed) -> look(1)
#ifdef PARKS
        :: check(0)
        :: !waits[0].entered && !CAN_MOVE(KNOWN) -> enter(0)
        :: waits[0].moved OR_UNQUIET(0) -> leave(0)
        :: waits[0].entered && !waits[0].moved && waits[0].checked && !CAN_MOVE(FRESH) -> sleep(0)
#endif
        od;
        leave_if_entered(0)
    }
    goto ended;
aborted:
    fail(0);
    leave_if_entered(0);
ended:
#ifdef PULLED
    atomic { IS(0, WRITE, BUFFER, OVERWRITTEN) -> content[BUFFER] = OVERWRITTEN; TAKEN };
#endif
    skip
}

/* ---- A receiver */

#define IS_HERE (SEQUENCE(c, number) == number)

proctype Receiver(byte rank) {
    byte number, place, first, last, other;
    byte c = rank - 1;
    for (number : 1 .. CALLS) {
        do
        :: atomic { IS_HERE && IS(rank, LOOK, c, number) -> place = WHERE(c, number); TAKEN }; break
        :: atomic { failure[rank] && IS(rank, CHECK, rank, 1) -> TAKEN }; goto aborted
#ifdef PARKS
        :: atomic { !IS_HERE && IS(rank, LOOK, c, SEQUENCE(c, number)) ->
               waits[rank].fresh[0] = waits[rank].entered; TAKEN }
        :: check(rank)
        :: !waits[rank].entered -> enter(rank)
        :: waits[rank].moved OR_UNQUIET(rank) -> leave(rank)
        :: waits[rank].entered && waits[rank].checked && waits[rank].fresh[0] -> sleep(rank)
#endif
        od;
        atomic { IS(rank, WRITE, BUFFER + rank, content[place]) ->
            first = content[place]; TAKEN };
#ifdef PULLED
        last = content[place];
#else
        last = first;
#endif
        atomic { IS(rank, RELEASE, c, number) -> RELEASE_IT(c, number); TAKEN };
        ring(rank, 0);
#ifdef PULLED
        if
        :: check(rank)
        :: atomic { failure[rank] && IS(rank, CHECK, rank, 1) -> TAKEN }; goto aborted
        fi;
#endif
        assert(first == number && last == number);
        first = 0; last = 0; place = 0;
        leave_if_entered(rank)
    }
    goto ended;
aborted:
    fail(rank);
    leave_if_entered(rank);
ended:
}

#ifdef ABORTS
active proctype Interrupted() {
    byte other;
    fail(3)
}
#endif

init {
    atomic {
        run Receiver(1);
#if RECEIVERS == 2
        run Receiver(2)
#endif
    }
}
