"""What if: how much sooner a simulation would end with one cost or option changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sley.ir.cost_model import MOST_GBPS, ByProtocol
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.model.simulation.result import Simulation
from sley.model.simulation.routes import ConnectionRoutes
from sley.report.analysis import LinkClass, link_classes
from sley.report.limit import Factor

BUSY = 0.9
"""The share of the busiest link's use from which a class of links counts among the busiest."""


@dataclass(frozen=True)
class WhatIf:
    """A simulation again, with one cost or option changed.

    factor: the factor that the change weakens.
    text: the change in words: "twice the slots (4)".
    time_us: the time with it.
    share: the change of the time: -0.12 if it is 12 % shorter.
    """

    factor: Factor
    text: str
    time_us: float
    share: float


def what_if(simulation: Simulation, twice: Plan | None = None) -> list[WhatIf]:
    """A simulation again for each factor that could limit it, with half the times or twice the
    rates or slots; the greatest gain first. It takes as long as six to ten simulations.

    The links that get twice their rate are those of the busiest classes, since a message crosses
    several in turn; and in another simulation the network's, if they are less busy. If blocks send
    over several kinds of links, the rate over each kind is also a change of its own.

    twice: the plan of the same program with twice the instances, which is then simulated too.
    """
    s, t = simulation, simulation.topology
    slots = min(2 * s.plan.slots, MAX_NUMBER)
    used = [c for c in link_classes(s) if c.used]
    most = max((c.most for c in used), default=0.0)
    busiest = [c for c in used if c.most >= BUSY * most]
    names = list(dict.fromkeys(c.ends for c in busiest))
    card = VertexKind.NIC.word
    network = [c for c in used if card in c.ends.split(" -> ") and c.ends not in names]
    bounds = Bounds.of(s.plan.collective, t)
    changes: list[WhatIf] = []

    def add(
        factor: Factor,
        text: str,
        topology: Topology = t,
        plan: Plan = s.plan,
        slots: int | None = None,
    ) -> None:
        again = Simulator(plan, topology, interpreter=s.interpreter, slots=slots, bounds=bounds)
        us = again(s.size_bytes).time_us
        changes.append(WhatIf(factor, text, us, us / s.time_us - 1 if s.time_us else 0.0))

    add(Factor.LAUNCH, "half the time of the launch", _scaled(t, _LAUNCH))
    add(Factor.BLOCK, "thread blocks twice as fast", _scaled(t, _BLOCKS))
    add(Factor.LINK, f"links twice as fast: {', '.join(names)}", _faster(t, busiest))
    add(Factor.MEMORY, "memory twice as fast", _scaled(t, _MEMORY))
    add(Factor.LATENCY, "half the latency of hops and waits", _nearer(t))
    kinds = set(ConnectionRoutes.of(s.plan, t).kind.tolist())
    rates = {name: words for kind, (name, words) in _RATES.items() if kind in kinds}
    for name, words in rates.items() if len(rates) > 1 else ():
        faster = _scaled(t, {name: 2.0})
        add(Factor.BLOCK, f"thread blocks twice as fast {words} ({name})", faster)
    if network:
        add(Factor.LINK, "the network twice as fast", _faster(t, network))
    add(Factor.SLOTS, f"twice the slots ({slots})", slots=slots)
    if twice is not None:
        text = f"twice the instances ({twice.blocks_per_rank} blocks on a rank)"
        add(Factor.BLOCK, text, plan=twice)
    return sorted(changes, key=lambda change: change.time_us)


def what_if_lines(changes: Sequence[WhatIf]) -> list[str]:
    """The changes as text, a line each."""
    width = max(len(change.text) for change in changes)
    lines = ["", f"{'what if':<{width + 2}}  {'time us':>10}  {'change':>7}"]
    for c in changes:
        lines.append(f"  {c.text:<{width}}  {c.time_us:>10.1f}  {change_text(c)}")
    return lines


def change_text(change: WhatIf) -> str:
    """The change of the time in per cent: " -12.0%"; nothing below 0.05 %."""
    return f"{'-':>7}" if abs(change.share) < 5e-4 else f"{change.share:>+7.1%}"


_LAUNCH = {"launch_us": 0.5, "host_launch_us": 0.5}
_MEMORY = {"memory_GBps": 2.0}
_BLOCKS = dict.fromkeys(
    ("nvlink_block_GBps", "pcie_block_GBps", "network_block_GBps", "local_block_GBps"), 2.0
)
_RATES = {
    LinkKind.NVLINK: ("nvlink_block_GBps", "over NVLink"),
    LinkKind.PCIE: ("pcie_block_GBps", "over PCIe"),
    LinkKind.NETWORK: ("network_block_GBps", "over the network"),
}
"""A thread block's rate to a peer by the slowest kind of link on the way, and the way in words."""

_LATENCY = dict.fromkeys(
    (
        "nvlink_latency_us",
        "pcie_latency_us",
        "network_latency_us",
        "switch_latency_us",
        "post_us",
        "proxy_us",
        "wait_us",
    ),
    0.5,
)
"""The parameters of the cost model that a change multiplies, and by how much."""


def _scaled(topology: Topology, factors: dict[str, float]) -> Topology:
    """The topology with these parameters of its cost model multiplied."""
    model = topology.model
    scaled = {name: _times(getattr(model, name), by) for name, by in factors.items()}
    return replace(topology, model=replace(model, **scaled))


def _times(value: float | ByProtocol, by: float) -> Any:
    if isinstance(value, ByProtocol):
        return value * by
    return min(value * by, MOST_GBPS) if by > 1 else value * by


def _faster(topology: Topology, classes: Sequence[LinkClass]) -> Topology:
    """The topology with twice the rates of these links, nominal and reached."""
    links = topology.links
    by = np.ones(len(links))
    for c in classes:
        by[c.links] = 2.0
    reached, nominal = (np.minimum(r * by, MOST_GBPS) for r in (links.GBps, links.nominal_GBps))
    return replace(topology, links=replace(links, GBps=reached, nominal_GBps=nominal))


def _nearer(topology: Topology) -> Topology:
    """The topology with half of all latencies, the model's and the links' own."""
    links = topology.links
    own = np.where(links.latency_us >= 0, links.latency_us / 2, links.latency_us)
    return replace(_scaled(topology, _LATENCY), links=replace(links, latency_us=own))
