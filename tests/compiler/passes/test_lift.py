"""Lift: the program means what the plan means, and has no superfluous transfers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.copies import forward_copies
from sley.compiler.passes.cuts import cut_copies
from sley.compiler.passes.lift import lift
from sley.compiler.passes.parallelize import parallelize
from sley.ir.plan import Instructions, Plan
from sley.ir.program import Program, Transfers
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, offsets_of
from sley.ir.words import Buffer, LoopOrder, Op, Protocol, TransferKind
from support.generators.examples import examples
from support.generators.random_plans import random_plan
from support.generators.random_programs import RandomProgram, random_programs, run
from support.inputs.algorithm_cases import cases_in_a_place, few, in_turn, label, program
from support.inputs.files_of_others import OTHERS
from support.mutants.plan_edits import with_columns, with_waits

OPTIONS: list[dict[str, Any]] = [
    {},
    {"fusion": False},
    {"instances": 2},
    {"slots": 1},
    {"slots": 8},
    {"channels": 2, "per_chunk": True},
]

COPY, REDUCE = TransferKind.COPY, TransferKind.REDUCE
I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741 - the format's own words

MOVES = ("kind", "src", "src_buffer", "src_index", "dst", "dst_buffer", "dst_index", "count")


def moves(program: Program) -> list[tuple[int, ...]]:
    """What a program's transfers do, in their order."""
    t: Transfers = program.transfers
    return list(zip(*(getattr(t, name).tolist() for name in MOVES), strict=True))


def by_hand(
    collective: sley.Collective,
    ranks: list[list[tuple[Any, ...]]],
    scratch: int = 0,
) -> Plan:
    """A plan of one block a rank. Steps: (op, src, dst, send peer, receive peer, count), where
    what is left out at the end is absent."""
    steps = [step for rank in ranks for step in rank]
    full = [(*step, *((None,) * (6 - len(step)))) for step in steps]
    none = [NONE] * len(steps)
    number = [NONE if n is None else n for step in full for n in step[3:5]]
    src, dst = (
        [place or (NONE, NONE) for place in column] for column in list(zip(*full, strict=True))[1:3]
    )
    return Plan(
        name="by hand",
        collective=collective,
        protocol=Protocol.LL,
        loop_order=LoopOrder.TILE,
        slots=8,
        instructions=Instructions(
            op=[step[0] for step in full],
            src_buffer=[buffer for buffer, _ in src],
            src_index=[index for _, index in src],
            dst_buffer=[buffer for buffer, _ in dst],
            dst_index=[index for _, index in dst],
            count=[step[5] or 1 for step in full],
            send_peer=number[::2],
            recv_peer=number[1::2],
            channel=[
                NONE if s == r == NONE else 0
                for s, r in zip(number[::2], number[1::2], strict=True)
            ],
            transfer=none,
            forward=none,
            pipeline=none,
            source=none,
        ),
        block_rank=np.arange(len(ranks), dtype=np.int32),
        block_offset=offsets_of(np.array([len(rank) for rank in ranks])),
        waits=Edges.empty(len(steps)),
        scratch_chunks=np.full(len(ranks), scratch, np.int32),
        sources=Sources.of_file("", []),
    )


def lifted(plan: Plan) -> Program:
    """The program of a right plan, which is right as well."""
    sley.verify(plan)
    found = lift(plan)
    assert sley.compile(found).collective == plan.collective
    return found


@pytest.mark.parametrize(
    ("name", "size", "options"), few(in_turn(OPTIONS, cases_in_a_place())), ids=label
)
def test_a_compiled_algorithm_becomes_itself_again(
    name: str, size: dict[str, Any], options: dict[str, Any]
) -> None:
    origin = program(name, size)
    plan = sley.compile(origin, **options)
    found = lifted(plan)
    again = parallelize(origin, options.get("instances", 1))
    # Chunks of scratch that the plan doesn't need have gone.
    has_all = plan.scratch_chunks.tolist() == again.scratch_chunks.tolist()
    if has_all and without_copies(again) is again:
        assert sorted(moves(found)) == sorted(moves(again))
        assert found.scratch_chunks.tolist() == again.scratch_chunks.tolist()
    # Where the sums were before they are sent on, a plan that stores none of them doesn't say.
    assert ends(without_copies(found)) == ends(without_copies(again))
    assert found.name == origin.name


def without_copies(program: Program) -> Program:
    """Without needless copies; the others cut, as plans that fuse them have them."""
    return cut_copies(forward_copies(program)).program


def ends(program: Program) -> list[tuple[int, ...]]:
    """The kind, the ranks and the number of chunks of every transfer, sorted."""
    t = program.transfers
    columns = (t.kind, t.src, t.dst, t.count)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_others_lift_to_a_transfer_for_each_message_and_local_operation(
    name: str, data_dir: Path
) -> None:
    plan = sley.load(data_dir / "msccl-xml" / f"{name}.xml")
    found = lifted(plan)
    local = np.isin(plan.instructions.op, [Op.COPY, Op.REDUCE])
    assert len(found.transfers) == len(plan.sends) + int(local.sum())
    assert found.protocol is plan.protocol
    assert (found.scratch_chunks <= plan.scratch_chunks).all()
    # Every transfer still names a line of the file.
    assert found.sources is plan.sources
    assert (found.transfers.source != NONE).all()


@examples(14)
@given(random_programs(), st.sampled_from(OPTIONS))
def test_lifted_random_programs_run_the_same(
    random: RandomProgram, options: dict[str, Any]
) -> None:
    plan = sley.compile(random.program, **options)
    found = lifted(plan)
    assert len(found.transfers) <= len(plan.instructions) + len(plan.sends)
    run(random, sley.compile(found, verify=False), 11)


@examples(14)
@given(st.integers(0, 2**32))
def test_plans_that_send_early_and_receive_late_lift_to_right_programs(seed: int) -> None:
    lifted(random_plan(seed))


@pytest.mark.slow
def test_many_plans_that_send_early_and_receive_late_lift_to_right_programs() -> None:
    for seed in range(5_000):
        lifted(random_plan(seed))


def rotation(ranks: int, rounds: int) -> Plan:
    """Every rank sends its only chunk to the next one before it takes another's, in place."""
    steps = [
        [
            step
            for _ in range(rounds)
            for step in (
                (Op.SEND, (I, 0), None, (rank + 1) % ranks),
                (Op.RECV, None, (I, 0), None, (rank - 1) % ranks),
            )
        ]
        for rank in range(ranks)
    ]
    promise = sley.Custom(
        "rotation", ranks, 1, 1, lambda rank, _: [((rank - rounds) % ranks, 0)], in_place=True
    )
    return by_hand(promise, steps)


def test_a_swap_lands_in_scratch_once() -> None:
    found = lifted(rotation(2, 1))
    assert moves(found) == [
        (COPY, 0, I, 0, 1, S, 0, 1),
        (COPY, 1, I, 0, 0, I, 0, 1),
        (COPY, 1, S, 0, 1, I, 0, 1),
    ]
    assert found.scratch_chunks.tolist() == [0, 1]


def test_a_rotation_breaks_each_circle_once() -> None:
    for ranks, rounds in ((3, 1), (8, 5)):
        found = lifted(rotation(ranks, rounds))
        assert len(found.transfers) == (ranks + 1) * rounds
        assert found.scratch_chunks.sum() == rounds


def test_a_swap_of_sums_lands_and_is_reduced_there() -> None:
    steps = [
        [
            (Op.SEND, (I, 0), None, 1 - rank, None, 2),
            (Op.RECV_REDUCE_COPY, (I, 0), (I, 0), None, 1 - rank, 2),
        ]
        for rank in range(2)
    ]
    found = lifted(by_hand(sley.AllReduce(2, 2, in_place=True), steps))
    assert moves(found) == [
        (COPY, 0, I, 0, 1, S, 0, 2),
        (REDUCE, 1, I, 0, 0, I, 0, 2),
        (REDUCE, 1, S, 0, 1, I, 0, 2),
    ]


def test_a_sum_into_another_place_leaves_the_operand() -> None:
    steps = [
        [
            (Op.SEND, (I, 0), None, 1 - rank, None, 3),
            (Op.RECV_REDUCE_COPY, (I, 0), (O, 0), None, 1 - rank, 3),
        ]
        for rank in range(2)
    ]
    found = lifted(by_hand(sley.AllReduce(2, 3), steps))
    assert moves(found) == [
        (COPY, 0, I, 0, 0, O, 0, 3),
        (REDUCE, 1, I, 0, 0, O, 0, 3),
        (COPY, 1, I, 0, 1, O, 0, 3),
        (REDUCE, 0, I, 0, 1, O, 0, 3),
    ]


def chain(expected: Any, *more: tuple[Any, ...], in_place: bool = True) -> Plan:
    """Rank 0's two chunks go to rank 1, which adds its own and passes the sum on to rank 2
    without storing it; then rank 1 does `more`."""
    steps = [
        [(Op.SEND, (I, 0), None, 1, None, 2)],
        [(Op.RECV_REDUCE_SEND, (I, 0), None, 2, 0, 2), *more],
        [(Op.RECV, None, (O, 0), None, 1, 2)],
    ]
    return by_hand(sley.Custom("chain", 3, 2, 2, expected, in_place=in_place), steps)


def total(rank: int, index: int) -> list[tuple[int, int]] | None:
    return [(0, index), (1, index)] if rank == 2 else None


IN_PLACE = [(REDUCE, 0, I, 0, 1, I, 0, 2), (COPY, 1, I, 0, 2, O, 0, 2)]
THROUGH_SCRATCH = [
    (COPY, 1, I, 0, 1, S, 0, 2),
    (REDUCE, 0, I, 0, 1, S, 0, 2),
    (COPY, 1, S, 0, 2, O, 0, 2),
]


def test_a_sum_that_is_only_passed_on_takes_the_place_of_its_operand() -> None:
    assert moves(lifted(chain(total))) == IN_PLACE


def test_a_sum_leaves_an_operand_that_is_part_of_the_result() -> None:
    def kept(rank: int, index: int) -> list[tuple[int, int]] | None:
        # One of the two chunks is enough.
        return [(1, index)] if rank == 1 and index == 1 else total(rank, index)

    assert moves(lifted(chain(kept))) == THROUGH_SCRATCH
    # Out of place the input is nobody's result.
    assert moves(lifted(chain(total, in_place=False))) == IN_PLACE


def test_a_sum_leaves_an_operand_that_is_read_later() -> None:
    def second(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(1, 1)] if (rank, index) == (1, 0) else total(rank, index)

    read = chain(second, (Op.COPY, (I, 1), (O, 0)), in_place=False)
    assert sorted(moves(lifted(read))) == sorted([*THROUGH_SCRATCH, (COPY, 1, I, 1, 1, O, 0, 1)])

    def twice(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(1, 0), (1, 1)] if (rank, index) == (1, 0) else total(rank, index)

    # A local reduction reads what it writes.
    reduced = chain(twice, (Op.REDUCE, (I, 1), (I, 0)))
    assert sorted(moves(lifted(reduced)))[:2] == sorted(THROUGH_SCRATCH)[:2]


def test_a_sum_takes_the_place_of_an_operand_that_is_overwritten_before_it_is_read() -> None:
    over = chain(total, (Op.COPY, (O, 0), (I, 0), None, None, 2), in_place=False)
    written = with_first(over, 1, (Op.COPY, (I, 0), (O, 0), 2))
    assert sorted(moves(lifted(written)))[-1] == IN_PLACE[0]


def with_first(
    plan: Plan, rank: int, step: tuple[Op, tuple[int, int], tuple[int, int], int]
) -> Plan:
    """The plan in which a rank starts with a local instruction."""
    op, src, dst, count = step
    at = int(plan.block_offset[rank])
    values = {
        "op": op,
        "src_buffer": src[0],
        "src_index": src[1],
        "dst_buffer": dst[0],
        "dst_index": dst[1],
        "count": count,
    }
    columns = {
        name: np.insert(getattr(plan.instructions, name), at, values.get(name, NONE))
        for name in Instructions.column_names()
    }
    offset = plan.block_offset + (np.arange(len(plan.block_offset)) > rank)
    rows = int(offset[-1])
    return replace(
        plan,
        instructions=Instructions(**columns),
        block_offset=offset,
        waits=Edges.empty(rows),
    )


def test_a_sum_that_is_only_passed_on_lands_where_its_operand_is_added() -> None:
    # Both send early, both add to what came and send that on; what they added is read again.
    steps = [
        [
            (Op.SEND, (I, 0), None, 1 - rank),
            (Op.COPY, (I, 1), (I, 0)),
            (Op.RECV_REDUCE_SEND, (I, 0), None, 1 - rank, 1 - rank),
            (Op.COPY, (I, 0), (O, 1)),
            (Op.RECV, None, (O, 0), None, 1 - rank),
        ]
        for rank in range(2)
    ]

    def expected(rank: int, index: int) -> list[tuple[int, int]]:
        return [(rank, 0), (1 - rank, 1)] if index == 0 else [(rank, 1)]

    found = lifted(by_hand(sley.Custom("back", 2, 2, 2, expected), steps))
    assert (found.transfers.src != found.transfers.dst).sum() == 4
    # One message landed in the scratch in which the operand is added to it; the other reduces.
    kinds = found.transfers.kind[found.transfers.dst_buffer == S].tolist()
    assert sorted(kinds) == [COPY, COPY, REDUCE, REDUCE]
    assert found.scratch_chunks.tolist() == [1, 1]


def test_unused_scratch_is_left_out_and_nops_vanish() -> None:
    plan = rotation(2, 1)
    wide = replace(plan, scratch_chunks=np.array([5, 0], np.int32))
    assert lifted(wide).scratch_chunks.tolist() == [0, 1]
    empty = by_hand(sley.Custom("nothing", 1, 1, 1, lambda r, i: None), [[(Op.NOP,)]])
    assert len(lifted(empty).transfers) == 0


def test_plans_that_cannot_run_are_refused() -> None:
    plan = rotation(3, 2)
    two_blocks = replace(
        plan, block_rank=np.array([0, 0, 1, 2]), block_offset=np.array([0, 2, 4, 8, 12])
    )
    wrong = {
        "operation": with_columns(plan, 0, op=99),
        "buffer": with_columns(plan, 0, src_buffer=7),
        "index": with_columns(plan, 0, src_index=1),
        "sends alone": with_columns(plan, 1, op=Op.NOP),
        "receives alone": with_columns(plan, 0, op=Op.NOP),
        "counts": replace(
            with_columns(plan, 0, count=2, src_buffer=S), scratch_chunks=np.full(3, 2, np.int32)
        ),
        "wait for itself": with_waits(plan, [(0, 0)]),
        "wait for later": with_waits(plan, [(0, 3)]),
        "two blocks": two_blocks,
        "overlap": by_hand(
            sley.Custom("o", 1, 3, 3, lambda r, i: None),
            [[(Op.COPY, (I, 0), (I, 1), None, None, 2)]],
        ),
    }
    for what, broken in wrong.items():
        with pytest.raises(sley.SleyError) as caught:
            lift(broken)
        assert caught.value.code == "C320", what
    with pytest.raises(sley.SleyError, match="C307"):
        lift(lift(plan))  # type: ignore[arg-type]
