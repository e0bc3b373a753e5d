"""Random programs for collectives of varying counts: every promised chunk on a way of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

import sley
from sley.ir.collective import Collective
from sley.ir.program import Program

Place = tuple[int, str, int]
"""Rank, buffer, index."""


@dataclass
class _Scratch:
    """Which scratch chunks of each rank are in use; free ones are used again."""

    used: dict[int, set[int]] = field(default_factory=dict)

    def take(self, rank: int, count: int) -> int:
        used = self.used.setdefault(rank, set())
        first = next(k for k in range(1000) if not used & set(range(k, k + count)))
        used |= set(range(first, first + count))
        return first

    def free(self, place: Place, count: int) -> None:
        rank, buffer, index = place
        if buffer == "scratch":
            self.used[rank] -= set(range(index, index + count))


@st.composite
def varying_programs(draw: st.DrawFn, equal: bool = False) -> Program:
    """A right program; the ways of its chunks are interleaved, and share scratch. equal: for the
    same collective with equal counts."""
    ranks, chunks = draw(st.integers(2, 4)), draw(st.sampled_from([1, 1, 2]))
    name = draw(st.sampled_from(["AllToAll", "AllGather"]))
    words = {} if equal else {"max_count": draw(st.sampled_from([5, 2**62]))}
    collective = getattr(sley, name if equal else f"{name}V")(ranks, chunks=chunks, **words)
    ways = _ways(draw, collective)

    def body(p: sley.lang.ChunkProgram) -> None:
        scratch = _Scratch()
        at = [(source, "in", index) for (source, index), *_ in ways]
        left = list(range(len(ways)))
        while left:
            way = left[draw(st.integers(0, min(len(left), 3) - 1))]
            (_, _), count, hops, end = ways[way]
            here = at[way]
            there = (hops[0], "scratch", scratch.take(hops[0], count)) if hops else end
            p.chunk(*here, count=count).copy(*there)
            scratch.free(here, count)
            at[way] = there
            if hops:
                hops.pop(0)
            else:
                left.remove(way)

    return sley.trace(collective, body, name="ways")


def _ways(draw: st.DrawFn, c: Collective) -> list[tuple[tuple[int, int], int, list[int], Place]]:
    """For every promised block: its input chunk, the number of chunks that travel together, the
    ranks where they stay in scratch, and their place."""
    ways = []
    for rank in range(c.ranks):
        for block in range(c.ranks):
            count = draw(st.sampled_from([1, c.chunks]))
            hops = st.lists(st.integers(0, c.ranks - 1), max_size=3)
            for index in range(block * c.chunks, (block + 1) * c.chunks, count):
                value = int(c.expected[c.output_offset[rank] + index])
                chunk = int(c.values.target[value])
                source = chunk // int(c.input_chunks[0])
                origin = source, chunk - source * int(c.input_chunks[0])
                ways.append((origin, count, draw(hops), (rank, "out", index)))
    return draw(st.permutations(ways))
