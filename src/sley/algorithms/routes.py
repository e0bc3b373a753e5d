"""Routes: an AllToAll in which ranks pass on data between others, along given routes.

`sley.topologies.find_routes` finds routes that come close to a topology's bandwidth bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from sley.algorithms.algorithm import algorithm
from sley.errors import Place
from sley.errors.language import L139
from sley.ir.collectives import AllToAll
from sley.ir.program import Program
from sley.ir.tables import NONE, LongArray, offsets_of
from sley.lang import ChunkProgram, trace

Routes: TypeAlias = Sequence[Sequence[int]] | LongArray | None
"""A row for each route: the chunks that take it, then the ranks from source to destination, -1
after the end. By default a route of one send for each pair of ranks."""

_BUFFERS = ("in", "out", "scratch")


@algorithm("alltoall", "Shahrokhi and Matula 1990")
def routed_alltoall(ranks: int, *, routes: Routes = None, in_place: bool = False) -> Program:
    """AllToAll along routes: each rank's data for another passes the ranks of the routes between
    them, which divide it.

    Data waits in scratch, so placed that chunks which go on together are one transfer.
    routes: as `sley.topologies.find_routes` finds them for a topology; by default all pairs
    exchange their data directly. Source: flows of several commodities, Shahrokhi and Matula 1990.
    Errors: L102, L121, L139.
    """
    along = _Routes(ranks, routes)
    own = np.arange(ranks)

    def body(p: ChunkProgram) -> None:
        along.send(p, in_place=in_place)
        if not in_place:  # nobody waits for these copies
            kept = p.chunk(own, "in", own * along.chunks, along.chunks)
            kept.copy(own, "out", own * along.chunks)

    return trace(AllToAll(ranks, along.chunks, in_place), body)


class _Routes:
    """Routes, and the transfers along them.

    weight: int64 (routes,), the chunks of each route. passed: int64 (routes, longest), the ranks
    that it passes, NONE after the end. src, dst: its ends. sends: how many it takes. chunks: of
    each pair. first: int64 (routes,), the first chunk of each route among its pair's. Errors: L139.
    """

    def __init__(self, ranks: int, routes: Routes) -> None:
        rows = _rows(ranks, routes)
        self.ranks, self.weight, self.passed = ranks, rows[:, 0], rows[:, 1:]
        self.sends = (self.passed != NONE).sum(axis=1) - 1
        self.src = self.passed[:, 0]
        self.dst = self.passed[np.arange(len(rows)), self.sends]
        pair = self.src * ranks + self.dst
        order = np.argsort(pair, kind="stable")
        before, sorted_pair = offsets_of(self.weight[order])[:-1], pair[order]
        self.first = np.empty_like(self.weight)
        self.first[order] = before - before[np.searchsorted(sorted_pair, sorted_pair)]
        self.chunks = int(self.weight[pair == pair[0]].sum())

    def send(self, p: ChunkProgram, *, in_place: bool) -> None:
        """Sends all data. In place, what comes in one send waits in scratch, until every rank has
        sent the chunks that were in its place."""
        route, turn = np.nonzero(self.passed[:, 1:] != NONE)
        a, b = self.passed[route, turn], self.passed[route, turn + 1]
        src, dst, first = self.src[route], self.dst[route], self.first[route]
        ends, weight = turn + 1 == self.sends[route], self.weight[route]
        waits = ~ends | (in_place & (turn == 0))
        after = np.append(b[1:], self.ranks)
        after[ends] = self.ranks  # behind all that goes on
        place = src * self.chunks + first
        result = place.copy()
        # On each rank, chunks wait in the order of the ranks that they go to, then of sources.
        order = np.lexsort((first, dst, src, after, b))
        order = order[waits[order]]
        offset = offsets_of(weight[order])[:-1]
        place[order] = offset - offset[np.searchsorted(b[order], b[order])]
        begin, of = dst * self.chunks + first, np.where(turn > 0, 2, 0)
        begin[turn > 0] = place[:-1][turn[1:] > 0]
        to = np.where(waits, 2, 1)
        # What others wait for comes first. What ranks pass on has channels of its own, so that it
        # doesn't wait behind what they send.
        keys = np.stack([turn, ends, (b - a) % self.ranks, of, to])
        _transfer(p, keys, (a, begin), (b, place), weight)
        late = waits & ends
        if late.any():
            # By source, so that the blocks that receive them share these copies.
            distance = (b - src)[late] % self.ranks
            keys = np.stack([0 * distance, distance, 2 + 0 * distance, 1 + 0 * distance])
            _transfer(p, keys, (b[late], place[late]), (b[late], result[late]), weight[late])


def _transfer(
    p: ChunkProgram,
    keys: LongArray,
    source: tuple[LongArray, LongArray],
    target: tuple[LongArray, LongArray],
    count: LongArray,
) -> None:
    """Copies chunks, in the order of keys; those that lie together at both ends are one transfer.

    keys: int64 (keys, copies), the first the channel of what goes to other ranks, the last two the
    numbers of the buffers of source and target.
    source, target: the rank and the first index of each copy.
    """
    (a, begin), (b, end) = source, target
    order = np.lexsort((begin, b, a, *keys[::-1]))
    keys, a, begin, b, end, count = (c[..., order] for c in (keys, a, begin, b, end, count))
    same = (keys[:, 1:] == keys[:, :-1]).all(axis=0) & (a[1:] == a[:-1]) & (b[1:] == b[:-1])
    for index in (begin, end):
        same &= index[1:] == index[:-1] + count[:-1]
    head = np.flatnonzero(np.concatenate([[True], ~same]))
    total = np.add.reduceat(count, head)
    group = np.unique(np.vstack([keys[:, head], total]), axis=1, return_inverse=True)[1].ravel()
    for number in range(group.max() + 1):
        one = head[group == number]
        channel, *_, of, to = keys[:, one[0]].tolist()
        chunks = p.chunk(a[one], _BUFFERS[of], begin[one], int(total[group == number][0]))
        local = a[one[0]] == b[one[0]]
        chunks.copy(b[one], _BUFFERS[to], end[one], channel=None if local else channel)


def _rows(ranks: int, routes: Routes) -> LongArray:
    """int64 (routes, 1 + longest): the given rows, or a send for each pair. Errors: L139."""
    if routes is None:
        src, dst = np.nonzero(~np.eye(ranks, dtype=bool))
        return np.column_stack([np.ones_like(src), src, dst])
    try:
        rows = np.array(routes)
    except ValueError:  # rows of different lengths
        rows = np.zeros(0)
    right = rows.ndim == 2 and rows.shape[1] > 2 and rows.dtype.kind == "i"
    if not right or not _are_routes(rows.astype(np.int64), ranks):
        raise L139.error(
            at=Place(detail="routed-alltoall"),
            expected="rows of chunks and ranks, as many chunks from each rank to each other",
            found=repr(routes)[:100],
        )
    return rows.astype(np.int64)


def _are_routes(rows: LongArray, ranks: int) -> bool:
    """Whether the rows are routes that bring as many chunks from each rank to each other one, and
    pass no rank twice."""
    weight, passed = rows[:, 0], rows[:, 1:]
    sends = (passed != NONE).sum(axis=1) - 1
    within = np.arange(passed.shape[1]) <= sends[:, None]
    if (weight < 1).any() or (sends < 1).any() or ((passed < 0) == within).any():
        return False
    ordered = np.sort(passed, axis=1)
    if (passed < NONE).any() or (passed >= ranks).any():
        return False
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NONE)).any():
        return False
    pair = passed[:, 0] * ranks + passed[np.arange(len(rows)), sends]
    chunks = np.bincount(pair, weight, ranks * ranks).reshape(ranks, ranks)
    return bool((chunks + np.diag(np.full(ranks, chunks[0, 1])) == chunks[0, 1]).all())
