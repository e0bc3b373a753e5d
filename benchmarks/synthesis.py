"""Synthesised trees and routes: how close their link loads, and simulated calls, come to the bound.

    python benchmarks/synthesis.py [TOPOLOGY ...] [--simulate] [--within SHARE]
                                   [--random N] [--failures N]

For each topology and collective: the trees or routes, the most sends of one, the share of the
bandwidth bound by the loads of links, and processor seconds and peak memory of the search, in a
process of its own. Without topologies: every machine with 1, 2 and 4 nodes, up to 128 GPUs, or 64
for routes. --random adds N random topologies
of up to 12 GPUs with direct links; --failures N random failures of each topology: a card that is
gone or at half its rate. --simulate also finds the fastest plan of 64 blocks a rank at
most at 1 GB, and the fastest of the library's other algorithms, with the same options.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeAlias

from common import machine
from common.processes import peak_MB

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")
SIZE = "1G"
Packed: TypeAlias = tuple[str, int, list[Any]]
"""A topology's name and ranks; trees or routes, height, chunks, share, seconds and MB."""


def random_topology(seed: int) -> object:
    """A ring of up to 12 GPUs with further links, some several times."""
    from sley import Topology

    chance = random.Random(seed)
    ranks = chance.randint(3, 12)
    links = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    for _ in range(chance.randint(0, 2 * ranks)):
        a, b = chance.sample(range(ranks), 2)
        links.append((a, b))
    return Topology.from_links(f"random {seed}", ranks, links)


def has_cards(what: str) -> bool:
    """Whether the topology has network cards."""
    from sley import topologies
    from sley.ir.fabric import VertexKind

    return bool((topologies.find(what).vertices.kind == VertexKind.NIC).any())


def failed(what: str, seed: int) -> object:
    """A topology with a card that is gone, or for odd seeds at half its rate."""
    from sley import topologies
    from sley.ir.fabric import VertexKind

    topology, chance = topologies.find(what), random.Random(seed)
    node = chance.randrange(topology.nodes)
    inside = topology.vertices.node == node
    cards = int((inside & (topology.vertices.kind == VertexKind.NIC)).sum())
    part = f"nic{chance.randrange(cards)}@{node}"
    return topology.degraded(part, 0.5) if seed % 2 else topology.without(part)


def names() -> Iterator[str]:
    from sley import topologies

    for name in topologies.machine_names():
        for nodes in (1, 2, 4):
            if topologies.find(f"{name}:{nodes}").ranks <= 128:
                yield f"{name}:{nodes}"


def packed(what: str | int | tuple[str, int], collective: str, within: float) -> Packed:
    """Finds trees or routes for a topology: a name, a seed, or a name and a failure's seed."""
    from sley import topologies
    from sley.compiler.synthesis import Synthesis
    from sley.model.bounds import Bounds

    if isinstance(what, int):
        topology = random_topology(what)
    else:
        topology = failed(*what) if isinstance(what, tuple) else topologies.find(what)
    start = time.process_time()
    made = Synthesis.of(collective, topology, within=within)
    seconds = time.process_time() - start
    bounds = Bounds.of(made.program(in_place=True).collective, topology)
    of = made.parts[0]
    share = made.algbw_GBps / bounds.algbw_GBps
    row = [len(of.weight), of.height, of.chunks, share, seconds, peak_MB()]
    return topology.name, topology.ranks, row


def simulated(what: str, collective: str, within: float) -> list[object]:
    """The share of the bound of the fastest plan along trees or routes, and of the library's
    others, with the algorithm's name."""
    import sley
    from sley import topologies
    from sley.algorithms import for_collective
    from sley.compiler.synthesis import Synthesis, compared

    topology = topologies.find(what)
    trees = [Synthesis.of(collective, topology, within=within).program(in_place=True)]
    gpus = topology.ranks // topology.nodes
    others = []
    for one in for_collective(collective):
        words = {"ranks": topology.ranks, "nodes": topology.nodes, "gpus": gpus}
        try:
            program = one.function(**{w: words[w] for w in one.required}, in_place=True)
            sley.compile(program, topology=topology, verify=False)
        except (sley.SleyError, KeyError):
            continue
        if not one.is_synthesised:
            others.append(program)
    row: list[object] = []
    for programs in (trees, others):
        if not programs:  # ranks that no link joins
            row += [0.0, "no other"]
            continue
        found = sley.choose(
            programs,
            SIZE,
            topology,
            **{**compared(collective), "channels": [1, 2], "max_blocks": 64},
        ).at(SIZE)
        row += [found.end.of_bound, found.algorithm]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topology", nargs="*", help="by default every machine")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--failures", type=int, default=0, metavar="N")
    parser.add_argument("--within", type=float, default=0.05)
    given = parser.parse_args()
    from sley import topologies
    from sley.topologies.routes import MOST_RANKS

    print(machine.text(machine.facts()))
    print(f"within {given.within:g} of the bound, as far as chunks allow")
    head = ["topology", "collective", "ranks", "number", "height", "chunks", "of bound", "s", "MB"]
    form = "{:<16}{:<15}" + "{:>9}" * 7
    print(form.format(*head))
    for what in given.topology or names():
        for collective in COLLECTIVES:
            if collective == "alltoall" and topologies.find(what).ranks > MOST_RANKS:
                continue
            # A process each, for its own peak memory.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                name, ranks, row = pool.submit(packed, what, collective, given.within).result()
            *counts, share, seconds, peak = row
            numbers = (*counts, f"{share:.1%}", f"{seconds:.2f}", f"{peak:.0f}")
            line = form.format(name, collective, ranks, *numbers)
            if given.simulate:
                made, _, other, best = simulated(what, collective, given.within)
                line += f"   {SIZE}: {made:.1%}, {best} {other:.1%}"
            print(line, flush=True)
    groups: dict[str, list[Any]] = {f"{given.random} random topologies": [*range(given.random)]}
    for what in [one for one in given.topology if has_cards(one)] if given.failures else ():
        groups[f"{given.failures} failures on {what}"] = [(what, n) for n in range(given.failures)]
    for title, members in groups.items():
        for collective in COLLECTIVES if members else ():
            rows = [packed(what, collective, given.within)[2] for what in members]
            shares, seconds = [row[3] for row in rows], [row[4] for row in rows]
            print(
                f"{title}, {collective}: of the bound at least {min(shares):.1%}, median "
                f"{median(shares):.1%}; at most {max(seconds):.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
