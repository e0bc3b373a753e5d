"""Tables: a plan's thread blocks, the result of each compiler pass, runs in nccl-tests' format."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine.kernels import Engine
from sley.engine.measure import Comparison, Measurement
from sley.errors import counted
from sley.errors.language import L101
from sley.ir.dag import Allocated, Blocks, ChunkDag, Forwarded, InstructionDag, Links, Order
from sley.ir.plan import Estimate, Plan, check_kind
from sley.ir.program import Program
from sley.ir.tables import NONE, Table
from sley.ir.words import Buffer, Op, TransferKind, is_integer


class Text(str):
    """A text that is shown as it is, without quotation marks, by Python's prompt and notebooks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def table_lines(rows: Sequence[Sequence[str]], left: Container[int]) -> list[str]:
    """The lines of a table; columns in `left` are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if k in left else f"{cell:>{width}}"
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class Row:
    """The measurements of one size; None for a side that was not run."""

    out_of_place: Measurement | None
    in_place: Measurement | None

    @property
    def sides(self) -> list[Measurement]:
        """The measurements of the sides that were run."""
        return [m for m in (self.out_of_place, self.in_place) if m is not None]


RUN_HEADER = (
    f"# {'':10}  {'':12}  {'':>8}  {'':>7}  {'':>5}  "
    f"{'out-of-place':^34}  {'in-place':^34}\n"
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>7}  {'root':>5}  "
    + "  ".join([f"{'time':>9}  {'algbw':>7}  {'busbw':>7}  {'#wrong':>6}"] * 2)
    + f"\n# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>7}  {'':>5}  "
    + "  ".join([f"{'(us)':>9}  {'(GB/s)':>7}  {'(GB/s)':>7}  {'':>6}"] * 2)
)
"""The head of a run's table, as nccl-tests prints it."""


COMPARISON_HEADER = (
    f"# {'':10}  {'':12}  {'':>8}  {'':>7}  {'':>5}  "
    f"{'generated':^26}  {'interpreted':^26}  {'interp. /':>9}\n"
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>7}  {'root':>5}  "
    + "  ".join([f"{'time':>9}  {'busbw':>7}  {'#wrong':>6}"] * 2)
    + f"  {'generated':>9}\n# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>7}  {'':>5}  "
    + "  ".join([f"{'(us)':>9}  {'(GB/s)':>7}  {'':>6}"] * 2)
)
"""The head of a table that compares generated code and the interpreter."""


def run_head(plan: Plan, how: str) -> str:
    """The first lines of a run's table. how: the place of the run and the meaning of its times."""
    c = plan.collective
    return (
        f"# {plan.name}: {c.name} on {c.ranks} ranks, {plan.protocol.value}, "
        f"{counted(plan.channels, 'channel')}, {counted(plan.slots, 'slot')}; "
        f"proven before it runs\n# {how}\n#"
    )


def ratio(row: Comparison[Engine]) -> float:
    """The interpreter's time over the generated code's."""
    generated, interpreted = (row.measurements[engine].time_us for engine in Engine)
    return interpreted / generated


def mean_ratio(rows: Sequence[Comparison[Engine]]) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.mean(np.log([ratio(row) for row in rows]))))


def comparison_row(row: Comparison[Engine]) -> str:
    """A line of a comparison's table."""
    sides = [row.measurements[engine] for engine in Engine]
    cells = "  ".join(f"{m.time_us:>9.1f}  {m.busbw_GBps:>7.2f}  {_wrong(m):>6}" for m in sides)
    return f"{_call(sides[0])}  {cells}  {ratio(row):>9.3f}"


def comparison_footer(rows: Sequence[Comparison[Engine]]) -> str:
    """The last lines of a comparison's table."""
    return (
        f"# Out of bounds values : {_verdict([m for r in rows for m in r.measurements.values()])}\n"
        f"# Geometric mean of interpreted / generated : {mean_ratio(rows):.3f}"
    )


def run_row(row: Row) -> str:
    """A line of a run's table."""
    return f"{_call(row.sides[0])}  {_timing(row.out_of_place)}  {_timing(row.in_place)}"


def run_footer(rows: Sequence[Row]) -> str:
    """The last lines of a run's table, as nccl-tests prints them."""
    sides = [m for row in rows for m in row.sides]
    busbw = float(np.mean([m.busbw_GBps for m in sides])) if sides else 0.0
    return f"# Out of bounds values : {_verdict(sides)}\n# Avg bus bandwidth    : {busbw:.4g}"


def _call(m: Measurement) -> str:
    """The first cells of a line, which describe the call."""
    return f"  {m.size_bytes:>10}  {m.count:>12}  {m.dtype:>8}  {m.redop:>7}  {m.root:>5}"


def _timing(m: Measurement | None) -> str:
    if m is None:
        return f"{'-':>9}  {'-':>7}  {'-':>7}  {'-':>6}"
    return f"{m.time_us:>9.1f}  {m.algbw_GBps:>7.2f}  {m.busbw_GBps:>7.2f}  {_wrong(m):>6}"


def _wrong(m: Measurement) -> str:
    return "N/A" if m.wrong < 0 else str(m.wrong)


def _verdict(measurements: Sequence[Measurement]) -> str:
    if all(m.wrong < 0 for m in measurements):
        return "not checked"
    wrong = sum(max(m.wrong, 0) for m in measurements)
    return f"{wrong} {'FAILED' if wrong else 'OK'}"


def plan_summary(plan: Plan) -> dict[str, object]:
    """The properties of a plan as plain values."""
    c = plan.collective
    steps = np.diff(plan.block_offset)
    operations = np.bincount(plan.instructions.op, minlength=len(Op))
    scheduled: dict[str, object] = {}
    if plan.pipelines:
        scheduled["sub_pipelines"] = plan.pipelines
    if plan.estimate is not None:
        scheduled["estimate"] = estimate_summary(plan.estimate)
    return {
        "name": plan.name,
        "collective": c.name,
        "ranks": c.ranks,
        "chunks": c.chunks,
        "in_place": c.in_place,
        "protocol": plan.protocol.value,
        "loop_order": plan.loop_order.value,
        "slots": plan.slots,
        "per_chunk": plan.per_chunk,
        "channels": plan.channels,
        "blocks_per_rank": plan.blocks_per_rank,
        "instructions": len(plan.instructions),
        "instructions_per_block": int(steps.max(initial=0)),
        "waits": len(plan.waits),
        "scratch_chunks": int(plan.scratch_chunks.max(initial=0)),
        "operations": {op.name.lower(): int(operations[op]) for op in Op if operations[op]},
        **scheduled,
    }


def estimate_summary(estimate: Estimate) -> dict[str, object]:
    """The allocator's estimate: time, time with a block for each connection, and the idle share of
    the time, of an average thread block and of the idlest one."""
    idle = 1 - estimate.busy_us / max(estimate.time_us, 1e-9)
    return {
        "tiles": estimate.tiles,
        "time_us": round(estimate.time_us, 1),
        "unmerged_us": round(estimate.unmerged_us, 1),
        "idle_average": round(float(idle.mean()), 3) if len(idle) else 0.0,
        "idle_most": round(float(idle.max(initial=0.0)), 3),
    }


def estimate_lines(estimate: Estimate) -> list[tuple[str, str]]:
    """An estimate in words: pairs of a name and a value."""
    e = estimate_summary(estimate)
    return [
        ("estimated time", f"{e['time_us']} us with {counted(estimate.tiles, 'tile')}"),
        (
            "unmerged blocks",
            f"{e['unmerged_us']} us, the schedule with a block for each connection",
        ),
        (
            "idle",
            f"{e['idle_average']:.0%} of the time on average, {e['idle_most']:.0%} in the "
            "idlest block",
        ),
    ]


def pipeline_table(plan: Plan) -> list[str]:
    """The sub-pipelines of a plan (ResCCL 4.3), a line for each transfer; empty for a plan without
    sub-pipelines. Errors: C307."""
    check_kind(plan)
    t, rank = plan.instructions, plan.rank
    # One instruction of each transfer writes its result: the receive, or the local operation.
    rows = np.flatnonzero((t.pipeline != NONE) & (t.op != Op.SEND))
    lines, last = [], NONE
    for row in rows[np.lexsort((t.transfer[rows], t.pipeline[rows]))].tolist():
        if t.pipeline[row] != last:
            last = int(t.pipeline[row])
            lines.append(f"sub-pipeline {last}")
        i = t[row]
        source = rank[row] if i.recv_peer == NONE else i.recv_peer
        place = Buffer(i.dst_buffer).chunks(i.dst_index, i.count)
        word = Op(i.op).name.lower()
        lines.append(f"  {source:>4} -> {rank[row]:<4}  {place:<14}  {word}".rstrip())
    return lines


def plan_table(plan: Plan, rank: int) -> list[str]:
    """The thread blocks of one rank, a line for each instruction. Errors: C307, L101."""
    check_kind(plan)
    check_rank(rank, plan.ranks)
    lines = []
    for block in range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1])):
        lines.append(f"rank {rank} block {plan.block_number[block]}")
        for row in range(int(plan.block_offset[block]), int(plan.block_offset[block + 1])):
            lines.append("  " + _instruction(plan, row))
    return lines


def check_rank(rank: object, ranks: int) -> None:
    """Refuses what is no rank to show. Errors: L101."""
    if not is_integer(rank) or not 0 <= rank < ranks:  # type: ignore[operator]
        raise L101.error(
            expected=f"a rank from 0 to {ranks - 1}",
            found=repr(rank),
            remedy="Give a rank from 0 to ranks - 1, or none for all.",
        )


def _instruction(plan: Plan, row: int) -> str:
    i = plan.instructions[row]
    parts = [f"{plan.step[row]:>3}  {Op(i.op).name.lower():<21}"]
    if i.src_buffer >= 0:
        parts.append(Buffer(i.src_buffer).chunks(i.src_index, i.count))
    if i.dst_buffer >= 0:
        parts.append(f"-> {Buffer(i.dst_buffer).chunks(i.dst_index, i.count)}")
    for word, peer in (("from", i.recv_peer), ("to", i.send_peer)):
        if peer != NONE:
            parts.append(f"{word} {','.join(map(str, plan.peers(peer)))}")
    if i.channel >= 0:
        parts.append(f"channel {i.channel}")
    if i.pipeline != NONE:
        parts.append(f"sub-pipeline {i.pipeline}")
    for other in plan.waits[row].tolist():
        number = plan.block_number[plan.block[other]]
        parts.append(f"after block {number} step {plan.step[other]}")
    return "  ".join(parts)


_WORDS: Mapping[str, type[IntEnum]] = {
    "kind": TransferKind,
    "src_buffer": Buffer,
    "dst_buffer": Buffer,
    "own_buffer": Buffer,
}
"""Columns that hold members of an enumeration."""


def stage_table(value: object) -> list[str]:
    """The result of a pass, a line for each transfer, dependency, instruction or block. Columns
    without any value are omitted; "-" means no value."""
    match value:
        case Program():
            return _table("transfer", _transfers(value))
        case Forwarded():
            own = {f"own_{name}": column for name, column in _columns(value.operands).items()}
            return _table("transfer", _transfers(value.program) | own)
        case ChunkDag():
            of_transfers = _table("transfer", _fields(value, "origin", "readers", "kept"))
            return [*_table("dependency", _columns(value.dependencies)), "", *of_transfers]
        case Links():
            return _table("transfer", _fields(value, "first", "second", "crosses"))
        case np.ndarray():
            return _table("transfer", {"forward": value})
        case InstructionDag():
            return _table("transfer", _fields(value, "forward", "channel", "copied"))
        case Order():
            return _table("row", _columns(value))
        case Blocks():
            return _blocks(value)
        case Allocated():
            order = _columns(value.order) | {"block": value.blocks.instruction_block}
            return [*_blocks(value.blocks), "", *_table("row", order)]
        case Plan():
            ranks = range(value.collective.ranks)
            return [line for rank in ranks for line in plan_table(value, rank)]
        case _:
            raise TypeError(f"no pass makes a {type(value).__name__}")


def _transfers(program: Program) -> dict[str, NDArray[Any]]:
    """The columns of a program's transfers, with the places of their sources."""
    columns = _columns(program.transfers)
    places = [program.sources.place(int(row)).short for row in columns["source"]]
    return columns | {"source": np.array(places, str)}


def _columns(table: Table) -> dict[str, NDArray[Any]]:
    return _fields(table, *table.column_names())


def _fields(value: object, *names: str) -> dict[str, NDArray[Any]]:
    return {name: getattr(value, name) for name in names}


def _blocks(blocks: Blocks) -> list[str]:
    """A line for each block: its rank, and the rows of the order that it executes."""
    place = np.argsort(blocks.instruction_block, kind="stable")
    counts = np.bincount(blocks.instruction_block, minlength=len(blocks.rank))
    rows = np.split(place, np.cumsum(counts)[:-1])
    texts = [" ".join(map(str, own.tolist())) for own in rows[: len(blocks.rank)]]
    return _table("block", {"rank": blocks.rank, "rows": np.array(texts, str)})


def _table(row: str, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """Columns side by side under a head; `row` is the name of a row. The column "rows" is aligned
    at the left."""
    used = {
        name: values
        for name, values in columns.items()
        if values.dtype.kind != "i" or bool((values != NONE).any())
    }
    cells = [[row, *map(str, range(len(next(iter(columns.values())))))]]
    cells += [[name, *_texts(name, values)] for name, values in used.items()]
    left = [k for k, (name, *_) in enumerate(cells) if name == "rows"]
    return table_lines(list(zip(*cells, strict=True)), left)


def _texts(name: str, values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "b":
        return ["yes" if value else "no" for value in values.tolist()]
    kind = _WORDS.get(name)
    if kind is not None:
        return [kind(value).name.lower() for value in values.tolist()]
    return ["-" if value == NONE else str(value) for value in values.tolist()]
