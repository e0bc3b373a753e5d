"""Promises: a script's collective as a `sley.Collective`, and parallel parts of its program.

A standard collective promises what it promises everywhere. A script's own class says in Python
whether the result is right; so its promise is what the program leaves in the outputs if its
operations run one after another, once the script's `check` has accepted that.

Interleaved parts divide each chunk: part k of every chunk is the k-th piece of it, as
`parallelize` cuts it. Batched parts divide the buffers: part k is the whole program, on the k-th
section of each buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sley.errors.language import L132, L133
from sley.ir.collective import Collective as SleyCollective
from sley.ir.collectives import AllReduce, standard, unpromised, with_results
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE
from sley.ir.words import TransferKind, chunk_range, is_integer
from sley.lang.msccl import collectives
from sley.lang.msccl.buffers import Buffer
from sley.lang.msccl.chunks import Chunk, parts
from sley.lang.msccl.collectives import Buffers, Collective, StandardCollective
from sley.lang.recorder import refuse

_DEFINED = ("init_buffers", "check", "get_buffer_index")
"""The methods by which a class defines a collective."""

Value = tuple[int, ...]
"""The ids of the input chunks of a reduction, in order; a copy has one."""


def is_standard(collective: Collective) -> bool:
    """Whether a collective is a standard one, or of a subclass that doesn't define another."""
    own = next(c for c in type(collective).__mro__ if c.__module__ == collectives.__name__)
    same = all(getattr(type(collective), name) is getattr(own, name) for name in _DEFINED)
    return isinstance(collective, StandardCollective) and same


def declare(collective: Collective, buffers: Buffers) -> SleyCollective:
    """The buffers of a collective and their first contents; for a script's own, without a promise.

    A script's own collective is in place if its `init_buffers` gives one list for input and output,
    or its `get_buffer_index` sends one of them to a place in the other. Errors: L102, L112, L132.
    """
    if is_standard(collective) and isinstance(collective, StandardCollective):
        return collective.promise()
    everyone = range(len(buffers))
    inputs = [buffers[rank].get(Buffer.input, []) for rank in everyone]
    outputs = [buffers[rank].get(Buffer.output) for rank in everyone]
    # Without an output of its own, the output is the rest of the input.
    sizes = [
        len(data) - _base(collective, rank, Buffer.output)[1] if output is None else len(output)
        for rank, (data, output) in enumerate(zip(inputs, outputs, strict=True))
    ]
    aliases = [_alias(collective, rank, len(inputs[rank]), sizes[rank]) for rank in everyone]
    one = all(data is output for data, output in zip(inputs, outputs, strict=True))
    return unpromised(
        str(collective.name),
        one or any(in_place for _, _, in_place in aliases),
        np.array([len(data) for data in inputs], np.int32),
        np.array(sizes, np.int32),
        bases=np.array([bases for *bases, _ in aliases], np.int32).T,
        initial=np.array([chunk is not None for data in inputs for chunk in data], bool),
    )


def _alias(collective: Collective, rank: int, inputs: int, outputs: int) -> tuple[int, int, bool]:
    """How `inputs` and `outputs` chunks of a rank share memory, by `get_buffer_index`: the output
    index at which the input begins, the input index at which the output begins, and whether one of
    them lies in the other; else both are 0. Errors: L132 if the places of a buffer don't stand for
    places one after another, or stand for others of the same buffer."""
    bases = []
    for buffer, other, size in (
        (Buffer.input, Buffer.output, inputs),
        (Buffer.output, Buffer.input, outputs),
    ):
        stands_for, base = _base(collective, rank, buffer)
        if stands_for is not other:
            stands_for, base = buffer, 0
        # Every place is asked for: a method of a script may answer anything.
        for index in range(size):
            place = collective.get_buffer_index(rank, buffer, index)
            if tuple(place) != (stands_for, base + index):
                expected = f"({stands_for}, {base + index}) for {buffer}[{index}] of rank {rank}"
                method = f"{type(collective).__name__}.get_buffer_index()"
                found = f"({', '.join(map(str, place))}) from {method}"
                refuse(L132, expected, found, "Return the index, or the index plus a constant.")
        bases.append((base, stands_for is other))
    (input_base, in_output), (output_base, in_input) = bases
    return input_base, output_base, in_output or in_input


def _base(collective: Collective, rank: int, buffer: Buffer) -> tuple[Any, int]:
    """The place for which the first one of a rank's buffer stands. Errors: L132."""
    stands_for, base = collective.get_buffer_index(rank, buffer, 0)
    if not is_integer(base) or base < 0:
        found = f"{base!r} from {type(collective).__name__}.get_buffer_index()"
        refuse(L132, f"an index for {buffer}[0] of rank {rank}", found)
    return stands_for, int(base)


def promised(program: Program, chunk_factor: int) -> SleyCollective:
    """The program's collective with the promise of what the program leaves in the outputs.

    chunk_factor: the chunks of a rank's part of the data, which count if the collective has the
    name of a standard one. Errors: L118 if it has such a name, and another promise.
    """
    c = program.collective
    held = _contents(program)
    results = [held.get(cell) for cell in c.output_cells(program.layout).tolist()]
    return with_results(c, results, chunk_factor)


def lacks(
    promise: SleyCollective,
    collective: Collective,
    inputs: Sequence[Sequence[Any]],
    buffers: Buffers,
) -> list[str]:
    """The outputs in which a check sees another chunk than the promise has, in words.

    inputs: the chunks of each rank's input before the program. buffers: those of all buffers after
    it, as the check sees them.
    """
    names = [_names(chunk) for own in inputs for chunk in own]
    ids = np.split(promise.values.target, promise.values.offset[1:-1])
    found = []
    for rank in range(promise.ranks):
        first, last = promise.output_offset[rank : rank + 2]
        for index, value in enumerate(promise.expected[first:last].tolist()):
            kept: Counter[Hashable] = Counter()
            for i in [] if value == NONE else ids[value].tolist():
                kept += names[i]
            for chunk in _seen(collective, rank, index, buffers[rank]):
                if chunk is not None and _names(chunk) != kept:
                    brought = "no data" if value == NONE else "others"
                    place = f"rank {rank} output{chunk_range(index, 1)}"
                    found.append(f"{place} has {chunk!r}, the operations bring {brought}")
                    break
    return found


def _seen(collective: Collective, rank: int, index: int, buffers: dict[Any, Any]) -> Iterator[Any]:
    """What a check may see as an output chunk of a rank: that at its index, and that at the place
    for which it stands."""
    for buffer, place in (
        (Buffer.output, index),
        collective.get_buffer_index(rank, Buffer.output, index),
    ):
        if place < len(buffers.get(buffer, ())):
            yield buffers[buffer][place]


def _names(chunk: Any) -> Counter[Hashable]:
    """The input chunks of a chunk or a reduction, each as often as it is in it; what is no `Chunk`
    is only equal to itself."""
    return Counter(p.origin if isinstance(p, Chunk) else id(p) for p in parts(chunk))


def _contents(program: Program) -> dict[int, Value]:
    """The value of each cell with data, after all transfers one after another."""
    c, t = program.collective, program.transfers
    inputs = c.input_cells(program.layout).tolist()
    held: dict[int, Value] = {inputs[i]: (i,) for i in np.flatnonzero(c.initial).tolist()}
    columns: tuple[Any, ...] = (program.source_cells, program.destination_cells, t.count, t.kind)
    for source, target, count, kind in zip(*(col.tolist() for col in columns), strict=True):
        # Chunk by chunk is right: source and target of a transfer share none (L108).
        for k in range(count):
            value = held[source + k]
            if kind == TransferKind.REDUCE:
                value = tuple(sorted(held[target + k] + value))
            held[target + k] = value
    return held


def interleaved(program: Program, instances: int) -> Program:
    """The program with each transfer in `instances` parts."""
    parts = np.full(len(program.transfers), instances)
    return replace(program, transfers=replace(program.transfers, instances=parts))


def batched(program: Program, instances: int) -> Program:
    """The program on each of `instances` sections of all buffers, each section in its own lane.
    Errors: L133."""
    t = program.transfers
    part = np.repeat(np.arange(instances), len(t))
    columns = {name: np.tile(getattr(t, name), instances) for name in Transfers.column_names()}
    size = program.layout.size
    for side in ("src", "dst"):
        section = size[columns[f"{side}_buffer"], columns[side]]
        columns[f"{side}_index"] = columns[f"{side}_index"] + part * section
    columns["lane"] = part
    return replace(
        program,
        collective=_sections(program, instances),
        transfers=Transfers(**columns),
        scratch_chunks=program.scratch_chunks * instances,
    )


def _sections(program: Program, instances: int) -> SleyCollective:
    """The collective whose buffers have `instances` sections, each of which is the program's.
    Errors: L133."""
    c = program.collective
    row = standard(c)
    if row is not None and row.name == "allreduce":
        return AllReduce(c.ranks, c.chunks * instances, c.in_place)
    one_memory = (c.input_chunks == c.output_chunks).all() and not c.input_base.any()
    if row is not None or (c.in_place and not one_memory):
        raise L133.error(
            at=program.sources.whole,
            expected="interleaved parts, or an AllReduce",
            found=f"interleaved_replication=False with {instances} instances of {c.name}",
        )
    rank = np.repeat(np.arange(c.ranks), c.input_chunks)
    first = c.input_offset[rank] * (instances - 1)
    results: list[Value | None] = []
    for r in range(c.ranks):
        for k in range(instances):
            for value in c.expected[c.output_offset[r] : c.output_offset[r + 1]].tolist():
                ids = c.values.target[c.values.offset[value] : c.values.offset[value + 1]]
                # An id counts the input chunks before it. Lower ranks have `instances` times as
                # many of them now, and the rank itself has k sections before this one.
                moved = ids + first[ids] + k * c.input_chunks[rank[ids]]
                results.append(None if value == NONE else tuple(sorted(moved.tolist())))
    starts = np.split(c.initial, c.input_offset[1:-1])
    larger = replace(
        c,
        input_chunks=c.input_chunks * instances,
        output_chunks=c.output_chunks * instances,
        initial=np.concatenate([np.tile(start, instances) for start in starts]),
        expected=np.full(len(results), NONE, np.int32),
    )
    return with_results(larger, results, c.chunks)
