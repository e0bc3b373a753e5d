"""Transfers: ResCCL's language (ResCCL 4.2), embedded in Python.

    @sley.program(sley.AllGather(ranks=4))
    def ring(p):
        rank = np.arange(4)
        for step in range(3):
            p.transfer(rank, (rank + 1) % 4, step, (rank - step) % 4, "recv")

A transfer moves chunk `chunk` of the data buffer from one rank to another, where it overwrites this
chunk (recv) or is reduced into it (rrc). The order of transfers is that of their steps, not lines.

`assemble` makes a `Program` of transfers, from here or from ResCCLang's text. In place, the data
buffer is the memory that input and output share; out of place, the same transfers use the output,
or scratch for chunks that the output doesn't have, and leave the input unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.errors import Place
from sley.errors.language import L101, L102, L103, L122, L124
from sley.ir.collective import Collective
from sley.ir.collectives import standard
from sley.ir.program import Program, Transfers
from sley.ir.sources import Sources
from sley.ir.tables import NONE, ByteArray, IntArray, LongArray, Table, offsets_of, ordered_by
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, Buffer, Protocol, TransferKind
from sley.lang.recorder import Recorder, broadcast, caller_place, check_span, refuse

TYPES = {"recv": TransferKind.COPY, "rrc": TransferKind.REDUCE}
"""The types of transfers by ResCCL's names."""

MAX_STEP = 2**31
"""Steps are less than this, since a column holds int32."""

_NEVER = MAX_STEP
"""Step of a write that does not exist."""


@dataclass(frozen=True, eq=False, repr=False)
class TransferSteps(Table):
    """One row a transfer, in any order.

    src, dst, step, chunk: the language's arguments. kind: TransferKind. channel: the requested
    channel, or NONE. instances: number of parallel parts. source: row of the program's `sources`.
    """

    src: IntArray
    dst: IntArray
    step: IntArray
    chunk: IntArray
    kind: ByteArray
    channel: IntArray
    instances: IntArray
    source: IntArray


class StepRecorder:
    """Collects the transfers of ``p.transfer``.

    used: whether it was called, even if only with empty arrays.
    """

    def __init__(self, collective: Collective) -> None:
        self.used = False
        self._collective = collective
        self._recorder = Recorder(TransferSteps)
        self._data_chunks: IntArray | None = None

    def transfer(self, type: str, instances: int, given: Mapping[str, ArrayLike]) -> None:
        """See `ChunkProgram.transfer`. given: its src, dst, step, chunk and, if any, channel."""
        self.used = True
        if self._data_chunks is None:
            self._data_chunks = _twin(self._collective, caller_place()).data_chunks
        found, size = broadcast(None, **given)
        values = dict(zip(given, found, strict=True))
        src, dst, chunk = values["src"], values["dst"], values["chunk"]
        for word, rank in (("a source rank", src), ("a destination rank", dst)):
            check_span(L101, word, rank, self._collective.ranks)
        if not isinstance(type, str) or type not in TYPES:
            refuse(L124, " or ".join(map(repr, TYPES)), repr(type))
        if np.any(np.equal(src, dst)):
            refuse(L124, "two different ranks", "a transfer from a rank to itself")
        check_span(L124, "a step", values["step"], MAX_STEP)
        limit = np.minimum(self._data_chunks[src], self._data_chunks[dst])
        outside = np.less(chunk, 0) | np.greater_equal(chunk, limit)
        if np.any(outside):
            chunk, limit = (np.ravel(v)[int(np.argmax(outside))] for v in (chunk, limit))
            refuse(L103, f"a chunk from 0 to {limit - 1}", str(chunk))
        check_span(L102, "a channel", values.get("channel", 0), MAX_NUMBER)
        self._recorder.add(
            size,
            kind=TYPES[type],
            instances=instances,
            source=self._recorder.source(),
            **{"channel": NONE, **values},
        )

    def program(self, name: str, protocol: Protocol | None, whole: Place) -> Program:
        """The program of these transfers, which begins at `whole`."""
        return assemble(
            self._collective,
            TransferSteps(**self._recorder.columns()),
            name=name,
            sources=self._recorder.sources(whole),
            protocol=protocol,
        )


def assemble(
    collective: Collective,
    steps: TransferSteps,
    *,
    name: str,
    sources: Sources,
    protocol: Protocol | None = None,
    topology: Topology | None = None,
) -> Program:
    """The program of `steps`, whose ranks and chunks are in range. Errors: L122, L124."""
    twin = _twin(collective, sources.whole)
    order = ordered_by(steps.step)  # then in the order of their calls
    t = TransferSteps(**{n: getattr(steps, n)[order] for n in steps.column_names()})
    start = offsets_of(twin.data_chunks)
    reads, writes = start[t.src] + t.chunk, start[t.dst] + t.chunk
    _check_conflicts(t, reads, writes, sources)
    places = _CellPlaces.of(collective, twin, t, reads, writes)
    return Program(
        name=name,
        collective=collective,
        transfers=_transfers(t, places, reads, writes),
        scratch_chunks=places.scratch_chunks,
        protocol=protocol,
        sources=sources,
        topology=topology,
    )


def _twin(collective: Collective, whole: Place) -> Collective:
    """The collective in place. Errors: L124."""
    if collective.in_place:
        return collective
    row = standard(collective)
    twin = None if row is None or row.varies else row.like(collective, in_place=True)
    if twin is None or not _has_one_numbering(twin):
        raise L124.error(
            at=whole,
            expected="a collective in place, or a standard one whose chunks keep their numbers",
            found=str(collective),
        )
    return twin


def _has_one_numbering(c: Collective) -> bool:
    """Whether each result consists of chunks that have the result's own number in the data buffers:
    only then one number names a chunk at both ends of a transfer."""
    rank_of_input = np.repeat(np.arange(c.ranks), c.input_chunks)
    begin = c.input_base - c.input_offset[:-1]
    of_input = np.arange(len(rank_of_input)) + begin[rank_of_input]
    first = of_input[c.values.target[c.values.offset[:-1]]]  # each value has at least one chunk
    if (of_input[c.values.target] != first[c.values.source]).any():
        return False
    rows = np.flatnonzero(c.expected != NONE)
    rank = np.repeat(np.arange(c.ranks), c.output_chunks)[rows]
    of_output = rows - c.output_offset[rank] + c.output_base[rank]
    return np.array_equal(of_output, first[c.expected[rows]])


def _check_conflicts(
    t: TransferSteps, reads: LongArray, writes: LongArray, sources: Sources
) -> None:
    """Refuses transfers of one step that access the same chunk of a rank, if one writes it."""
    period = int(t.step.max(initial=0)) + 1
    write_key, read_key = writes * period + t.step, reads * period + t.step
    # Nearly all programs have none, and to sort the keys is faster than to sort and find the rows.
    # Writes are even, so they come before the reads of the same chunk and step: neighbours that
    # differ at most in the last bit are a conflict if the first is a write.
    key = np.sort(np.concatenate([2 * write_key, 2 * read_key + 1]))
    if not ((key[1:] >> 1 == key[:-1] >> 1) & (key[:-1] & 1 == 0)).any():
        return
    order = np.argsort(write_key, kind="stable")
    key = write_key[order]
    twice = np.flatnonzero(key[1:] == key[:-1])
    if len(twice):
        _refuse(t, int(order[twice[0]]), int(order[twice[0] + 1]), sources)
    # A read behind the last write is compared with that one, which it does not equal.
    at = np.minimum(np.searchsorted(key, read_key), len(key) - 1)
    met = np.flatnonzero(key[at] == read_key)
    _refuse(t, int(order[at[met[0]]]), int(met[0]), sources)


def _refuse(t: TransferSteps, writer: int, other: int, sources: Sources) -> None:
    writes_too = t.dst[other] == t.dst[writer] and t.chunk[other] == t.chunk[writer]
    raise L122.error(
        at=[
            sources.place(int(t.source[other])),
            sources.place(int(t.source[writer])).labelled("the write"),
        ],
        expected="transfers of one step that access different chunks",
        found=f"{_spell(t, writer)} writes what {_spell(t, other)} "
        f"{'writes' if writes_too else 'reads'}, chunk {t.chunk[writer]} of rank "
        f"{t.dst[writer]}, both in step {t.step[writer]}",
    )


def _spell(t: TransferSteps, row: int) -> str:
    word = next(name for name, kind in TYPES.items() if kind == t.kind[row])
    values = (t.src[row], t.dst[row], t.step[row], t.chunk[row])
    return f"transfer({', '.join(map(str, values))}, {word})"


@dataclass(frozen=True)
class _CellPlaces:
    """The places of the cells of the data buffers, one row a cell of all ranks.

    rank: the rank of a cell. buffer, index: where a cell is written, and read after its first
        write.
    input_index: the index of its first value in the input; NONE if the input doesn't have it, or is
        the same memory.
    written: the step of the first write, or _NEVER.
    copied: the cells whose first value must be copied from the input to (buffer, index).
    """

    rank: LongArray
    buffer: ByteArray
    index: LongArray
    input_index: LongArray
    written: LongArray
    copied: LongArray
    scratch_chunks: IntArray

    @classmethod
    def of(
        cls, c: Collective, twin: Collective, t: TransferSteps, reads: LongArray, writes: LongArray
    ) -> _CellPlaces:
        start = offsets_of(twin.data_chunks)
        rank = np.repeat(np.arange(c.ranks), twin.data_chunks)
        chunk = np.arange(len(rank)) - start[rank]
        in_input, in_output = (
            (chunk >= base[rank]) & (chunk < (base + size)[rank])
            for base, size in (
                (twin.input_base, c.input_chunks),
                (twin.output_base, c.output_chunks),
            )
        )
        input_index, output_index = chunk - twin.input_base[rank], chunk - twin.output_base[rank]
        written = np.full(len(rank), _NEVER, np.int64)
        np.minimum.at(written, writes, t.step)
        own = np.zeros(len(rank), bool)
        copied = scratch = own
        if c.in_place:
            buffer = np.where(in_input, Buffer.INPUT, Buffer.OUTPUT)
            index = np.where(in_input, input_index, output_index)
        else:
            # A cell needs the rank's own contribution if its first write reduces into it, or if it
            # is part of the result and never written.
            first = writes[(t.kind == TransferKind.REDUCE) & (written[writes] == t.step)]
            needed = np.zeros(len(rank), bool)
            needed[first] = True
            rows = np.flatnonzero(in_output & (written == _NEVER))
            needed[rows] |= c.expected[c.output_offset[rank[rows]] + output_index[rows]] != NONE
            # A read before the first write takes the input, and needs no place.
            touched = np.zeros(len(rank), bool)
            touched[writes], touched[reads[written[reads] < t.step]] = True, True
            own, copied, scratch = in_input, needed & in_input, touched & ~in_output
            buffer = np.where(in_output, Buffer.OUTPUT, Buffer.SCRATCH)
        # Scratch cells are numbered on each rank, from 0.
        scratch_chunks = np.bincount(rank[scratch], minlength=c.ranks)
        if not c.in_place:
            number = np.cumsum(scratch) - scratch - offsets_of(scratch_chunks)[rank]
            index = np.where(in_output, output_index, number)
        return cls(
            rank=rank,
            buffer=buffer,
            index=index,
            input_index=np.where(own, input_index, NONE),
            written=written,
            copied=np.flatnonzero(copied),
            scratch_chunks=scratch_chunks.astype(np.int32),
        )


def _transfers(
    t: TransferSteps, places: _CellPlaces, reads: LongArray, writes: LongArray
) -> Transfers:
    """Copies of own contributions, then the transfers."""
    # What nobody has written before this step is still in the input.
    from_input = (places.written[reads] >= t.step) & (places.input_index[reads] != NONE)
    c, none = places.copied, np.full(len(places.copied), NONE)
    # A copy has the line of the first transfer that writes to its cell.
    first = np.flatnonzero(places.written[writes] == t.step)
    writer = np.full(len(places.rank), NONE)
    writer[writes[first]] = t.source[first]
    ones = np.ones(len(c) + len(t), np.int32)
    columns: dict[str, tuple[Any, Any]] = {
        "kind": (np.full(len(c), TransferKind.COPY), t.kind),
        "src": (places.rank[c], t.src),
        "src_buffer": (
            np.full(len(c), Buffer.INPUT),
            np.where(from_input, Buffer.INPUT, places.buffer[reads]),
        ),
        "src_index": (
            places.input_index[c],
            np.where(from_input, places.input_index[reads], places.index[reads]),
        ),
        "dst": (places.rank[c], t.dst),
        "dst_buffer": (places.buffer[c], places.buffer[writes]),
        "dst_index": (places.index[c], places.index[writes]),
        "channel": (none, t.channel),
        "instances": (np.full(len(c), int(t.instances.max(initial=1))), t.instances),
        "step": (none, t.step),
        "source": (writer[c], t.source),
    }
    joined = {name: np.concatenate(pair, dtype="int32") for name, pair in columns.items()}
    return Transfers(
        **joined, count=ones, lane=ones - 1, send_block=-ones, recv_block=-ones, group=-ones
    )
