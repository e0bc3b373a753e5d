"""Where AVG divides: in the reductions that make final values, else at the end."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from fractions import Fraction

import numpy as np
from hypothesis import given

import sley
from sley.algorithms import build
from sley.engine.kernels import Kernels
from sley.engine.kernels.averages import Averages
from sley.ir.connections import Messages
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Op
from sley.verification.hangs import run_of
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.prefix_sums import prefix_sums


def averages(plan: sley.Plan) -> Averages:
    return Averages.of(plan, Messages.of(plan))


def run(plan: sley.Plan, found: Averages) -> list[Fraction]:
    """What every output chunk holds after a call with AVG, if input chunk i is 3^i: one instruction
    after another, in an order in which a call can run them."""
    t, c, messages = plan.instructions, plan.collective, Messages.of(plan)
    cells = dict[int, Fraction]()
    for chunk in np.flatnonzero(c.initial).tolist():
        cells[int(c.input_cells(plan.layout)[chunk])] = Fraction(3**chunk)
    channels: dict[int, deque[list[Fraction]]] = defaultdict(deque)
    for row in np.argsort(run_of(plan, messages).level, kind="stable").tolist():
        op, divisor = int(t.op[row]), int(found.by_instruction[row])
        numbers = range(int(t.count[row]))
        src, dst = (
            int(of(np.array([row]))[0]) for of in (plan.source_cells, plan.destination_cells)
        )
        sources = [cells.get(src + k, Fraction()) for k in numbers] if READS_SOURCE[op] else []
        taken = channels[int(messages.send_of[row])].popleft() if RECEIVES[op] else sources
        if REDUCES[op]:
            others = (
                sources if op != Op.REDUCE else [cells.get(dst + k, Fraction()) for k in numbers]
            )
            taken = [(a + b) / divisor for a, b in zip(taken, others, strict=True)]
        for k in numbers if WRITES_DESTINATION[op] else ():
            cells[dst + k] = taken[k]
        if SENDS[op]:
            channels[row].append(taken)
    outputs = c.output_cells(plan.layout).tolist()
    ends = zip(outputs, found.at_end.tolist(), strict=True)
    return [cells.get(cell, Fraction()) / divisor for cell, divisor in ends]


def check(plan: sley.Plan) -> None:
    found, c = averages(plan), plan.collective
    inputs = [[3 ** int(i) for i in c.values[v]] if v != NONE else None for v in c.expected]
    for got, promised in zip(run(plan, found), inputs, strict=True):
        assert promised is None or got == Fraction(sum(promised), len(promised))


@examples(24)
@given(random_programs())
def test_every_result_is_divided_once(random: RandomProgram) -> None:
    check(sley.compile(random.program))


def test_the_last_reductions_of_algorithms_divide_and_nothing_is_left() -> None:
    for name in ("ring-allreduce", "all-pairs-allreduce", "recursive-halving-doubling-allreduce"):
        plan = sley.compile(build(name, ranks=4, in_place=True))
        found = averages(plan)
        assert (found.at_end == 1).all(), name
        last = found.by_instruction > 1
        assert REDUCES[plan.instructions.op[last]].all(), name
        assert last.sum() == 4, f"{name}: one for each chunk"
        check(plan)


def test_a_sum_that_is_part_of_another_is_divided_at_the_end() -> None:
    plan = sley.compile(prefix_sums(4))
    assert averages(plan).at_end.tolist() == [1, 2, 3, 1]
    assert sorted(averages(plan).by_instruction.tolist())[-2:] == [1, 4]
    check(plan)


def test_a_sum_to_which_more_is_added_in_its_place_is_divided_at_the_end() -> None:
    inputs = [[(0, 0), (0, 1)], [(0, 0), (0, 1), (0, 2)]]

    @sley.program(sley.Custom("added", 1, 3, 2, lambda _, index: inputs[index]))
    def added(p: sley.lang.ChunkProgram) -> None:
        for more in (1, 2):
            p.chunk(0, "in", 0).reduce(p.chunk(0, "in", more)).copy(0, "out", more - 1)

    plan = sley.compile(added)
    assert averages(plan).at_end.tolist() == [2, 1]
    check(plan)


def test_copies_divide_nothing() -> None:
    plan = sley.compile(build("all-pairs-allgather", ranks=4, in_place=True))
    assert (averages(plan).by_instruction == 1).all()


def promise(inputs: dict[tuple[int, int], list[tuple[int, int]]], ranks: int) -> sley.Custom:
    """A collective of so many ranks with two chunks in place: what output chunks hold."""
    return sley.Custom(
        "promised", ranks, 2, 2, lambda rank, index: inputs.get((rank, index)), in_place=True
    )


def test_a_reduction_of_several_chunks_divides_only_if_all_are_final() -> None:
    """Of the two sums that an instruction makes, one is part of another."""
    sums = {
        (1, 0): [(0, 0), (1, 0)],
        (1, 1): [(0, 1), (1, 1)],
        (2, 1): [(0, 1), (1, 1), (2, 1)],
    }

    @sley.program(promise(sums, 3))
    def partly(p: sley.lang.ChunkProgram) -> None:
        p.chunk(1, "in", 0, count=2).reduce(p.chunk(0, "in", 0, count=2))
        p.chunk(2, "in", 1).reduce(p.chunk(1, "in", 1))

    plan = sley.compile(partly)
    reductions = REDUCES[plan.instructions.op]
    assert sorted(plan.instructions.count[reductions].tolist()) == [1, 2]
    check(plan)
    found = averages(plan)
    assert found.by_instruction[reductions].tolist() == [1, 3]
    assert found.at_end.reshape(3, 2).tolist() == [[1, 1], [2, 2], [1, 1]]


def test_blocks_that_divide_by_different_numbers_share_no_code() -> None:
    """Both ranks add two chunks; only what rank 1 makes is promised, so that only that is
    divided."""

    @sley.program(promise({(1, 0): [(1, 0), (1, 1)]}, 2))
    def added(p: sley.lang.ChunkProgram) -> None:
        p.chunk([0, 1], "in", 0).reduce(p.chunk([0, 1], "in", 1))

    text = Kernels.of(sley.compile(added)).text
    assert re.findall(r"reduce\(tile, (.*?), data", text) == ["step(0)", "step(0).averages(2)"]
