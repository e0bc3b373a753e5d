"""Copies: reads of copies are reads of what was copied, and copies that nothing needs disappear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes import copies
from sley.compiler.passes.copies import forward_copies
from sley.compiler.passes.parallelize import parallelize
from sley.ir.dag import Forwarded
from sley.ir.dependencies import dependencies
from sley.ir.program import Program
from sley.ir.words import Op, Schedule, TransferKind
from support.checks.stages import Stages
from support.generators.examples import examples
from support.generators.random_programs import SCHEDULES, RandomProgram, random_programs, run
from support.inputs.written_programs import program_of
from support.machines.contents import meaning


def forwarded(text: str, result: str = "", *, in_place: bool = False) -> list[str]:
    """The transfers that remain of a program, a line each; a reduction with the place of its
    operand, if that is elsewhere."""
    found = forward_copies(program_of(text, in_place=in_place, result=result))
    lines = []
    for t, own in zip(found.program.transfers, found.operands, strict=True):
        sign = "+" if t.kind == TransferKind.REDUCE else "-"
        line = (
            f"{t.src} {place(t.src_buffer, t.src_index, t.count)} {sign}> "
            f"{t.dst} {place(t.dst_buffer, t.dst_index)}"
        )
        apart = (own.buffer, own.index) != (t.dst_buffer, t.dst_index)
        lines.append(line + (f" with {place(own.buffer, own.index)}" if apart else ""))
    return lines


def place(buffer: int, index: int, count: int = 1) -> str:
    end = "" if count == 1 else f":{index + count}"
    return f"{('in', 'out', 'scratch')[buffer]}[{index}{end}]"


def test_a_send_reads_what_was_copied_and_the_copy_stays_for_the_result() -> None:
    text = "0 in[0] -> 0 out[3]\n 0 out[3] -> 1 out[3]"
    assert forwarded(text, "0 out[3], 1 out[3]") == ["0 in[0] -> 0 out[3]", "0 in[0] -> 1 out[3]"]


def test_a_copy_that_only_sends_need_is_left_out() -> None:
    text = "0 in[0] -> 0 scratch[1]\n 0 scratch[1] -> 1 out[3]"
    assert forwarded(text, "1 out[3]") == ["0 in[0] -> 1 out[3]"]


def test_a_reduction_reads_its_operand_where_it_was_copied_from() -> None:
    text = """
        0 in[0] -> 0 out[0]
        1 in[0] +> 0 out[0]
        2 in[0] +> 0 out[0]
    """
    assert forwarded(text, "0 out[0]") == [
        "1 in[0] +> 0 out[0] with in[0]",
        "2 in[0] +> 0 out[0]",
    ]


def test_a_local_reduction_keeps_its_operand() -> None:
    text = "0 in[0] -> 0 out[0]\n 0 in[1] +> 0 out[0]"
    assert forwarded(text, "0 out[0]") == text.replace("\n ", "\n").split("\n")


def test_copies_of_copies_are_followed_to_the_first() -> None:
    copies = "\n".join(f"0 scratch[{k}] -> 0 scratch[{k + 1}]" for k in range(7))
    text = f"0 in[0] -> 0 scratch[0]\n{copies}\n0 scratch[7] -> 1 out[0]"
    assert forwarded(text, "1 out[0]") == ["0 in[0] -> 1 out[0]"]


def shift(chunks: int, step: int = 1) -> tuple[str, str]:
    """A window that moves over chunks that arrived: each step copies `step` chunks, one by one, to
    the place of the `step` chunks before, and sends them from there. And the result."""
    lines = [f"1 in[0] -> 0 scratch[{k}]" for k in range(chunks)]
    for k in range(0, chunks - step, step):
        lines += [f"0 scratch[{j + step}] -> 0 scratch[{j}]" for j in range(k, k + step)]
        lines.append(f"0 scratch[{k}:{k + step}] -> 1 out[{k}]")
    return "\n".join(lines), ", ".join(f"1 out[{k}]" for k in range(chunks - step))


@pytest.mark.parametrize("step", [1, 2])
def test_removed_copies_let_the_reads_before_them_move(step: int) -> None:
    """The last copy's source is never overwritten; without this copy that of the one before
    isn't."""
    text, result = shift(8, step)
    sends = forwarded(text, result)[8:]
    assert len(sends) == 8 // step - 1
    assert sends[0].startswith("0 scratch[1] ->" if step == 1 else "0 scratch[2:4] ->")


def test_a_removed_copy_costs_only_looks_at_the_reads_that_it_prevented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    move = copies._CopySearch._move

    def counted(search: copies._CopySearch, read: int) -> bool:
        nonlocal looks
        looks += 1
        return move(search, read)

    monkeypatch.setattr(copies._CopySearch, "_move", counted)
    text, result = shift(200)
    program = program_of(text, chunks=200, result=result)
    assert len(forward_copies(program).program.transfers) == 200 + 199
    assert looks <= 2 * len(program.transfers)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param("1 in[1] -> 0 in[0]", id="the source is overwritten"),
        pytest.param("1 in[1] +> 0 in[0]", id="the source is reduced into"),
        pytest.param("1 in[1] -> 0 out[0]", id="the copy is overwritten"),
        pytest.param("1 in[1] +> 0 out[0]", id="the copy is reduced into"),
    ],
)
def test_a_write_in_between_prevents_it(between: str) -> None:
    text = f"0 in[0] -> 0 out[0]\n{between}\n0 out[0] -> 2 out[0]"
    assert forwarded(text, "2 out[0]")[-1] == "0 out[0] -> 2 out[0]"


def test_a_later_write_to_the_source_prevents_it() -> None:
    """It would have to wait for the read."""
    text = "0 in[0] -> 0 out[0]\n 0 out[0] -> 1 out[0]\n 1 in[1] -> 0 in[0]"
    assert forwarded(text, "1 out[0]")[1] == "0 out[0] -> 1 out[0]"


def test_in_place_input_and_output_are_one_memory() -> None:
    text = "0 in[0] -> 0 out[1]\n 1 in[2] -> 0 out[0]\n 0 in[1] -> 1 out[5]"
    assert forwarded(text, "1 out[5]", in_place=True)[-1] == "0 in[1] -> 1 out[5]"


def test_part_of_a_copy_is_read_and_more_than_one_is_not() -> None:
    text = """
        0 in[0:3] -> 0 scratch[1]
        0 in[4] -> 0 scratch[4]
        0 scratch[2:4] -> 1 out[0]
        0 scratch[3:5] -> 1 out[2]
    """
    assert forwarded(text, "1 out[0], 1 out[1], 1 out[2], 1 out[3]")[2:] == [
        "0 in[1:3] -> 1 out[0]",
        "0 scratch[3:5] -> 1 out[2]",
    ]


def test_copies_next_to_one_another_are_read_as_one() -> None:
    text = "0 in[2] -> 0 scratch[0]\n 0 in[3] -> 0 scratch[1]\n 0 scratch[0:2] -> 1 out[0]"
    assert forwarded(text, "1 out[0], 1 out[1]") == ["0 in[2:4] -> 1 out[0]"]


def test_a_copy_back_is_kept() -> None:
    text = "0 in[0] -> 0 scratch[0]\n 0 scratch[0] -> 0 in[0]"
    assert forwarded(text, "0 out[0]", in_place=True) == text.replace("\n ", "\n").split("\n")


def test_a_copy_that_was_never_read_stays_as_the_program_has_it() -> None:
    assert (
        forwarded("0 in[0] -> 0 scratch[0]\n 0 in[1] -> 1 out[0]")[0] == "0 in[0] -> 0 scratch[0]"
    )


def unchanged(program: Program) -> Forwarded:
    return Forwarded(program, dependencies(program).operands)


@examples(36)
@given(random_programs(), st.integers(1, 2))
def test_random_programs_keep_their_meaning(random: RandomProgram, instances: int) -> None:
    program = parallelize(random.program, instances)
    found = forward_copies(program)
    assert meaning(found) == meaning(unchanged(program))
    assert forward_copies(found.program, found.operands) == found


@st.composite
def staged_programs(draw: st.DrawFn) -> tuple[Program, dict[str, Any]]:
    """Out-of-place AllReduces that copy first: every rank copies its input, in pieces and by way of
    scratch, and reduces and sends from the copies. With options."""
    ranks = draw(st.integers(2, 4))
    chunks = draw(st.integers(1, 4))
    by_scratch = draw(st.booleans())
    piece = draw(st.integers(1, chunks))
    ring = draw(st.permutations(range(ranks)))

    @sley.program(sley.AllReduce(ranks, chunks))
    def staged(p: sley.lang.ChunkProgram) -> None:
        for rank in range(ranks):
            for start in range(0, chunks, piece):
                own = p.chunk(rank, "in", start, min(piece, chunks - start))
                if by_scratch:
                    own = own.copy(rank, "scratch", start)
                own.copy(rank, "out", start)
        for start in range(chunks):
            total = p.chunk(ring[0], "out", start)
            for rank in ring[1:]:
                total = p.chunk(rank, "out", start).reduce(total)
            for rank in ring[:-1]:
                total = total.copy(rank, "out", start)

    options = {
        "instances": draw(st.integers(1, 2)),
        "slots": draw(st.sampled_from([1, 2, 8])),
        "per_chunk": draw(st.booleans()),
        "protocol": draw(st.sampled_from([sley.Protocol.SIMPLE, sley.Protocol.DIRECT])),
    }
    return staged, options


@examples(14)
@given(staged_programs())
def test_no_copy_is_left_of_staged_sums(case: tuple[Program, dict[str, Any]]) -> None:
    program, options = case
    stages = Stages.of(program, **options)
    assert not stages.faults()
    sley.verify(stages.plan)
    assert not np.isin(stages.plan.instructions.op, [Op.COPY, Op.COPY_SEND]).any()


@examples(14)
@given(random_programs(max_operations=24), st.sampled_from([1, 2]), st.sampled_from(SCHEDULES))
def test_copies_that_are_sent_run_right(
    random: RandomProgram, slots: int, schedule: Schedule
) -> None:
    plan = sley.compile(random.program, slots=slots, schedule=schedule)
    run(random, plan, 5)
