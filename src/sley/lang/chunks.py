"""Chunks: MSCCLang's language (MSCCLang, section 3), embedded in Python.

    @sley.program(sley.AllGather(ranks=4))
    def ring(p):
        for rank in range(4):
            c = p.chunk(rank, "in", 0).copy(rank, "out", rank)
            for step in range(1, 4):
                c = c.copy((rank + step) % 4, "out", rank)

Ranks and indices may be arrays: then a reference has one range of chunks for each element, and copy
and reduce work element by element. While a program is traced, the memory knows the write that each
cell holds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sley.errors import Place, counted, known_file, without_inner_frames
from sley.errors.language import (
    L101,
    L102,
    L103,
    L104,
    L105,
    L106,
    L107,
    L108,
    L109,
    L110,
    L112,
    L119,
    L123,
    L137,
)
from sley.ir.collective import Collective
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, LongArray, distinct
from sley.ir.words import (
    MAX_NUMBER,
    Buffer,
    Protocol,
    TransferKind,
    chunk_range,
    is_integer,
    member,
)
from sley.lang.deferred import traced
from sley.lang.recorder import Recorder, broadcast, caller_place, check_span, refuse
from sley.lang.transfers import StepRecorder

UNWRITTEN = -2
"""Version of a cell that was never written."""

INITIAL = -1
"""Version of a cell that still holds the collective's input."""

MAX_SCRATCH_CELLS = 2**26
"""Bound on the chunks of all scratch buffers of all ranks together, where each rank counts as the
one with the largest buffer: more are a mistake, and would take more than a GB while tracing."""

Cells: TypeAlias = slice | LongArray
"""Cells of a reference: a slice for one range, an array (elements, count) for several ranges."""


@dataclass
class ScratchCells:
    """A scratch buffer of all ranks: `capacity` cells for each, which grow on use.

    versions: int64 (ranks * capacity,), the version of each cell. used: int64 (ranks,), the chunks
    that are in use. length: the largest number of these.
    """

    versions: LongArray
    capacity: int
    used: LongArray
    length: int = 0

    @classmethod
    def start(cls, ranks: int) -> ScratchCells:
        """A buffer in which nothing is used."""
        return cls(np.full(ranks, UNWRITTEN, np.int64), 1, np.zeros(ranks, np.int64))

    def reserve(self, rank: Any, index: Any, count: int) -> None:
        """Makes room for `count` chunks at (rank, index ...)."""
        needed = int(index if isinstance(index, int) else index.max(initial=0)) + count
        if needed > self.capacity:
            # At least twice as many, so all growths together copy no more cells than the last has.
            ranks, capacity = len(self.used), max(needed, 2 * self.capacity)
            grown = np.full((ranks, capacity), UNWRITTEN, np.int64)
            grown[:, : self.capacity] = self.versions.reshape(ranks, -1)
            self.versions, self.capacity = grown.ravel(), capacity
        np.maximum.at(self.used, rank, np.asarray(index) + count)
        self.length = max(self.length, needed)


@dataclass
class CellVersions:
    """The version of each cell: the last transfer that wrote to it, INITIAL or UNWRITTEN.

    Input and output share one array, so that aliases in place are one cell. Every other number of a
    buffer, from `Buffer.SCRATCH`, is a scratch buffer of its own.

    base: int64 (3, ranks), the cell of chunk 0 of (buffer, rank), see `Layout`. scratch_length: the
    lengths of all scratch buffers together.
    """

    ranks: int
    base: LongArray
    data: LongArray
    scratch: dict[int, ScratchCells] = field(default_factory=dict)
    scratch_length: int = 0

    @classmethod
    def start(cls, collective: Collective) -> CellVersions:
        """The memory before the first transfer."""
        layout = collective.layout(np.zeros(collective.ranks, np.int32))
        data = np.full(layout.cells, UNWRITTEN, np.int64)
        data[collective.input_cells(layout)[collective.initial]] = INITIAL
        return cls(collective.ranks, layout.base, data)

    def versions(self, buffer: int) -> LongArray:
        """The array of versions that `cells` of this buffer index."""
        return self.data if buffer < Buffer.SCRATCH else self._scratch(buffer).versions

    def cells(self, rank: Any, buffer: int, index: Any, count: int) -> Cells:
        """The cells of `count` chunks at (rank, buffer, index); grows scratch as needed."""
        if buffer < Buffer.SCRATCH:
            start = self.base[buffer, rank] + index
        else:
            scratch = self._scratch(buffer)
            before = scratch.length
            scratch.reserve(rank, index, count)
            self.scratch_length += scratch.length - before
            start = rank * scratch.capacity + index
        if isinstance(start, np.ndarray):
            return start[:, None] + np.arange(count)
        return slice(int(start), int(start) + count)

    def room(self, buffer: int) -> int:
        """The most chunks that a scratch buffer may have on a rank beside the others."""
        others = self.scratch_length - self._scratch(buffer).length
        return MAX_SCRATCH_CELLS // self.ranks - others

    def _scratch(self, buffer: int) -> ScratchCells:
        if buffer not in self.scratch:
            self.scratch[buffer] = ScratchCells.start(self.ranks)
        return self.scratch[buffer]

    def scratch_starts(self) -> LongArray:
        """int64 (buffers + 1, ranks): where each scratch buffer begins in a rank's scratch, one
        after another in the order of their numbers; at last the chunks of all together. 0 for input
        and output."""
        # Row b + 1 has what buffer b uses, so that the sums of the rows before are the beginnings.
        starts = np.zeros((max(self.scratch, default=Buffer.OUTPUT) + 2, self.ranks), np.int64)
        for buffer, scratch in self.scratch.items():
            starts[buffer + 1] = scratch.used
        return np.cumsum(starts, axis=0)


BUFFER_NAMES = {
    "in": Buffer.INPUT,
    "input": Buffer.INPUT,
    "out": Buffer.OUTPUT,
    "output": Buffer.OUTPUT,
    "scratch": Buffer.SCRATCH,
    "sc": Buffer.SCRATCH,
}
"""Buffers by name; "sc" is the paper's abbreviation (MSCCLang, figure 9)."""


def program(
    collective: Collective, *, name: str | None = None, protocol: Protocol | str | None = None
) -> Callable[[Callable[[ChunkProgram], object]], Program]:
    """Decorator that traces a function ``f(p)`` into a `Program` for `collective`.

    protocol: requests a protocol (MSCCLang 6.1) by value or by name; None leaves it to the
    compiler.
    """
    _check_collective(collective)

    @without_inner_frames
    def decorated(function: Callable[[ChunkProgram], object]) -> Program:
        return traced(lambda: trace(collective, function, name=name, protocol=protocol))

    return decorated


def _check_collective(collective: object) -> None:
    if not isinstance(collective, Collective):
        expected = "a collective, as in @sley.program(sley.AllReduce(ranks=8))"
        remedy = "Give the collective to the decorator."
        refuse(L112, expected, repr(collective), remedy)


@without_inner_frames
def trace(
    collective: Collective,
    function: Callable[[ChunkProgram], object],
    *,
    name: str | None = None,
    protocol: Protocol | str | None = None,
) -> Program:
    """Runs ``function(p)`` and returns the `Program` of its operations (MSCCLang 4.1).

    Errors: L1xx with the line of the user's code.
    """
    _check_collective(collective)
    p = ChunkProgram(collective)
    function(p)
    code = getattr(function, "__code__", None)
    whole = Place(known_file(code.co_filename), code.co_firstlineno) if code else caller_place()
    return p.finish(name or name_of(getattr(function, "__name__", "program")), protocol, whole)


def name_of(function: str) -> str:
    """The name of a program that a function with this name traces."""
    return function.replace("_", "-")


@dataclass(frozen=True, eq=False)
class Ref:
    """A reference to `count` chunks at (rank, buffer, index); ranks and indices may be arrays.

    It is valid until any of its chunks is overwritten.

    buffer: the number of the buffer, see `ChunkProgram.number`. size: the number of elements.
    versions: what wrote to each chunk, see `CellVersions`.
    """

    program: ChunkProgram
    rank: Any
    buffer: int
    index: Any
    count: int
    size: int
    versions: LongArray

    def copy(
        self,
        rank: ArrayLike,
        buffer: Hashable,
        index: ArrayLike,
        *,
        channel: int | None = None,
        send_block: int | None = None,
        recv_block: int | None = None,
    ) -> Ref:
        """Copies these chunks to (rank, buffer, index ...) and returns the reference to the copy.

        channel: requests a channel. send_block, recv_block: request thread blocks at the two ends
        (MSCCLang 5.1). None leaves them to the compiler.
        """
        p = self.program
        p._check_current(self)
        target = p._range(rank, buffer, index, self.count, self.size)
        requested = {"channel": channel, "send_block": send_block, "recv_block": recv_block}
        return p._transfer(TransferKind.COPY, self, target, requested)

    def reduce(
        self,
        other: Ref,
        *,
        channel: int | None = None,
        send_block: int | None = None,
        recv_block: int | None = None,
    ) -> Ref:
        """Reduces `other`'s chunks into these and returns the reference to the result."""
        p = self.program
        p._check_reduction(self, other)
        if self.count != other.count or self.size != other.size:
            refuse(
                L107,
                f"as many chunks on both sides ({self.size} x {self.count})",
                f"{other.size} x {other.count} chunks to reduce into them",
            )
        requested = {"channel": channel, "send_block": send_block, "recv_block": recv_block}
        return p._transfer(TransferKind.REDUCE, other, self, requested)

    def multicast(
        self, ranks: ArrayLike, buffer: Hashable, index: int, *, channel: int | None = None
    ) -> Ref:
        """Copies these chunks to (buffer, index ...) of all `ranks` at once, by a switch
        (multimem.st), and returns the reference to the copies.

        ranks: one rank or several distinct ones, other than the own. channel: as for `copy`. The
        meaning is that of copies one after another. Errors: L137.
        """
        p = self.program
        p._check_current(self)
        ranks = np.atleast_1d(np.asarray(ranks))
        target = p._range(ranks, buffer, index, self.count, len(ranks))
        p._check_group(self, target)
        return p._transfer(TransferKind.COPY, self, target, {"channel": channel}, grouped=True)

    def load_reduce(self, others: Ref, *, channel: int | None = None) -> Ref:
        """Reduces the same chunks of several ranks into these at once, by a switch
        (multimem.ld_reduce), and returns the reference to the result.

        others: a reference with one place on one rank or several distinct ones, other than the own:
        p.chunk([1, 2, 3], "in", 0). channel: as for `reduce`. The meaning is that of reductions one
        after another. Errors: L119, L137.
        """
        p = self.program
        p._check_reduction(self, others)
        if self.count != others.count:
            refuse(L107, f"{counted(self.count, 'chunk')} of each rank", f"{others.count}")
        p._check_group(self, others)
        return p._transfer(TransferKind.REDUCE, others, self, {"channel": channel}, grouped=True)

    def __repr__(self) -> str:
        return f"Ref({self.name(0)}{', ...' if self.size > 1 else ''})"

    def name(self, element: int = 0) -> str:
        """An element's place, for messages: "rank 1 in[3:5]"."""
        rank, index = (_value_of(v, element) for v in (self.rank, self.index))
        return f"rank {rank} {self.program.word(self.buffer)}{chunk_range(index, self.count)}"


def _value_of(values: Any, element: int) -> int:
    """The value of an element; an integer is that of all."""
    return int(values[element] if np.ndim(values) else values)


class ChunkProgram:
    """The argument of a program function: `chunk` or `transfer`, `parallelize`, `lane`, the
    collective."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self._memory = CellVersions.start(collective)
        self._recorder = Recorder(Transfers)
        self._steps = StepRecorder(collective)
        self._instances = 1
        self._lane = 0
        self._groups = 0

    def number(self, buffer: Hashable) -> int:
        """The number of a buffer that a program names: a `Buffer`. Errors: L104."""
        found = BUFFER_NAMES.get(buffer) if isinstance(buffer, str) else None
        if found is None:
            refuse(L104, '"in", "out" or "scratch"', repr(buffer))
        return found

    def word(self, buffer: int) -> str:
        """The name of a buffer for messages, by its number."""
        return Buffer(buffer).word

    def chunk(self, rank: ArrayLike, buffer: Hashable, index: ArrayLike, count: int = 1) -> Ref:
        """The reference to the current `count` chunks at (rank, buffer, index ...).

        rank, index: integers, or arrays of one length, with a range for each element. Errors: L101
        to L105.
        """
        if self._steps.used:
            refuse(L123, "only p.transfer", "p.chunk in a program of transfers")
        ref = self._range(rank, buffer, index, count, None)
        unwritten = ref.versions == UNWRITTEN
        if unwritten.any():
            element = int(np.argwhere(np.atleast_2d(unwritten))[0][0])
            refuse(L105, "chunks that hold data", f"{ref.name(element)} holds none yet")
        return ref

    def transfer(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        step: ArrayLike,
        chunk: ArrayLike,
        type: str,
        *,
        channel: ArrayLike | None = None,
    ) -> None:
        """ResCCL's transfer of one chunk of the data buffer, see `sley.lang.transfers`.

        src, dst, step, chunk, channel: integers, or arrays of one length, with a transfer for each
        element. type: "recv" overwrites the chunk at dst, "rrc" reduces into it. channel: requests
        a channel. Errors: L101, L103, L102, L112, L123, L124.
        """
        if self._recorder.rows or self._lane:
            refuse(L123, "only p.chunk and p.lane", "p.transfer in a program of chunks")
        values = {"src": src, "dst": dst, "step": step, "chunk": chunk}
        values |= {} if channel is None else {"channel": channel}
        self._steps.transfer(type, self._instances, values)

    def parallelize(self, instances: int) -> AbstractContextManager[None]:
        """Cuts the transfers in the ``with`` block into `instances` parts that run in parallel,
        each on its own channels (MSCCLang 5.1). Nested numbers multiply."""
        if not (is_integer(instances) and 1 <= instances <= MAX_NUMBER // self._instances):
            refuse(L102, f"1 to {MAX_NUMBER} instances, nested ones together", repr(instances))
        return self._within("_instances", self._instances * int(instances))

    def lane(self, number: int) -> AbstractContextManager[None]:
        """Makes the copies and reduces in the ``with`` block a part of the program that runs in
        parallel with the parts of other numbers, on its own channels. Errors: L102."""
        if not (is_integer(number) and 0 <= number < MAX_NUMBER):
            refuse(L102, f"a lane from 0 to {MAX_NUMBER - 1}", repr(number))
        return self._within("_lane", int(number))

    @contextmanager
    def _within(self, setting: str, value: int) -> Iterator[None]:
        outer = getattr(self, setting)
        setattr(self, setting, value)
        try:
            yield
        finally:
            setattr(self, setting, outer)

    def finish(self, name: str, protocol: Protocol | str | None, whole: Place) -> Program:
        """The program of the operations so far, which begins at `whole`."""
        if protocol is not None:
            protocol = member(Protocol, protocol, "protocol", L112, at=caller_place())
        if self._steps.used:
            return self._steps.program(name, protocol, whole)
        starts = self._memory.scratch_starts()
        return Program(
            name=name,
            collective=self.collective,
            transfers=self._transfers(starts),
            scratch_chunks=starts[-1].astype(np.int32),
            protocol=protocol,
            sources=self._recorder.sources(whole),
        )

    def _transfers(self, starts: LongArray) -> Transfers:
        """All transfers, with one scratch buffer, in which each one begins at its place in
        `starts`."""
        columns = self._recorder.columns()
        for side in ("src", "dst"):
            buffer, rank = columns[f"{side}_buffer"], columns[side]
            columns[f"{side}_index"] = columns[f"{side}_index"] + starts[buffer, rank]
            columns[f"{side}_buffer"] = np.minimum(buffer, Buffer.SCRATCH)
        return Transfers(**columns)

    def _range(
        self, rank: ArrayLike, buffer: Hashable, index: ArrayLike, count: int, size: int | None
    ) -> Ref:
        """A reference within the bounds, which may be unwritten; `size` elements, if given."""
        number = self.number(buffer)
        if not is_integer(count) or count < 1:
            refuse(L102, "a positive count", repr(count))
        (ranks, indices), length = broadcast(size, rank=rank, index=index)
        check_span(L101, "a rank", ranks, self.collective.ranks)
        if number >= Buffer.SCRATCH:
            self._check_scratch(number, indices, int(count))
        else:
            c = self.collective
            sizes = c.input_chunks if number == Buffer.INPUT else c.output_chunks
            self._check_index(number, ranks, indices, count, sizes)
        cells = self._memory.cells(ranks, number, indices, int(count))
        # A copy, as the memory goes on: the reference keeps what it was made for.
        versions = self._memory.versions(number)[cells].copy()
        return Ref(self, ranks, number, indices, int(count), length, versions)

    def _check_scratch(self, buffer: int, index: Any, count: int) -> None:
        limit = self._memory.room(buffer) - count + 1
        if limit <= 0:
            expected = f"at most {MAX_SCRATCH_CELLS} chunks in all scratch buffers of all ranks"
            refuse(L103, expected, f"{count} more in {self.word(buffer)}")
        check_span(L103, "a scratch index", index, limit)

    def _check_index(
        self, buffer: int, rank: Any, index: Any, count: int, sizes: np.ndarray
    ) -> None:
        bad = (index < 0) | (index + count > sizes[rank])
        if np.any(bad):
            element = int(np.argmax(bad))
            r, i = (_value_of(v, element) for v in (rank, index))
            word = Buffer(buffer).word
            refuse(
                L103,
                f"indices 0 to {sizes[r] - 1} of {word} on rank {r}"
                if sizes[r]
                else f"another buffer: rank {r} has no {word} buffer here",
                f"{word}{chunk_range(i, count)}",
            )

    def _check_current(self, ref: Ref) -> None:
        cells = self._memory.cells(ref.rank, ref.buffer, ref.index, ref.count)
        versions = self._memory.versions(ref.buffer)[cells]
        stale = versions != ref.versions
        if stale.any():
            where = np.argwhere(np.atleast_2d(stale))[0]
            element = int(where[0]) if stale.ndim == 2 else 0
            writer = int(np.atleast_2d(versions)[tuple(where)])
            place = self._recorder.place(writer)
            raise L106.error(
                at=[caller_place(), place.labelled("overwritten here")],
                expected="the latest reference to a place",
                found=f"{ref.name(element)}, which was overwritten at {place}",
            )

    def _check_reduction(self, target: Ref, other: object) -> None:
        if self.collective.varies:
            refuse(L119, "copies only: the counts of the chunks vary", "a reduction")
        if not isinstance(other, Ref) or other.program is not self:
            refuse(L110, "a reference of this program", repr(other))
        self._check_current(target)
        self._check_current(other)

    def _check_group(self, own: Ref, members: Ref) -> None:
        """Refuses places that a switch can't combine or write together."""
        if self.collective.varies:
            refuse(L137, "chunks of the same length on all ranks", "a collective of varying counts")
        if own.size > 1:
            refuse(L137, "one range of chunks of the own rank", f"{own.size} ranges")
        ranks, rank = np.ravel(members.rank), int(np.ravel(own.rank)[0])
        if rank in ranks:
            refuse(L137, f"ranks other than the own, {rank}", f"{sorted(ranks.tolist())}")
        if len(distinct(ranks)) < members.size:
            refuse(L137, "distinct ranks", f"{ranks.tolist()}")
        if (np.ravel(members.index) != np.ravel(members.index)[0]).any():
            refuse(L137, "the same index on all ranks", f"{np.ravel(members.index).tolist()}")

    def _transfer(
        self,
        kind: TransferKind,
        source: Ref,
        target: Ref,
        requested: Mapping[str, int | None],
        *,
        grouped: bool = False,
    ) -> Ref:
        directives = {"channel": NONE, "send_block": NONE, "recv_block": NONE}
        for word, value in requested.items():
            if value is not None:
                if not (is_integer(value) and 0 <= value < MAX_NUMBER):
                    refuse(L102, f"{word} from 0 to {MAX_NUMBER - 1}, or None", repr(value))
                directives[word] = value
        self._check_overlap(source, target)
        recorder, size = self._recorder, max(source.size, target.size)
        group = self._groups if grouped else NONE
        self._groups += grouped
        row = recorder.add(
            size,
            kind=kind,
            src=source.rank,
            src_buffer=source.buffer,
            src_index=source.index,
            dst=target.rank,
            dst_buffer=target.buffer,
            dst_index=target.index,
            count=source.count,
            instances=self._instances,
            lane=self._lane,
            step=NONE,
            group=group,
            source=recorder.source(),
            **directives,
        )
        cells = self._memory.cells(target.rank, target.buffer, target.index, target.count)
        versions = self._memory.versions(target.buffer)
        # Element k is transfer row + k.
        versions[cells] = row if isinstance(cells, slice) else row + np.arange(target.size)[:, None]
        return Ref(**{**vars(target), "versions": versions[cells].copy()})

    def _check_overlap(self, source: Ref, target: Ref) -> None:
        read, written = (
            self._memory.cells(ref.rank, ref.buffer, ref.index, ref.count)
            for ref in (source, target)
        )
        # Input and output are one memory, each scratch buffer is one of its own.
        same_memory = max(source.buffer, Buffer.OUTPUT) == max(target.buffer, Buffer.OUTPUT)
        if isinstance(written, slice) and isinstance(read, slice):
            if same_memory and read.start < written.stop and written.start < read.stop:
                self._refuse_overlap(source, target, 0)
            return
        reads, writes = (
            np.arange(c.start, c.stop)[None, :] if isinstance(c, slice) else c
            for c in (read, written)
        )
        if len(distinct(writes)) < writes.size:
            refuse(
                L109, "elements that write different places", f"{target!r} names one place twice"
            )
        if not same_memory:
            return
        # Both ranges of an element have `count` chunks: they meet if they begin closer than that.
        own = np.abs(reads[:, 0] - writes[:, 0]) < source.count
        if own.any():
            self._refuse_overlap(source, target, int(np.argmax(own)))
        # Elements run at the same time, so none may read what another one writes.
        if np.isin(reads, writes).any():
            refuse(
                L109,
                "elements that read no place that another element writes",
                f"{source!r} -> {target!r}",
            )

    def _refuse_overlap(self, source: Ref, target: Ref, element: int) -> NoReturn:
        names = source.name(element), target.name(element)
        refuse(
            L108,
            "a source and a destination that share no chunk",
            f"{names[0]} -> {names[1]}",
            remedy="The data are there already: leave this operation out. Does a loop include the "
            "rank itself?"
            if names[0] == names[1]
            else "",
        )
