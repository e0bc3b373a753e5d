"""MSCCLang, section 7: its algorithms compared with NCCL's, on NDv4 and DGX-2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from common.sizes import powers
from papers_common import GB, KB, MB, Row, Times, best, nearness, peak, ratios, span, times

import sley
from sley.ir.cost_model import ByProtocol
from sley.ir.words import FIFO_PROTOCOLS
from sley.model.nccl import choice as tuner

PROTOCOLS = ("LL", "LL128", "Simple")
LARGEST = {"LL": 64 * MB, "LL128": GB, "Simple": 4 * GB}
"""The largest size for each protocol; at larger sizes it is never the best."""
NCCL_PARTS = 24
"""Number of parallel parts of one ring on one channel, which are NCCL's rings (MSCCLang 7.1.1)."""

PARITY = 0.1
"""The largest relative difference of equal times."""


def runs(
    program: sley.Program,
    topology: sley.Topology,
    over: Sequence[int],
    *,
    instances: Iterable[int],
    protocols: Sequence[str] = PROTOCOLS,
    interpreter: bool,
) -> Iterator[Times]:
    """The simulated times with each number of instances and each protocol."""
    for count in instances:
        for protocol in protocols:
            plan = sley.compile(
                program, topology=topology, instances=count, protocol=protocol, verify=False
            )
            usual = [size for size in over if size <= LARGEST[protocol]]
            if usual:
                yield times(plan, usual, interpreter=interpreter)


@dataclass(frozen=True)
class Nccl:
    """NCCL's AllReduce, with the algorithm and protocol that its tuner chooses for each size, and
    with the best ones."""

    picked: Times
    best: Times

    @classmethod
    def of(
        cls,
        topology: sley.Topology,
        over: Sequence[int],
        *,
        rings: tuple[sley.Program, int],
        trees: tuple[sley.Program, int] | None = None,
    ) -> Nccl:
        """Simulates NCCL. rings, trees: a program and its number of instances; without trees, NCCL
        chooses only a protocol."""
        programs = {tuner.NcclAlgorithm.RING: rings}
        if trees is not None:
            programs[tuner.NcclAlgorithm.TREE] = trees
        arms: list[tuple[Times, Times]] = []  # each with its estimates
        for algorithm, (program, count) in programs.items():
            for protocol in FIFO_PROTOCOLS:
                plan = sley.compile(
                    program, topology=topology, instances=count, protocol=protocol, verify=False
                )
                found, estimates = {}, {}
                for size in (size for size in over if size <= LARGEST[protocol.value]):
                    choice = tuner.forced("allreduce", topology, size, algorithm, protocol)
                    if choice is not None and choice.predicted_us is not None:
                        cut = tiled(topology, choice.tile)
                        found[size] = sley.simulate(plan, size, cut, interpreter=False).time_us
                        estimates[size] = choice.predicted_us
                arms.append((found, estimates))

        def pick(size: int) -> float:
            known = [(estimates[size], found[size]) for found, estimates in arms if size in found]
            return min(known)[1]

        return cls({size: pick(size) for size in over}, best(found for found, _ in arms))


def tiled(topology: sley.Topology, tile: float) -> sley.Topology:
    """The topology with tiles of this share of its own."""
    own = topology.model.tile_bytes
    tiles = ByProtocol(own.ll * tile, own.ll128 * tile, own.simple * tile)
    return replace(topology, model=replace(topology.model, tile_bytes=tiles))


def up_to(over_picked: dict[int, float], over_best: dict[int, float]) -> str:
    """The largest ratio over what NCCL chooses, and over its best protocol."""
    faster, where = peak(over_picked)
    return f"up to {faster:.2f}x ({where}); over its best protocol up to {peak(over_best)[0]:.2f}x"


def ring_on_one_node() -> list[Row]:
    topology, program = sley.topologies.ndv4(), sley.algorithms.ring_allreduce
    small = [*powers(32 * KB, 2 * MB), 3 * MB]
    large = [64 * MB, 256 * MB, GB]
    both = small + large
    one = program(8, channels=1, in_place=True)
    nccl = Nccl.of(topology, both, rings=(one, NCCL_PARTS))
    ours: list[Times] = []
    for channels in (1, 2, 4, 8):
        parts = [r for r in (1, 2, 3, 4, 8, 24) if channels * r <= 32]
        spread = program(8, channels=channels, in_place=True)
        ours += runs(spread, topology, both, instances=parts, interpreter=True)
    mine = best(ours)
    ratio, least = ratios(nccl.picked, mine), ratios(nccl.best, mine)
    at_large = {s: ratio[s] for s in large}
    parity = all(abs(r - 1) <= PARITY for r in at_large.values())
    settings = "ndv4:1; best of 1, 2, 4, 8 channels, 1 to 24 instances, 3 protocols"
    return [
        Row(
            "7.1.1, fig. 8a",
            "ring AllReduce over NCCL, 32 KB to 3 MB",
            "up to 1.9x",
            up_to({s: ratio[s] for s in small}, {s: least[s] for s in small}),
            f"{settings}; NCCL: one channel, {NCCL_PARTS} instances, protocol by its tuner",
            nearness(peak({s: ratio[s] for s in small})[0], 1.9),
        ),
        Row(
            "7.1.1, fig. 8a",
            "ring AllReduce over NCCL above 32 MB",
            "parity",
            span(at_large),
            settings,
            "yes" if parity else "no",
        ),
    ]


def all_pairs_on_one_node() -> list[Row]:
    topology, over = sley.topologies.ndv4(), powers(KB, MB)
    ring = sley.algorithms.ring_allreduce(8, channels=1, in_place=True)
    nccl = Nccl.of(topology, over, rings=(ring, NCCL_PARTS))
    pairs = sley.algorithms.all_pairs_allreduce(8, in_place=True)
    mine = best(runs(pairs, topology, over, instances=[1, 2, 4, 8], interpreter=True))
    ratio = ratios(nccl.picked, mine)
    return [
        Row(
            "7.1.2, fig. 8a",
            "all pairs AllReduce over NCCL's ring, 1 KB to 1 MB",
            "up to 1.8x",
            up_to(ratio, ratios(nccl.best, mine)),
            "ndv4:1; 1 to 8 instances, best protocol",
            nearness(peak(ratio)[0], 1.8),
        )
    ]


def dgx2() -> list[Row]:
    topology, over = sley.topologies.dgx2(nodes=1), powers(KB, MB, 4)
    ring = sley.algorithms.ring_allreduce(16, channels=1, in_place=True)
    nccl = best(runs(ring, topology, over, instances=[12], interpreter=False))
    pairs = sley.algorithms.all_pairs_allreduce(16, in_place=True)
    ratio = ratios(nccl, best(runs(pairs, topology, over, instances=[1, 2], interpreter=True)))
    return [
        Row(
            "7, fig. 8b",
            "all pairs over NCCL's ring on 16 V100, 1 KB to 1 MB",
            '"similar trends", no value',
            span(ratio),
            "dgx2:1; NCCL: one channel, 12 instances",
            "yes" if min(ratio.values()) > 1 else "in part",
        )
    ]


def hierarchical() -> list[Row]:
    topology = sley.topologies.ndv4(nodes=2)
    small, large = powers(KB, 16 * MB, 4), [2 * GB, 4 * GB]
    both = small + large
    rings = sley.algorithms.multi_ring_allreduce(2, 8, in_place=True)
    trees = sley.algorithms.multi_tree_allreduce(2, 8, in_place=True)
    nccl = Nccl.of(topology, both, rings=(rings, 2), trees=(trees, 1))
    ours: list[Times] = []
    for within in (1, 2):
        program = sley.algorithms.hierarchical_allreduce(2, 8, node_instances=within, in_place=True)
        ours += runs(program, topology, small, instances=[1, 2, 4], interpreter=True)
        ours += runs(
            program, topology, large, instances=[4, 8], protocols=["Simple"], interpreter=True
        )
    mine = best(ours)
    ratio = ratios(nccl.picked, mine)
    at_small = {s: ratio[s] for s in small}
    over_best = ratios({s: nccl.best[s] for s in small}, mine)
    at_large, big = peak({s: ratio[s] for s in large})
    settings = "ndv4:2; 1 or 2 instances within nodes, 1 to 8 of the whole, best protocol"
    against = "NCCL: 8 rings, 2 instances, or 8 double trees; algorithm and protocol by its tuner"
    return [
        Row(
            "7.2, fig. 8c",
            "hierarchical AllReduce over NCCL, small sizes (here 1 KB to 16 MB)",
            "up to 1.4x",
            up_to(at_small, over_best),
            f"{settings}; {against}",
            nearness(peak(at_small)[0], 1.4),
        ),
        Row(
            "7.2, fig. 8c",
            "hierarchical AllReduce over NCCL above 1 GB",
            "up to 1.11x",
            f"{at_large:.2f}x ({big})",
            f"{settings}; {against}",
            nearness(at_large, 1.11),
        ),
    ]


def all_to_all() -> list[Row]:
    topology = sley.topologies.ndv4(nodes=16)
    small, large = [MB, 16 * MB, 64 * MB], [512 * MB, GB]
    both = small + large
    two = sley.algorithms.two_step_alltoall(16, 8)
    ours = best(runs(two, topology, both, instances=[1], protocols=["Simple"], interpreter=True))
    pairs = sley.compile(sley.algorithms.all_pairs_alltoall(128), topology=topology, verify=False)
    few = sley.compile(
        sley.algorithms.all_pairs_alltoall(128),
        topology=topology,
        schedule="hpds",
        max_blocks=32,
        verify=False,
    )
    ratio = ratios(times(pairs, both), ours)
    limited = ratios(times(few, both), ours)
    at_large = min(ratio[s] for s in large)
    settings = "ndv4:16 (128 GPUs; the caption's 16 nodes with 256 A100 are 32 nodes of NDv4)"
    return [
        Row(
            "7.3, fig. 8e",
            "two-step AllToAll over NCCL's point-to-point at 512 MB and more",
            "1.2x",
            f"{at_large:.2f}x with a block for every pair of GPUs, "
            f"{span({s: limited[s] for s in large})} with 32 blocks",
            f"{settings}; Simple, one instance",
            nearness(at_large, 1.2),
        ),
        Row(
            "7.3, fig. 8e",
            "two-step AllToAll over NCCL's point-to-point below 512 MB",
            "faster",
            f"{span({s: ratio[s] for s in small})}; with 32 blocks "
            f"{span({s: limited[s] for s in small})}",
            f"{settings}; Simple, one instance",
            "yes" if min(ratio[s] for s in small) > 1 else "in part",
        ),
        Row(
            "7.3, fig. 8e",
            "two-step AllToAll over two steps written by hand in CUDA",
            "up to 1.3x",
            "not simulated",
            "",
            "-",
        ),
    ]


def all_to_next() -> list[Row]:
    topology, over = sley.topologies.ndv4(nodes=3), powers(KB, GB, 4)
    direct = sley.algorithms.direct_alltonext(24)
    base = best(
        runs(direct, topology, over, instances=[1], protocols=["Simple"], interpreter=False)
    )
    across = sley.algorithms.alltonext(3, 8)
    ours = best(
        runs(
            across,
            topology,
            over,
            instances=[1, 2, 4, 8, 16],
            protocols=["Simple"],
            interpreter=True,
        )
    )
    ratio = ratios(base, ours)
    faster, where = peak(ratio)
    return [
        Row(
            "7.4, fig. 8g",
            "AllToNext over direct sends, 3 nodes",
            "slower when small, up to 14.5x when large",
            f"{ratio[KB]:.2f}x at 1 KB, up to {faster:.2f}x ({where})",
            "ndv4:3; r = 1 to 16; both Simple; direct: one block for each connection",
            nearness(faster, 14.5) if ratio[KB] < 1 else "in part",
        )
    ]


def rows() -> list[Row]:
    """Every simulated claim of section 7."""
    parts = (
        ring_on_one_node,
        all_pairs_on_one_node,
        hierarchical,
        all_to_all,
        all_to_next,
        dgx2,
    )
    return [row for part in parts for row in part()]
