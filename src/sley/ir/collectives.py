"""Collectives: the standard ones with their properties, and `Custom`.

Each is a function that returns a `Collective`, and a row of `STANDARD`. `chunks` divides a call's
element count: the whole buffer of AllReduce, Broadcast, Reduce, SendRecv and AllToNext; one rank's
contribution to AllGather, Gather and AllToAll; one rank's share of ReduceScatter and Scatter. In
AllToAllV and AllGatherV each of these parts has an element count of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, SleyError, counted
from sley.errors.language import L101, L102, L112, L116, L118, L119
from sley.ir.collective import Collective
from sley.ir.tables import NONE, Edges, LongArray, offsets_of
from sley.ir.words import is_integer

MAX_CHUNKS = 2**31 - 1
"""Limit of the input chunks, and of the output chunks, of all ranks: their ids are 32-bit."""

MAX_COUNT = 2**62
"""Limit of the elements of a block; no memory has as many."""

NO_ROLES: Mapping[str, int] = MappingProxyType({})


def _check(
    name: str,
    ranks: int,
    chunks: int,
    in_place: bool,
    members: Mapping[str, int] = NO_ROLES,
    *,
    has_pairs: bool = False,
) -> None:
    """Refuses invalid arguments. members: ranks by their names. has_pairs: whether there are
    `chunks` chunks for each pair of ranks. Errors: L101, L102, L112."""
    if not isinstance(in_place, bool):
        raise L112.error(
            at=Place(detail=name),
            expected="True or False for in_place",
            found=repr(in_place),
            remedy="Give one of them.",
        )
    for word, value in {"ranks": ranks, "chunks": chunks, **members}.items():
        if not is_integer(value):
            raise L112.error(
                at=Place(detail=name), expected=f"an integer for {word}", found=repr(value)
            )
    for word, value in (("rank", ranks), ("chunk", chunks)):
        if value < 1:
            found = f"{word}s={value}"
            raise L102.error(at=Place(detail=name), expected=f"at least 1 {word}", found=found)
    # Python's numbers don't overflow, as NumPy's do.
    _check_total(name, int(ranks) * int(chunks) * (int(ranks) if has_pairs else 1))
    for word, rank in members.items():
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


@dataclass(frozen=True)
class Standard:
    """A standard collective, and all that sley derives from its name.

    title: its name in sley ("AllReduce").
    call: the name of the communicator's call ("all_reduce"), or "".
    reduces: whether it combines elements.
    input_parts, output_parts: whether this buffer has a part for each rank instead of one part; a
        call's element count is that of one part.
    input_of, output_of: the only role with this buffer out of place ("root"); "" for all ranks.
    varies: whether the counts of the parts vary; then it is never in place.
    to_next: whether a rank's output is the input of the rank before it.
    """

    title: str
    call: str = ""
    reduces: bool = False
    input_parts: bool = False
    output_parts: bool = False
    input_of: str = ""
    output_of: str = ""
    varies: bool = False
    to_next: bool = False

    @property
    def name(self) -> str:
        """Its name in nccl-tests and files ("allreduce")."""
        return self.title.lower()

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

    def build(
        self,
        ranks: int,
        chunks: int = 1,
        in_place: bool = False,
        max_count: int = MAX_COUNT,
        **roles: int,
    ) -> Collective:
        """The collective. max_count: only matters if the counts vary. roles: the rank of each.
        Errors: L101, L102, L112, L119."""
        has_pairs = self.has_parts and not roles
        _check(self.title, ranks, chunks, in_place, roles, has_pairs=has_pairs)
        ranks, chunks = int(ranks), int(chunks)
        if len({*roles.values()}) < len(roles):
            raise L101.error(
                at=Place(detail=self.title),
                expected="two different ranks",
                found=", ".join(f"{word}={rank}" for word, rank in roles.items()),
                remedy="Give two different ranks.",
            )
        if self.varies:
            self._check_varying(max_count, in_place)
        rank = np.arange(ranks)
        ends = [rank == roles.get(word, rank) for word in (self.input_of, self.output_of)]
        # In place, the one buffer of a broadcast or a reduction is on every rank.
        shared = in_place and not self.has_parts and len(roles) == 1
        inputs, outputs = (
            np.where(at_end | shared, chunks * (ranks if has_parts else 1), 0)
            for at_end, has_parts in zip(ends, (self.input_parts, self.output_parts), strict=True)
        )
        values = self._values(inputs, chunks, roles)
        gets = (ends[1] & (rank >= self.to_next))[outputs > 0]
        expected = np.full((len(gets), int(outputs.max())), NONE, np.int32)
        expected[gets] = np.arange(len(values.offset) - 1).reshape(-1, expected.shape[1])
        larger, smaller = (outputs, 0) if self.output_parts else (inputs, 1)
        base = np.zeros((2, ranks), np.int32)
        if in_place and self.has_place_of_rank:
            base[smaller] = np.where(larger > 0, rank * chunks, 0)
        return Collective(
            name=self.name,
            ranks=ranks,
            chunks=chunks,
            in_place=in_place,
            root=roles[self.roles[0]] if self.roles else NONE,
            input_chunks=inputs,
            output_chunks=outputs,
            input_base=base[0],
            output_base=base[1],
            initial=np.repeat(ends[0], inputs),
            expected=expected.ravel(),
            values=values,
            max_count=int(max_count) if self.varies else NONE,
        )

    def _values(self, inputs: LongArray, chunks: int, roles: Mapping[str, int]) -> Edges:
        """The values that outputs must hold, each once, in the order of their first places."""
        ranks = len(inputs)
        # What a value depends on: the rank that gets it, its part of the output, its chunk of the
        # part. The last axis has the contributions of a reduction. One that makes no difference
        # has length 1.
        receivers = np.arange(self.to_next, ranks if self.input_parts or self.to_next else 1)
        parts = ranks if self.output_parts else 1
        shape = (len(receivers), parts, chunks, ranks if self.reduces else 1)
        receiver, part, chunk, giver = np.ogrid[tuple(map(slice, shape))]
        receiver = receivers[receiver]
        if self.output_parts:
            giver = part
        elif self.to_next:
            giver = receiver - 1
        elif self.input_of:
            giver = np.array(roles[self.input_of])
        first = offsets_of(inputs)[giver] + (receiver * chunks if self.input_parts else 0)
        ids = np.broadcast_to(first + chunk, shape).ravel()
        return Edges(np.arange(0, len(ids) + 1, shape[3]), ids)

    def _check_varying(self, max_count: int, in_place: bool) -> None:
        """Refuses what calls with varying counts can't have. Errors: L102, L112, L119."""
        at, whole = Place(detail=self.title), is_integer(max_count)
        if not whole or not 1 <= max_count <= MAX_COUNT:
            rule, expected = L102, "a max_count from 1 to 2**62 elements"
            if not whole:
                rule, expected = L112, "an integer for max_count"
            raise rule.error(
                at=at,
                expected=expected,
                found=f"max_count={max_count}" if whole else repr(max_count),
                remedy="Give the most elements of a part, or leave max_count out.",
            )
        if in_place:
            raise L119.error(at=at, expected="in_place=False", found=f"in_place={in_place!r}")

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
        return self.build(ranks, chunks, in_place, max_count, **dict.fromkeys(self.roles, root))

    def check_root(self, root: int | None) -> None:
        """Refuses a root for a collective without one. Errors: L101."""
        if root is not None and not self.roles:
            raise L101.error(
                at=Place(detail=self.title),
                expected="no root: all ranks have the same role",
                found=f"root={root}",
                remedy="Leave root out.",
            )

    def like(self, c: Collective, *, in_place: bool) -> Collective:
        """The collective with the ranks, chunks, roles and largest count of `c`. Errors: L101,
        L102, L119."""
        return self.build(c.ranks, c.chunks, in_place, c.max_count, **self.roles_in(c))

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


STANDARD: Mapping[str, Standard] = MappingProxyType(
    {
        row.name: row
        for row in (
            Standard("AllReduce", "all_reduce", reduces=True),
            Standard("AllGather", "all_gather", output_parts=True),
            Standard("ReduceScatter", "reduce_scatter", reduces=True, input_parts=True),
            Standard("AllToAll", "all_to_all", input_parts=True, output_parts=True),
            Standard("Broadcast", "broadcast", input_of="root"),
            Standard("Reduce", "reduce", reduces=True, output_of="root"),
            Standard("Gather", "gather", output_parts=True, output_of="root"),
            Standard("Scatter", "scatter", input_parts=True, input_of="root"),
            Standard("SendRecv", input_of="src", output_of="dst"),
            Standard("AllToNext", to_next=True),
            Standard("AllToAllV", "all_to_all_v", input_parts=True, output_parts=True, varies=True),
            Standard("AllGatherV", "all_gather_v", output_parts=True, varies=True),
        )
    }
)
"""The standard collectives by name."""

SIZED: Mapping[str, Standard] = MappingProxyType(
    {name: row for name, row in STANDARD.items() if not row.varies}
)
"""The standard collectives of equal counts, by name: the size of a call says all about its data."""


def plain_name(name: str) -> str:
    """The name of a collective in nccl-tests and files, of its name as NCCL, MPI or PyTorch spell
    it."""
    return re.sub("[-_]", "", name).lower()


def AllReduce(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Every rank's `chunks` output chunks are the reductions of all ranks' input chunks."""
    return STANDARD["allreduce"].build(ranks, chunks, in_place)


def AllGather(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Every rank's output is the inputs (`chunks` each) of all ranks in order.

    In place, rank r's input is chunks r * chunks ... of its output.
    """
    return STANDARD["allgather"].build(ranks, chunks, in_place)


def ReduceScatter(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Rank r's output (`chunks`) is part r of the reduction of all inputs (ranks * chunks).

    In place, rank r's output is chunks r * chunks ... of its input.
    """
    return STANDARD["reducescatter"].build(ranks, chunks, in_place)


def AllToAll(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Part s of rank r's output (`chunks` each) is part r of rank s's input."""
    return STANDARD["alltoall"].build(ranks, chunks, in_place)


def AllToAllV(
    ranks: int, max_count: int = MAX_COUNT, chunks: int = 1, in_place: bool = False
) -> Collective:
    """AllToAll with varying counts: each part of a rank's input has from 0 to `max_count` elements.

    Its calls give the counts. It is always out of place. Errors: L102, L112, L119.
    """
    return STANDARD["alltoallv"].build(ranks, chunks, in_place, max_count)


def AllGatherV(
    ranks: int, max_count: int = MAX_COUNT, chunks: int = 1, in_place: bool = False
) -> Collective:
    """AllGather with varying counts: each rank's input has from 0 to `max_count` elements.

    Its calls give the counts. It is always out of place. Errors: L102, L112, L119.
    """
    return STANDARD["allgatherv"].build(ranks, chunks, in_place, max_count)


def Broadcast(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """Every rank's output is the root's input. In place they are one buffer."""
    return STANDARD["broadcast"].build(ranks, chunks, in_place, root=root)


def Reduce(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """The root's output is the reduction of all inputs. In place the other ranks' buffers may be
    overwritten."""
    return STANDARD["reduce"].build(ranks, chunks, in_place, root=root)


def Gather(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """The root's output is the inputs (`chunks` each) of all ranks in order."""
    return STANDARD["gather"].build(ranks, chunks, in_place, root=root)


def Scatter(ranks: int, chunks: int = 1, root: int = 0, in_place: bool = False) -> Collective:
    """Rank r's output (`chunks`) is part r of the root's input."""
    return STANDARD["scatter"].build(ranks, chunks, in_place, root=root)


def SendRecv(
    ranks: int, chunks: int = 1, src: int = 0, dst: int = 1, in_place: bool = False
) -> Collective:
    """Rank `dst`'s output is rank `src`'s input; other ranks have only scratch."""
    return STANDARD["sendrecv"].build(ranks, chunks, in_place, src=src, dst=dst)


def AllToNext(ranks: int, chunks: int = 1, in_place: bool = False) -> Collective:
    """Rank r + 1's output is rank r's input; rank 0 receives nothing (MSCCLang 7.4)."""
    return STANDARD["alltonext"].build(ranks, chunks, in_place)


def standard(c: Collective) -> Standard | None:
    """The row of the standard collective that equals `c`, or None; an equal name is not enough."""
    row = STANDARD.get(c.name)
    # Sizes first: of a damaged file, the standard collective may not fit into memory.
    return row if row is not None and row.has_sizes_of(c) and _like(row, c) == c else None


def bus_factor(c: Collective) -> float:
    """The load of the busiest link in an ideal algorithm over the algorithm bandwidth
    (nccl-tests, PERFORMANCE.md); 1 for collectives that nccl-tests doesn't have."""
    row = STANDARD.get(c.name)
    others = (c.ranks - 1) / c.ranks
    if row is None or not (row.has_parts or row.reduces) or row.name == "reduce":
        return 1.0
    return others if row.has_parts else 2 * others


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
    _check(name, ranks, chunks, in_place)
    inputs = _custom_sizes(name, ranks, input_chunks)
    outputs = _custom_sizes(name, ranks, output_chunks)
    start = offsets_of(inputs)
    results = [
        _result(name, chunks, (rank, index), expected(rank, index), start)
        for rank in range(ranks)
        for index in range(int(outputs[rank]))
    ]
    own = unpromised(name, in_place, inputs, outputs)
    return with_results(replace(own, chunks=chunks), results, chunks)


def unpromised(
    name: str,
    in_place: bool,
    inputs: NDArray[Any],
    outputs: NDArray[Any],
    *,
    bases: NDArray[Any] | None = None,
    initial: NDArray[Any] | None = None,
) -> Collective:
    """A collective of one chunk a block, which promises nothing.

    inputs, outputs: (ranks,), the sizes of the buffers. bases: (2, ranks), where input and output
    begin, by default at 0. initial: as in `Collective`, by default all.
    """
    input_base, output_base = np.zeros((2, len(inputs)), np.int32) if bases is None else bases
    return Collective(
        name=name,
        ranks=len(inputs),
        chunks=1,
        in_place=in_place,
        root=NONE,
        input_chunks=inputs,
        output_chunks=outputs,
        input_base=input_base,
        output_base=output_base,
        initial=np.ones(int(inputs.sum()), bool) if initial is None else initial,
        expected=np.full(int(outputs.sum()), NONE, np.int32),
        values=Edges.empty(0),
    )


def with_results(
    c: Collective, results: Sequence[tuple[int, ...] | None], chunks: int
) -> Collective:
    """A collective that promises `results` in all output chunks, rank after rank: the ids of the
    input chunks of a reduction, in order; None for any data. chunks: as for `recognized`. Errors:
    L118."""
    rows: dict[tuple[int, ...], int] = {}
    expected = [NONE if ids is None else rows.setdefault(ids, len(rows)) for ids in results]
    ids = np.array([i for value in rows for i in value], np.int32)
    values = Edges(offsets_of(np.array([len(value) for value in rows], np.int64)), ids)
    return recognized(replace(c, expected=np.array(expected, np.int32), values=values), chunks)


def recognized(own: Collective, chunks: int) -> Collective:
    """The standard collective that has the name of `own` and equals it with `chunks` chunks of a
    block; `own` itself if its name is not that of a standard one. Errors: L118."""
    # A name in any spelling, such as "All-Reduce".
    row = STANDARD.get("".join(letter for letter in own.name.lower() if letter.isalnum()))
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


def _result(
    name: str,
    chunks: int,
    at: tuple[int, int],
    parts: Iterable[tuple[int, int]] | None,
    start: LongArray,
) -> tuple[int, ...] | None:
    """The ids of the input chunks that `expected` returns for the output chunk (rank, index) `at`.
    start: (ranks + 1,), the id of each rank's first input chunk. Errors: L101, L112, L116."""
    if parts is None:
        return None
    place, (rank, index) = Place(detail=name), at
    try:
        pairs = [(r, i) for r, i in parts]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(is_integer(n) for pair in pairs for n in pair):
        raise L112.error(
            at=place,
            expected="input chunks as (rank, index) pairs, at least one, or None",
            found=f"{parts!r} for out[{index}] of rank {rank}",
            remedy="Return a list of pairs, [(0, 0)] for one chunk, or None for no promise.",
        )
    for r, i in pairs:
        if i % chunks != index % chunks:
            raise L116.error(
                at=place,
                expected=f"chunk {index % chunks} of a block from chunk {index % chunks} of blocks",
                found=f"out[{index}] of rank {rank} from in[{i}] of rank {r}, with {chunks} chunks "
                "a block",
            )
    for r, i in pairs:
        if not 0 <= r < len(start) - 1 or not 0 <= i < start[r + 1] - start[r]:
            raise L101.error(
                at=place,
                expected="input chunks (rank, index) that exist",
                found=f"({r}, {i})",
                remedy="Name a rank and one of its input chunks.",
            )
    return tuple(sorted(int(start[r]) + i for r, i in pairs))


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
        expected=f"the buffers and results of sley.{row.title} for the name {own.name!r}",
        found=f"different ones, on {counted(own.ranks, 'rank')}",
    )
