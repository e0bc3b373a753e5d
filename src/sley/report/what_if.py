"""What if: how much sooner a simulation would end with one cost or option changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sley.ir.cost_model import MOST_GBPS, ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER
from sley.model.bounds import Bounds
from sley.model.simulation import Simulator
from sley.model.simulation.result import Simulation
from sley.model.simulation.routes import ConnectionRoutes
from sley.report.limit import Factor
from sley.report.link_classes import LinkClass, link_classes

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
    s, t, model = simulation, simulation.topology, simulation.model
    slots = min(2 * s.plan.slots, MAX_NUMBER)
    busiest = _busiest(simulation)
    names = list(dict.fromkeys(c.ends for c in busiest))
    cases = [
        (Factor.LAUNCH, "half the time of the launch", replace(t, model=_scaled(model, _LAUNCH))),
        (Factor.BLOCK, "thread blocks twice as fast", replace(t, model=_scaled(model, _BLOCKS))),
        (Factor.LINK, f"links twice as fast: {', '.join(names)}", _faster(t, busiest)),
        (Factor.MEMORY, "memory twice as fast", replace(t, model=_scaled(model, _MEMORY))),
        (Factor.LATENCY, "half the latency of hops and waits", _nearer(t)),
    ]
    rates = _block_rates(s)
    for name, words in rates.items() if len(rates) > 1 else ():
        faster = replace(t, model=_scaled(model, {name: 2.0}))
        cases.append((Factor.BLOCK, f"thread blocks twice as fast {words} ({name})", faster))
    network = [c for c in _network(s) if c.ends not in names]
    if network:
        cases.append((Factor.LINK, "the network twice as fast", _faster(t, network)))
    bounds = Bounds.of(s.plan.collective, t)
    times = [(f, text, _again(s, changed, s.plan.slots, bounds)) for f, text, changed in cases]
    times.append((Factor.SLOTS, f"twice the slots ({slots})", _again(s, t, slots, bounds)))
    if twice is not None:
        us = Simulator(twice, t, interpreter=s.interpreter, bounds=bounds)(s.size_bytes).time_us
        text = f"twice the instances ({twice.blocks_per_rank} blocks on a rank)"
        times.append((Factor.BLOCK, text, us))
    changes = [
        WhatIf(f, text, us, us / s.time_us - 1 if s.time_us else 0.0) for f, text, us in times
    ]
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


def _block_rates(s: Simulation) -> dict[str, str]:
    """The parameters of blocks' rates over the kinds of links on which the plan sends, in words."""
    kinds = set(ConnectionRoutes.of(s.plan, s.topology).kind.tolist())
    return {name: words for kind, (name, words) in _RATES.items() if kind in kinds}


def _scaled(model: CostModel, factors: dict[str, float]) -> CostModel:
    return replace(
        model, **{name: _times(getattr(model, name), by) for name, by in factors.items()}
    )


def _times(value: float | ByProtocol, by: float) -> Any:
    if isinstance(value, ByProtocol):
        return value * by
    return min(value * by, MOST_GBPS) if by > 1 else value * by


def _busiest(s: Simulation) -> list[LinkClass]:
    used = [c for c in link_classes(s) if c.used]
    most = max((c.most for c in used), default=0.0)
    return [c for c in used if c.most >= BUSY * most]


def _network(s: Simulation) -> list[LinkClass]:
    """The classes of links from and to cards that carry data."""
    card = VertexKind.NIC.word
    return [c for c in link_classes(s) if c.used and card in c.ends.split(" -> ")]


def _faster(topology: Topology, classes: Sequence[LinkClass]) -> Topology:
    """The topology with twice the rates of these links, nominal and reached."""
    links = topology.links
    by = np.ones(len(links))
    for c in classes:
        by[c.links] = 2.0
    rates = (np.minimum(rate * by, MOST_GBPS) for rate in (links.GBps, links.nominal_GBps))
    reached, nominal = rates
    return replace(topology, links=replace(links, GBps=reached, nominal_GBps=nominal))


def _nearer(topology: Topology) -> Topology:
    """The topology with half of all latencies, the model's and the links' own."""
    links, model = topology.links, _scaled(topology.model, _LATENCY)
    own = np.where(links.latency_us >= 0, links.latency_us / 2, links.latency_us)
    return replace(topology, links=replace(links, latency_us=own), model=model)


def _again(s: Simulation, topology: Topology, slots: int, bounds: Bounds) -> float:
    again = Simulator(s.plan, topology, interpreter=s.interpreter, slots=slots, bounds=bounds)
    return again(s.size_bytes).time_us
