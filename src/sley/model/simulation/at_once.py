"""Calls at once: the times of calls that groups of a cluster make at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sley.errors import without_inner_frames
from sley.errors.topology import T613
from sley.ir.extension import load
from sley.ir.plan import Plan
from sley.ir.sizes import checked_size
from sley.ir.tables import FloatArray
from sley.ir.topology import Topology
from sley.model.simulation.inputs import LoopInputs, Tiling
from sley.model.simulation.simulator import refuse_many, refuse_stuck
from sley.topologies.groups import Group

if TYPE_CHECKING:
    from sley.model.simulation._event_loop import Result


@dataclass(frozen=True)
class GroupRun:
    """A call of a plan by a group. size: as for `simulate`."""

    plan: Plan
    group: Group
    size: int | str


@without_inner_frames
def simulate_at_once(runs: Sequence[GroupRun], cluster: Topology) -> FloatArray:
    """float64 (runs,), us: when each call has ended, if all begin at the same time and share the
    links, memories and proxies of a cluster.

    runs: with one protocol and number of slots. Errors: T613, S702, S705, V203, and
    those of `Simulator`.
    """
    plans = [run.plan for run in runs]
    kinds = {(plan.protocol, plan.slots) for plan in plans}
    if len(kinds) != 1:
        raise T613.error(
            expected="plans of one protocol and number of slots, at least one",
            found=", ".join(sorted(f"{p.value} with {s}" for p, s in kinds)) or "none",
            remedy="Compile all with the same options.",
        )
    for run in runs:
        _check_cluster(run.group, cluster)
    ((protocol, slots),) = kinds
    efficiency = cluster.model.wire_efficiency[protocol]
    parts = [LoopInputs.of(one.plan, one.group.topology, interpreter=False) for one in runs]
    cuts = [Tiling.of(one.plan, cluster.model, checked_size(one.size)) for one in runs]
    refuse_many(cluster.name, max(cut.tiles for cut in cuts), sum(len(one.kind) for one in parts))
    inputs = LoopInputs.at_once(parts, [run.group for run in runs], cluster)
    simulate = load("sley.model.simulation._event_loop").simulate
    found: Result = simulate(inputs, [cut.on_wire(efficiency) for cut in cuts], slots)
    first = np.cumsum([0, *(len(one.kind) for one in parts)])
    for plan, (begin, end) in zip(plans, pairwise(first.tolist()), strict=True):
        own = found.stuck[(found.stuck >= begin) & (found.stuck < end)]
        refuse_stuck(plan, own - begin)
    blocks = np.cumsum([0, *(len(one.call) for one in parts)])
    ends = [found.end_us[a:b].max(initial=0) for a, b in pairwise(blocks.tolist())]
    return np.array([max(end, inputs.launch_us) for end in ends], np.float64)


def _check_cluster(group: Group, cluster: Topology) -> None:
    """Refuses a group of another cluster. Errors: T613."""
    own, table = group.topology.links, cluster.links
    inside = group.links.max(initial=-1) < len(table) and group.ranks.max() < cluster.ranks
    rates = table.GBps[group.links] if inside else None
    if rates is None or not np.array_equal(rates, own.GBps):
        expected = f"groups of {cluster.name}"
        raise T613.error(expected=expected, found=group.topology.name, remedy="Make them of it.")
