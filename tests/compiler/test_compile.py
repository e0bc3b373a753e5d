"""The compiler's own cases: fusion, channels, blocks, waits, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sley
from sley.ir.words import RECEIVES, SENDS, Op
from sley.lang import ChunkProgram
from sley.report.tables import plan_table
from support.checks.golden import Golden


def operations(plan: sley.Plan, rank: int) -> list[str]:
    return [Op(op).name for op in plan.instructions.op[plan.rank == rank].tolist()]


def relay(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0).copy(2, "out", 0)


RELAYED = sley.Custom("relay", 3, 1, 1, lambda rank, index: [(0, 0)] if rank else None)


def test_a_relay_is_fused_and_without_fusion_is_not() -> None:
    program = sley.trace(RELAYED, relay)
    assert operations(sley.compile(program), 1) == ["RECV_COPY_SEND"]
    assert sorted(operations(sley.compile(program, fusion=False), 1)) == ["RECV", "SEND"]


def test_a_reduction_that_nobody_else_reads_is_not_stored() -> None:
    def pass_on(p: ChunkProgram) -> None:
        c = p.chunk(1, "in", 0).reduce(p.chunk(0, "in", 0))
        p.chunk(2, "in", 0).reduce(c).copy(2, "out", 0)

    def promised(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(0, 0), (1, 0), (2, 0)] if rank == 2 else None

    collective = sley.Custom("sum", 3, 1, 1, promised)
    assert operations(sley.compile(sley.trace(collective, pass_on)), 1) == ["RECV_REDUCE_SEND"]

    def read_later(p: ChunkProgram) -> None:
        pass_on(p)
        p.chunk(1, "in", 0).copy(1, "out", 0)

    def also(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(0, 0), (1, 0)] if rank == 1 else promised(rank, index)

    kept = sley.compile(sley.trace(sley.Custom("sums", 3, 1, 1, also), read_later))
    assert "RECV_REDUCE_COPY_SEND" in operations(kept, 1)


def test_the_send_on_the_longest_path_is_fused() -> None:
    def fork(p: ChunkProgram) -> None:
        c = p.chunk(0, "in", 0).copy(1, "out", 0)
        c.copy(2, "out", 0)
        c.copy(3, "out", 0).copy(4, "out", 0)

    collective = sley.Custom("fork", 5, 1, 1, lambda rank, index: [(0, 0)] if rank else None)
    plan = sley.compile(sley.trace(collective, fork))
    fused = np.flatnonzero(SENDS[plan.instructions.op] & RECEIVES[plan.instructions.op])
    assert plan.instructions.send_peer[fused[plan.rank[fused] == 1]].tolist() == [3]


def test_a_write_in_between_prevents_fusion() -> None:
    """Trap 1: the send's source is not what the receive left there."""

    def overwritten(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0, 2).copy(1, "scratch", 0)
        p.chunk(1, "in", 0).copy(1, "scratch", 1)
        p.chunk(1, "scratch", 0, 2).copy(2, "out", 0)

    def promised(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [[(0, 0)], [(1, 0)]][index] if rank == 2 else None

    plan = sley.compile(sley.trace(sley.Custom("mix", 3, 2, 2, promised), overwritten))
    assert "RECV_COPY_SEND" not in operations(plan, 1)


def test_instances_never_share_a_channel() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(4), instances=3)
    assert plan.channels == 3
    assert plan.collective.chunks == 12
    assert len(plan.block_rank) == 4 * 3


def test_blocks_given_by_hand_get_what_was_asked_for() -> None:
    def by_hand(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(1, "out", 0, send_block=1, recv_block=0)
        p.chunk(1, "in", 0).copy(0, "out", 0, send_block=0, recv_block=0)

    def promised(rank: int, index: int) -> list[tuple[int, int]]:
        return [(1 - rank, 0)]

    plan = sley.compile(sley.trace(sley.Custom("exchange", 2, 1, 1, promised), by_hand))
    peers = zip(plan.block, plan.instructions.send_peer, plan.instructions.recv_peer, strict=True)
    assert {(int(b), int(s), int(r)) for b, s, r in peers} >= {(0, -1, 1), (1, 1, -1)}
    assert plan.block_rank.tolist() == [0, 0, 1]


def two_send_peers(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0, send_block=0)
    p.chunk(0, "in", 0).copy(2, "out", 0, send_block=0)


def two_channels(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0, channel=0, send_block=0)
    p.chunk(1, "in", 0).copy(0, "out", 0, channel=1, recv_block=0)


def one_connection_twice(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0, channel=0, send_block=0)
    p.chunk(0, "in", 0).copy(1, "scratch", 0, channel=0, send_block=1)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (two_send_peers, "C302", "sends to rank 1 on channel 0 and sends to rank 2 on channel 0"),
        (
            two_channels,
            "C302",
            "sends to rank 1 on channel 0 and receives from rank 1 on channel 1",
        ),
        (one_connection_twice, "C302", "blocks 1 and 0"),
    ],
)
def test_impossible_blocks_are_refused(body: object, code: str, words: str) -> None:
    collective = sley.Custom("any", 3, 1, 1, lambda rank, index: None)
    with pytest.raises(sley.SleyError, match=words) as caught:
        sley.compile(sley.trace(collective, body))  # type: ignore[arg-type]
    assert caught.value.code == code
    lines = sorted(place.line for place in caught.value.diagnostics[0].places)
    start = body.__code__.co_firstlineno  # type: ignore[attr-defined]
    assert lines == [start + 1, start + 2]


def test_unlinked_ranks_are_refused() -> None:
    def across(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(5, "out", 0)

    program = sley.trace(sley.Custom("any", 8, 1, 1, lambda rank, index: None), across)
    with pytest.raises(sley.SleyError, match=r"rank 0 -> rank 5.*dgx1 does not link") as caught:
        sley.compile(program, topology=sley.topologies.dgx1())
    assert caught.value.code == "C301"
    assert caught.value.diagnostics[0].places[0].file == __file__


def test_a_topology_with_too_few_ranks_is_refused() -> None:
    with pytest.raises(sley.SleyError, match="C305"):
        sley.compile(sley.algorithms.ring_allreduce(4), topology=sley.topologies.cluster(1, 3))


@pytest.mark.parametrize("option", ["slots", "channels", "instances"])
def test_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(sley.SleyError, match=f"C304[^E]*{option}=0"):
        sley.compile(sley.algorithms.ring_allreduce(2), **{option: 0})
    for value in (1.5, "2", True, 10**9):
        with pytest.raises(sley.SleyError, match="C304"):
            sley.compile(sley.algorithms.ring_allreduce(2), **{option: value})


@pytest.mark.parametrize(
    "call",
    [
        lambda: sley.compile(sley.compile(sley.algorithms.ring_allreduce(2))),  # type: ignore
        lambda: sley.compile(relay),  # type: ignore[arg-type]
        lambda: sley.compile(sley.algorithms.ring_allreduce(2), topology=8),  # type: ignore
        lambda: sley.verify(sley.algorithms.ring_allreduce(2)),  # type: ignore[arg-type]
        lambda: sley.run(sley.algorithms.ring_allreduce(2), [1024]),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_another_kind_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(sley.SleyError, match="C307"):
        call()


def test_protocols_may_be_given_by_name() -> None:
    program = sley.algorithms.ring_allreduce(2)
    assert sley.compile(program, protocol="ll128").protocol is sley.Protocol.LL128
    with pytest.raises(sley.SleyError, match="C304"):
        sley.compile(program, protocol="fast")


def channels_of(program: sley.Program, **options: int) -> list[int]:
    """The channel of each transfer of the program, in its order."""
    plan = sley.compile(program, **options)
    t = plan.instructions
    channel = {}
    for row in range(len(t)):
        channel[int(t.transfer[row])] = int(t.channel[row])
        if t.forward[row] >= 0:
            channel[int(t.forward[row])] = int(t.channel[row])
    return [channel[k] for k in sorted(channel)]


def test_channels_by_hand_are_kept_in_chains() -> None:
    def three_hops(p: ChunkProgram) -> None:
        c = p.chunk(0, "in", 0).copy(1, "scratch", 0, channel=1).copy(2, "scratch", 0)
        c.copy(3, "out", 0, channel=2)

    collective = sley.Custom("far", 4, [1, 0, 0, 0], [0, 0, 0, 1], lambda rank, index: [(0, 0)])
    assert channels_of(sley.trace(collective, three_hops)) == [1, 1, 2]


def test_a_block_by_hand_further_down_a_chain_decides_its_channel() -> None:
    def body(p: ChunkProgram) -> None:
        c = p.chunk(1, "in", 1).copy(0, "out", 0)
        c.copy(2, "in", 1, send_block=0, recv_block=0)
        p.chunk(0, "in", 0).copy(2, "out", 1, recv_block=0)

    program = sley.trace(sley.Custom("any", 3, 2, 2, lambda rank, index: None), body)
    for channels in (1, 2):
        sley.compile(program, channels=channels)


def test_channels_by_hand_are_kept_beside_parallel_parts() -> None:
    def body(p: ChunkProgram) -> None:
        with p.parallelize(2):
            p.chunk(0, "in", 0).copy(1, "scratch", 0, channel=7)
        p.chunk(1, "in", 0).copy(0, "scratch", 0, channel=3)

    program = sley.trace(sley.Custom("any", 2, 1, 1, lambda rank, index: None), body)
    assert channels_of(program) == [7, 8, 3]


def test_parts_that_cut_chunks_too_fine_are_refused() -> None:
    def body(p: ChunkProgram) -> None:
        for index, parts in enumerate((7, 11, 13, 17)):
            with p.parallelize(parts):
                p.chunk(0, "in", index).copy(1, "scratch", index)

    program = sley.trace(sley.Custom("any", 2, 4, 1, lambda rank, index: None), body)
    with pytest.raises(sley.SleyError, match=r"C304[^E]*7, 11, 13, 17"):
        sley.compile(program)


def forgotten(p: ChunkProgram) -> None:
    for rank in range(3):
        if rank != 1:
            p.chunk(rank, "in", 0).copy(rank, "out", rank)
        for other in range(3):
            if other != rank:
                p.chunk(rank, "in", 0).copy(other, "out", rank)


def reduced_twice(p: ChunkProgram) -> None:
    c = p.chunk(0, "in", 0).reduce(p.chunk(1, "in", 0))
    c = c.reduce(p.chunk(1, "in", 0))
    c.copy(1, "in", 0)


@pytest.mark.parametrize(
    ("collective", "body", "expected", "found"),
    [
        (
            sley.AllGather(3),
            forgotten,
            r"rank 1 out\[1\] = in\[0\] of rank 1",
            "nothing was written",
        ),
        (
            sley.AllReduce(2, in_place=True),
            reduced_twice,
            r"in\[0\] of ranks 0-1",
            r"too much: in\[0\] of rank 1",
        ),
    ],
)
def test_wrong_results_are_refused(
    collective: sley.Collective, body: object, expected: str, found: str
) -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.compile(sley.trace(collective, body))  # type: ignore[arg-type]
    assert caught.value.code == "V206"
    assert pytest.approx(1) == len(caught.value.diagnostics[:1])
    text = str(caught.value)
    for pattern in (expected, found):
        assert __import__("re").search(pattern, text), text


def test_compiling_twice_gives_the_same_plan() -> None:
    one, other = (sley.compile(sley.algorithms.hierarchical_allreduce(2, 4)) for _ in range(2))
    assert one.instructions == other.instructions
    assert one.waits == other.waits
    assert one.block_rank.tolist() == other.block_rank.tolist()


def test_a_plan_prints_as_the_golden_file(golden: Golden) -> None:
    plan = sley.compile(sley.algorithms.all_pairs_allreduce(3))
    lines = [line for rank in range(3) for line in plan_table(plan, rank)]
    golden("all-pairs-3.txt", "\n".join(lines) + "\n")


def test_what_goes_to_msccl_does_not_hang_where_every_chunk_takes_a_slot(tmp_path: Path) -> None:
    program = sley.algorithms.hierarchical_allreduce(4, 4, in_place=True)
    path = tmp_path / "plan.xml"
    with pytest.raises(sley.SleyError, match="V203"):
        sley.save(sley.compile(program), path)
    assert not path.exists()
    sley.save(sley.compile(program, per_chunk=True), path)
    assert sley.verify(sley.load(path), per_chunk=True).per_chunk
