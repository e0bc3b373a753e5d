"""Random valid programs, and the results of executing their operations in sequence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

import sley
from sley.ir.cut import border
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.words import Schedule
from support.processes.rank_threads import Limits, execute

SCHEDULES = [Schedule.MSCCL, Schedule.HPDS, Schedule.ROUND_ROBIN]
"""The schedules of compiled plans."""

BUFFERS = ("in", "out", "scratch")

SMALL_SLOT = 1024
"""The bytes of a slot: small, so that even a few elements make several tiles."""

ITEM_BYTES = 8
"""Of an int64."""

MANY_TILES = 6000
"""The elements of a chunk: at least 46 tiles in such slots, more than the slots of any random plan
hold."""


@dataclass(frozen=True)
class Operation:
    """One copy or reduce of scalars; with `others` a multicast to further ranks, or a reduction of
    their chunks."""

    kind: str
    src: tuple[int, str, int]
    dst: tuple[int, str, int]
    count: int
    channel: int | None
    instances: int
    others: tuple[int, ...] = ()

    @property
    def moves(self) -> list[tuple[tuple[int, str, int], tuple[int, str, int]]]:
        """Source and destination of each of its transfers."""
        if self.kind == "copy":
            return [(self.src, (rank, *self.dst[1:])) for rank in (self.dst[0], *self.others)]
        return [((rank, *self.src[1:]), self.dst) for rank in (self.src[0], *self.others)]


@dataclass(frozen=True)
class RandomProgram:
    """A random program, and its operations as drawn.

    chunks: of each buffer of a rank. cut: chunks of a block. promised: the value of an output
    chunk, (rank, index), that the program's collective promises.
    """

    operations: tuple[Operation, ...]
    program: Program
    ranks: int
    chunks: int
    cut: int
    in_place: bool
    promised: dict[tuple[int, int], Counter[tuple[int, int]]]

    def chunk(self, index: int, count: int) -> slice:
        """The place of a chunk in a buffer whose blocks have `count` int64 (docs/machine.md)."""
        block, within = divmod(index, self.cut)
        first, end = (int(border(k, self.cut, count, ITEM_BYTES)) for k in (within, within + 1))
        return slice(block * count + first, block * count + end)


class Model:
    """Memory by sequential execution; a place holds a multiset of input chunks, or nothing."""

    def __init__(self, ranks: int, chunks: int, in_place: bool) -> None:
        self.in_place = in_place
        self.places: dict[tuple[int, str, int], Counter[tuple[int, int]]] = {
            (rank, "in", index): Counter({(rank, index): 1})
            for rank in range(ranks)
            for index in range(chunks)
        }

    def key(self, place: tuple[int, str, int]) -> tuple[int, str, int]:
        rank, buffer, index = place
        return (rank, "in" if self.in_place and buffer == "out" else buffer, index)

    def holds(self, place: tuple[int, str, int], count: int) -> bool:
        rank, buffer, index = place
        return all(self.key((rank, buffer, index + k)) in self.places for k in range(count))

    def apply(self, op: Operation) -> None:
        for src, dst in op.moves:
            values = [self.places[self.key((*src[:2], src[2] + k))] for k in range(op.count)]
            for k, value in enumerate(values):
                place = self.key((*dst[:2], dst[2] + k))
                old = self.places.get(place, Counter())
                self.places[place] = value if op.kind == "copy" else old + value


@st.composite
def random_programs(
    draw: st.DrawFn,
    *,
    max_operations: int = 40,
    directives: bool = True,
    groups: bool = False,
) -> RandomProgram:
    """Programs of 2-6 ranks and up to `max_operations` operations with counts 1-4, between
    different indices, local and remote, in and out of place, with explicit channels and parallel
    parts. groups: many remote operations are multicasts or reductions of a switch. The collective
    promises the outputs of sequential execution, except for chunks at another
    position of their block."""
    ranks = draw(st.integers(2, 6))
    chunks = draw(st.integers(2, 5))
    cut = draw(st.sampled_from([1, 1, 2, 3, chunks]))
    in_place = draw(st.booleans())
    model = Model(ranks, chunks, in_place)
    operations: list[Operation] = []
    for _ in range(draw(st.sampled_from([1, 2, 4, 8, 16, max_operations]))):
        op = _operation(draw, model, ranks, chunks, operations, directives)
        if op is not None and groups:
            op = _with_others(draw, model, ranks, op)
        if op is not None:
            model.apply(op)
            operations.append(op)
        if op is not None and op.others and op.kind == "reduce" and draw(st.booleans()):
            operations.append(_returned(draw, op))
            model.apply(operations[-1])

    return _random_program(operations, model, ranks, chunks, cut, in_place)


def _random_program(
    operations: list[Operation], model: Model, ranks: int, chunks: int, cut: int, in_place: bool
) -> RandomProgram:
    """The program of some operations, which promises what `model` holds after them."""
    promised = {}
    for rank in range(ranks):
        for index in range(chunks):
            value = model.places.get(model.key((rank, "out", index)))
            if value is not None and all(i % cut == index % cut for _, i in value):
                promised[rank, index] = value

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        return list(promised[rank, index].elements()) if (rank, index) in promised else None

    collective = sley.Custom(
        "random", ranks, chunks, chunks, expected, chunks=cut, in_place=in_place
    )
    return RandomProgram(
        tuple(operations),
        sley.trace(collective, lambda p: _say(p, operations), name="random"),
        ranks,
        chunks,
        cut,
        in_place,
        promised,
    )


@st.composite
def returning_programs(draw: st.DrawFn) -> RandomProgram:
    """Programs in which messages of several chunks go round: each of up to three chains reads some
    chunks, passes them on over one to three other ranks, and sends them back to where they came
    from, shifted by some chunks. So the end of a chain overwrites what its beginning reads."""
    ranks, chunks = draw(st.integers(2, 4)), draw(st.integers(3, 6))
    model = Model(ranks, chunks, in_place=True)
    operations: list[Operation] = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, min(4, chunks - 1)))
        index, end = (draw(st.integers(0, chunks - count)) for _ in range(2))
        rank = draw(st.integers(0, ranks - 1))
        channels = st.sampled_from([None, None, 0, 1])
        src = (rank, "in", index)
        for _ in range(draw(st.integers(1, 3))):
            other = draw(st.sampled_from([r for r in range(ranks) if r != src[0]]))
            place = (draw(st.sampled_from(BUFFERS)), draw(st.integers(0, chunks - count)))
            kinds = ["copy", "copy", "reduce"] if model.holds((other, *place), count) else ["copy"]
            kind = draw(st.sampled_from(kinds))
            operations.append(Operation(kind, src, (other, *place), count, draw(channels), 1))
            model.apply(operations[-1])
            src = operations[-1].dst
        if src[0] != rank:
            back = (rank, "in", end)
            operations.append(Operation("copy", src, back, count, draw(channels), 1))
            model.apply(operations[-1])
    return _random_program(operations, model, ranks, chunks, cut=1, in_place=True)


@st.composite
def exchanges(draw: st.DrawFn) -> RandomProgram:
    """Programs of steps in which a rank, or every rank, sends a chunk to some others, or copies and
    sums what some others have, or its own: neighbours that kernels execute as one."""
    ranks, chunks = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    model = Model(ranks, chunks, draw(st.booleans()))
    operations: list[Operation] = []
    places = st.tuples(st.sampled_from(BUFFERS), st.integers(0, chunks - 1))
    for _ in range(draw(st.integers(1, 6))):
        sends, near, far = draw(st.booleans()), draw(places), draw(places)
        steps = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=4, unique=True))
        adds = draw(st.lists(st.booleans(), min_size=4, max_size=4))
        for rank in range(draw(st.sampled_from([1, ranks]))):
            for step, reduces in zip(steps, adds, strict=False):
                ends = (rank, *near), ((rank + step) % ranks, *far)
                src, dst = ends if sends else ends[::-1]
                if model.key(src) == model.key(dst) or not model.holds(src, 1):
                    continue
                kind = "reduce" if reduces and model.holds(dst, 1) else "copy"
                operations.append(Operation(kind, src, dst, 1, None, 1))
                model.apply(operations[-1])
    return _random_program(operations, model, ranks, chunks, 1, model.in_place)


def _operation(
    draw: st.DrawFn,
    model: Model,
    ranks: int,
    chunks: int,
    earlier: list[Operation],
    directives: bool,
) -> Operation | None:
    """A possible operation, or None. Half of them forward a result of an earlier operation, so that
    there are chains to fuse."""
    if earlier and draw(st.booleans()):
        last = draw(st.sampled_from(earlier[-6:]))
        src, count = last.dst, last.count
        channel, instances = last.channel, last.instances
    else:
        src = draw(st.sampled_from(sorted(model.places)))
        count = draw(st.integers(1, min(4, chunks - src[2])))
        channel = draw(st.sampled_from([None, None, None, 0, 1])) if directives else None
        instances = draw(st.sampled_from([1, 1, 1, 2, 3])) if directives else 1
    kind = draw(st.sampled_from(["copy", "reduce"]))
    dst = (
        draw(st.integers(0, ranks - 1)),
        draw(st.sampled_from(BUFFERS)),
        draw(st.sampled_from([src[2], draw(st.integers(0, chunks - 1))])),
    )
    if dst[2] + count > chunks or not model.holds(src, count):
        return None
    if kind == "reduce" and not model.holds(dst, count):
        kind = "copy"
    same_memory = model.key(src)[:2] == model.key(dst)[:2]
    if same_memory and abs(src[2] - dst[2]) < count:
        return None
    if kind == "reduce" and _size(model, src, dst, count) > 64:
        return None  # larger multiplicities test nothing new
    return Operation(kind, src, dst, count, channel, instances)


def _with_others(draw: st.DrawFn, model: Model, ranks: int, op: Operation) -> Operation | None:
    """The operation with further ranks at one end, if it is remote and they hold data."""
    if op.src[0] == op.dst[0]:
        return op
    others = set(draw(st.lists(st.integers(0, ranks - 1), max_size=ranks)))
    others -= {op.src[0], op.dst[0]}
    grouped = replace(op, others=tuple(sorted(others)))
    if op.kind == "copy":
        return grouped
    holds = all(model.holds(src, op.count) for src, _ in grouped.moves)
    size = sum(_size(model, *move, op.count) for move in grouped.moves) if holds else 0
    return grouped if holds and size <= 64 else op


def _returned(draw: st.DrawFn, op: Operation) -> Operation:
    """A multicast of the result of a reduction to the ranks from which it came, often to where
    their operands were."""
    first, *others = sorted({op.src[0], *op.others})
    places = [op.src[1:], op.dst[1:], (draw(st.sampled_from(BUFFERS)), op.dst[2])]
    place = draw(st.sampled_from(places))
    return replace(op, kind="copy", src=op.dst, dst=(first, *place), others=tuple(others))


def _size(model: Model, src: tuple[int, str, int], dst: tuple[int, str, int], count: int) -> int:
    return max(
        sum(model.places[model.key((p[0], p[1], p[2] + k))].total() for p in (src, dst))
        for k in range(count)
    )


def _say(p: sley.lang.ChunkProgram, operations: list[Operation]) -> None:
    for op in operations:
        with p.parallelize(op.instances):
            if op.others:
                _say_group(p, op)
                continue
            source = p.chunk(*op.src, op.count)
            if op.kind == "copy":
                source.copy(*op.dst, channel=op.channel)
            else:
                p.chunk(*op.dst, op.count).reduce(source, channel=op.channel)


def _say_group(p: sley.lang.ChunkProgram, op: Operation) -> None:
    if op.kind == "copy":
        ranks = [op.dst[0], *op.others]
        p.chunk(*op.src, op.count).multicast(ranks, *op.dst[1:], channel=op.channel)
        return
    members = p.chunk(np.array([op.src[0], *op.others]), *op.src[1:], op.count)
    p.chunk(*op.dst, op.count).load_reduce(members, channel=op.channel)


def run(random: RandomProgram, plan: Plan, count: int, timeout_s: float = 20.0) -> None:
    """Runs the plan on random numbers, with `count` elements in a block, and compares the outputs
    with those of sequential execution."""
    numbers = np.random.default_rng(count)
    size = -(-random.chunks // random.cut) * count
    inputs = [numbers.integers(-99, 99, size) for _ in range(random.ranks)]
    settings = Limits(slot_bytes=SMALL_SLOT, timeout_s=timeout_s)
    outputs = execute(plan, inputs, settings, count=count)
    for (rank, index), value in random.promised.items():
        parts = [inputs[r][random.chunk(i, count)] * n for (r, i), n in value.items()]
        found = outputs[rank][random.chunk(index, count)]
        assert found.tolist() == sum(parts).tolist(), f"out[{index}] of rank {rank}"
