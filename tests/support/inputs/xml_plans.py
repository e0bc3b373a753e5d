"""Plans and files written by hand, for the tests of the formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sley.ir.collective import Collective
from sley.ir.collectives import AllReduce
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, offsets_of
from sley.ir.words import Buffer, LoopOrder, Op, Protocol

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741 - the format's own words


@dataclass(frozen=True)
class Step:
    """One instruction; `waits` are (block, step) of the same rank."""

    op: Op
    src: tuple[int, int] = (NONE, NONE)
    dst: tuple[int, int] = (NONE, NONE)
    count: int = 1
    send: int = NONE
    recv: int = NONE
    chan: int = NONE
    waits: tuple[tuple[int, int], ...] = ()


def plan_of(
    collective: Collective,
    ranks: Sequence[Sequence[Sequence[Step]]],
    *,
    scratch: Sequence[int] | None = None,
    protocol: Protocol = Protocol.LL,
    name: str = "by hand",
) -> Plan:
    """A plan from the steps of the blocks of the ranks."""
    blocks = [(rank, block) for rank, own in enumerate(ranks) for block in own]
    steps = [step for _, block in blocks for step in block]
    offset = offsets_of(np.array([len(block) for _, block in blocks]))
    first = np.searchsorted([rank for rank, _ in blocks], range(len(ranks)))
    pairs = [
        (row, int(offset[first[blocks[b][0]] + block] + step))
        for b in range(len(blocks))
        for row in range(int(offset[b]), int(offset[b + 1]))
        for block, step in steps[row].waits
    ]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    none = [NONE] * len(steps)
    return Plan(
        name=name,
        collective=collective,
        protocol=protocol,
        loop_order=LoopOrder.TILE,
        slots=protocol.slots,
        instructions=Instructions(
            op=[s.op for s in steps],
            src_buffer=[s.src[0] for s in steps],
            src_index=[s.src[1] for s in steps],
            dst_buffer=[s.dst[0] for s in steps],
            dst_index=[s.dst[1] for s in steps],
            count=[s.count for s in steps],
            send_peer=[s.send for s in steps],
            recv_peer=[s.recv for s in steps],
            channel=[s.chan for s in steps],
            transfer=none,
            forward=none,
            pipeline=none,
            source=none,
        ),
        block_rank=np.array([rank for rank, _ in blocks], np.int32),
        block_offset=offset,
        waits=Edges.from_pairs(len(steps), source, target),
        scratch_chunks=np.array(scratch or [0] * len(ranks), np.int32),
        sources=Sources.of_file("", []),
    )


def exchange(in_place: bool = True) -> Plan:
    """AllReduce of two ranks: each sends the other's half, reduces its own, and sends the
    result."""

    def rank(own: int) -> list[list[Step]]:
        peer = 1 - own
        result = I if in_place else O
        return [
            [
                Step(Op.SEND, (I, peer), send=peer, chan=0),
                Step(Op.RECV_REDUCE_COPY_SEND, (I, own), (result, own), 1, peer, peer, 0),
                Step(Op.RECV, dst=(result, peer), recv=peer, chan=0),
            ]
        ]

    return plan_of(AllReduce(2, 2, in_place), [rank(0), rank(1)], name="exchange")


def many_waits() -> Plan:
    """AllReduce of two ranks through scratch, whose last steps wait for several blocks."""

    def rank(own: int) -> list[list[Step]]:
        peer = 1 - own
        receive = [[Step(Op.RECV, dst=(S, part), recv=peer, chan=part)] for part in range(3)]
        sends = [[Step(Op.SEND, (I, part), send=peer, chan=part)] for part in range(3)]
        reduce = [
            Step(
                Op.REDUCE,
                (S, 0),
                (I, 0),
                3,
                waits=tuple((block, 0) for block in range(6)),
            )
        ]
        return [*receive, *sends, reduce]

    return plan_of(
        AllReduce(2, 3, in_place=True), [rank(0), rank(1)], scratch=[3, 3], name="many waits"
    )


def same_meaning(a: Plan, b: Plan) -> bool:
    """Whether two plans have the same instructions, waits and memory, regardless of their lines."""
    columns = [
        n
        for n in a.instructions.column_names()
        if n not in ("source", "transfer", "forward", "pipeline")
    ]
    return (
        all(np.array_equal(getattr(a.instructions, n), getattr(b.instructions, n)) for n in columns)
        and np.array_equal(a.block_rank, b.block_rank)
        and np.array_equal(a.block_offset, b.block_offset)
        and np.array_equal(a.scratch_chunks, b.scratch_chunks)
        and a.waits == b.waits
        and a.collective == b.collective
        and a.protocol is b.protocol
        and a.loop_order is b.loop_order
    )


def with_instructions(plan: Plan, **columns: object) -> Plan:
    """The plan with other values in some columns of its instructions."""
    return replace(plan, instructions=replace(plan.instructions, **columns))


VALID = """\
<algo name="pair" proto="LL" nchannels="2" nchunksperloop="2" ngpus="2" coll="allreduce" \
inplace="0" outofplace="1" minBytes="0" maxBytes="1024">
  <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="2">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="-1" \
deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="s" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" \
deps="-1" hasdep="1"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" \
deps="-1" hasdep="0"/>
      <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="0" \
deps="1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="2" s_chunks="2">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="2" depid="-1" \
deps="-1" hasdep="0"/>
      <step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" \
deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
"""A valid file; tests that break it rely on its line numbers."""


def broken(line: int, old: str, new: str) -> str:
    """VALID with `old` on a line (1-based) replaced by `new`."""
    lines = VALID.splitlines()
    assert old in lines[line - 1], f"line {line} has no {old!r}"
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines) + "\n"
