"""Groups: programs in which switches reduce and multicast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.groups import without_groups
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, SENDS, Op, Protocol
from sley.lang import ChunkProgram
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs, run


def nvls(ranks: int, *, in_place: bool = True, unit: int = 1) -> sley.Program:
    def body(p: ChunkProgram) -> None:
        for rank in range(ranks):
            others = [other for other in range(ranks) if other != rank]
            own = p.chunk(rank, "in", rank * unit, unit)
            if not in_place:
                own = own.copy(rank, "out", rank * unit)
            total = own.load_reduce(p.chunk(others, "in", rank * unit, unit))
            total.multicast(others, "out", rank * unit)

    return sley.trace(sley.AllReduce(ranks, ranks * unit, in_place=in_place), body, name="nvls")


def code_of(error: pytest.ExceptionInfo[sley.SleyError]) -> str:
    return error.value.code


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_an_allreduce_in_the_switch_is_one_instruction_a_rank(ranks: int, in_place: bool) -> None:
    plan = sley.compile(nvls(ranks, in_place=in_place), instances=2)
    grouped = plan.instructions.op[plan.grouped]
    assert len(grouped) == 2 * ranks, "an instruction for each rank and part"
    assert set(grouped.tolist()) == {Op.RECV_REDUCE_COPY_SEND}
    assert len(plan.groups.offset) == ranks + 1, "a group of all others for each rank"
    assert not (plan.instructions.op == Op.COPY).any(), "the own part is read in the input"
    assert plan.blocks_per_rank == 6, "for each part a block that sends, one for the switch, ..."


def test_receives_of_groups_that_wait_for_slots_are_split_once() -> None:
    """Each of their messages makes them a candidate."""

    def body(p: ChunkProgram) -> None:
        def group(head: int, others: list[int], chunk: int) -> None:
            total = p.chunk(head, "in", chunk).load_reduce(p.chunk(others, "in", chunk), channel=0)
            total.multicast(others, "in", chunk, channel=0)

        group(2, [0, 1], 0)
        passed = p.chunk(0, "in", 6).copy(1, "scratch", 0, channel=0)
        passed.copy(2, "scratch", 1, channel=0)
        group(2, [0, 1], 2)
        group(1, [0, 2], 3)
        group(2, [0, 1], 4)

    collective = sley.Custom("any", 3, 8, 8, lambda rank, k: None, in_place=True)
    plan = sley.compile(sley.trace(collective, body), slots=2)
    assert len(plan.grouped) > 0


def test_two_parts_share_no_block_of_the_switch() -> None:
    plan = sley.compile(nvls(4, unit=2))
    blocks = plan.block[plan.grouped]
    assert len(set(blocks.tolist())) == 4
    others = np.setdiff1d(np.arange(len(plan.instructions)), plan.grouped)
    assert not set(plan.block[others].tolist()) & set(blocks.tolist())


def test_a_requested_channel_after_a_multicast_leaves_its_group_together() -> None:
    """The rank that passes on what it got may use another channel than the group."""

    def body(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).multicast([1, 2, 3], "out", 0)
        for rank in (2, 3):
            p.chunk(rank, "out", 0).multicast([0, 1], "out", rank - 1, channel=1)

    wanted = {(1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (0, 2), (1, 2)}
    collective = sley.Custom(
        "passed on", 4, 1, 3, lambda rank, k: [(0, 0)] if (rank, k) in wanted else None, chunks=1
    )
    plan = sley.compile(sley.trace(collective, body))
    sent = plan.instructions.send_peer >= 4
    assert sent.sum() == 3, "three multicasts"


@examples(16)
@given(
    random_programs(groups=True),
    st.sampled_from([1, 1, 2, 8]),
    st.sampled_from([Protocol.SIMPLE, Protocol.DIRECT]),
    st.booleans(),
    st.sampled_from([(1, 1), (2, 1), (1, 3)]),
    st.integers(0, 9),
)
def test_random_groups_run_right(
    random: RandomProgram,
    slots: int,
    protocol: Protocol,
    fusion: bool,
    parts: tuple[int, int],
    count: int,
) -> None:
    instances, channels = parts
    plan = sley.compile(
        random.program,
        slots=slots,
        protocol=protocol,
        fusion=fusion,
        instances=instances,
        channels=channels,
        verify=False,
    )
    sley.verify(plan)
    expanded = without_groups(plan)
    sley.verify(expanded)
    assert (expanded.instructions.send_peer < random.ranks).all()
    run(random, plan, count)


@examples(11)
@given(random_programs(groups=True), st.sampled_from([1, 2]))
def test_without_switches_random_groups_are_ordinary_transfers(
    random: RandomProgram, slots: int
) -> None:
    plan = sley.compile(random.program, slots=slots, switches=False)
    assert not len(plan.groups)
    assert not len(plan.grouped)
    run(random, plan, 3)


@examples(14)
@given(random_programs(groups=True))
def test_transfers_of_a_group_are_one_instruction_where_they_meet(random: RandomProgram) -> None:
    plan = sley.compile(random.program)
    t, rows = random.program.transfers, plan.instructions
    sends, receives = int(SENDS[rows.op].sum()), int(RECEIVES[rows.op].sum())
    remote = t.remote
    factor = t.instances[remote]
    assert sends == int((factor * (t.sender[remote] == np.flatnonzero(remote))).sum())
    assert receives == int((factor * (t.receiver[remote] == np.flatnonzero(remote))).sum())


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "hpds"},
        {"schedule": "round-robin"},
        {"protocol": "LL"},
        {"protocol": "LL128"},
        {"allocate": "state"},
        {"max_blocks": 4},
        {"per_chunk": True},
    ],
)
def test_options_without_groups_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(sley.SleyError) as error:
        sley.compile(nvls(4), **options)
    assert code_of(error) == "C314"
    plan = sley.compile(nvls(4), switches=False, **options)
    assert not len(plan.groups)


def test_a_topology_without_such_switches_is_refused() -> None:
    with pytest.raises(sley.SleyError) as error:
        sley.compile(nvls(8), topology=sley.topologies.ndv4())
    assert code_of(error) == "C315"
    with pytest.raises(sley.SleyError) as error:
        sley.compile(nvls(16), topology=sley.topologies.dgx_h100_nvls(2))
    assert code_of(error) == "C315"
    assert "two nodes" in str(error.value)
    sley.compile(nvls(8), topology=sley.topologies.dgx_h100_nvls())


def test_lifted_groups_are_transfers_of_their_own() -> None:
    lifted = sley.lift(sley.compile(nvls(4)))
    assert (lifted.transfers.group == NONE).all()
    sley.compile(lifted, schedule="hpds")


def test_a_plan_with_groups_is_stored_and_read() -> None:
    from sley.formats.plan_file import decode, encode
    from sley.ir.plan_digest import digest

    plan = sley.compile(nvls(3))
    assert decode(encode(plan)) == plan
    other = replace(plan, groups=without_groups(plan).groups)
    assert digest(other) != digest(plan)


def _written(p: ChunkProgram, statement: str) -> None:
    c = p.chunk(0, "in", 0)
    others = np.array([1, 2])
    match statement:
        case "own rank":
            c.multicast([0, 1], "out", 0)
        case "a rank twice":
            c.multicast([1, 1], "out", 0)
        case "several indices":
            c.load_reduce(p.chunk(others, "in", [0, 1]))
        case "several sources":
            p.chunk(others, "in", 0).multicast([0], "out", 0)
        case "own rank reduced":
            c.load_reduce(p.chunk([0, 1], "in", 1))


@pytest.mark.parametrize(
    "statement",
    ["own rank", "a rank twice", "several indices", "several sources", "own rank reduced"],
)
def test_a_bad_group_is_refused_at_its_line(statement: str) -> None:
    with pytest.raises(sley.SleyError) as error:
        sley.trace(sley.AllReduce(3, 2), lambda p: _written(p, statement))
    assert code_of(error) == "L137"
    assert "test_groups.py" in str(error.value)


def test_counts_that_vary_have_no_groups() -> None:
    with pytest.raises(sley.SleyError) as error:
        sley.trace(
            sley.AllGatherV(3), lambda p: p.chunk(0, "in", 0).multicast([1, 2], "out", 0) and None
        )
    assert code_of(error) == "L137"
