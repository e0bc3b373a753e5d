"""Collectives: the standard ones with their properties, and `Custom`.

Each is a function that returns a `Collective`, and a row of `STANDARD`. `chunks` divides a call's
element count: the whole buffer of AllReduce, Broadcast, Reduce, SendRecv and AllToNext; one rank's
contribution to AllGather, Gather and AllToAll; one rank's share of ReduceScatter and Scatter. In
AllToAllV and AllGatherV each of these parts has an element count of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import cast

import numpy as np

from sley.errors import Place, SleyError, counted
from sley.errors.language import L101, L102, L112, L116, L118, L119
from sley.ir.collective import Collective
from sley.ir.tables import NONE, Edges, IntArray, offsets_of
from sley.ir.words import is_integer

__all__ = [
    "AllGather",
    "AllGatherV",
    "AllReduce",
    "AllToAll",
    "AllToAllV",
    "AllToNext",
    "Broadcast",
    "Custom",
    "Gather",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "SendRecv",
]

MAX_CHUNKS = 2**31 - 1
"""Limit of the input chunks, and of the output chunks, of all ranks: their ids are 32-bit."""

MAX_COUNT = 2**62
"""Limit of the elements of a block; no memory has as many."""


def _check(
    name: str, ranks: int, chunks: int, *members: tuple[str, int], has_pairs: bool = False
) -> None:
    """Refuses invalid numbers. has_pairs: whether there are `chunks` chunks for each pair of ranks.
    Errors: L101, L102, L112."""
    for word, value in (("ranks", ranks), ("chunks", chunks), *members):
        if not is_integer(value):
            raise L112.error(
                at=Place(detail=name), expected=f"an integer for {word}", found=repr(value)
            )
    if ranks < 1:
        raise L102.error(at=Place(detail=name), expected="at least 1 rank", found=f"ranks={ranks}")
    if chunks < 1:
        raise L102.error(
            at=Place(detail=name), expected="at least 1 chunk", found=f"chunks={chunks}"
        )
    _check_total(name, ranks * chunks * (ranks if has_pairs else 1))
    for word, rank in members:
        if not 0 <= rank < ranks:
            raise L101.error(
                at=Place(detail=name),
                expected=f"a rank from 0 to {ranks - 1}",
                found=f"{word}={rank}",
                remedy=f"Give one of these ranks as {word}.",
            )


def _check_total(name: str, total: int) -> None:
    """Refuses more input or output chunks of all ranks than ids can number. Errors: L102."""
    if total > MAX_CHUNKS:
        raise L102.error(
            at=Place(detail=name),
            expected=f"at most {MAX_CHUNKS} chunks on all ranks together",
            found=f"{total}",
            remedy="Use fewer ranks or chunks: ids of chunks are 32-bit.",
        )


# More than eight parameters: the fields of a Collective.
def _build(
    name: str,
    ranks: int,
    chunks: int,
    in_place: bool,
    *,
    inputs: np.ndarray,
    outputs: np.ndarray,
    expected: np.ndarray,
    values: Edges,
    root: int = NONE,
    input_base: np.ndarray | int = 0,
    output_base: np.ndarray | int = 0,
    initial: np.ndarray | None = None,
) -> Collective:
    total = int(inputs.sum())
    return Collective(
        name=name,
        ranks=ranks,
        chunks=chunks,
        in_place=in_place,
        root=root,
        input_chunks=inputs,
        output_chunks=outputs,
        input_base=_bases(ranks, input_base, in_place),
        output_base=_bases(ranks, output_base, in_place),
        initial=np.ones(total, bool) if initial is None else initial,
        expected=expected,
        values=values,
    )


def _bases(ranks: int, base: np.ndarray | int, in_place: bool) -> IntArray:
    """int32 (ranks,): where a buffer begins in each rank's data; 0 out of place."""
    return np.broadcast_to(np.asarray(base if in_place else 0, np.int32), ranks)


def _copies(ids: np.ndarray) -> Edges:
    """Values that are single input chunks, in the order of `ids`."""
    return Edges(np.arange(len(ids) + 1), ids)


def _sums(ranks: int, width: int) -> Edges:
    """`width` values, each the reduction of that index of every rank's `width` input chunks."""
    ids = np.arange(ranks)[None, :] * width + np.arange(width)[:, None]
    return Edges(np.arange(width + 1) * ranks, ids.ravel())


def _full(ranks: int, size: int) -> np.ndarray:
    return np.full(ranks, size, np.int32)


def _at(ranks: int, root: int, size: int) -> np.ndarray:
    sizes = np.zeros(ranks, np.int32)
    sizes[root] = size
    return sizes


def AllReduce(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Every rank's `chunks` output chunks are the reductions of all ranks' input chunks."""
    _check("AllReduce", ranks, chunks)
    size = _full(ranks, chunks)
    return _build(
        "allreduce",
        ranks,
        chunks,
        in_place,
        inputs=size,
        outputs=size,
        expected=np.tile(np.arange(chunks), ranks),
        values=_sums(ranks, chunks),
    )


def AllGather(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Every rank's output is the inputs (`chunks` each) of all ranks in order.

    In place, rank r's input is chunks r * chunks ... of its output.
    """
    _check("AllGather", ranks, chunks, has_pairs=True)
    total = ranks * chunks
    return _build(
        "allgather",
        ranks,
        chunks,
        in_place,
        inputs=_full(ranks, chunks),
        outputs=_full(ranks, total),
        expected=np.tile(np.arange(total), ranks),
        values=_copies(np.arange(total)),
        input_base=np.arange(ranks) * chunks,
    )


def ReduceScatter(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Rank r's output (`chunks`) is part r of the reduction of all inputs (ranks * chunks).

    In place, rank r's output is chunks r * chunks ... of its input.
    """
    _check("ReduceScatter", ranks, chunks, has_pairs=True)
    total = ranks * chunks
    return _build(
        "reducescatter",
        ranks,
        chunks,
        in_place,
        inputs=_full(ranks, total),
        outputs=_full(ranks, chunks),
        expected=np.arange(total),
        values=_sums(ranks, total),
        output_base=np.arange(ranks) * chunks,
    )


def AllToAll(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Part s of rank r's output (`chunks` each) is part r of rank s's input."""
    _check("AllToAll", ranks, chunks, has_pairs=True)
    size = _full(ranks, ranks * chunks)
    receiver, sender, part = np.ogrid[:ranks, :ranks, :chunks]
    ids = ((sender * ranks + receiver) * chunks + part).ravel()
    return _build(
        "alltoall",
        ranks,
        chunks,
        in_place,
        inputs=size,
        outputs=size,
        expected=np.arange(len(ids)),
        values=_copies(ids),
    )


def AllToAllV(
    ranks: int, max_count: int = MAX_COUNT, chunks: int = 1, in_place: bool = False
) -> Collective:
    """AllToAll with varying counts: each part of a rank's input has from 0 to `max_count` elements.

    Its calls give the counts. It is always out of place. Errors: L102, L112, L119.
    """
    _check("AllToAllV", ranks, chunks, has_pairs=True)
    return _varying("AllToAllV", AllToAll(ranks, chunks), max_count, in_place)


def AllGatherV(
    ranks: int, max_count: int = MAX_COUNT, chunks: int = 1, in_place: bool = False
) -> Collective:
    """AllGather with varying counts: each rank's input has from 0 to `max_count` elements.

    Its calls give the counts. It is always out of place. Errors: L102, L112, L119.
    """
    _check("AllGatherV", ranks, chunks, has_pairs=True)
    return _varying("AllGatherV", AllGather(ranks, chunks), max_count, in_place)


def _varying(name: str, equal: Collective, max_count: int, in_place: bool) -> Collective:
    """The collective of varying counts that `equal` is with equal counts. Errors: L102, L112,
    L119."""
    at = Place(detail=name)
    if not is_integer(max_count):
        raise L112.error(
            at=at,
            expected="an integer for max_count",
            found=repr(max_count),
            remedy="Give the most elements of a part, or leave max_count out.",
        )
    if not 1 <= max_count <= MAX_COUNT:
        raise L102.error(
            at=at,
            expected="a max_count from 1 to 2**62 elements",
            found=f"max_count={max_count}",
            remedy="Give the most elements of a part, or leave max_count out.",
        )
    if in_place:
        raise L119.error(at=at, expected="in_place=False", found=f"in_place={in_place!r}")
    return replace(equal, name=name.lower(), max_count=int(max_count))


def Broadcast(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """Every rank's output is the root's input. In place they are one buffer."""
    _check("Broadcast", ranks, chunks, ("root", root))
    inputs = _full(ranks, chunks) if in_place else _at(ranks, root, chunks)
    first = root * chunks if in_place else 0
    initial = np.zeros(int(inputs.sum()), bool)
    initial[first : first + chunks] = True
    return _build(
        "broadcast",
        ranks,
        chunks,
        in_place,
        inputs=inputs,
        outputs=_full(ranks, chunks),
        expected=np.tile(np.arange(chunks), ranks),
        values=_copies(first + np.arange(chunks)),
        root=root,
        initial=initial,
    )


def Reduce(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """The root's output is the reduction of all inputs. In place the other ranks' buffers may be
    overwritten."""
    _check("Reduce", ranks, chunks, ("root", root))
    outputs = _full(ranks, chunks) if in_place else _at(ranks, root, chunks)
    expected = np.full(int(outputs.sum()), NONE)
    first = root * chunks if in_place else 0
    expected[first : first + chunks] = np.arange(chunks)
    return _build(
        "reduce",
        ranks,
        chunks,
        in_place,
        inputs=_full(ranks, chunks),
        outputs=outputs,
        expected=expected,
        values=_sums(ranks, chunks),
        root=root,
    )


def Gather(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """The root's output is the inputs (`chunks` each) of all ranks in order."""
    _check("Gather", ranks, chunks, ("root", root))
    total = ranks * chunks
    return _build(
        "gather",
        ranks,
        chunks,
        in_place,
        inputs=_full(ranks, chunks),
        outputs=_at(ranks, root, total),
        expected=np.arange(total),
        values=_copies(np.arange(total)),
        root=root,
        input_base=_at(ranks, root, root * chunks),
    )


def Scatter(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """Rank r's output (`chunks`) is part r of the root's input."""
    _check("Scatter", ranks, chunks, ("root", root))
    total = ranks * chunks
    return _build(
        "scatter",
        ranks,
        chunks,
        in_place,
        inputs=_at(ranks, root, total),
        outputs=_full(ranks, chunks),
        expected=np.arange(total),
        values=_copies(np.arange(total)),
        root=root,
        output_base=_at(ranks, root, root * chunks),
    )


def SendRecv(
    ranks: int, chunks: int = 1, src: int = 0, dst: int = 1, in_place: bool = False
) -> Collective:
    """Rank `dst`'s output is rank `src`'s input; other ranks have only scratch."""
    _check("SendRecv", ranks, chunks, ("src", src), ("dst", dst))
    if src == dst:
        raise L101.error(
            at=Place(detail="SendRecv"),
            expected="two different ranks",
            found=f"src={src}, dst={dst}",
            remedy="Give two different ranks.",
        )
    return _build(
        "sendrecv",
        ranks,
        chunks,
        in_place,
        inputs=_at(ranks, src, chunks),
        outputs=_at(ranks, dst, chunks),
        expected=np.arange(chunks),
        values=_copies(np.arange(chunks)),
        root=src,
    )


def AllToNext(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Rank r + 1's output is rank r's input; rank 0 receives nothing (MSCCLang 7.4)."""
    _check("AllToNext", ranks, chunks)
    size = _full(ranks, chunks)
    moved = np.arange((ranks - 1) * chunks)
    return _build(
        "alltonext",
        ranks,
        chunks,
        in_place,
        inputs=size,
        outputs=size,
        expected=np.concatenate([np.full(chunks, NONE), moved]),
        values=_copies(moved),
    )


@dataclass(frozen=True)
class Standard:
    """A standard collective, with all properties that sley derives from its name.

    name: its name in nccl-tests and files, in lower case ("allreduce").
    build: returns the `Collective`; takes ranks, chunks, the ranks of `roles`, and in_place.
    call: the name of the communicator's call ("all_reduce"), or "".
    reduces: whether it combines elements.
    input_parts, output_parts: whether this buffer has a part for each rank instead of one part; a
        call's element count is that of one part.
    input_of, output_of: the only role with this buffer out of place ("root"); "" for all ranks.
    varies: whether the counts of the parts vary; then it is never in place.
    bus_factor: ranks -> the load of the busiest link in an ideal algorithm over the algorithm
        bandwidth (nccl-tests, PERFORMANCE.md); 1 for collectives that nccl-tests doesn't have.
    """

    name: str
    build: Callable[..., Collective]
    call: str = ""
    reduces: bool = False
    input_parts: bool = False
    output_parts: bool = False
    input_of: str = ""
    output_of: str = ""
    varies: bool = False
    bus_factor: Callable[[int], float] = lambda ranks: 1.0

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The names of `build`'s arguments for particular ranks; the first is `Collective.root`."""
        return tuple(dict.fromkeys(word for word in (self.input_of, self.output_of) if word))

    @property
    def has_parts(self) -> bool:
        """Whether the largest buffer has a part for each rank."""
        return self.input_parts or self.output_parts

    @property
    def has_place_of_rank(self) -> bool:
        """Whether, in place, the smaller buffer is the rank's part of the larger one."""
        return self.input_parts != self.output_parts

    def of(
        self,
        ranks: int,
        chunks: int = 1,
        *,
        in_place: bool = False,
        root: int = 0,
        max_count: int = MAX_COUNT,
    ) -> Collective:
        """The collective, of at most one role, which `root` has; `max_count` matters only if the
        counts vary. Errors: L101, L102, L112, L119."""
        words = dict.fromkeys(self.roles, root)
        if self.varies:
            words["max_count"] = max_count
        return self.build(ranks, chunks=chunks, in_place=in_place, **words)

    def like(self, c: Collective, *, in_place: bool) -> Collective:
        """The collective with the ranks, chunks, roles and largest count of `c`. Errors: L101,
        L102, L119."""
        words = self.roles_in(c)
        if self.varies:
            words["max_count"] = c.max_count
        return self.build(c.ranks, chunks=c.chunks, in_place=in_place, **words)

    def has_sizes_of(self, c: Collective) -> bool:
        """Whether the buffers of `c` have as many chunks as those of this collective, on the ranks
        that have one."""
        for chunks, has_parts, role in (
            (c.input_chunks, self.input_parts, self.input_of),
            (c.output_chunks, self.output_parts, self.output_of),
        ):
            size = c.chunks * (c.ranks if has_parts else 1)
            found = chunks.max(initial=0) if role else chunks.sum(dtype=np.int64)
            if len(chunks) != c.ranks or found != (size if role else size * c.ranks):
                return False
        return True

    def roles_in(self, c: Collective) -> dict[str, int]:
        """The rank of each role in `c`, if `c` is this collective."""
        holders = (c.root, int(np.argmax(c.output_chunks)))
        return dict(zip(self.roles, holders, strict=False))


def _other_ranks(ranks: int) -> float:
    return (ranks - 1) / ranks


STANDARD: Mapping[str, Standard] = MappingProxyType(
    {
        row.name: row
        for row in (
            Standard(
                "allreduce",
                AllReduce,
                "all_reduce",
                reduces=True,
                bus_factor=lambda ranks: 2 * _other_ranks(ranks),
            ),
            Standard(
                "allgather", AllGather, "all_gather", output_parts=True, bus_factor=_other_ranks
            ),
            Standard(
                "reducescatter",
                ReduceScatter,
                "reduce_scatter",
                reduces=True,
                input_parts=True,
                bus_factor=_other_ranks,
            ),
            Standard(
                "alltoall",
                AllToAll,
                "all_to_all",
                input_parts=True,
                output_parts=True,
                bus_factor=_other_ranks,
            ),
            Standard("broadcast", Broadcast, "broadcast", input_of="root"),
            Standard("reduce", Reduce, "reduce", reduces=True, output_of="root"),
            Standard(
                "gather",
                Gather,
                "gather",
                output_parts=True,
                output_of="root",
                bus_factor=_other_ranks,
            ),
            Standard(
                "scatter",
                Scatter,
                "scatter",
                input_parts=True,
                input_of="root",
                bus_factor=_other_ranks,
            ),
            Standard("sendrecv", SendRecv, input_of="src", output_of="dst"),
            Standard("alltonext", AllToNext),
            Standard(
                "alltoallv",
                AllToAllV,
                "all_to_all_v",
                input_parts=True,
                output_parts=True,
                varies=True,
                bus_factor=_other_ranks,
            ),
            Standard(
                "allgatherv",
                AllGatherV,
                "all_gather_v",
                output_parts=True,
                varies=True,
                bus_factor=_other_ranks,
            ),
        )
    }
)
"""The standard collectives by name."""

SIZED: Mapping[str, Standard] = MappingProxyType(
    {name: row for name, row in STANDARD.items() if not row.varies}
)
"""The standard collectives of equal counts, by name: the size of a call says all about its data."""


def standard(c: Collective) -> Standard | None:
    """The row of the standard collective that equals `c`, or None; an equal name is not enough."""
    row = STANDARD.get(c.name)
    # Sizes first: of a damaged file, the standard collective may not fit into memory.
    return row if row is not None and row.has_sizes_of(c) and _like(row, c) == c else None


def bus_factor(c: Collective) -> float:
    """`Standard.bus_factor` of a collective; 1 for other names."""
    row = STANDARD.get(c.name)
    return 1.0 if row is None else row.bus_factor(c.ranks)


def Custom(
    name: str,
    ranks: int,
    input_chunks: int | Iterable[int],
    output_chunks: int | Iterable[int],
    expected: Callable[[int, int], Iterable[tuple[int, int]] | None],
    *,
    chunks: int = 1,
    in_place: bool = False,
) -> Collective:
    """A user-defined collective.

    expected(rank, index) returns the input chunks, as (rank, index) pairs, whose reduction output
    chunk `index` of `rank` must hold at the end; None for any data. `chunks` is the number of
    chunks of a call's element count. The name of a standard collective, in any spelling, is
    reserved for this collective. Errors: L101, L102, L112, L116, L118.
    """
    _check(name, ranks, chunks)
    inputs = _custom_sizes(name, ranks, input_chunks)
    outputs = _custom_sizes(name, ranks, output_chunks)
    start = offsets_of(inputs)
    rows: dict[tuple[int, ...], int] = {}
    wanted = np.full(int(outputs.sum()), NONE, np.int32)
    position = 0
    for rank in range(ranks):
        for index in range(int(outputs[rank])):
            parts = expected(rank, index)
            if parts is not None:
                pairs = _custom_parts(name, rank, index, parts)
                _check_aligned(name, chunks, rank, index, pairs)
                ids = tuple(sorted(_input_id(name, inputs, start, r, i) for r, i in pairs))
                wanted[position] = rows.setdefault(ids, len(rows))
            position += 1
    values = Edges(
        offsets_of(np.array([len(ids) for ids in rows], np.int64)),
        np.array([i for ids in rows for i in ids], np.int32),
    )
    own = _build(
        name,
        ranks,
        chunks,
        in_place,
        inputs=inputs,
        outputs=outputs,
        expected=wanted,
        values=values,
    )
    return recognized(own, chunks)


def recognized(own: Collective, chunks: int) -> Collective:
    """The standard collective that has the name of `own` and equals it with `chunks` chunks of a
    block; `own` itself if its name is not that of a standard one. Errors: L118."""
    row = _find_standard(own.name)
    return own if row is None else _as_standard(replace(own, chunks=chunks), row)


def _custom_sizes(name: str, ranks: int, sizes: int | Iterable[int]) -> np.ndarray:
    """Sizes of a buffer on each rank, from one size for all or one for each."""
    array = np.asarray(sizes if is_integer(sizes) else list(cast("Iterable[int]", sizes)))
    if array.dtype.kind not in "iu" or array.shape not in ((), (ranks,)) or (array < 0).any():
        raise L112.error(
            at=Place(detail=name),
            expected=f"a number of chunks from 0, or {ranks} such numbers",
            found=repr(sizes),
        )
    _check_total(name, sum(array.tolist()) if array.ndim else int(array) * ranks)
    return np.broadcast_to(array.astype(np.int32), ranks)


def _custom_parts(
    name: str, rank: int, index: int, parts: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The result of `expected` for an output chunk, as a list of (rank, index)."""
    try:
        pairs = [(r, i) for r, i in parts]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(is_integer(n) for pair in pairs for n in pair):
        raise L112.error(
            at=Place(detail=name),
            expected="input chunks as (rank, index) pairs, at least one, or None",
            found=f"{parts!r} for out[{index}] of rank {rank}",
            remedy="Return a list of pairs, [(0, 0)] for one chunk, or None for no promise.",
        )
    return pairs


def _check_aligned(
    name: str, chunks: int, rank: int, index: int, parts: list[tuple[int, int]]
) -> None:
    for r, i in parts:
        if i % chunks != index % chunks:
            raise L116.error(
                at=Place(detail=name),
                expected=f"chunk {index % chunks} of a block from chunk {index % chunks} of blocks",
                found=f"out[{index}] of rank {rank} from in[{i}] of rank {r}, with {chunks} chunks "
                "a block",
            )


def _input_id(name: str, inputs: np.ndarray, start: np.ndarray, rank: int, index: int) -> int:
    if not 0 <= rank < len(inputs) or not 0 <= index < inputs[rank]:
        raise L101.error(
            at=Place(detail=name),
            expected="input chunks (rank, index) that exist",
            found=f"({rank}, {index})",
            remedy="Name a rank and one of its input chunks.",
        )
    return int(start[rank]) + index


def _find_standard(name: str) -> Standard | None:
    """The standard collective of a name in any spelling, such as "All-Reduce"."""
    return STANDARD.get("".join(letter for letter in name.lower() if letter.isalnum()))


def _like(row: Standard, c: Collective) -> Collective | None:
    """The standard collective with the numbers and roles of `c`; None if no ranks can have these
    roles."""
    try:
        return row.like(c, in_place=c.in_place)
    except SleyError:
        return None


def _as_standard(own: Collective, row: Standard) -> Collective:
    """The standard collective `row` that equals a collective of its name. Errors: L118."""
    for root in range(own.ranks if row.roles else 1):
        same = _like(row, replace(own, root=root))
        if same is not None and replace(same, name=own.name, root=NONE) == own:
            return same
    raise L118.error(
        at=Place(detail=own.name),
        expected=f"the buffers and results of sley.{row.build.__name__} for the name {own.name!r}",
        found=f"different ones, on {counted(own.ranks, 'rank')}",
    )
