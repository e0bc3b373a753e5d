"""Random programs, plans, options, counts and arrays: kernels on threads do what is promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sley
from sley.engine import native
from sley.engine.devices import Engine, Executor, Launching, ThreadsDevice
from sley.verification.scales import Scales
from support.devices.device_calls import CHUNK_BYTES, Call, executor, threads, wrong
from support.devices.fibres import FIBRES
from support.generators.examples import examples
from support.generators.random_options import random_options
from support.generators.random_plans import random_plan
from support.generators.random_programs import (
    RandomProgram,
    exchanges,
    random_programs,
    returning_programs,
)
from support.generators.random_transfers import random_transfers, random_trees

GUARD = -7


@st.composite
def compiled_plans(draw: st.DrawFn) -> sley.Plan:
    """Random programs in both languages, compiled in every way."""
    programs = (random_programs(max_operations=24), returning_programs())
    source = draw(st.one_of(*programs, random_transfers(), random_trees()))
    topology = getattr(source, "topology", None)
    return sley.compile(source.program, topology=topology, **draw(random_options()))


@st.composite
def plans_by_hand(draw: st.DrawFn) -> sley.Plan:
    """Plans that no compiler made: blocks that send early and receive late."""
    plan = random_plan(draw(st.integers(0, 10**6)))
    return replace(plan, protocol=draw(st.sampled_from(sley.Protocol)))


@st.composite
def counts(draw: st.DrawFn, chunks: int) -> int:
    """None, fewer elements or units of 16 bytes than chunks, a tile or many; some left over."""
    size = draw(st.sampled_from([0, 0, 1, 3, 30, 31, 64, 150, 250]))
    return size * chunks + draw(st.integers(0, chunks - 1))


@dataclass(frozen=True)
class Shifted:
    """An array that begins somewhere within its memory: its first `by` elements are not its own."""

    memory: Any
    by: int
    size: int

    @classmethod
    def of(cls, array: Any, by: int) -> Shifted:
        memory = np.full(len(array) + by + 9, GUARD, array.dtype)
        memory[by : by + len(array)] = array
        return cls(memory, by, len(array))

    @property
    def array(self) -> Any:
        return self.memory[self.by : self.by + self.size]

    def give_back(self, array: Any) -> None:
        """Copies the array to where it came from; nothing around it may have changed."""
        assert (self.memory[: self.by] == GUARD).all()
        assert (self.memory[self.by + self.size :] == GUARD).all()
        array[:] = self.array


def hide(on: Executor, arrays: Sequence[Any], hides: Callable[[], bool]) -> None:
    """Lets no rank read some of the arrays, and of the scratch that is there."""
    made = [one for each in on.links.memory._made for one in each.memories.values()]
    pieces = [(one.address, one.size_bytes) for one in made]
    for address, size in [*pieces, *((array.ctypes.data, array.nbytes) for array in arrays)]:
        if size and hides():
            ranks = on.plan.collective.ranks
            on.links.memory.index.add(address, size, [native.HIDDEN] * ranks)


def wrong_shifted(
    on: Executor,
    count: int,
    shifts: Sequence[int],
    op: sley.ReduceOp,
    hides: Callable[[], bool] | None,
) -> int:
    """Wrong elements of a call on arrays at odd addresses, each rank's at another. hides: whether
    no rank can read the next of the memories; None: all can."""
    call = Call.of(on.plan, count, reduce_op=op)
    own = [*call.inputs, *(call.outputs or [])]
    given = [Shifted.of(array, shifts[k % len(shifts)]) for k, array in enumerate(own)]
    arrays = [s.array for s in given]
    ranks = len(call.buffers)
    if hides:
        on.reserve(count, "int32", op)
        hide(on, arrays, hides)
    on(arrays[:ranks], arrays[ranks:] or None, count=count, reduce_op=op)
    for shifted, array in zip(given, own, strict=True):
        shifted.give_back(array)
    return call.wrong()


def check(
    plan: sley.Plan,
    engine: Engine,
    data: st.DataObject,
    ops: Sequence[sley.ReduceOp] = (sley.ReduceOp.SUM, sley.ReduceOp.AVG),
    device: ThreadsDevice | None = None,
) -> None:
    """Two calls of different counts, at more slots than the plan needs, on arrays anywhere."""
    longest = int(plan.instructions.count.max(initial=1))
    on = executor(
        plan,
        [device or threads()] * plan.collective.ranks,
        engine=engine,
        slots=plan.slots + data.draw(st.sampled_from([0, 1, 8])),
        # At least three lines: chunks at the places of others have three parts.
        slot_bytes=longest * data.draw(st.sampled_from([3 * 128, 3 * CHUNK_BYTES, 4096])),
        launching=data.draw(st.sampled_from(Launching)),
    )
    hides = None
    if plan.protocol is sley.Protocol.DIRECT:  # others can read some of the arrays, or none
        chance = data.draw(st.randoms(use_true_random=False))
        hides = partial(chance.choice, (False, True))
    shifts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    for _ in range(2):
        count, op = data.draw(counts(plan.collective.chunks)), data.draw(st.sampled_from(ops))
        assert wrong_shifted(on, count, shifts, op, hides) == 0


@examples(12)
@given(compiled_plans(), st.data())
def test_random_programs_are_right_in_the_interpreter(plan: sley.Plan, data: st.DataObject) -> None:
    check(plan, Engine.INTERPRETED, data, [sley.ReduceOp.AVG])


@examples(10)
@given(plans_by_hand(), st.data())
def test_random_plans_are_right_in_the_interpreter(plan: sley.Plan, data: st.DataObject) -> None:
    check(plan, Engine.INTERPRETED, data, [sley.ReduceOp.AVG])


@examples(12)
@given(
    exchanges(),
    st.sampled_from(["LL", "LL", "Simple", "Direct"]),
    st.sampled_from(["instance", "instance", "connection"]),
    st.sampled_from([1, 2, 8]),
    st.data(),
)
def test_random_exchanges_are_right_with_several_threads_of_a_block(
    random: RandomProgram, protocol: str, allocate: str, slots: int, data: st.DataObject
) -> None:
    plan = sley.compile(random.program, protocol=protocol, allocate=allocate, slots=slots)
    check(plan, Engine.INTERPRETED, data, [sley.ReduceOp.AVG], FIBRES)


@examples(15)
@given(st.one_of(compiled_plans(), plans_by_hand()), st.data())
def test_inputs_of_random_plans_are_multiplied_once(plan: sley.Plan, data: st.DataObject) -> None:
    on = executor(plan)
    assume(plan.reduces and _can_multiply(on.plan))
    call = Call.of(on.plan, data.draw(counts(plan.collective.chunks)))
    call.start(on, factor=3)
    for buffer in call.buffers:
        buffer.output[:] = np.where(buffer.output % 3 == 0, buffer.output // 3, GUARD)
    assert call.wrong() == 0


def _can_multiply(plan: sley.Plan) -> bool:
    try:
        Scales.of(plan)
    except sley.SleyError:
        return False
    return True


@examples(3)
@given(compiled_plans(), st.data())
def test_random_programs_are_right_as_generated_text(plan: sley.Plan, data: st.DataObject) -> None:
    check(plan, Engine.GENERATED, data)


@examples(3)
@given(plans_by_hand(), st.data())
def test_random_plans_are_right_as_generated_text(plan: sley.Plan, data: st.DataObject) -> None:
    check(plan, Engine.GENERATED, data)


@pytest.mark.parametrize("protocol", [sley.Protocol.SIMPLE, sley.Protocol.DIRECT])
@pytest.mark.parametrize("engine", Engine)
def test_a_chunk_may_rest_in_one_with_fewer_elements(
    engine: Engine, protocol: sley.Protocol
) -> None:
    """Both ranks swap their halves on the way: of 5 elements one half has 3, the other 2."""
    here, there = [0, 0, 1, 1], [1, 1, 0, 0]
    chunk, other = [0, 1, 0, 1], [1, 0, 1, 0]

    @sley.program(sley.AllReduce(2, chunks=2, in_place=True), protocol=protocol)
    def swapped(p: sley.lang.ChunkProgram) -> None:
        p.chunk(here, "in", chunk).copy(here, "scratch", chunk)
        p.chunk(here, "scratch", chunk).copy(there, "in", other)
        p.chunk(here, "in", chunk).copy(here, "scratch", [3, 2, 3, 2])
        p.chunk(here, "scratch", chunk).copy(here, "in", chunk)
        p.chunk(here, "in", chunk).reduce(p.chunk(here, "scratch", [2, 3, 2, 3]))

    plan = sley.compile(swapped)
    on = executor(plan, engine=engine)
    for count in (5, 1):
        assert wrong(on, count) == 0, count


def test_a_chunk_in_one_with_fewer_elements_is_pulled_if_the_scratch_is_lent_too() -> None:
    """Of 5 elements a chunk has 4, and 3 of them lie before the scratch at the other's place."""

    @sley.program(sley.Broadcast(3, 2, root=0, in_place=False), protocol="direct")
    def swapped(p: sley.lang.ChunkProgram) -> None:
        for chunk in range(2):
            p.chunk(0, "in", chunk).copy(1, "out", 1 - chunk).copy(2, "out", chunk)
        for target in (0, 1):
            p.chunk(2, "out", [0, 1]).copy(target, "out", [0, 1])

    for hidden in ("nothing", "scratch", "outputs"):
        on = executor(sley.compile(swapped), engine=Engine.INTERPRETED)
        call = Call.of(on.plan, 5)
        if hidden == "outputs":  # there is no scratch yet
            hide(on, call.outputs or [], lambda: True)
        on.reserve(5, "int32")
        if hidden == "scratch":
            hide(on, [], lambda: True)
        call.start(on)
        assert call.wrong() == 0


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.one_of(compiled_plans(), plans_by_hand()), st.data())
def test_many_random_plans_are_right_in_the_interpreter(
    plan: sley.Plan, data: st.DataObject
) -> None:
    check(plan, Engine.INTERPRETED, data)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.one_of(compiled_plans(), plans_by_hand()), st.data())
def test_many_random_plans_are_right_as_generated_text(
    plan: sley.Plan, data: st.DataObject
) -> None:
    check(plan, Engine.GENERATED, data)


@pytest.mark.slow
@settings(max_examples=300)
@given(random_programs(max_operations=8, groups=True), st.sampled_from([1, 2]), st.data())
def test_many_random_groups_are_right_in_the_interpreter(
    source: RandomProgram, instances: int, data: st.DataObject
) -> None:
    """With reductions that a switch has, and others; at times connections have messages of several
    groups, which are then sent one by one."""
    ops = [sley.ReduceOp.SUM, sley.ReduceOp.AVG, sley.ReduceOp.BXOR, sley.ReduceOp.MAX]
    plan = sley.compile(source.program, instances=instances)
    check(plan, Engine.INTERPRETED, data, ops)
