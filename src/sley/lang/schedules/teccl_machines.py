"""The machines that TE-CCL knows: their links, with the rates and latencies that it assumes.

Source: TE-CCL's code, teccl/topologies (ndv2, dgx2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sley.ir.cost_model import MOST_GBPS, ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology

Link = tuple[int, int]

_FREE, _WHOLE = ByProtocol.same(0.0), ByProtocol.same(1.0)

LINKS_ONLY = CostModel(
    launch_us=_FREE,
    nvlink_latency_us=_FREE,
    pcie_latency_us=_FREE,
    network_call_us=0.0,
    network_latency_us=_FREE,
    post_us=0.0,
    proxy_us=0.0,
    nvlink_block_GBps=MOST_GBPS,
    pcie_block_GBps=MOST_GBPS,
    network_block_GBps=MOST_GBPS,
    local_block_GBps=MOST_GBPS,
    memory_GBps=MOST_GBPS,
    wire_efficiency=_WHOLE,
    tile_bytes=ByProtocol.same(1e12),
    slices=_WHOLE,
    wait_us=0.0,
    fence_share=_FREE,
    interpreter_loss=0.0,
)
"""The costs in TE-CCL's model: none but those of links."""

_ALPHA_THRESHOLD = 0.1
"""A latency up to this share of an epoch counts as none."""

_TOLERANCE = 1e-6
"""Quotients are rounded up, but not because of the last digits of a float."""


@dataclass(frozen=True)
class TecclMachine:
    """A machine by its links, between nodes that are GPUs or switches.

    name: with the number of chassis. links: (GB/s, latency in s) of each link (from, to). mistaken:
    GPUs that TE-CCL takes for switches.
    """

    name: str
    gpus: frozenset[int]
    switches: frozenset[int]
    links: dict[Link, tuple[float, float]]
    mistaken: frozenset[int] = frozenset()

    def topology(self, gpus: Sequence[int]) -> Topology:
        """The machine as TE-CCL models it, with these GPUs as ranks: rates and latencies of links,
        and no other costs. The mistaken GPUs that are not among them are switches."""
        switches = sorted(self.switches | (self.mistaken - {*gpus}))
        vertex = {node: number for number, node in enumerate((*gpus, *switches))}
        builder = Builder(f"{self.name}, TE-CCL's model", [0] * len(gpus))
        builder.add(VertexKind.SWITCH, [0] * len(switches))
        for (src, dst), (rate, alpha) in self.links.items():
            kind = LinkKind.NVLINK
            builder.link(vertex[src], vertex[dst], kind, rate, rate, round(alpha * 1e6, 6))
        return builder.topology(LINKS_ONLY)

    def epochs(self, route: tuple[int, ...], epoch_s: float, chunk: float, *, fluid: bool) -> int:
        """The epochs from the one in which a flow leaves the first node of a route to the one in
        which the last node has it. A switch passes a whole chunk on without another transmission.

        chunk: its size in GB. fluid: whether flows are fractions of chunks, which a link carries
        in one epoch (AllToAll); whole chunks take a slow link several epochs.
        """
        total = 0
        for number, hop in enumerate(pairwise(route)):
            rate, alpha = self.links[hop]
            if alpha / epoch_s > _ALPHA_THRESHOLD:
                total += _ceil(alpha / epoch_s)
            if fluid:
                total += 1
            elif number == 0 or hop[1] in self.switches:
                total += max(1, _ceil(chunk / (rate * epoch_s)))
        return total


def _ceil(value: float) -> int:
    return math.ceil(min(value, 1e9) * (1 - _TOLERANCE))


def nearest_machine(
    gpus: frozenset[int], links: frozenset[Link]
) -> tuple[TecclMachine | None, list[Link]]:
    """The machine that has these GPUs, perhaps without mistaken ones, and all but a few of these
    links, and those that it lacks; None and none if no machine is near."""
    near = [
        (sorted(links - machine.links.keys()), machine)
        for machine in _candidates(max(gpus, default=0))
        if machine.gpus - machine.mistaken <= gpus <= machine.gpus
    ]
    # Of equals the first, in the order of `_candidates`.
    lacking, machine = min(near, key=lambda one: len(one[0]), default=([], None))
    return (machine, lacking) if len(lacking) <= _MOST_STRAYS else (None, [])


_MOST_STRAYS = 4
"""The most links that a machine may lack to be named as the nearest: some are a mistake in a file,
more are another machine."""

_MOST_CHASSIS = 64
"""Bound on the chassis of a machine, which is built to be compared: a file names any numbers."""


def _candidates(largest: int) -> Iterator[TecclMachine]:
    yield _ndv2_pair()
    chassis = -(-largest // 8)
    if 1 <= chassis <= _MOST_CHASSIS:
        yield _ndv2(chassis)
    yield _dgx2()


_NVLINK_ALPHA, _NDV2_CARD = 0.7e-6, (12.5, 1.3e-6)
_NDV2_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_NDV2_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


def _ndv2_links(first: int) -> dict[Link, tuple[float, float]]:
    """The NVLinks of the NDv2 whose first GPU has this number."""
    return {
        (first + one, first + other): (rate, _NVLINK_ALPHA)
        for pairs, rate in ((_NDV2_DOUBLE, 50.0), (_NDV2_SINGLE, 25.0))
        for a, b in pairs
        for one, other in ((a, b), (b, a))
    }


def _ndv2_pair() -> TecclMachine:
    """Two NDv2 without a switch between them: GPU 0 of each sends to GPU 1 of the other."""
    links = _ndv2_links(0) | _ndv2_links(8) | {(8, 1): _NDV2_CARD, (0, 9): _NDV2_CARD}
    gpus = frozenset(range(16))
    return TecclMachine("NDv2 with 2 chassis", gpus, frozenset(), links, mistaken=frozenset({0}))


def _ndv2(chassis: int) -> TecclMachine:
    """NDv2 chassis around switch 0, to which the first GPU of each sends, and from which the second
    receives."""
    links: dict[Link, tuple[float, float]] = {}
    for first in range(1, 8 * chassis, 8):
        links |= _ndv2_links(first) | {(first, 0): _NDV2_CARD, (0, first + 1): _NDV2_CARD}
    gpus = frozenset(range(1, 8 * chassis + 1))
    return TecclMachine(f"NDv2 with {chassis} chassis", gpus, frozenset({0}), links)


def _dgx2() -> TecclMachine:
    """Two DGX-2: 16 GPUs around switches 0 and 17, and a link from every second GPU to the one
    before it in the other chassis."""
    links: dict[Link, tuple[float, float]] = {}
    for switch, other in ((0, 17), (17, 0)):
        for gpu in range(1, 17):
            both = (switch + gpu, switch), (switch, switch + gpu)
            links |= dict.fromkeys(both, (125.0, 0.35e-6))
        for sender in range(2, 17, 2):
            links[switch + sender, other + sender - 1] = (12.5, 2.6e-6)
    gpus = frozenset(range(34)) - {0, 17}
    return TecclMachine("DGX-2 with 2 chassis", gpus, frozenset({0, 17}), links)
