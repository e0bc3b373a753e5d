"""Synthesised trees and routes: how close their link loads, and simulated calls, come to the bound.

    python benchmarks/synthesis.py [TOPOLOGY ...] [--simulate] [--small] [--alone]
                                   [--within SHARE] [--random N] [--failures N]
                                   [--collective NAME ...]

For each topology and collective: the trees or routes, the most sends of one, the share of the
bandwidth bound by the loads of links, and processor seconds and peak memory of the search, in a
process of its own; then of low trees the fewest sends, the most of the bound, its sends and the
seconds. Without topologies: every machine with 1, 2 and 4 nodes, up to 128 GPUs.
--random adds N random topologies of up to 12 GPUs with direct links; --failures N random failures
of each topology: a card that is gone or at half its rate. --simulate also finds, at 1 GB, what sley
synthesize takes, and the fastest of the library's other algorithms, with the same options, tiles
and as many blocks. --small finds both from 1 KB to 4 MB, for random topologies too. --alone leaves
out the library's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeAlias

from common import machine
from common.processes import peak_MB

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")
SIZE = "1G"
SMALL = ("1K", "16K", "256K", "4M")
Packed: TypeAlias = tuple[str, int, list[Any]]
"""A topology's name and ranks; trees or routes, height, chunks, share, seconds and MB; and if there
are low trees, the fewest sends, the share of the fastest, its sends, and seconds."""


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
    from sley.compiler.synthesis import Synthesis, low_trees
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
    start = time.process_time()
    low = low_trees(collective, topology)
    seconds = time.process_time() - start
    if low:
        best = max(low, key=lambda one: one.algbw_GBps)
        row += [low[0].sends, best.algbw_GBps / bounds.algbw_GBps, best.sends, seconds]
    return topology.name, topology.ranks, row


def library(topology: Any, collective: str) -> list[Any]:
    """The programs of the library's other algorithms that fit a topology."""
    import sley
    from sley.algorithms import for_collective
    from sley.topologies import link_rings

    words = {"ranks": topology.ranks, "nodes": topology.nodes}
    words["gpus"] = topology.ranks // topology.nodes
    along, found = link_rings(topology).orders.tolist(), []
    for one in for_collective(collective):
        try:
            given = {w: words[w] for w in one.required}
            given |= {"orders": along} if along and "orders" in one.parameters else {}
            program = one.function(**given, in_place=True)
            sley.compile(program, topology=topology, verify=False)
        except (sley.SleyError, KeyError):
            continue
        if not one.is_synthesised and program.collective.ranks == topology.ranks:
            found.append(program)
    return found


def best(programs: list[Any], collective: str, size: str, topology: Any, **more: Any) -> Any:
    """The choice of the fastest program for a size, with the options of sley synthesize, and more
    of them for programs without switches."""
    import sley
    from sley.compiler.tree_search import TILES, compared, is_cut, of_tile
    from sley.ir.sizes import size_in_bytes
    from sley.model.nccl.choice import tiled

    found = []
    for switched, tile in product((False, True), TILES):
        those = [p for p in programs if bool((p.transfers.group >= 0).any()) is switched]
        options = {**compared(collective, switched=switched), **({} if switched else more)}
        options |= of_tile(tile)
        those = [p for p in those if tile == 1 or is_cut(p, size_in_bytes(size), topology, tile)]
        if those:
            found.append(sley.choose(those, size, tiled(topology, tile), **options).at(size))
    return min(found, key=lambda one: one.end.time_us)


def small(what: str | int, collective: str, alone: bool) -> Iterator[str]:
    """The simulated microseconds of the fastest trees or routes for small sizes, with their sends
    and the chunks of each rank; and of the library's others, with the ratio."""
    from sley import topologies
    from sley.compiler.tree_search import fastest
    from sley.ir.sizes import size_in_bytes

    topology: Any = random_topology(what) if isinstance(what, int) else topologies.find(what)
    others = [] if alone else library(topology, collective)
    for size in SMALL:
        found = fastest(collective, topology, size_in_bytes(size), in_place=True)
        made, choice = found.synthesis, found.choice
        time_us, chunks = choice.end.time_us, made.chunks / topology.ranks
        text = f"{size}: {time_us:.1f} us ({made.sends} sends, {chunks:g} chunks)"
        if others:
            other = best(others, collective, size, topology)
            ratio = other.end.time_us / time_us
            text += f", {other.algorithm} {other.end.time_us:.1f} ({ratio:.2f})"
        yield text


def simulated(what: str, collective: str, within: float, alone: bool) -> Iterator[str]:
    """The share of the bound of the fastest plan along trees or routes; then of the library's
    others, with the algorithm's name."""
    from sley import topologies
    from sley.compiler.tree_search import TILES, fastest
    from sley.ir.sizes import size_in_bytes

    topology, size = topologies.find(what), size_in_bytes(SIZE)
    found = fastest(collective, topology, size, within=within, in_place=True, tiles=TILES)
    made = found.choice
    words = f"{made.plan.protocol.value} in {made.plan.blocks_per_rank} blocks"
    words += f", tiles of {found.tile:g}" if found.tile != 1 else ""
    yield f"   {SIZE}: {made.end.of_bound:.1%} ({words})"
    others = [] if alone else library(topology, collective)
    if others:  # none for ranks that no link joins
        other = best(others, collective, SIZE, topology, channels=[1, 2])
        yield f", {other.algorithm} {other.plan.protocol.value} {other.end.of_bound:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topology", nargs="*", help="by default every machine")
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--failures", type=int, default=0, metavar="N")
    parser.add_argument("--within", type=float, default=0.05)
    given = parser.parse_args()

    print(machine.text(machine.facts()))
    print(f"within {given.within:g} of the bound, as far as chunks allow")
    head = ["topology", "collective", "ranks", "number", "height", "chunks", "of bound", "s", "MB"]
    head += ["least", "of bound", "sends", "s"]
    form = "{:<16}{:<15}" + "{:>9}" * 11
    print(form.format(*head))
    for what in given.topology or names():
        for collective in given.collective:
            # A process each, for its own peak memory.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                name, ranks, row = pool.submit(packed, what, collective, given.within).result()
            *counts, share, seconds, peak = row[:6]
            numbers = [*counts, f"{share:.1%}", f"{seconds:.2f}", f"{peak:.0f}"]
            low = ["" for _ in head[-4:]]
            if row[6:]:
                least, share, sends, seconds = row[6:]
                low = [least, f"{share:.1%}", sends, f"{seconds:.2f}"]
            print(form.format(name, collective, ranks, *numbers, *low), end="", flush=True)
            # As soon as they are known: others take minutes on many ranks.
            alone, share = given.alone, given.within
            for text in simulated(what, collective, share, alone) if given.simulate else ():
                print(text, end="", flush=True)
            print(flush=True)
            for text in small(what, collective, alone) if given.small else ():
                print(f"    {text}", flush=True)
    for seed in range(given.random if given.small else 0):
        for collective in given.collective:
            title = f"random {seed}, {collective}"
            print(title, *small(seed, collective, given.alone), sep="\n    ", flush=True)
    groups: dict[str, list[Any]] = {f"{given.random} random topologies": [*range(given.random)]}
    for what in [one for one in given.topology if has_cards(one)] if given.failures else ():
        groups[f"{given.failures} failures on {what}"] = [(what, n) for n in range(given.failures)]
    for title, members in groups.items():
        for collective in given.collective if members else ():
            rows = [packed(what, collective, given.within)[2] for what in members]
            shares, seconds = [row[3] for row in rows], [row[4] for row in rows]
            print(
                f"{title}, {collective}: of the bound at least {min(shares):.1%}, median "
                f"{median(shares):.1%}; at most {max(seconds):.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
