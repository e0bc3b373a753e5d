"""Forests: collectives along spanning trees from every rank, which divide the rank's data.

`sley.topologies.pack_forest` finds trees that reach a topology's bandwidth bound.
Source: ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np

from sley.algorithms.algorithm import algorithm, channel_numbers, is_positive
from sley.errors import Place
from sley.errors.language import L102, L112, L138
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.graph import depths
from sley.ir.program import Program
from sley.ir.tables import NONE, LongArray
from sley.lang import ChunkProgram, trace

_MOST_WEIGHT = 1 << 20
"""Bound on the chunks of a tree."""

_MOST_ORDERS = 64
"""Bound on the orders of sums."""

Trees = Sequence[Sequence[int]] | LongArray | None
"""A row for each tree: the chunks that it carries, then for each rank the one that sends to it, -1
for the root. By default a star for each rank."""


@algorithm("allgather", "ForestColl, section 5")
def forest_allgather(
    ranks: int, *, trees: Trees = None, channels: int | None = None, in_place: bool = False
) -> Program:
    """AllGather along trees: each rank's data goes down the trees from it, which divide it.

    trees: as `sley.topologies.pack_forest` finds them for a topology; by default each rank sends to
    all others. channels: the most channels, by default as many as trees with common edges need.
    Source: ForestColl, section 5. Errors: L102, L121, L138.
    """
    forest = _Trees("forest-allgather", ranks, trees, channels)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            every = np.arange(ranks)
            p.chunk(every, "in", 0, forest.chunks).copy(every, "out", every * forest.chunks)
        forest.copy_down(p, "out" if in_place else "in")

    return trace(AllGather(ranks, forest.chunks, in_place), body)


@algorithm("reducescatter", "ForestColl, section 5")
def forest_reducescatter(
    ranks: int,
    *,
    trees: Trees = None,
    sum_orders: int = 1,
    leaves_last: bool = False,
    channels: int | None = None,
    in_place: bool = False,
) -> Program:
    """ReduceScatter along trees: each rank's sums come up the trees to it.

    trees, channels: as for `forest_allgather`. sum_orders: the parts of each tree's data, which
    ranks add in different orders: each begins with another leaf, so that all send from the start.
    leaves_last: whether roots, with one order, add the data of leaves last: links then carry first
    what goes on from other ranks. Source: ForestColl, section 5. Errors: L102, L112, L121, L138.
    """
    made = partial(_Trees, sum_orders=sum_orders, leaves_last=leaves_last)
    forest = made("forest-reducescatter", ranks, trees, channels)

    def body(p: ChunkProgram) -> None:
        if in_place:
            forest.reduce_up(p, "in")
        else:
            forest.reduce_up(p, "scratch", "out")

    return trace(ReduceScatter(ranks, forest.chunks, in_place), body)


@algorithm("allreduce", "ForestColl, section 5")
def forest_allreduce(
    ranks: int,
    *,
    trees: Trees = None,
    up_trees: Trees = None,
    switches: Sequence[int] | None = None,
    sum_orders: int = 1,
    leaves_last: bool = False,
    channels: int | None = None,
    in_place: bool = False,
) -> Program:
    """AllReduce along trees: sums of a part of the data come up the trees to each rank, and the
    results go down.

    trees: as for `forest_allgather`; roots may have different shares. up_trees: those of the sums,
    with the same shares, by default the same trees. switches: the number of each rank's switch,
    which reduces and multicasts between a rank and all those below it around the same switch; by
    default there are none. sum_orders: as for `forest_reducescatter`. channels: as for
    `forest_allgather`, of the sums and of the results. Source: ForestColl, section 5.
    Errors: L102, L112, L121, L138.
    """
    sums = partial(_Trees, sum_orders=sum_orders, leaves_last=leaves_last)
    both = partial(sums, "forest-allreduce", ranks, equal=False)
    down = both(trees, channels, switches)
    up = down if up_trees is None else both(up_trees, channels, switches)
    if (up.shares != down.shares).any():
        expected = f"up_trees with as many chunks of each root as trees, {down.shares.tolist()}"
        found = str(up.shares.tolist())
        raise L138.error(at=Place(detail="forest-allreduce"), expected=expected, found=found)

    def body(p: ChunkProgram) -> None:
        # Results that go down don't wait behind sums that come up, but one instruction of a head
        # may pass both.
        begin = 0 if switches is not None else down.channels
        up.reduce_up(p, "in" if in_place else "out", channels_from=begin)
        down.copy_down(p)

    return trace(AllReduce(ranks, int(down.shares.sum()), in_place), body)


class _Trees:
    """Trees, and the transfers along them.

    ranks: of the collective. weight: int64 (trees,), the chunks of each tree. parent: int64
    (trees, ranks). root: int64 (trees,). shares: int64 (ranks,), the chunks of all trees of a root;
    chunks: of rank 0. first: int64 (trees,), the first chunk of each tree among those of all roots.
    equal: whether all shares have to be equal. sum_orders: parts into which sums divide data.
    leaves_last: whether roots add the data of leaves last. channels: the most channels. switches:
    the number of each rank's switch. Errors: L102, L112, L138.
    """

    # More than eight parameters with the name: what the algorithms take.
    def __init__(
        self,
        name: str,
        ranks: int,
        trees: Trees,
        channels: int | None,
        switches: Sequence[int] | None = None,
        *,
        sum_orders: int = 1,
        leaves_last: bool = False,
        equal: bool = True,
    ) -> None:
        rows = _rows(name, ranks, trees, equal)
        if not is_positive(sum_orders) or sum_orders > _MOST_ORDERS:
            at, expected = Place(detail=name), f"sum_orders from 1 to {_MOST_ORDERS}"
            raise L102.error(at=at, expected=expected, found=f"sum_orders={sum_orders!r}")
        if not isinstance(leaves_last, int) or leaves_last not in (0, 1):
            at, expected = Place(detail=name), "leaves_last as True or False"
            raise L112.error(at=at, expected=expected, found=f"leaves_last={leaves_last!r}")
        if not (channels is None or is_positive(channels)):
            channel_numbers(name, channels)  # refuses it
        self.most_channels = len(rows) if channels is None else min(channels, len(rows))
        self.ranks, self.weight, self.parent = ranks, rows[:, 0] * sum_orders, rows[:, 1:]
        self.sum_orders, self.leaves_last = sum_orders, bool(leaves_last)
        self.root = (self.parent == NONE).argmax(axis=1)
        self.shares = np.bincount(self.root, self.weight, ranks).astype(np.int64)
        self.chunks = int(self.shares[0])
        order = np.argsort(self.root, kind="stable")
        self.first = np.empty_like(self.weight)
        self.first[order] = np.cumsum(self.weight[order]) - self.weight[order]
        # The edges: each tree's ranks but the root, from the root's next rank on, so that not all
        # roots begin with the same rank.
        self._tree, turn = np.nonzero(np.arange(ranks) != np.zeros((len(rows), 1)))
        self._rank = (self.root[self._tree] + turn) % ranks
        self._from = self.parent[self._tree, self._rank]
        switch = _switches(name, ranks, switches)
        self._switched = switch[self._rank] == switch[self._from]

    def copy_down(self, p: ChunkProgram, source: str = "out") -> None:
        """Copies each root's data to all ranks' outputs. source: the buffer from which roots send
        theirs; in the input, it comes first."""
        keys = self._depth, self._channel, *self._by_switch, self.weight[self._tree]
        for edges in self._groups(*keys):
            tree, src, index = self._tree[edges], self._from[edges], self.first[self._tree[edges]]
            from_root, channel = self._depth[edges[0]] == 1, int(self._channel[edges[0]])
            of = source if from_root else "out"
            begin = index - src * self.chunks if of == "in" else index
            count = int(self.weight[tree[0]])
            if self._switched[edges[0]]:
                one = p.chunk(int(src[0]), of, int(begin[0]), count)
                one.multicast(self._rank[edges], "out", int(index[0]), channel=channel)
                continue
            # Leaves take each part as soon as it is summed; large messages would need more tiles.
            parts = self.sum_orders if self._depth.max() == 1 else 1
            for first in range(0, count, count // parts):
                c = p.chunk(src, of, begin + first, count // parts)
                c.copy(self._rank[edges], "out", index + first, channel=channel)

    def reduce_up(
        self,
        p: ChunkProgram,
        buffer: str,
        root_buffer: str | None = None,
        *,
        channels_from: int = 0,
    ) -> None:
        """Reduces the input's parts to their roots.

        buffer: that of the sums, at the places of the parts; those in scratch follow one another.
        root_buffer: that of the roots' sums, if it is another one, where they come first.
        channels_from: the first channel.
        """
        trees = np.arange(len(self.parent))
        inner = np.zeros(self.parent.shape, bool)
        inner[self._tree, self._from] = True
        # A switch reads one place of all ranks.
        tree, rank, above = (of[self._switched] for of in (self._tree, self._rank, self._from))
        summed = np.zeros_like(inner)
        np.logical_or.at(summed, (tree, above), inner[tree, rank])
        inner[tree, rank] |= summed[tree, above]
        place = np.repeat(self.first[:, None], self.ranks, axis=1)
        if buffer == "scratch":
            used = inner * self.weight[:, None]
            used[trees, self.root] = 0
            place = np.cumsum(used, axis=0) - used
        if root_buffer is not None:
            place[trees, self.root] = self.first - self.root * self.chunks

        def begin_sums(where: tuple[LongArray, ...], of: str) -> None:
            tree, rank = where
            for count in np.unique(self.weight[tree]).tolist():
                one = self.weight[tree] == count
                own = p.chunk(rank[one], "in", self.first[tree[one]], count)
                own.copy(rank[one], of, place[tree[one], rank[one]])

        if buffer != "in":
            inner[trees, self.root] = False
            begin_sums(np.nonzero(inner), buffer)
            begin_sums((trees, self.root), root_buffer or buffer)
        leaf = ~inner[self._tree, self._rank]
        edge, turn, begin, counts = self._sums
        keys = (key[edge] for key in (-self._depth, self._channel, *self._by_switch))
        for sums in self._groups(*keys, turn, leaf[edge], counts):
            edges, count = edge[sums], int(counts[sums[0]])
            tree, rank, to = self._tree[edges], self._rank[edges], self._from[edges]
            to_root = self._depth[edges[0]] == 1
            of, index = ("in", self.first[tree]) if leaf[edges[0]] else (buffer, place[tree, rank])
            target = (root_buffer or buffer) if to_root else buffer
            index, own = index + begin[sums], place[tree, to] + begin[sums]
            channel = channels_from + int(self._channel[edges[0]])
            if self._switched[edges[0]]:
                total = p.chunk(int(to[0]), target, int(own[0]), count)
                total.load_reduce(p.chunk(rank, of, int(index[0]), count), channel=channel)
            else:
                total = p.chunk(to, target, own, count)
                total.reduce(p.chunk(rank, of, index, count), channel=channel)

    @cached_property
    def _depth(self) -> LongArray:
        """int64 (edges,): the sends from the root to each rank."""
        found: LongArray = depths(self.parent)[self._tree, self._rank].astype(np.int64)
        return found

    @cached_property
    def _height(self) -> LongArray:
        """int64 (edges,): the most sends below each rank."""
        depth = depths(self.parent)
        height = np.zeros(depth.shape, np.int64)
        for level in range(int(depth.max()), 1, -1):
            tree, rank = np.nonzero(depth == level)
            np.maximum.at(height, (tree, self.parent[tree, rank]), height[tree, rank] + 1)
        found: LongArray = height[self._tree, self._rank]
        return found

    @cached_property
    def _sums(self) -> tuple[LongArray, LongArray, LongArray, LongArray]:
        """int64 (sums,) each: the edges of sums, their turns at a rank, and the first and the
        number of the tree's chunks that they add. With several orders a rank adds what comes from
        inner ranks at once, then what comes from leaves in parts."""
        if self.sum_orders == 1:
            first = self.leaves_last & (self._depth == 1) & (self._height > 0)
            turn = np.where(self._switched, 0, self._sibling - self.ranks * first)
            return np.arange(len(turn)), turn, 0 * turn, self.weight[self._tree]
        leaf = (self._height == 0) & ~self._switched
        parent = self._tree * self.ranks + self._from
        leaves = np.bincount(parent, leaf).astype(np.int64)[parent]
        parts = np.where(leaf & (leaves > 1), self.sum_orders, 1)
        edge = np.repeat(np.arange(len(parts)), parts)
        part = np.arange(len(edge)) - (np.cumsum(parts) - parts)[edge]
        count = (self.weight[self._tree] // parts)[edge]
        # Leaves are the first ones of their parent.
        shift = part * leaves[edge] // self.sum_orders
        turn = self.ranks + (self._sibling[edge] + shift) % np.maximum(leaves[edge], 1)
        turn = np.where(parts[edge] > 1, turn, np.where(self._switched, 0, self._sibling)[edge])
        return edge, turn, part * count, count

    @cached_property
    def _sibling(self) -> LongArray:
        """int64 (edges,): how many of the tree's edges with the same source are earlier for sums:
        first the low ones, whose data comes early; of these, each source begins with its next rank,
        so that not all sources wait for the same one."""
        key = self._tree * self.ranks + self._from
        order = np.lexsort(((self._rank - self._from) % self.ranks, self._height, key))
        first = np.searchsorted(key[order], key[order])
        found = np.empty_like(order)
        found[order] = np.arange(len(order)) - first
        return found

    @property
    def _by_switch(self) -> tuple[LongArray, ...]:
        """int64 (edges,) each: keys of what switches pass at once, after all other edges, so that
        a head's sums wait for no data that comes later."""
        own = np.where(self._switched, 1 + self._tree, 0)
        return own, np.where(self._switched, self._from, 0)

    @property
    def channels(self) -> int:
        """The number of channels."""
        return int(self._channel.max()) + 1

    @cached_property
    def _channel(self) -> LongArray:
        """int64 (edges,): the channel of each edge's tree, the first in which no tree before it has
        one of its edges: trees that share none also share no block. If there are no more channels,
        the one in which they have the fewest. With switches a channel for each: the trees of two
        heads use opposite connections between them."""
        channel = np.zeros(len(self.parent), np.int64)
        if self._switched.any():
            return (self._tree % self.most_channels).astype(np.int64)
        taken = list[Counter[tuple[int, int]]]()
        for tree, parents in enumerate(self.parent.tolist()):
            edges = [(src, rank) for rank, src in enumerate(parents) if src != NONE]
            shared = [sum(others[edge] for edge in edges) for others in taken]
            if 0 not in shared and len(taken) < self.most_channels:
                taken.append(Counter())
                shared.append(0)
            channel[tree] = shared.index(min(shared))
            taken[channel[tree]].update(edges)
        return channel[self._tree]

    def _groups(self, *keys: LongArray) -> Iterator[LongArray]:
        """The edges with equal keys, by ascending keys."""
        number = np.unique(np.stack(keys), axis=1, return_inverse=True)[1].ravel()
        for one in range(number.max() + 1):
            yield np.flatnonzero(number == one)


def _switches(name: str, ranks: int, switches: Sequence[int] | None) -> LongArray:
    """int64 (ranks,): the number of each rank's switch, by default of its own. Errors: L138."""
    found = np.arange(ranks) if switches is None else np.array(switches)
    if found.shape != (ranks,) or found.dtype.kind != "i":
        raise L138.error(
            at=Place(detail=name),
            expected=f"switches of {ranks} ranks, numbers",
            found=repr(switches)[:100],
        )
    return found.astype(np.int64)


def _rows(name: str, ranks: int, trees: Trees, equal: bool) -> LongArray:
    """int64 (trees, 1 + ranks): the given rows, or stars. equal: whether there must be as many
    chunks from each rank. Errors: L138."""
    if trees is None:
        stars = np.repeat(np.arange(ranks)[:, None], ranks, axis=1)
        np.fill_diagonal(stars, NONE)
        return np.pad(stars, ((0, 0), (1, 0)), constant_values=1)
    try:
        rows = np.array(trees)
    except ValueError:  # rows of different lengths
        rows = np.zeros(0)
    right = rows.ndim == 2 and rows.shape[1:] == (1 + ranks,) and rows.dtype.kind == "i"
    if not right or not _are_forest(rows.astype(np.int64), ranks, equal):
        raise L138.error(
            at=Place(detail=name),
            expected=f"rows of {1 + ranks} numbers that are trees"
            + ", as many chunks from each rank" * equal,
            found=repr(trees)[:100],
        )
    return rows.astype(np.int64)


def _are_forest(rows: LongArray, ranks: int, equal: bool) -> bool:
    """Whether the rows are trees to all ranks, if `equal` with as many chunks from each."""
    weight, parent = rows[:, 0], rows[:, 1:]
    if (weight < 1).any() or (weight > _MOST_WEIGHT).any():
        return False
    if (parent < NONE).any() or (parent >= ranks).any():
        return False
    root = (parent == NONE).argmax(axis=1)
    shares = np.bincount(root, weight, ranks)
    if ((parent == NONE).sum(axis=1) != 1).any() or (equal and (shares != shares[0]).any()):
        return False
    return bool((depths(parent) != NONE).all())
