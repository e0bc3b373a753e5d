"""The one-sided machine, run by an adversary: element by element, with the weakest memory that
docs/machine.md ("The one-sided machine") allows.

It shares no code with the verifier. An element of a move is a pending item of its thread: it reads
its sources and writes its destinations at any later times, until something forces it. What forces
it is an access to the same memory by a thread that knows the item, a signal that publishes by such
a thread, and the end of the call. Between calls the caller writes garbage over its buffers.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import chain, product
from random import Random

import numpy as np

from sley.ir.one_sided import Action, OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Buffer

ELEMENTS = 2
"""Elements of a chunk."""

_DATA = 2**60
"""Data that a plan writes are below it; the first content of the scratch is above it."""

Source = tuple[int, bool]  # address, whether packets
Target = tuple[int, bool]


class WrongRunError(Exception):
    """A schedule in which the plan goes wrong."""


@dataclass(frozen=True)
class _Element:
    """An element of a move: the plain addresses and the packets that it reads, and what it
    writes."""

    plain: tuple[int, ...]
    packets: tuple[int, ...]
    targets: tuple[Target, ...]
    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(eq=False)
class _Item:
    """An element that a thread has begun. before: items that must be performed earlier."""

    rank: int
    block: _Block
    thread: _Thread
    element: _Element
    flag: int
    value: int
    before: list[_Item]
    unread: list[int]
    unwritten: list[Target]

    @property
    def is_done(self) -> bool:
        return not self.unread and not self.unwritten


class Program:
    """A plan in elements: what all its schedules share."""

    def __init__(self, plan: OneSidedPlan) -> None:
        t, c = plan.operations, plan.collective
        self.plan = plan
        self.action = [Action(number) for number in t.action.tolist()]
        self.thread, self.target = t.thread.tolist(), t.target.tolist()
        self.port, self.relaxed = t.port.tolist(), t.relaxed.tolist()
        self.block_rank = plan.block_rank.tolist()
        self.offset = plan.block_offset.tolist()
        self.initial = plan.counters.initial.tolist()
        self.port_rank = plan.ports.tolist()
        self.size = plan.layout.cells * ELEMENTS
        self.elements = [_elements_of(plan, copy) for copy in range(plan.scratch_copies)]
        self.owner = [NONE] * self.size
        self.user: list[list[int]] = []
        for rank in range(c.ranks):
            addresses = sorted(
                {
                    _address(plan, rank, buffer, index, e, 0)
                    for buffer in (Buffer.INPUT, Buffer.OUTPUT)
                    for index in range(int(plan.layout.size[buffer, rank]))
                    for e in range(ELEMENTS)
                }
            )
            self.user.append(addresses)
            for address in addresses:
                self.owner[address] = rank
        self.inputs = [self._inputs(rank) for rank in range(c.ranks)]
        self.promised = [self._promised(rank) for rank in range(c.ranks)]
        self.members: dict[tuple[int, int], set[int]] = defaultdict(set)
        for row in np.flatnonzero(t.action == Action.BARRIER).tolist():
            block = int(plan.block[row])
            self.members[self.block_rank[block], self.target[row]].add(block)

    def _inputs(self, rank: int) -> list[tuple[int, int]]:
        """(address, number) of each element of the input with data."""
        c, found = self.plan.collective, []
        first = int(c.input_offset[rank])
        for k, e in product(range(int(c.input_chunks[rank])), range(ELEMENTS)):
            if c.initial[first + k]:
                address = _address(self.plan, rank, Buffer.INPUT, k, e, 0)
                found.append((address, (first + k) * ELEMENTS + e))
        return found

    def _promised(self, rank: int) -> list[tuple[int, list[int]]]:
        """(address, numbers of the inputs whose sum it must hold) of the output's elements."""
        c, found = self.plan.collective, []
        for k, e in product(range(int(c.output_chunks[rank])), range(ELEMENTS)):
            value = int(c.expected[int(c.output_offset[rank]) + k])
            if value != NONE:
                address = _address(self.plan, rank, Buffer.OUTPUT, k, e, 0)
                found.append((address, [i * ELEMENTS + e for i in c.values[value].tolist()]))
        return found


def _address(plan: OneSidedPlan, rank: int, buffer: int, index: int, e: int, copy: int) -> int:
    base = int(plan.layout.base[buffer, rank])
    if buffer == Buffer.SCRATCH:
        base += copy * int(plan.scratch_chunks[rank])
    return (base + index) * ELEMENTS + e


def _elements_of(plan: OneSidedPlan, copy: int) -> dict[int, list[_Element]]:
    """By operation, the elements of its moves. Element e of packet p is the data at element 2 e of
    chunks 2 p and 2 p + 1, with its flag behind it."""
    r = plan.ranges
    moves: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k in range(len(r)):
        moves[int(r.operation[k]), int(r.move[k])].append(k)
    found: dict[int, list[_Element]] = defaultdict(list)
    for (row, _), ranges in moves.items():
        for chunk, e in product(range(int(r.count[ranges[0]])), range(ELEMENTS)):
            plain, packets, targets = [], [], []
            for k in ranges:
                rank, buffer = int(r.rank[k]), int(r.buffer[k])
                index, is_packet = int(r.index[k]) + chunk, bool(r.packet[k])
                where = (2 * index, 2 * e) if is_packet else (index, e)
                address = _address(plan, rank, buffer, *where, copy)
                if r.writes[k]:
                    targets.append((address, is_packet))
                else:
                    (packets if is_packet else plain).append(address)
            reads = {*plain, *packets, *(a + 1 for a in packets)}
            writes = {a + k for a, is_packet in targets for k in range(1 + is_packet)}
            found[row].append(
                _Element(
                    tuple(plain),
                    tuple(packets),
                    tuple(targets),
                    frozenset(reads),
                    frozenset(writes),
                )
            )
    return found


@dataclass(frozen=True)
class Strategy:
    """How the adversary schedules. kind, rank, block, own: how much the priority of an actor
    depends on its kind, rank, block and itself. change: the chance of new priorities at a step.
    at_random: the chance of a step of any actor. trick: whether plain data look like flags, where
    packets are expected. stale: whether threads may read what their block has read before."""

    kind: float
    rank: float
    block: float
    own: float
    change: float
    at_random: float
    trick: bool
    stale: bool
    lazy: str = ""


def strategies(random: Random) -> Strategy:
    """A random strategy: one of few that starve or favour a rank, a kind of actor or a thread, or
    delay drains or ports."""

    def weight() -> float:
        return random.choice([0, 0, 1, 1, 5])

    return Strategy(
        kind=weight(),
        rank=weight(),
        block=weight(),
        own=1,
        change=random.choice([0, 0.002, 0.02]),
        at_random=random.choice([0, 0, 0.02, 0.2, 1]),
        trick=random.random() < 0.3,
        stale=random.random() < 0.5,
        lazy=random.choice(["", "", "pool", "port", "pool port", "caller"]),
    )


@dataclass(eq=False)
class _Block:
    number: int
    rank: int
    threads: list[_Thread] = field(default_factory=list)
    known: list[_Item] = field(default_factory=list)  # pending at the last join
    cache: dict[int, int] = field(default_factory=dict)
    acquired: bool = False


class _Actor:
    """What the adversary schedules; `step` returns whether it did anything."""

    kind = ""

    def __init__(self, machine: Machine, rank: int, block: int) -> None:
        self.machine, self.rank, self.block = machine, rank, block
        self.blocked = False

    def step(self) -> bool:
        raise NotImplementedError


class _Thread(_Actor):
    """A thread of a block. pool: its items that aren't performed. todo: elements of the current
    move that it has not begun."""

    kind = "thread"

    def __init__(self, machine: Machine, block: _Block, number: int) -> None:
        super().__init__(machine, block.rank, block.number)
        self.of, self.number = block, number
        self.at = self.end = machine.program.offset[block.number]
        self.pool: list[_Item] = []
        self.drain = _Drain(machine, self)
        self.todo: list[_Element] | None = None
        self.acquired = False

    def known(self) -> list[_Item]:
        """Pending items that come before the thread's next access, if they touch its memory."""
        return [*(i for i in self.of.known if not i.is_done), *self.pool]

    def step(self) -> bool:
        m, p, row = self.machine, self.machine.program, self.at
        if row == self.end:
            return False
        action = p.action[row]
        if action in (Action.JOIN, Action.BARRIER):
            return m.meet(self.of, row)
        if action is Action.MOVE:
            return self._move(row)
        if p.thread[row] == self.number and not self._act(row, action):
            return False
        self._pass()
        return True

    def _pass(self) -> None:
        self.at += 1
        if self.at == self.end:
            self.machine.callers[self.rank].blocked = False

    def _act(self, row: int, action: Action) -> bool:
        m, p = self.machine, self.machine.program
        port = m.ports[p.port[row]] if p.port[row] != NONE else None
        if action is Action.POST:
            if not p.relaxed[row]:
                m.finish_all(self.known())
            m.post(p.target[row])
        elif action is Action.WAIT:
            counter = p.target[row]
            if m.posted[counter] + p.initial[counter] <= m.taken[counter]:
                return False
            m.taken[counter] += 1
            self.acquired |= not p.relaxed[row]
        elif action is Action.FLUSH:
            assert port is not None
            if port.queue:
                return False
            self.acquired = True
        else:
            assert port is not None
            m.finish_all(self.known())
            port.give(row, m.call[self.rank])
        return True

    def _move(self, row: int) -> bool:
        m = self.machine
        if self.todo is None:
            self.todo = list(m.share(row, self))
            m.random.shuffle(self.todo)
        if not self.todo:
            self.todo = None
            self._pass()
            return True
        element, call = self.todo[-1], m.call[self.rank]
        value = 0
        early = m.random.random() < 0.5
        item = self._item(element, call)
        if early and element.packets:
            item.value += self._read_plain(item)
        for address in element.packets:
            data = m.packet(address, call, self.rank)
            if data is None:
                return False
            value += data
        item.value += value
        self.todo.pop()
        self.pool.append(item)
        self.drain.blocked = False
        return True

    def _item(self, element: _Element, call: int) -> _Item:
        before = [
            other
            for other in self.known()
            if not element.writes.isdisjoint(other.element.reads | other.element.writes)
            or not element.reads.isdisjoint(other.element.writes)
        ]
        return _Item(
            self.rank,
            self.of,
            self,
            element,
            _flag(call),
            0,
            before,
            list(element.plain),
            list(element.targets),
        )

    def _read_plain(self, item: _Item) -> int:
        total = 0
        while item.unread:
            total += self.machine.load(item, item.unread.pop())
        return total


def _flag(call: int) -> int:
    return -1 - call


class _Drain(_Actor):
    """Performs the pending items of a thread, in any order."""

    kind = "pool"

    def __init__(self, machine: Machine, thread: _Thread) -> None:
        super().__init__(machine, thread.rank, thread.block)
        self.thread = thread

    def step(self) -> bool:
        m, pool = self.machine, self.thread.pool
        while pool:
            k = m.random.randrange(len(pool))
            item = pool[k]
            if item.is_done:
                pool[k] = pool[-1]
                pool.pop()
                continue
            m.advance(item)
            return True
        return False


class _Port(_Actor):
    """Performs what it was given, in order, at any time."""

    kind = "port"

    def __init__(self, machine: Machine, rank: int) -> None:
        super().__init__(machine, rank, NONE)
        self.queue: deque[tuple[int, int, list[_Element]]] = deque()

    def give(self, row: int, call: int) -> None:
        m = self.machine
        elements = list(m.elements(call).get(row, []))
        m.random.shuffle(elements)
        self.queue.append((row, call, elements))
        self.blocked = False

    def step(self) -> bool:
        if not self.queue:
            return False
        m = self.machine
        row, call, elements = self.queue[0]
        if m.program.action[row] is Action.PUSH_POST:
            m.post(m.program.target[row])
        elif elements:
            self._move(elements.pop(), call)
            if elements:
                return True
        self.queue.popleft()
        m.wake()
        return True

    def _move(self, element: _Element, call: int) -> None:
        """Copies an element; packets with the flags that they have."""
        m = self.machine
        flag = _flag(call)
        value = sum(m.fetch(address) for address in element.plain)
        for address in element.packets:
            value += m.fetch(address)
            flag = m.memory[address + 1]
        for target in element.targets:
            m.store(target, value, flag)


class _Caller(_Actor):
    """The caller of a rank: begins and ends its calls."""

    kind = "caller"

    def step(self) -> bool:
        m, rank = self.machine, self.rank
        if m.in_call[rank]:
            blocks = m.of_rank[rank]
            if any(t.at != t.end or t.todo for b in blocks for t in b.threads):
                return False
            m.end_call(rank)
            return True
        if m.call[rank] + 1 == m.calls:
            return False
        m.begin_call(rank)
        return True


class Machine:
    """One run of a program under a strategy."""

    def __init__(self, program: Program, random: Random, strategy: Strategy, calls: int) -> None:
        p = self.program = program
        self.random, self.strategy, self.calls = random, strategy, calls
        self.memory = [_DATA * 2 + random.getrandbits(40) for _ in range(p.size)]
        self.posted: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        ranks = p.plan.collective.ranks
        self.call, self.in_call = [NONE] * ranks, [False] * ranks
        self.sent: dict[tuple[int, int], int] = {}
        self.of_rank: list[list[_Block]] = [[] for _ in range(ranks)]
        self.blocks = []
        self.shares: dict[tuple[int, int], list[list[_Element]]] = {}
        for number, rank in enumerate(p.block_rank):
            block = _Block(number, rank)
            rows = range(p.offset[number], p.offset[number + 1])
            named = {p.thread[row] for row in rows if p.thread[row] != NONE}
            for name in [*sorted(named), *(-2 - k for k in range(max(1, 3 - len(named))))]:
                block.threads.append(_Thread(self, block, name))
            self.blocks.append(block)
            self.of_rank[rank].append(block)
        self.ports = [_Port(self, rank) for rank in p.port_rank]
        threads = [t for b in self.blocks for t in b.threads]
        self.callers = [_Caller(self, rank, NONE) for rank in range(ranks)]
        drains = [thread.drain for thread in threads]
        self.actors: list[_Actor] = [*threads, *drains, *self.ports, *self.callers]
        self.arrived: dict[tuple[int, int], set[int]] = defaultdict(set)

    def run(self) -> None:
        """Performs all calls. Errors: WrongRunError."""
        s, random = self.strategy, self.random
        self._order()
        while True:
            k = 0
            if s.at_random and random.random() < s.at_random:
                k = int(random.random() * len(self.actors))
            ready = chain(self.actors[k:], self.actors[:k]) if k else iter(self.actors)
            actor = next((a for a in ready if not a.blocked), None)
            if actor is None:
                break
            actor.blocked = not actor.step()
            if s.change and random.random() < s.change:
                self._order()
        if min(self.call) + 1 < self.calls or any(self.in_call):
            raise WrongRunError("hang")

    def _order(self) -> None:
        s, random = self.strategy, self.random
        weights: dict[object, float] = defaultdict(random.random)

        def priority(actor: _Actor) -> float:
            value = (
                s.kind * weights[actor.kind]
                + s.rank * weights["rank", actor.rank]
                + s.block * weights["block", actor.block]
                + s.own * random.random()
            )
            return value + 100 * (actor.kind in s.lazy.split())

        self.actors.sort(key=priority)

    def wake(self) -> None:
        """Lets all that were blocked try again."""
        for actor in self.actors:
            actor.blocked = False

    # Calls.

    def begin_call(self, rank: int) -> None:
        self.call[rank] += 1
        self.in_call[rank] = True
        call = self.call[rank]
        for address, number in self.program.inputs[rank]:
            self.memory[address] = self._sent(call, number)
        for block in self.of_rank[rank]:
            start, end = self.program.offset[block.number : block.number + 2]
            block.known, block.cache = [], {}
            for thread in block.threads:
                thread.at, thread.end, thread.acquired = start, end, False
        self.wake()

    def end_call(self, rank: int) -> None:
        """The end of the kernel: its writes are in memory, and the caller looks at the outputs."""
        for block in self.of_rank[rank]:
            for thread in block.threads:
                self.finish_all(thread.pool)
        call = self.call[rank]
        for address, numbers in self.program.promised[rank]:
            if self.memory[address] != sum(self._sent(call, number) for number in numbers):
                raise WrongRunError("wrong")
        self.in_call[rank] = False
        for address in self.program.user[rank]:
            self.memory[address] = _DATA // 2 + self.random.getrandbits(40)
        self.wake()

    def _sent(self, call: int, number: int) -> int:
        if (call, number) not in self.sent:
            self.sent[call, number] = self.random.getrandbits(40)
        return self.sent[call, number]

    # Threads.

    def elements(self, call: int) -> dict[int, list[_Element]]:
        return self.program.elements[call % self.program.plan.scratch_copies]

    def share(self, row: int, thread: _Thread) -> list[_Element]:
        """The elements of a move that a thread performs: any cut into parts."""
        call, threads = self.call[thread.rank], thread.of.threads
        if (row, call) not in self.shares:
            parts: list[list[_Element]] = [[] for _ in threads]
            some = self.random.sample(parts, self.random.randint(1, len(parts)))
            for element in self.elements(call).get(row, []):
                self.random.choice(some).append(element)
            self.shares[row, call] = parts
        return self.shares[row, call][threads.index(thread)]

    def meet(self, block: _Block, row: int) -> bool:
        """Lets the threads of a block meet, and of a barrier's blocks, if all are there."""
        if any(thread.at != row for thread in block.threads):
            return False
        members = [block]
        if self.program.action[row] is Action.BARRIER:
            key = block.rank, self.program.target[row]
            self.arrived[key].add(block.number)
            if self.arrived[key] != self.program.members[key]:
                return False
            members = [self.blocks[number] for number in sorted(self.arrived.pop(key))]
        known = [i for b in members for i in b.known]
        known += [i for b in members for t in b.threads for i in t.pool]
        known = list(dict.fromkeys(i for i in known if not i.is_done))
        acquired = len(members) > 1 or any(t.acquired for t in block.threads)
        for b in members:
            b.known = list(known)
            if acquired:
                b.cache = {}
            for thread in b.threads:
                thread.at, thread.acquired = thread.at + 1, False
        self.wake()
        return True

    def post(self, counter: int) -> None:
        self.posted[counter] += 1
        self.wake()

    # Memory.

    def advance(self, item: _Item) -> None:
        """Performs a part of an item, after all that must come before."""
        self._finish_before(item)
        if item.unread:
            k = self.random.randrange(len(item.unread))
            item.value += self.load(item, item.unread.pop(k))
        elif item.unwritten:
            k = self.random.randrange(len(item.unwritten))
            self._write(item, item.unwritten.pop(k))

    def _finish_before(self, item: _Item) -> None:
        if item.before:
            before, item.before = item.before, []
            self.finish_all(before)

    def finish_all(self, items: list[_Item]) -> None:
        """Performs items completely, in any order."""
        pending = [item for item in items if not item.is_done]
        self.random.shuffle(pending)
        for item in pending:
            self._finish_before(item)
            while not item.is_done:
                self.advance(item)

    def _write(self, item: _Item, target: Target) -> None:
        self.store(target, item.value, item.flag)
        for block in self.of_rank[item.rank]:
            block.cache.pop(target[0], None)

    def load(self, item: _Item, address: int) -> int:
        """What a thread reads: the memory, or what its block has read before, as long as no signal
        has made memory visible to it."""
        self._finish_before(item)
        block = item.block
        if not self.strategy.stale or item.thread.acquired:
            return self.fetch(address)
        if address not in block.cache or self.random.random() < 0.2:
            block.cache[address] = self.fetch(address)
        return block.cache[address]

    def fetch(self, address: int) -> int:
        self._check_call(address)
        return self.memory[address]

    def store(self, target: Target, value: int, flag: int) -> None:
        address, is_packet = target
        self._check_call(address)
        self.memory[address] = value
        if is_packet:
            self.memory[address + 1] = flag
            self.wake()

    def packet(self, address: int, call: int, rank: int) -> int | None:
        """The data of a packet of a call; None if it is not there."""
        flag = self.memory[address + 1]
        looks_right = self.strategy.trick and 0 <= flag < _DATA
        return self.memory[address] if flag == _flag(call) or looks_right else None

    def _check_call(self, address: int) -> None:
        rank = self.program.owner[address]
        if rank != NONE and not self.in_call[rank]:
            raise WrongRunError("outside")


def broken(plan: OneSidedPlan, seed: int, schedules: int, calls: int = 0) -> str:
    """How a plan goes wrong in one of this number of schedules: "hang", "wrong" for a wrong output,
    "outside" for an access to the caller's memory outside the call; "" if it never does."""
    program = Program(plan)
    calls = calls or plan.scratch_copies + 3
    for number in range(schedules):
        random = Random(seed * 1000 + number)
        machine = Machine(program, random, strategies(random), calls)
        try:
            machine.run()
        except WrongRunError as error:
            return str(error)
    return ""
