"""Random calls on devices: every kind, place, root, type, operation and size, on several streams
and communicators of the same ranks, on arrays that other ranks can read and on others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sley.communicator import DeviceCommunicator, FolderStore, LocalStore, Settings
from sley.communicator.selection.kinds import BARRIER, CALLS, size_of
from sley.engine.devices import Device, Engine
from sley.engine.devices import Settings as KernelSettings
from sley.engine.types import DATA_TYPES
from sley.ir.words import ReduceOp
from support.devices.communicators import TIMEOUT_S
from support.devices.device_calls import threads
from support.generators.examples import SLOW, examples
from support.generators.random_steps import KINDS, REDUCING, Step, begin
from support.machines.meaning import drawn_from, results
from support.processes.process_ranks import together
from support.processes.rank_processes import start

KERNELS = KernelSettings(Engine.INTERPRETED, timeout_s=TIMEOUT_S)
GUARD = 0xA5
MOST_BYTES = 1_400_000
"""Of the largest array of a call; larger borders of the tables aren't reached."""

POOL_BYTES = 20 << 20
GROWING = {ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.AVG}
REPEATED = set(ReduceOp) - {ReduceOp.PRODUCT}
"""Whose results are exact after two calls, too."""


class Pool:
    """Memory from which arrays are taken, with gaps between them, which no call may change."""

    def __init__(self, memory: Any) -> None:
        self.memory, self._taken = memory, [0]
        memory.fill(GUARD)

    def take(self, elements: int, dtype: Any, gap: int) -> Any:
        first = (self._taken[-1] // dtype.itemsize + 1 + gap) * dtype.itemsize
        self._taken += [first, first + elements * dtype.itemsize]
        return self.memory[first : self._taken[-1]].view(dtype)

    def give_back(self) -> None:
        """Forgets the arrays; nothing around them may have changed."""
        ends = [*self._taken, self._taken[-1] + 4096]
        for last, first in zip(ends[::2], ends[1::2], strict=True):
            assert (self.memory[last:first] == GUARD).all()
        self.memory[: ends[-1]] = GUARD
        self._taken = [0]


@dataclass(frozen=True)
class Turn:
    """A call of one of a rank's communicators.

    border: if not None, the count is one at a border of the table of plans, plus `step.count`.
    streams: the numbers of those of its calls, one after the other on the same data; None: a call
    that waits. shared: bit r says whether other ranks can read the arrays of rank r. places: bit r
    whether rank r is in place, where ranks needn't agree on it.
    """

    comm: int
    step: Step
    border: int | None
    streams: tuple[int | None, ...]
    shared: int
    places: int
    gap: int
    factor: int | None
    seed: int

    def sized(self, comm: DeviceCommunicator) -> Step:
        """The step, with the count and the root of a communicator."""
        step = replace(self.step, root=self.step.root % comm.ranks)
        if self.border is None:
            return step
        root = step.root if CALLS[step.kind].roles else 0
        (place, *more) = comm.plans.places(step.kind)
        table = comm.plans.table(step.kind, in_place=step.in_place if more else place, root=root)
        ends = [0] + [s.end_bytes for s, _ in table if s.end_bytes and s.end_bytes <= MOST_BYTES]
        unit = size_of(step.kind, comm.ranks, 1, DATA_TYPES[step.dtype].size_bytes)
        return replace(step, count=ends[self.border % len(ends)] // unit + step.count)

    def options(self, comm: DeviceCommunicator) -> dict[str, Any]:
        """Further arguments of the call. The plans of a rank alone take no factor."""
        has_factor = self.factor is not None and comm.ranks > 1
        return {"dtype": self.step.dtype} | ({"factor": self.factor} if has_factor else {})

    def values(self, step: Step, member: int, ranks: int) -> Any:
        """The input of a member, small enough for exact results; in an average that of all."""
        averages = step.kind in REDUCING and step.op is ReduceOp.AVG
        is_tiny = step.dtype.startswith("float8")
        most = 9 if is_tiny else 100
        if step.kind in REDUCING and step.op in GROWING:
            most = 2 if is_tiny else 3
        rng = np.random.default_rng([self.seed, 0 if averages else member])
        return rng.integers(0, most, step.size(ranks))

    def wanted(self, step: Step, comm: DeviceCommunicator, members: Sequence[int]) -> Any:
        """The rank's output; None where nothing is promised."""
        if step.kind == "reduce" and comm.rank != step.root:
            return None
        data = [self.values(step, member, comm.ranks).astype(float) for member in members]
        if "factor" in self.options(comm):
            data = [own * self.factor for own in data]
        for _ in self.streams:
            found = results(step.kind, data, step.op, step.root)
            data = [own for own in found if own is not None]
        wanted, kind = found[comm.rank], DATA_TYPES[step.dtype]
        if wanted is None or kind.array.kind == "f" or kind.is_bits:
            return wanted
        return wanted.astype(np.int64).astype(kind.array)  # as wide sums wrap


class Rank(AbstractContextManager["Rank"]):
    """A rank of three communicators: two with all ranks, and one with half of them."""

    def __init__(self, store: Any, rank: int, ranks: int, device: Device) -> None:
        first, second = (
            DeviceCommunicator(
                store, rank, ranks, device, name=name, kernels=KERNELS, types=["int32"]
            )
            for name in ("first", "second")
        )
        half = first.split(rank % 2, key=-rank)
        assert half is not None
        self.comms = [
            (first, list(range(ranks))),
            (second, list(range(ranks))),
            (half, list(range(rank % 2, ranks, 2))[::-1]),
        ]
        self._streams = [device.stream() for _ in range(3)]
        self._pools = [Pool(np.zeros(POOL_BYTES, np.uint8)), Pool(first.empty("uint8", POOL_BYTES))]

    def __exit__(self, *problem: object) -> None:
        for comm, _ in self.comms:
            comm.close()

    def run(self, turns: Sequence[Turn]) -> str:
        """Makes all calls, then checks their results."""
        begun = [self._begin(turn) for turn in turns]
        for comm, _ in self.comms:
            comm.synchronize()
        for turn, (step, data, arrays, out) in zip(turns, begun, strict=True):
            comm, members = self.comms[turn.comm]
            if step.kind == BARRIER:
                continue
            wanted, kind = turn.wanted(step, comm, members), DATA_TYPES[step.dtype]
            if wanted is not None:
                found = kind.values(out) if kind.is_bits else out
                np.testing.assert_array_equal(found, wanted, err_msg=f"{turn}: {step}")
            if len(arrays) == 2:
                np.testing.assert_array_equal(arrays[0], data, err_msg=f"{turn}: {step}")
        for pool in self._pools:
            pool.give_back()
        return "right"

    def _begin(self, turn: Turn) -> tuple[Step, Any, list[Any], Any]:
        comm, members = self.comms[turn.comm]
        streams = [None if s is None else self._streams[s] for s in turn.streams]
        step, arrays = turn.step, list[Any]()
        if step.kind == BARRIER:
            for stream in streams:
                comm.barrier(stream=stream)
            return step, None, arrays, None
        step, kind = turn.sized(comm), DATA_TYPES[step.dtype]
        pool = self._pools[turn.shared >> members[comm.rank] & 1]

        def new(elements: int) -> Any:
            arrays.append(pool.take(elements, kind.array, turn.gap))
            return arrays[-1]

        given = kind.bits(turn.values(step, members[comm.rank], comm.ranks)).astype(kind.array)
        options = turn.options(comm)
        if comm.plans.places(step.kind) == (None,) and len(streams) == 1:
            step = replace(step, in_place=bool(turn.places >> comm.rank & 1))
        _, out = begin(comm, step, given, new, stream=streams[0], **options)
        for stream in streams[1:]:
            again = (step.op,) if step.kind == "all_reduce" else ()
            getattr(comm, step.kind)(out, out, *again, stream=stream, **options)
        return step, given, arrays, out


@st.composite
def turns(draw: st.DrawFn, kinds: Sequence[str], types: Sequence[str]) -> Turn:
    kind, dtype = draw(st.sampled_from(kinds)), draw(st.sampled_from(types))
    is_wide = not dtype.startswith("float8")
    ops = [ReduceOp.SUM]
    if kind in REDUCING:
        ops = drawn_from("float32" if DATA_TYPES[dtype].is_bits else dtype)
    op, in_place = draw(st.sampled_from(ops)), draw(st.booleans())
    border = draw(st.none() | st.integers(0, 20))
    small = st.integers(0, 40) | st.integers(0, 9000)
    count = draw(small if border is None else st.integers(0, 2))
    stream = st.integers(0, 2)
    repeats = in_place and (kind == "all_to_all" or (kind == "all_reduce" and op in REPEATED))
    most = 2 if repeats and is_wide else 1
    streams = draw(st.lists(stream, min_size=1, max_size=most).map(tuple) | st.just((None,)))
    scales = kind in REDUCING and op is ReduceOp.SUM and is_wide
    return Turn(
        draw(st.integers(0, 2)),
        Step(kind, count, dtype, op, draw(st.integers(0, 7)), in_place, False, False),
        border,
        streams,
        draw(st.integers(0, 255)),
        draw(st.integers(0, 255)),
        draw(st.integers(0, 9)),
        draw(st.none() | st.just(2)) if scales and len(streams) == 1 else None,
        draw(st.integers(0, 2**32 - 1)),
    )


FEW = ["int32", "float32", "bfloat16"]


@st.composite
def calls(draw: st.DrawFn, types: Sequence[str]) -> list[Turn]:
    return draw(st.lists(turns([*KINDS, BARRIER], types), min_size=1, max_size=6))


def check(number: int, types: Sequence[str], most: settings, *, apart: bool) -> None:
    """Makes random calls of the ranks of a process. apart: each on a device of its own."""
    store, members = LocalStore(), dict[int, Rank]()

    def enter(rank: int) -> None:
        members[rank] = Rank(store, rank, number, threads(rank if apart else 0))

    @most
    @given(calls(types))
    def run(todo: list[Turn]) -> None:
        together([lambda own=own: own.run(todo) for own in members.values()])

    together([lambda rank=rank: enter(rank) for rank in range(number)])
    run()
    together([lambda own=own: own.__exit__() for own in members.values()])


@pytest.mark.parametrize(("number", "apart"), [(2, False), (3, True)])
def test_random_calls_do_what_they_promise(number: int, apart: bool) -> None:
    check(number, FEW, examples(6), apart=apart)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("number", range(2, 9))
def test_many_random_calls_do_what_they_promise(number: int, apart: bool) -> None:
    check(number, list(DATA_TYPES), settings(max_examples=-(-SLOW // 14)), apart=apart)


def of_process(folder: str, rank: int, ranks: int, settings: Settings) -> Rank:
    return Rank(FolderStore(folder), rank, ranks, threads())


@examples(1)
@given(calls(["int32"]))
def test_random_calls_of_processes_do_what_they_promise(todo: list[Turn]) -> None:
    ends = start(2, Rank.run, todo, join=of_process).ends()
    assert [end.value for end in ends] == ["right"] * 2, ends
