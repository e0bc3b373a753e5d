"""Calls for tests of the selection: hosts of all shapes, inputs, and expected outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import CALLS, Request
from sley.ir.collective import Collective

Array = np.ndarray[Any, Any]


def hosts_of(*sizes: int) -> Hosts:
    """Hosts with the given numbers of ranks, with consecutive ranks."""
    return Hosts.of([str(host) for host, size in enumerate(sizes) for _ in range(size)])


@st.composite
def some_hosts(draw: st.DrawFn, most: int = 9) -> Hosts:
    """Ranks distributed over hosts at random."""
    ranks = draw(st.integers(1, most))
    return Hosts.of(draw(st.lists(st.sampled_from("abc"), min_size=ranks, max_size=ranks)))


@st.composite
def requests(draw: st.DrawFn, most: int = 9) -> Request:
    """A call on any hosts, of any size."""
    hosts = draw(some_hosts(most))
    kind = draw(st.sampled_from(list(CALLS)))
    return Request(
        kind=kind,
        hosts=hosts,
        size_bytes=draw(st.one_of(st.integers(0, 100_000), st.integers(0, 1 << 40))),
        in_place=draw(st.booleans()) and not CALLS[kind].varies,
        root=draw(st.integers(0, len(hosts.host) - 1)) if CALLS[kind].roles else 0,
    )


def inputs(collective: Collective, count: int) -> list[Array]:
    """The runtime's inputs for a collective, with different values on every rank."""
    random, c = np.random.default_rng(count), collective
    data = []
    for rank in range(c.ranks):
        given = int(c.input_chunks[rank]) // c.chunks * count
        values = random.integers(-1000, 1000, given)
        if c.in_place:
            whole = np.full(int(c.data_chunks[rank]) // c.chunks * count, -(2**31))
            begin = int(c.input_base[rank]) // c.chunks * count
            whole[begin : begin + given] = values
            values = whole
        data.append(values)
    return data


def outputs(collective: Collective, data: list[Array], count: int) -> list[Array | None]:
    """Every rank's output by the definition of the collective: each chunk is the sum of the chunks
    that it is made of; None for a rank without promised output. A block has one chunk."""
    c = collective
    base = c.input_base if c.in_place else np.zeros(c.ranks, int)
    parts = [
        data[rank][(int(base[rank]) + i) * count :][:count]
        for rank in range(c.ranks)
        for i in range(int(c.input_chunks[rank]))
    ]
    found: list[Array | None] = []
    for rank in range(c.ranks):
        wanted = c.expected[int(c.output_offset[rank]) : int(c.output_offset[rank + 1])]
        blocks = [sum(parts[i] for i in c.values[value]) for value in wanted if value >= 0]
        found.append(np.concatenate(blocks) if blocks else None)
    return found
