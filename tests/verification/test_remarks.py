"""Instructions without effect on the result give a remark and leave the result unchanged."""

from __future__ import annotations

import numpy as np
import pytest

import sley
from sley.ir.words import Op
from sley.verification.values import Values
from support.inputs.small_plans import IN, OUT, SCRATCH, Hand
from support.processes.rank_threads import execute


def remarks(plan: sley.Plan) -> list[tuple[str, str, str]]:
    """Of each remark its code, its place and what was found."""
    return [(r.code, str(r.places[0]), r.found) for r in sley.verify(plan).remarks]


def outputs(plan: sley.Plan, data: list[np.ndarray]) -> list[np.ndarray]:
    """Each rank's output by the engine, and by kernels on threads."""
    return [*execute(plan, data), *sley.execute(plan, data, devices="threads")]


def exchange(op: Op, source: tuple[int, int]) -> Hand:
    """Rank 0 sends what it has at `source`, and rank 1 receives it into its scratch, doing `op`
    with it into its output, which holds its input."""
    hand = Hand()
    hand.add(0, 0, Op.SEND, source, to=1)
    hand.add(1, 0, Op.COPY, (IN, 0), (OUT, 0))
    hand.add(1, 0, Op.RECV, dst=(SCRATCH, 0), of=0)
    hand.add(1, 0, op, (SCRATCH, 0), (OUT, 0))
    return hand


def own(*ranks: int) -> sley.Collective:
    """Rank 1's output is the sum of the inputs of some ranks."""
    return sley.Custom(
        "own", 2, 1, 1, lambda rank, index: [(r, 0) for r in ranks] if rank else None
    )


def test_a_plan_that_needs_all_it_does_has_no_remarks() -> None:
    assert remarks(exchange(Op.REDUCE, (IN, 0)).plan(own(0, 1), scratch=1)) == []


def test_what_nothing_has_written_may_be_read_where_it_reaches_no_promised_chunk() -> None:
    hand = exchange(Op.NOP, (SCRATCH, 0))
    found = "reads rank 0 scratch[0], which holds nothing; the value is unused"
    plan = hand.plan(own(1), scratch=1)
    assert remarks(plan) == [("V210", "by_hand.py:1, rank 0, block 0, step 0 (send)", found)]
    numbers = [np.array([5]), np.array([7])]
    assert execute(plan, numbers)[1].tolist() == [7]


def test_what_was_made_of_nothing_holds_nothing_until_it_is_overwritten() -> None:
    hand = Hand()
    hand.add(0, 0, Op.COPY, (SCRATCH, 0), (OUT, 0))
    hand.add(0, 0, Op.COPY, (IN, 0), (SCRATCH, 1))
    hand.add(0, 0, Op.REDUCE, (OUT, 0), (SCRATCH, 1))
    keep = sley.Custom("keep", 1, 1, 1, lambda rank, index: [(0, 0)])
    with pytest.raises(sley.SleyError, match=r"V205[^V]*rank 0 scratch\[0\] holds none"):
        sley.verify(hand.plan(keep, scratch=2))
    hand.add(0, 0, Op.COPY, (IN, 0), (OUT, 0))
    assert [code for code, *_ in remarks(hand.plan(keep, scratch=2))] == ["V210", "V210"]


@pytest.mark.parametrize("op", [Op.COPY, Op.REDUCE])
def test_nothing_that_reaches_a_promised_chunk_is_refused_where_it_is_read(op: Op) -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.verify(exchange(op, (SCRATCH, 0)).plan(own(1), scratch=1))
    (found,) = caught.value.diagnostics
    assert found.code == "V205"
    assert str(found.places[0]) == "by_hand.py:1, rank 0, block 0, step 0 (send)"
    assert found.found == "rank 0 scratch[0] holds none when it is read"


def test_a_read_before_the_only_write_names_the_write() -> None:
    hand = Hand()
    for cell in (1, 2):
        hand.add(0, 0, Op.COPY, (SCRATCH, cell - 1), (OUT, cell - 1))
    hand.add(0, 0, Op.COPY, (IN, 0), (SCRATCH, 0))
    keep = sley.Custom("keep", 1, 1, 2, lambda rank, index: [(0, 0)])
    with pytest.raises(sley.SleyError) as caught:
        sley.verify(hand.plan(keep, scratch=2))
    early, never = caught.value.diagnostics
    assert early.places[1].detail == "written only here, rank 0, block 0, step 2 (copy)"
    assert early.remedy == "Let the write come before the read."
    assert len(never.places) == 1
    assert never.remedy == never.rule.instead


def test_a_promised_chunk_that_nobody_writes_is_a_wrong_result() -> None:
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (SCRATCH, 0))
    with pytest.raises(sley.SleyError, match=r"V206[^V]*nothing was written there"):
        sley.verify(hand.plan(sley.Custom("keep", 1, 1, 1, lambda r, i: [(0, 0)]), scratch=1))


@pytest.mark.parametrize("buffer", ["in", "out", "scratch"])
@pytest.mark.parametrize("collective", [sley.AllReduce(2, 2), sley.AllToAll(2)])
def test_in_place_is_the_remedy_where_only_inputs_are_written(
    collective: sley.Collective, buffer: str
) -> None:
    @sley.program(collective)
    def forgotten(p: sley.ChunkProgram) -> None:
        for rank in range(2):
            p.chunk(rank, "in", rank).copy(1 - rank, buffer, rank)

    with pytest.raises(sley.SleyError, match="V206") as caught:
        sley.compile(forgotten)
    remedy = caught.value.diagnostics[0].remedy
    assert ("in_place=True" in remedy) == (buffer == "in")


def test_nothing_stays_nothing_whatever_is_added_to_it() -> None:
    """Numbers of inputs saturate: no sum of them may come out of what was never written."""
    nothing = Values.nothing(1)
    many = Values(np.ones((1, 2), np.uint64), np.array([2**61]))
    for value in (nothing + many + many, many + (many + nothing), nothing + nothing + many + many):
        assert value.number.tolist() == nothing.number.tolist()
    assert (many + many).number.tolist() == [2**61]


def test_a_copy_onto_itself_is_right_and_remarked() -> None:
    """An AllGather in place whose ranks copy their part into the output, where it is."""
    hand = Hand()
    for rank in range(2):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=1 - rank)
        hand.add(rank, 1, Op.COPY, (IN, 0), (OUT, rank))
        hand.add(rank, 1, Op.RECV, dst=(OUT, 1 - rank), of=1 - rank)
    plan = hand.plan(sley.AllGather(2, in_place=True))
    assert remarks(plan) == [
        ("V210", f"by_hand.py:{line}, rank {rank}, block 1, step 0 (copy)", text)
        for rank, line in ((0, 2), (1, 5))
        for text in ["copies its chunks onto themselves"]
    ]
    for count in (3, 5000):
        data = [np.arange(2 * count), -np.arange(2 * count)]
        gathered = [*range(count), *range(-count, -2 * count, -1)]
        for output in outputs(plan, data):
            assert output.tolist() == gathered
    again = sley.compile(sley.lift(plan), verify=False)
    assert remarks(again) == []


def test_a_copy_onto_itself_must_be_ordered_after_what_overwrites_its_chunk() -> None:
    """It would put back what it has read."""
    hand = Hand()
    hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0)
    hand.add(1, 1, Op.COPY, (OUT, 0), (OUT, 0))
    with pytest.raises(sley.SleyError, match="V204"):
        sley.verify(hand.plan(own(0)))
    hand.blocks[1, 1][0]["waits"] = ((0, 0),)
    assert [code for code, *_ in remarks(hand.plan(own(0)))] == ["V210"]


def test_a_reduction_onto_itself_doubles() -> None:
    hand = Hand()
    hand.add(0, 0, Op.COPY, (IN, 0), (OUT, 0))
    hand.add(0, 0, Op.REDUCE, (OUT, 0), (OUT, 0))
    doubled = sley.Custom("double", 1, 1, 1, lambda rank, index: [(0, 0), (0, 0)])
    plan = hand.plan(doubled)
    assert remarks(plan) == []
    data = [np.arange(5000)]
    for output in outputs(plan, data):
        assert output.tolist() == (2 * data[0]).tolist()
    with pytest.raises(sley.SleyError, match="V206"):
        sley.verify(hand.plan(sley.Custom("keep", 1, 1, 1, lambda rank, index: [(0, 0)])))
    with pytest.raises(sley.SleyError, match="C320"):
        sley.lift(plan)
