"""Random one-sided plans: right ones of several shapes, with more synchronisation than they need,
and their mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import sley
from sley.ir.collective import Collective
from sley.ir.one_sided import Action, OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Protocol
from support.inputs.one_sided_plans import At, Block, Row, plan_of


@dataclass
class Draft:
    """A plan that is being written."""

    collective: Collective
    blocks: list[Block] = field(default_factory=list)
    counters: list[tuple[int, int, int]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    scratch: int = 0
    copies: int = 1
    barriers: int = 0
    names: dict[object, int] = field(default_factory=dict)

    @property
    def ranks(self) -> range:
        return range(self.collective.ranks)

    def others(self, rank: int) -> list[int]:
        """The other ranks, the next one first."""
        return [(rank + k) % len(self.ranks) for k in range(1, len(self.ranks))]

    def block(self, rank: int) -> Block:
        self.blocks.append(Block(rank))
        return self.blocks[-1]

    def counter(self, rank: int, peer: int, *name: object, initial: int = 0) -> int:
        """The counter of this name that `rank` waits for and `peer` posts to."""
        key = "counter", rank, peer, name
        if key not in self.names:
            self.names[key] = len(self.counters)
            self.counters.append((rank, peer, initial))
        return self.names[key]

    def port(self, rank: int, *name: object) -> int:
        key = "port", rank, name
        if key not in self.names:
            self.names[key] = len(self.ports)
            self.ports.append(rank)
        return self.names[key]

    def plan(self) -> OneSidedPlan:
        return plan_of(
            self.collective,
            sorted(self.blocks, key=lambda block: block.rank),
            counters=self.counters,
            ports=self.ports,
            scratch=self.scratch,
            copies=self.copies,
            protocol=Protocol.LL if self._has_packets() else Protocol.SIMPLE,
        )

    def _has_packets(self) -> bool:
        return any(
            at.packet
            for block in self.blocks
            for row in block.rows
            for sides in row.moves
            for side in sides
            for at in side
        )


class Shapes:
    """Right plans, with choices drawn from `random`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ranks = random.choice([2, 2, 2, 3, 3, 4])
        self.parts = random.choice([1, 1, 2])
        """Blocks on each rank that do the same for other chunks."""

    def draw(self) -> Draft:
        """A plan of a random shape."""
        draft = self.random.choice(SHAPES)(self)
        _balance(draft)
        return draft

    def maybe(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    # Synchronisation.

    def exchange(self, draft: Draft, block: Block, *name: object, relaxed: bool) -> None:
        """A signal to each other rank and a wait for its signal, by one thread for each rank or by
        one for all."""
        alone = self.maybe(0.3)
        others = draft.others(block.rank)
        for k, other in enumerate(others):
            block.post(
                draft.counter(other, block.rank, *name), thread=0 if alone else k, relaxed=relaxed
            )
        for k, other in enumerate(others):
            block.wait(
                draft.counter(block.rank, other, *name), thread=0 if alone else k, relaxed=relaxed
            )

    def begin(self, draft: Draft, part: int, block: Block) -> None:
        self.exchange(draft, block, "begin", part, relaxed=self.maybe(0.7))
        block.join()

    def end(self, draft: Draft, part: int, block: Block) -> None:
        block.join()
        self.exchange(draft, block, "end", part, relaxed=False)
        if self.maybe(0.3):
            block.join()

    def share(self, draft: Draft, first: Block, second: Block) -> None:
        """Makes what `first` did known to `second`, by a barrier or a semaphore."""
        if self.maybe():
            first.barrier(draft.barriers)
            second.barrier(draft.barriers)
            draft.barriers += 1
        else:
            name = draft.counter(first.rank, first.rank, "share", len(draft.counters))
            first.join().post(name, thread=self.random.choice([0, 1]))
            second.wait(name, thread=self.random.choice([0, 1])).join()

    def copies(self, draft: Draft) -> None:
        if self.maybe(0.4):
            draft.copies = 2

    # Shapes.

    def all_reduce_by_reads(self) -> Draft:
        """Each rank reads its chunk of all ranks and writes the sum to all: by a multicast, or by
        moves."""
        n, parts = self.ranks, self.parts
        draft = Draft(sley.AllReduce(n, n * parts, in_place=self.maybe()))
        multicast = self.maybe()
        for rank in draft.ranks:
            for part in range(parts):
                block, chunk = draft.block(rank), rank * parts + part
                self.begin(draft, part, block)
                order = [rank, *draft.others(rank)]
                sources = [At(r, "i", chunk) for r in order]
                targets = [At(r, "o", chunk) for r in order]
                if multicast:
                    block.move(sources, targets)
                else:
                    block.move(sources, targets[:1]).join()
                    for target in targets[1:]:
                        block.move(targets[:1], [target])
                self.end(draft, part, block)
        return draft

    def all_gather_by_reads(self) -> Draft:
        n, parts = self.ranks, self.parts
        draft = Draft(sley.AllGather(n, parts, in_place=self.maybe()))
        for rank in draft.ranks:
            for part in range(parts):
                block = draft.block(rank)
                self.begin(draft, part, block)
                for r in [rank, *draft.others(rank)]:
                    if r != rank or not draft.collective.in_place:
                        block.move([At(r, "i", part)], [At(rank, "o", r * parts + part)])
                self.end(draft, part, block)
        return draft

    def all_to_all_by_puts(self) -> Draft:
        n, parts = self.ranks, self.parts
        draft = Draft(sley.AllToAll(n, parts))
        for rank in draft.ranks:
            for part in range(parts):
                block = draft.block(rank)
                self.begin(draft, part, block)
                for r in [rank, *draft.others(rank)]:
                    block.move([At(rank, "i", r * parts + part)], [At(r, "o", rank * parts + part)])
                self.end(draft, part, block)
        return draft

    def reduce_scatter_by_puts(self) -> Draft:
        """Each rank puts its chunks into the scratch of their owners, which add them up."""
        n, parts = self.ranks, self.parts
        draft = Draft(sley.ReduceScatter(n, parts), scratch=n * parts)
        self.copies(draft)
        for rank in draft.ranks:
            for part in range(parts):
                block = draft.block(rank)
                if draft.copies == 1 or self.maybe(0.3):
                    self.begin(draft, part, block)
                others = draft.others(rank)
                for r in others:
                    block.move([At(rank, "i", r * parts + part)], [At(r, "s", rank * parts + part)])
                block.join()
                self.exchange(draft, block, "data", part, relaxed=False)
                block.join()
                own = At(rank, "i", rank * parts + part)
                block.move(
                    [own, *(At(rank, "s", r * parts + part) for r in others)],
                    [At(rank, "o", part)],
                )
                if self.maybe(0.3):
                    self.end(draft, part, block)
        return draft

    def all_reduce_of_packets(self) -> Draft:
        """Each rank sends its input to all as packets; all add them up."""
        n, parts = self.ranks, self.parts
        draft = Draft(sley.AllReduce(n, parts, in_place=self.maybe()), scratch=2 * n * parts)
        self.copies(draft)
        split = self.maybe()
        for rank in draft.ranks:
            for part in range(parts):
                block, others = draft.block(rank), draft.others(rank)
                if draft.copies == 1 or self.maybe(0.2):
                    self.begin(draft, part, block)
                for r in others:
                    block.move(
                        [At(rank, "i", part)], [At(r, "s", rank * parts + part, packet=True)]
                    )
                reader = draft.block(rank) if split else block
                if split and draft.collective.in_place:
                    self.share(draft, block, reader)
                elif draft.collective.in_place or self.maybe(0.2):
                    block.join()
                packets = [At(rank, "s", r * parts + part, packet=True) for r in others]
                reader.move([At(rank, "i", part), *packets], [At(rank, "o", part)])
        return draft

    def all_reduce_of_packets_in_two_steps(self) -> Draft:
        """Each rank adds up its chunk of all ranks, and sends the sum to all as packets."""
        n = self.ranks
        draft = Draft(sley.AllReduce(n, n, in_place=self.maybe()), scratch=4 * n)
        self.copies(draft)
        for rank in draft.ranks:
            block, others = draft.block(rank), draft.others(rank)
            if self.maybe(0.3):
                self.begin(draft, 0, block)
            for r in others:
                block.move([At(rank, "i", r)], [At(r, "s", rank, packet=True)])
            owner = draft.block(rank) if self.maybe() else block
            packets = [At(rank, "s", r, packet=True) for r in others]
            sums = [At(r, "s", n + rank, packet=True) for r in others]
            owner.move([At(rank, "i", rank), *packets], [At(rank, "o", rank), *sums])
            last = draft.block(rank) if self.maybe(0.3) else owner
            if last is not block and draft.collective.in_place:
                self.share(draft, block, last)
            elif draft.collective.in_place:
                last.join()
            for r in others:
                last.move([At(rank, "s", n + r, packet=True)], [At(rank, "o", r)])
        return draft

    def ring(self) -> Draft:
        """An AllGather around a ring: each step puts, signals and waits."""
        n = self.ranks
        draft = Draft(sley.AllGather(n, 1, in_place=self.maybe()))
        pulls = self.maybe(0.4)
        for rank in draft.ranks:
            block, succ, pred = draft.block(rank), (rank + 1) % n, (rank - 1) % n
            if not draft.collective.in_place:
                block.move([At(rank, "i", 0)], [At(rank, "o", rank)])
            if pulls or self.maybe(0.6):
                block.join()
                self.exchange(draft, block, "begin", relaxed=not pulls and self.maybe())
            else:
                block.post(draft.counter(pred, rank, "begin"), relaxed=True)
                block.wait(draft.counter(rank, succ, "begin"), relaxed=True)
            block.join()
            for step in range(n - 1):
                chunk = (pred - step) % n if pulls else (rank - step) % n
                at = [At(pred if pulls else rank, "o", chunk)]
                block.move(at, [At(rank if pulls else succ, "o", chunk)]).join()
                thread = self.random.choice([0, 1])
                block.post(draft.counter(succ, rank, "data"), thread=thread)
                block.wait(draft.counter(rank, pred, "data"), thread=thread)
                block.join()
            if pulls or self.maybe():
                self.end(draft, 0, block)
        return draft

    def all_gather_by_ports(self) -> Draft:
        n, parts = self.ranks, self.parts
        draft = Draft(sley.AllGather(n, parts, in_place=self.maybe()))
        by_port = self.maybe(0.3)
        for rank in draft.ranks:
            for part in range(parts):
                block, others = draft.block(rank), draft.others(rank)
                threads = [0] * n if self.maybe() else list(range(n))
                ports = {
                    r: draft.port(rank, r if len(set(threads)) > 1 else 0, part) for r in others
                }
                if by_port:
                    for k, r in enumerate(others):
                        counter = draft.counter(r, rank, "ready", part)
                        block.push_post(ports[r], counter, thread=threads[k])
                    for k, r in enumerate(others):
                        block.wait(draft.counter(rank, r, "ready", part), thread=threads[k])
                    block.join()
                else:
                    self.begin(draft, part, block)
                chunk = rank * parts + part
                source = At(rank, "i", part)
                if not draft.collective.in_place:
                    block.move([source], [At(rank, "o", chunk)])
                for k, r in enumerate(others):
                    block.push(ports[r], [source], [At(r, "o", chunk)], thread=threads[k])
                    counter = draft.counter(r, rank, "data", part)
                    block.push_post(ports[r], counter, thread=threads[k])
                for k, r in enumerate(others):
                    block.flush(ports[r], thread=threads[k])
                    block.wait(draft.counter(rank, r, "data", part), thread=threads[k])
        return draft

    def reduce_scatter_by_ports(self) -> Draft:
        """Puts through ports into scratch, whose sums are multicast or not."""
        n = self.ranks
        draft = Draft(sley.ReduceScatter(n, 1), scratch=n)
        self.copies(draft)
        for rank in draft.ranks:
            block, others = draft.block(rank), draft.others(rank)
            if draft.copies == 1 or self.maybe(0.3):
                self.begin(draft, 0, block)
            for k, r in enumerate(others):
                port = draft.port(rank, r)
                block.push(port, [At(rank, "i", r)], [At(r, "s", rank)], thread=k)
                block.push_post(port, draft.counter(r, rank, "data"), thread=k)
            for k, r in enumerate(others):
                block.wait(draft.counter(rank, r, "data"), thread=k)
            block.join()
            for k, r in enumerate(others):
                block.flush(draft.port(rank, r), thread=k)
            sources = [At(rank, "i", rank), *(At(rank, "s", r) for r in others)]
            block.move(sources, [At(rank, "o", 0)])
            if self.maybe(0.3):
                self.end(draft, 0, block)
        return draft

    def blocks_in_turn(self) -> Draft:
        """A block that waits for the other ranks, one that moves, and one that signals the end."""
        n = self.ranks
        draft = Draft(sley.AllReduce(n, n, in_place=self.maybe()))
        for rank in draft.ranks:
            first, second = draft.block(rank), draft.block(rank)
            third = draft.block(rank) if self.maybe(0.4) else first
            self.begin(draft, 0, first)
            self.share(draft, first, second)
            order = [rank, *draft.others(rank)]
            second.move([At(r, "i", rank) for r in order], [At(r, "o", rank) for r in order])
            self.share(draft, second, third)
            self.end(draft, 0, third)
        return draft

    def packets_through_ports(self) -> Draft:
        """An AllGather around a ring: packets are read, and pushed on as they are."""
        n = self.ranks
        draft = Draft(sley.AllGather(n, 1), scratch=2 * n)
        self.copies(draft)
        for rank in draft.ranks:
            block, succ = draft.block(rank), (rank + 1) % n
            port = draft.port(rank)
            if draft.copies == 1 or self.maybe(0.3):
                self.begin(draft, 0, block)
            block.move([At(rank, "i", 0)], [At(rank, "o", rank)])
            block.move([At(rank, "i", 0)], [At(succ, "s", rank, packet=True)])
            for step in range(1, n):
                packet = At(rank, "s", (rank - step) % n, packet=True)
                block.move([packet], [At(rank, "o", (rank - step) % n)])
                if step < n - 1:
                    block.join()
                    block.push(port, [packet], [packet._replace(rank=succ)])
            block.flush(port)
            if draft.copies == 1 or self.maybe(0.3):
                self.end(draft, 0, block)
        return draft


def _balance(draft: Draft) -> None:
    """Removes the counters of exchanges that only some ranks chose."""
    posts: dict[int, list[int]] = {}
    for block in draft.blocks:
        for row in block.rows:
            if row.action in (Action.POST, Action.WAIT):
                pair = posts.setdefault(row.target, [0, 0])
                pair[row.action == Action.WAIT] += 1
    odd = {counter for counter, (given, taken) in posts.items() if given != taken}
    for block in draft.blocks:
        block.rows = [row for row in block.rows if row.target not in odd]


SHAPES: list[Callable[[Shapes], Draft]] = [
    Shapes.all_reduce_by_reads,
    Shapes.all_gather_by_reads,
    Shapes.all_to_all_by_puts,
    Shapes.reduce_scatter_by_puts,
    Shapes.all_reduce_of_packets,
    Shapes.all_reduce_of_packets_in_two_steps,
    Shapes.ring,
    Shapes.all_gather_by_ports,
    Shapes.reduce_scatter_by_ports,
    Shapes.blocks_in_turn,
    Shapes.packets_through_ports,
]


# Changes of a draft. Each returns False if it finds nothing to change.

Change = Callable[[Draft, Random], bool]


def _places(draft: Draft, *actions: Action) -> list[tuple[Block, int]]:
    return [
        (block, k)
        for block in draft.blocks
        for k, row in enumerate(block.rows)
        if not actions or row.action in actions
    ]


def _on(*actions: Action) -> Callable[[Callable[[Draft, Random, Block, int], bool]], Change]:
    """A change of one random row with one of these actions."""

    def decorate(change: Callable[[Draft, Random, Block, int], bool]) -> Change:
        def drawn(draft: Draft, random: Random) -> bool:
            places = _places(draft, *actions)
            return bool(places) and change(draft, random, *random.choice(places))

        drawn.__name__ = change.__name__
        return drawn

    return decorate


@_on()
def drop(draft: Draft, random: Random, block: Block, at: int) -> bool:
    del block.rows[at]
    return True


@_on(Action.JOIN, Action.BARRIER)
def drop_meeting(draft: Draft, random: Random, block: Block, at: int) -> bool:
    del block.rows[at]
    return True


@_on(Action.POST, Action.PUSH_POST)
def drop_signal(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """A post and a wait of the same counter."""
    counter = block.rows.pop(at).target
    return _remove_one(draft, random, counter, Action.WAIT)


def _remove_one(draft: Draft, random: Random, counter: int, action: Action) -> bool:
    places = [(b, k) for b, k in _places(draft, action) if b.rows[k].target == counter]
    if not places:
        return False
    block, at = random.choice(places)
    del block.rows[at]
    return True


@_on(Action.POST, Action.PUSH_POST)
def drop_counter(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """All posts and waits of a counter."""
    counter = block.rows[at].target
    for b in draft.blocks:
        b.rows = [r for r in b.rows if r.target != counter or r.action is Action.BARRIER]
    return True


def drop_exchange(draft: Draft, random: Random) -> bool:
    """All signals of a kind, on all ranks."""
    names = sorted({str(name) for name in draft.names if "counter" in str(name)})
    if not names:
        return False
    word = random.choice(["begin", "end", "data", "ready", "share"])
    gone = {k for name, k in draft.names.items() if word in str(name) and "counter" in str(name)}
    for b in draft.blocks:
        b.rows = [r for r in b.rows if r.target not in gone or r.action is Action.BARRIER]
    return bool(gone)


@_on()
def duplicate(draft: Draft, random: Random, block: Block, at: int) -> bool:
    block.rows.insert(random.randint(0, len(block.rows)), block.rows[at])
    return True


@_on()
def move_row(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row = block.rows.pop(at)
    block.rows.insert(random.randint(0, len(block.rows)), row)
    return True


@_on()
def swap(draft: Draft, random: Random, block: Block, at: int) -> bool:
    if at + 1 >= len(block.rows):
        return False
    rows = block.rows
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    return rows[at] != rows[at + 1]


@_on()
def move_to_another_block(draft: Draft, random: Random, block: Block, at: int) -> bool:
    others = [b for b in draft.blocks if b.rank == block.rank and b is not block]
    if not others:
        return False
    other = random.choice(others)
    other.rows.insert(random.randint(0, len(other.rows)), block.rows.pop(at))
    return True


@_on(Action.POST, Action.WAIT)
def relax(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row = block.rows[at]
    block.rows[at] = row._replace(relaxed=not row.relaxed)
    return True


@_on(Action.POST, Action.WAIT)
def relax_counter(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row = block.rows[at]
    for b in draft.blocks:
        for k, other in enumerate(b.rows):
            if other.target == row.target and other.action in (Action.POST, Action.WAIT):
                b.rows[k] = other._replace(relaxed=not row.relaxed)
    return True


@_on(Action.POST, Action.WAIT, Action.PUSH, Action.PUSH_POST, Action.FLUSH)
def change_thread(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row = block.rows[at]
    block.rows[at] = row._replace(thread=random.choice([0, 1, 2]))
    return block.rows[at] != row


@_on(Action.POST, Action.WAIT, Action.PUSH_POST)
def change_counter(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row, counters = block.rows[at], draft.counters
    side = 0 if row.action is Action.WAIT else 1
    same = [k for k, c in enumerate(counters) if c[side] == block.rank and k != row.target]
    if not same:
        return False
    block.rows[at] = row._replace(target=random.choice(same))
    return True


def merge_counters(draft: Draft, random: Random) -> bool:
    """Two counters of the same ranks become one."""
    pairs = [
        (a, b)
        for a, one in enumerate(draft.counters)
        for b, other in enumerate(draft.counters)
        if a != b and one[:2] == other[:2]
    ]
    if not pairs:
        return False
    gone, stays = random.choice(pairs)
    for block in draft.blocks:
        block.rows = [
            row._replace(target=stays)
            if row.target == gone and row.action is not Action.BARRIER
            else row
            for row in block.rows
        ]
    return True


@_on(Action.PUSH, Action.PUSH_POST, Action.FLUSH)
def change_port(draft: Draft, random: Random, block: Block, at: int) -> bool:
    ports = [k for k, rank in enumerate(draft.ports) if rank == block.rank]
    row = block.rows[at]
    block.rows[at] = row._replace(port=random.choice(ports))
    return block.rows[at] != row


@_on(Action.POST, Action.PUSH_POST)
def post_otherwise(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """A post goes through a port, or does no more."""
    row = block.rows[at]
    if row.action is Action.POST:
        port = draft.port(block.rank, random.choice([0, 1]))
        block.rows[at] = row._replace(action=Action.PUSH_POST, port=port, relaxed=False)
    else:
        block.rows[at] = row._replace(action=Action.POST, port=NONE)
    return True


@_on(Action.MOVE, Action.PUSH)
def move_otherwise(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """A move goes through a port, or does no more."""
    row = block.rows[at]
    if row.action is Action.MOVE:
        port, thread = draft.port(block.rank, random.choice([0, 1])), random.choice([0, 1])
        block.rows[at] = row._replace(action=Action.PUSH, port=port, thread=thread)
        if random.random() < 0.5:
            block.rows.insert(at + 1, Row(Action.FLUSH, thread, port=port))
    else:
        block.rows[at] = row._replace(action=Action.MOVE, port=NONE, thread=NONE)
    return True


@_on(Action.MOVE, Action.PUSH)
def change_range(draft: Draft, random: Random, block: Block, at: int) -> bool:
    row = block.rows[at]
    sides = [list(side) for side in random.choice(row.moves)]
    side = random.choice([s for s in sides if s])
    k = random.randrange(len(side))
    old = side[k]
    kind = random.randrange(5)
    if kind == 0:
        side[k] = old._replace(index=old.index + random.choice([-1, 1]))
    elif kind == 1:
        side[k] = old._replace(buffer=random.choice("ios"), packet=False)
    elif kind == 2:
        side[k] = old._replace(rank=random.choice(draft.ranks))
    elif kind == 3:
        side[k] = old._replace(packet=not old.packet, buffer="s")
    else:
        del side[k]
    if not sides[1] and not sides[0]:
        return False
    block.rows[at] = row._replace(moves=((tuple(sides[0]), tuple(sides[1])),))
    return block.rows[at] != row


@_on(Action.MOVE, Action.PUSH)
def share_scratch(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """All uses of some scratch move to another place of it."""
    if draft.scratch < 2:
        return False
    old, new = random.sample(range(draft.scratch), 2)
    for b in draft.blocks:
        for k, row in enumerate(b.rows):
            moves = tuple(
                tuple(
                    tuple(
                        at._replace(index=new) if at.buffer == "s" and at.index == old else at
                        for at in side
                    )
                    for side in sides
                )
                for sides in row.moves
            )
            b.rows[k] = row._replace(moves=moves)
    return True


@_on(Action.MOVE, Action.PUSH)
def through_scratch(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """A move first writes to scratch of its rank, as data or as packets, and then from there."""
    row = block.rows[at]
    sources, targets = row.moves[0]
    if not sources or not targets or row.action is Action.PUSH:
        return False
    packet = random.random() < 0.5
    index = random.choice([0, draft.scratch // 2 if packet else draft.scratch])
    draft.scratch = max(draft.scratch, (index + sources[0].count) * (1 + packet))
    middle = At(block.rank, "s", index, sources[0].count, packet)
    first = row._replace(moves=((sources, (middle,)),))
    second = row._replace(moves=(((middle,), targets),))
    between = [Row(Action.JOIN)] if random.random() < 0.7 else []
    block.rows[at : at + 1] = [first, *between, second]
    return True


def change_copies(draft: Draft, random: Random) -> bool:
    draft.copies = 3 - draft.copies
    return draft.scratch > 0


def change_initial(draft: Draft, random: Random) -> bool:
    if not draft.counters:
        return False
    k = random.randrange(len(draft.counters))
    rank, peer, initial = draft.counters[k]
    draft.counters[k] = rank, peer, 1 - initial
    return True


@_on()
def split(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """A block becomes two, which meet at a barrier or not."""
    new = Block(block.rank, block.rows[at:])
    block.rows = block.rows[:at]
    draft.blocks.append(new)
    if random.random() < 0.7:
        block.barrier(draft.barriers)
        new.rows.insert(0, block.rows[-1])
        draft.barriers += 1
    return at > 0


@_on()
def merge(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """Two blocks of a rank become one."""
    others = [b for b in draft.blocks if b.rank == block.rank and b is not block]
    if not others:
        return False
    other = random.choice(others)
    block.rows += [Row(Action.JOIN)] * (random.random() < 0.5) + other.rows
    draft.blocks.remove(other)
    return True


@_on()
def add_join(draft: Draft, random: Random, block: Block, at: int) -> bool:
    block.rows.insert(at, Row(Action.JOIN))
    return True


def add_signal(draft: Draft, random: Random) -> bool:
    """A post somewhere, and a wait elsewhere."""
    (giver, at), (taker, to) = random.choice(_places(draft)), random.choice(_places(draft))
    counter = draft.counter(taker.rank, giver.rank, "new", len(draft.counters))
    relaxed = random.random() < 0.3
    giver.rows.insert(at, Row(Action.POST, random.choice([0, 1]), counter, relaxed=relaxed))
    taker.rows.insert(to, Row(Action.WAIT, random.choice([0, 1]), counter, relaxed=relaxed))
    return True


@_on(Action.MOVE, Action.PUSH)
def repeat(draft: Draft, random: Random, block: Block, at: int) -> bool:
    """The same data are moved again later, with joins around."""
    row = block.rows[at]
    to = random.randint(at + 1, len(block.rows))
    block.rows[to:to] = [Row(Action.JOIN), row, Row(Action.JOIN)]
    return True


CHANGES: list[Change] = [
    drop,
    drop_meeting,
    drop_meeting,
    drop_signal,
    drop_counter,
    drop_exchange,
    duplicate,
    move_row,
    swap,
    swap,
    move_to_another_block,
    relax,
    relax,
    relax_counter,
    change_thread,
    change_thread,
    change_counter,
    merge_counters,
    change_port,
    post_otherwise,
    move_otherwise,
    change_range,
    share_scratch,
    through_scratch,
    change_copies,
    change_initial,
    split,
    merge,
    add_join,
    add_signal,
    repeat,
]


def random_draft(seed: int) -> tuple[Draft, list[str]]:
    """A right plan with up to 4 changes, and the names of these changes."""
    random = Random(seed)
    draft = Shapes(random).draw()
    changes = []
    for _ in range(random.choice([0, 1, 1, 1, 2, 2, 3, 4])):
        change = random.choice(CHANGES)
        changed = deepcopy(draft)
        if change(changed, random) and any(block.rows for block in changed.blocks):
            draft = changed
            changes.append(change.__name__)
    return draft, changes


def random_one_sided(seeds: range) -> Iterator[tuple[int, OneSidedPlan, list[str]]]:
    """(seed, plan, names of its changes) of each seed."""
    for seed in seeds:
        draft, changes = random_draft(seed)
        yield seed, draft.plan(), changes
