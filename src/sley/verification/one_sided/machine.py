"""Machine: one abstract run of consecutive calls of a one-sided plan.

docs/machine.md, "The one-sided machine", defines what is proven. The run performs every operation
once, in one of the orders that the plan allows. Vector clocks tell which accesses come in the same
sequence in every other order, so one run finds all races. Waits and packets find the same partners
in every order, so one run that ends shows that all do.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np

from sley.errors import Diagnostic, counted, shortened
from sley.errors.verifier import V203, V204, V211, V214, V215
from sley.ir.faults import LIMIT
from sley.ir.one_sided import MEETINGS, Action, OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Buffer
from sley.verification.one_sided.clocks import Clock
from sley.verification.one_sided.history import Mismatch, explain
from sley.verification.one_sided.memory import (
    DATA,
    FLAG,
    PLAIN,
    Memory,
    Range,
    moves_of,
    user_cells,
)
from sley.verification.values import NOTHING, Values

_REST = NONE
"""The threads of a block that perform no action alone."""

_ORDER = (
    "Put a join (nop) between two operations of a block, a barrier or a semaphore between blocks, "
    "and a signal with its wait between ranks, with joins before the signal and after the wait. Or "
    "correct the index, if the two should not access the same chunk."
)


@dataclass(frozen=True)
class Calls:
    """The result of a run. steps: the longest chain of joins and waits in a call."""

    findings: list[Diagnostic]
    steps: int


def perform_calls(plan: OneSidedPlan) -> Calls:
    """Two consecutive calls of a plan, or three if it has two copies of scratch.

    V214 for packets written twice, else V203 if the calls can't end; else V204, V211 and V215 for
    accesses without an order; else V205 and V206 for wrong results. These come before V215 if
    already the first call is wrong: no order between calls would mend it.
    """
    run = OneSidedRun(plan)
    run.perform()
    found = [*run.twice.values()] or run.stuck()
    if not found:
        races = [*run.races.values()]
        between = all(race.rule is V215 and NONE not in rows for rows, race in run.races.items())
        wrong = run.wrong(calls=1 if races else plan.scratch_copies + 1) if between else []
        found = wrong + races
    return Calls(found[:LIMIT], run.steps)


@dataclass(eq=False)
class _Move:
    """A performed move. row: its operation. agent, epoch, call: who performed it, and when.

    readers: who read its packets: (first chunk of the move, number, reading move, first chunk of
    that move).
    """

    row: int
    call: int
    agent: int
    epoch: int
    clock: Clock
    readers: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(eq=False)
class _Block:
    """A block in a call.

    at: by thread, its next operation. own: by thread, its clock, if it has waited since the last
    join. arrivals: by move, how many threads have come to it. shown: the clocks of packets read
    since the last join.
    """

    clock: Clock
    at: dict[int, int]
    own: dict[int, Clock] = field(default_factory=dict)
    arrivals: Counter[int] = field(default_factory=Counter)
    shown: list[Clock] = field(default_factory=list)
    epoch: int = 0
    ended: bool = False


@dataclass(frozen=True)
class _Access:
    """Who accesses cells: the move (NONE for a caller), its agent, epoch, call and clock.

    shown: what packets have shown to the writes of a move: (first place, last place + 1, clock of
    who wrote the packets).
    """

    move: int
    agent: int
    epoch: int
    call: int
    clock: Clock
    shown: list[tuple[int, int, Clock]] = field(default_factory=list)

    def knows(self, agent: int, epoch: int, place: int) -> bool:
        """Whether a write to a place of the move comes after an access of `agent` in `epoch`."""
        return bool(
            self.clock.strong[agent] > epoch
            or any(
                first <= place < last and clock.base[agent] > epoch
                for first, last, clock in self.shown
            )
        )


class OneSidedRun:
    """One run of consecutive calls."""

    def __init__(self, plan: OneSidedPlan) -> None:
        t, blocks = plan.operations, len(plan.block_rank)
        self._plan, self._calls = plan, plan.scratch_copies + 1
        self._action = [Action(number) for number in t.action.tolist()]
        self._thread, self._target = t.thread.tolist(), t.target.tolist()
        self._port, self._relaxed = t.port.tolist(), t.relaxed.tolist()
        self._end, self._rank = plan.block_offset[1:].tolist(), plan.block_rank.tolist()
        self._moves, self._user = moves_of(plan), user_cells(plan)
        self._posts, self._waits = plan.posts, plan.waits
        self._in_order = _ordered_counters(plan, self._posts)
        self._is_direct = {c: (t.port[rows] == NONE).all() for c, rows in self._posts.items()}
        self._members = _members(plan)
        self._caller = blocks + len(plan.ports)  # of rank 0; then those of the others
        self._zero = Clock.zero(self._caller + plan.collective.ranks)
        self._ports = [self._zero] * len(plan.ports)
        self._port_epoch = [0] * len(plan.ports)
        self._memory = Memory(plan.layout.cells)
        self._inputs = [Values.inputs(plan.collective) for _ in range(self._calls + 1)]
        self._posted: dict[int, list[tuple[Clock, bool]]] = defaultdict(list)
        self._taken: Counter[int] = Counter()
        self._moved: list[_Move] = []
        self._log: list[tuple[int, int]] = []  # as `explain` reads it
        self._arrived: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._hungry: dict[int, set[int]] = defaultdict(set)
        self._call = [NONE] * plan.collective.ranks
        self._threads = _threads_of(plan)
        self._blocks = [_Block(self._zero, {}) for _ in range(blocks)]
        self._ready: deque[int] = deque()
        self._mismatches: list[Mismatch] = []
        self.races: dict[tuple[int, int], Diagnostic] = {}
        self.twice: dict[int, Diagnostic] = {}
        self.steps = 0

    def perform(self) -> None:
        """Performs all that can be performed."""
        for rank in range(self._plan.collective.ranks):
            self._end_call(rank)
        # Ends: only an operation of another block or the end of a call makes a block ready again,
        # and each happens once a call.
        while self._ready:
            self._advance(self._ready.popleft())

    # Calls of a rank.

    def _end_call(self, rank: int) -> None:
        """Ends the call of a rank, if it is in one, lets its caller use its memory, and begins the
        next call. A rank without blocks ends all its calls at once."""
        first, last = np.searchsorted(self._plan.block_rank, (rank, rank + 1)).tolist()
        begun = self._zero
        # Ends: each round begins a call of the rank, which has so many.
        while True:
            clock = begun
            for b in range(first, last):
                clock = clock.joined(self._end_epoch(b))
            call, caller = self._call[rank], self._caller + rank
            if call != NONE:
                self._compare(rank, call)
            access = _Access(NONE, caller, call + 1, call, clock)
            self._check_writes(self._user[rank], access, np.arange(len(self._user[rank])))
            self._fill(rank, call + 1)
            self.steps = max(self.steps, int(clock.loose[-1]))
            begun = clock.advanced(caller, call + 2).restarted()
            self._call[rank] = call + 1
            if self._call[rank] == self._calls:
                return
            for b in range(first, last):
                start = int(self._plan.block_offset[b])
                self._blocks[b] = _Block(
                    begun, dict.fromkeys(self._threads[b], start), epoch=self._blocks[b].epoch
                )
                self._ready.append(b)
            if last > first:
                return

    def _end_epoch(self, b: int) -> Clock:
        """Ends the epoch of a block; returns the clock of what all its threads know."""
        block = self._blocks[b]
        block.epoch += 1
        return self._met(block).advanced(b, block.epoch)

    def _fill(self, rank: int, call: int) -> None:
        """The caller's writes: fresh inputs, and outputs without data."""
        c, memory = self._plan.collective, self._memory
        memory.values[self._user[rank]] = Values.nothing(len(self._user[rank]))
        ids = np.arange(c.input_offset[rank], c.input_offset[rank + 1])
        cells = self._plan.layout.cell(rank, Buffer.INPUT, np.arange(len(ids)))
        present = c.initial[ids]
        memory.values[cells[present]] = self._inputs[call][ids[present]]
        self._log.append((~rank, call))

    def _compare(self, rank: int, call: int) -> None:
        """Compares the output of a rank with what the collective promises."""
        c, layout = self._plan.collective, self._plan.layout
        rows = np.arange(c.output_offset[rank], c.output_offset[rank + 1])
        cells = layout.cell(rank, Buffer.OUTPUT, np.arange(len(rows)))
        promised = c.expected[rows] != NONE
        rows, cells = rows[promised], cells[promised]
        wanted = self._inputs[call].promised(c)[c.expected[rows]]
        wrong = self._memory.values[cells].differ(wanted)
        for k in np.flatnonzero(wrong).tolist():
            self._mismatches.append(Mismatch(call, int(rows[k]), int(cells[k])))

    # Blocks and their threads.

    def _advance(self, b: int) -> None:
        """Lets the threads of a block run until all of them wait."""
        block = self._blocks[b]
        # Ends: each round passes a meeting, at which all threads go to later rows, or returns.
        while not block.ended:
            for thread in self._threads[b]:
                self._advance_thread(b, block, thread)
            rows = set(block.at.values())
            if len(rows) > 1:
                return
            row = rows.pop()
            if row == self._end[b]:
                block.ended = True
                rank = self._rank[b]
                first, last = np.searchsorted(self._plan.block_rank, (rank, rank + 1)).tolist()
                if all(other.ended for other in self._blocks[first:last]):
                    self._end_call(rank)
            elif self._action[row] is Action.JOIN:
                self._meet([b])
            elif self._action[row] is Action.BARRIER:
                key = self._rank[b], self._target[row]
                self._arrived[key].add(b)
                if self._arrived[key] != self._members[key]:
                    return
                del self._arrived[key]
                self._meet(sorted(self._members[key]))
                self._ready.extend(self._members[key] - {b})
            else:
                return

    def _meet(self, members: list[int]) -> None:
        """All threads of blocks meet, and continue behind the operation at which they wait."""
        clock = self._zero
        for b in members:
            clock = clock.joined(self._end_epoch(b))
        for b in members:
            block = self._blocks[b]
            block.clock, block.own, block.shown = clock, {}, []
            block.at = {thread: row + 1 for thread, row in block.at.items()}

    @staticmethod
    def _met(block: _Block) -> Clock:
        """What all threads of a block know together."""
        clock = block.clock
        for own in block.own.values():
            clock = clock.joined(own)
        for shown in block.shown:
            clock = clock.joined(shown, relaxed=True)
        return clock

    def _advance_thread(self, b: int, block: _Block, thread: int) -> None:
        """Lets a thread perform operations until it waits."""
        row, end, size = block.at[thread], self._end[b], len(self._threads[b])
        actions, threads = self._action, self._thread
        while row < end:
            action = actions[row]
            if action is Action.MOVE:
                if not self._has_packets(b, row):
                    break
                block.arrivals[row] += 1
                if block.arrivals[row] == size:
                    access = (b, block.epoch, self._call[self._rank[b]], block.clock)
                    block.shown += self._perform(row, *access)
            elif action in MEETINGS or (
                threads[row] == thread and not self._act(block, row, thread)
            ):
                break
            row += 1
        block.at[thread] = row

    def _act(self, block: _Block, row: int, thread: int) -> bool:
        """An action of one thread; False if it waits."""
        action, clock = self._action[row], block.own.get(thread, block.clock)
        counter, port = self._target[row], self._port[row]
        if action is Action.POST:
            self._post(counter, clock, self._relaxed[row])
        elif action is Action.WAIT:
            observed = self._observe(counter, clock, self._relaxed[row])
            if observed is None:
                return False
            block.own[thread] = observed
        elif action is Action.FLUSH:
            block.own[thread] = clock.joined(self._ports[port])
        else:
            self._ports[port] = self._ports[port].joined(clock)
            if action is Action.PUSH_POST:
                self._post(counter, self._ports[port], False)
            else:
                agent, epoch = len(self._blocks) + port, self._port_epoch[port]
                call = self._call[int(self._plan.ports[port])]
                self._check_arrival(row, call, self._ports[port])
                self._perform(row, agent, epoch, call, self._ports[port])
                self._port_epoch[port] += 1
                self._ports[port] = self._ports[port].advanced(agent, epoch + 1)
        return True

    # Counters.

    def _post(self, counter: int, clock: Clock, relaxed: bool) -> None:
        self._posted[counter].append((clock, relaxed))
        self._ready.append(int(self._plan.block[self._waits[counter][0]]))

    def _observe(self, counter: int, clock: Clock, relaxed: bool) -> Clock | None:
        """The clock after a wait; None if the counter doesn't have enough posts.

        The wait that needs n posts of this call shows the n-th one, if posts have an order; else it
        shows posts only if it needs all of them, and if no port posts: a port may post after the
        call, when posts of the next call have taken their places.
        """
        initial, posts = int(self._plan.counters.initial[counter]), len(self._posts[counter])
        before, number = divmod(self._taken[counter], posts)
        if len(self._posted[counter]) + initial <= self._taken[counter]:
            return None
        self._taken[counter] += 1
        needed, start = number + 1 - initial, before * posts
        observed: list[tuple[Clock, bool]] = []
        if needed > 0 and self._in_order[counter]:
            observed = self._posted[counter][start + needed - 1 : start + needed]
        elif needed == posts and self._is_direct[counter]:
            observed = self._posted[counter][start : start + posts]
        for other, was_relaxed in observed:
            clock = clock.joined(other, relaxed=relaxed or was_relaxed)
        return clock.lengthened()

    # Memory.

    def _has_packets(self, b: int, row: int) -> bool:
        """Whether the packets that a move reads are there; if not, packets will wake the block."""
        call = self._call[self._rank[b]]
        for sources, _ in self._moves.get(row, []):
            for item in sources:
                if item.packet and not self._arrived_packets(item, call).all():
                    self._hungry[item.rank].add(b)
                    return False
        return True

    def _arrived_packets(self, item: Range, call: int) -> np.ndarray:
        """bool (packets,): which packets of a range have arrived in a call."""
        memory, cells = self._memory, item.cells(self._copy(call))
        return np.asarray(
            (memory.kind[cells] == DATA)
            & (memory.kind[cells + 1] == FLAG)
            & (memory.call[cells] == call)
            & (memory.call[cells + 1] == call)
        )

    def _check_arrival(self, row: int, call: int, clock: Clock) -> None:
        """Checks that packets that a port copies have arrived: their write is known, or a move that
        has read them."""
        memory = self._memory
        for sources, _ in self._moves[row]:
            for item in sources:
                if not item.packet:
                    continue
                cells = item.cells(self._copy(call))
                arrived = self._arrived_packets(item, call)
                known = clock.strong[memory.agent[cells]] > memory.epoch[cells]
                for k in np.flatnonzero(~(arrived & known)).tolist():
                    waited = memory.waiters[int(cells[k])] if arrived[k] else ()
                    if not any(clock.strong[agent] > epoch for agent, epoch in waited):
                        self._report_early(row, int(cells[k]))

    def _copy(self, call: int) -> int:
        return call % self._plan.scratch_copies

    def _perform(self, row: int, agent: int, epoch: int, call: int, clock: Clock) -> list[Clock]:
        """Performs the moves of an operation; returns the clocks of the packets that it read."""
        seen = []
        self._log.append((row, call))
        for sources, destinations in self._moves.get(row, []):
            access = _Access(len(self._moved), agent, epoch, call, clock)
            self._moved.append(_Move(row, call, agent, epoch, clock))
            values = []
            for item in sources:
                values.append(self._read(item, access))
                access.shown.extend(self._read_packets(item, access) if item.packet else ())
            value = self._sum(row, sources, values) if values else None
            for item in destinations:
                self._write(item, access, value)
            seen += [clock for _, _, clock in access.shown]
        return seen

    def _sum(self, row: int, sources: list[Range], values: list[Values]) -> Values:
        """The sum of what a move reads, at least one value."""
        return reduce(add, values)

    def _read(self, item: Range, access: _Access) -> Values:
        """The values of a range. Plain data must have been written before; packets show that
        themselves."""
        memory, cells = self._memory, item.cells(self._copy(access.call))
        value = memory.values[cells]
        kind = DATA if item.packet else PLAIN
        value.number[memory.kind[cells] != kind] = NOTHING
        if not item.packet:
            late = self._late(cells, access)
            self._report_writes(cells[late], access)
        for place, cell in enumerate(cells.tolist()):
            memory.reads[cell].append((access.move, place))
            if item.packet:
                memory.reads[cell + 1].append((access.move, place))
                memory.waiters[cell].append((access.agent, access.epoch))
        return value

    def _read_packets(self, item: Range, access: _Access) -> list[tuple[int, int, Clock]]:
        """Notes who reads the packets of a range; returns what they show (`_Access.shown`)."""
        cells = item.cells(self._copy(access.call))
        moves, places = self._memory.move[cells], self._memory.place[cells]
        cuts = np.flatnonzero((np.diff(moves) != 0) | (np.diff(places) != 1)) + 1
        starts = [0, *cuts.tolist(), len(cells)]
        seen = []
        for start, end in pairwise(starts):
            move = int(moves[start])
            if move != NONE:
                reader = (int(places[start]), end - start, access.move, start)
                self._moved[move].readers.append(reader)
                seen.append((start, end, self._moved[move].clock))
        return seen

    def _write(self, item: Range, access: _Access, value: Values | None) -> None:
        memory, cells = self._memory, item.cells(self._copy(access.call))
        places = np.arange(len(cells))
        if item.packet:
            again = (memory.call[cells] == access.call) & (memory.kind[cells] != PLAIN)
            if again.any():
                self._report_twice(access, int(cells[np.argmax(again)]))
            self._check_writes(cells + 1, access, places)
            memory.kind[cells + 1] = FLAG
            memory.values[cells + 1] = Values.nothing(len(cells))
        self._check_writes(cells, access, places)
        memory.kind[cells] = DATA if item.packet else PLAIN
        memory.values[cells] = Values.nothing(len(cells)) if value is None else value
        if item.packet:
            self._ready.extend(self._hungry.pop(item.rank, ()))

    def _check_writes(self, cells: np.ndarray, access: _Access, places: np.ndarray) -> None:
        """Checks that a write comes after the last write of each cell and all reads since, and
        notes it."""
        memory = self._memory
        late = np.flatnonzero(self._late(cells, access))
        known = [
            access.knows(int(memory.agent[cells[k]]), int(memory.epoch[cells[k]]), int(places[k]))
            for k in late.tolist()
        ]
        self._report_writes(cells[late[~np.array(known, bool)]], access)
        for place, cell in zip(places.tolist(), cells.tolist(), strict=True):
            memory.waiters.pop(cell, None)
            for move, read_place in memory.reads.pop(cell, ()):
                if move == access.move and read_place == place:
                    continue
                read = self._moved[move]
                ordered = access.knows(read.agent, read.epoch, place)
                if not ordered and not self._is_read(move, read_place, access, place):
                    self._report_race(cell, access, read.agent, read.epoch, move)
        memory.move[cells], memory.place[cells] = access.move, places
        memory.agent[cells], memory.epoch[cells] = access.agent, access.epoch
        memory.call[cells], memory.kind[cells] = access.call, PLAIN

    def _late(self, cells: np.ndarray, access: _Access) -> np.ndarray:
        """bool (cells,): whether the clock of an access doesn't show the last write of a cell."""
        agent, epoch = self._memory.agent[cells], self._memory.epoch[cells]
        return np.asarray((epoch != NONE) & (access.clock.strong[agent] <= epoch))

    def _report_writes(self, cells: np.ndarray, access: _Access) -> None:
        """Reports that an access has no order with the last writes of cells."""
        memory = self._memory
        for cell in cells.tolist():
            move = int(memory.move[cell])
            self._report_race(cell, access, int(memory.agent[cell]), int(memory.epoch[cell]), move)

    def _is_read(self, move: int, place: int, access: _Access, at: int) -> bool:
        """Whether packets show that chunk `place` of a move was read before an access to its chunk
        `at`: those that the move computed from it were read by the access, or before it, or so were
        packets computed from them."""
        # A search over what was computed from the chunk. Ends: each (move, chunk) is visited once.
        stack, found = [(move, place)], {(move, place)}
        while stack:
            move, place = stack.pop()
            for first, number, reader, start in self._moved[move].readers:
                if not first <= place < first + number:
                    continue
                item = (reader, start + place - first)
                read = self._moved[reader]
                if item == (access.move, at) or access.clock.strong[read.agent] > read.epoch:
                    return True
                if item not in found:
                    found.add(item)
                    stack.append(item)
        return False

    # Findings.

    def _report_twice(self, access: _Access, cell: int) -> None:
        plan, move = self._plan, self._moved[access.move]
        self.twice.setdefault(
            move.row,
            V214.diagnostic(
                at=plan.places([move.row, self._moved[int(self._memory.move[cell])].row]),
                expected="packets that are written once in a call",
                found=f"packets at {plan.layout.name(cell)}, which are written again",
            ),
        )

    def _report_early(self, row: int, cell: int) -> None:
        self.races.setdefault(
            (row, row),
            V204.diagnostic(
                at=self._plan.places([row]),
                expected="packets that have arrived, as a move before has read them",
                found=f"packets at {self._plan.layout.name(cell)}, for which nothing has waited",
            ),
        )

    def _report_race(self, cell: int, access: _Access, agent: int, epoch: int, move: int) -> None:
        """V211, V215 or V204 for two accesses; `move` is that of the earlier one, NONE for a
        caller."""
        here = NONE if access.move == NONE else self._moved[access.move].row
        there = NONE if move == NONE else self._moved[move].row
        if (here, there) in self.races or len(self.races) >= LIMIT:
            return
        plan, name = self._plan, self._plan.layout.name(cell)
        rows = [row for row in (here, there) if row != NONE]
        relaxed = bool(access.clock.loose[agent] > epoch)
        rank = (access.agent if access.move == NONE else agent) - self._caller
        end = "end" if here == NONE else "begin"
        remedy = ""
        if len(rows) == 1 and relaxed:
            rule, expected = V211, f"{name} in memory at the {end} of the call of rank {rank}"
            found = "only relaxed signals, or packets, before it"
        elif len(rows) == 1:
            rule, expected = V215, f"an access to {name} during the call of rank {rank}"
            found = f"nothing orders it and the {end} of that call"
        elif self._moved[move].call != access.call:
            rule, expected = V215, f"accesses to {name} of one call before those of the next"
            found = "nothing orders them: a rank may be a call ahead"
        elif relaxed:
            rule, expected = V211, f"an order in memory between two accesses to {name}"
            found = "only relaxed signals, or packets, order them"
        else:
            rule, expected = V204, f"an order between two accesses to {name}"
            same_block = agent == access.agent and agent < len(self._blocks)
            found = "nothing orders them: " + (
                "no join (nop) in between"
                if same_block
                else "no barrier, no signal with its wait, or a join (nop) is missing beside them"
            )
            remedy = _ORDER
        self.races[here, there] = rule.diagnostic(
            at=plan.places(rows), expected=expected, found=found, remedy=remedy
        )

    def stuck(self) -> list[Diagnostic]:
        """V203 if the run did not end: a chain of operations that wait for one another."""
        waiting = [b for b, block in enumerate(self._blocks) if not block.ended]
        if not waiting:
            return []
        plan, notes, seen = self._plan, list[str](), set[int]()
        rows = {b: self._stuck_rows(b) for b in waiting}
        b = waiting[0]
        first = rows[b][0]
        # Ends: blocks are finite, and one without a reason among the others comes back to itself.
        while b not in seen:
            seen.add(b)
            text, following = self._reason(rows[b][0])
            notes.append(f"{plan.label(rows[b][0])} {text}")
            b = next((other for other in following if other in rows), b)
        hang = V203.diagnostic(
            at=plan.places([first]),
            expected="operations that all end",
            found=f"{counted(len(waiting), 'block')} that {'wait' if len(waiting) > 1 else 'waits'}"
            " for ever",
            remedy="Signal before the other end waits, and let all blocks of a barrier reach it.",
            notes=shortened(notes),
        )
        return [hang]

    def _stuck_rows(self, b: int) -> list[int]:
        """The operations at which threads of a block wait, but for its joins if others wait."""
        rows = sorted(row for row in set(self._blocks[b].at.values()) if row != self._end[b])
        return [row for row in rows if self._action[row] not in MEETINGS] or rows

    def _reason(self, row: int) -> tuple[str, list[int]]:
        """What an operation waits for, and the blocks that could give it."""
        plan, action = self._plan, self._action[row]
        if action is Action.WAIT:
            posts = self._posts[self._target[row]]
            blocks = sorted(set(plan.block[posts].tolist()))
            return f"waits for {plan.label(int(posts[0]))}", blocks
        if action is Action.BARRIER:
            key = int(plan.rank[row]), self._target[row]
            return "waits for other blocks", sorted(self._members[key] - self._arrived[key])
        cells = [
            item.cells(0)[0] for sources, _ in self._moves[row] for item in sources if item.packet
        ]
        writers = [
            other
            for other, moves in self._moves.items()
            for _, destinations in moves
            for item in destinations
            if item.packet and np.isin(cells, item.cells(0)).any()
        ]
        if not writers:
            return "waits for packets that nobody writes", []
        blocks = sorted(set(plan.block[writers].tolist()))
        return f"waits for packets of {plan.label(writers[0])}", blocks

    def wrong(self, calls: int) -> list[Diagnostic]:
        """V205 or V206 if an output of the first `calls` calls differs from the promise."""
        if not self._mismatches or self._mismatches[0].call >= calls:
            return []
        return explain(self._plan, self._moves, self._log, self._mismatches)


def _ordered_counters(plan: OneSidedPlan, posts: dict[int, np.ndarray]) -> dict[int, bool]:
    """Whether the posts to each counter come in one order: of one thread or with joins in between,
    all by the block itself or all by one port."""
    port = plan.operations.port
    return {
        counter: plan.is_sequence(rows) and len(set(port[rows].tolist())) == 1
        for counter, rows in posts.items()
    }


def _members(plan: OneSidedPlan) -> dict[tuple[int, int], set[int]]:
    """The blocks of each barrier, by rank and number."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in np.flatnonzero(plan.operations.action == Action.BARRIER).tolist():
        key = int(plan.rank[row]), int(plan.operations.target[row])
        found[key].add(int(plan.block[row]))
    return found


def _threads_of(plan: OneSidedPlan) -> list[list[int]]:
    """By block, its threads that act alone, and _REST for all others."""
    thread = np.split(plan.operations.thread, plan.block_offset[1:-1])
    return [sorted({t for t in of.tolist() if t >= 0} | {_REST}) for of in thread]
