"""The price of one order of sums: times of calls with `same_bits`, and without, by the simulator.

    python benchmarks/same_bits.py [all_reduce | reduce_scatter | reduce] ...

On one node as a `DeviceCommunicator` runs them, on two (minutes for each) the fastest of
`sley choose --schedule msccl`, in place and without switches that add. It prints the tables of
docs/communicator.md, in us.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

import sley
from sley.algorithms import CATALOG, build
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.device_rules import DeviceLimits, in_order
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.plans import Plans
from sley.compiler.passes.links import check_links
from sley.errors import SleyError
from sley.ir.sizes import size_text
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.topologies import topology_of
from sley.verification import SumOrder

GPUS = 8
MACHINES = ("ndv4", "dgx-h100")
SIZES = [1 << bits for bits in (10, 14, 18, 20, 22, 24, 26, 30)]


def on_one_node(kind: str, machine: str, same_bits: bool) -> list[float]:
    """The times of calls of SIZES on one node, in us."""
    limits = DeviceLimits(machine)
    made = Plans(Hosts.of([""] * GPUS), devices=limits, cache=False, same_bits=same_bits)
    plans = [made.find(kind, size, in_place=True).plan for size in SIZES]
    on = limits.machine(GPUS)
    return [
        sley.simulate(plan, size, on, interpreter=True).time_us
        for plan, size in zip(plans, SIZES, strict=True)
    ]


def on_two_nodes(kind: str, machine: str, same_bits: bool) -> list[float]:
    """The times of calls of SIZES on two nodes, in us."""
    cluster = topology_of(f"{machine}:2")
    programs = list(programs_on(cluster, CALLS[kind].name, same_bits))
    ranges = sley.choose(programs, SIZES, cluster, schedule="msccl").ranges
    plans = [next(one.plan for one in ranges if size <= one.end.size_bytes) for size in SIZES]
    return [
        sley.simulate(plan, size, cluster).time_us for plan, size in zip(plans, SIZES, strict=True)
    ]


def programs_on(cluster: Topology, collective: str, same_bits: bool) -> Iterator[sley.Program]:
    """The library's programs of two nodes without switches; with `same_bits`, in its order."""
    order = np.arange(2 * GPUS).reshape(2, GPUS).tolist()
    for name, one in CATALOG.items():
        sizes = {"nodes": 2, "gpus": GPUS} if "nodes" in one.parameters else {"ranks": 2 * GPUS}
        if one.collective != collective:
            continue
        try:
            program = build(name, **sizes, **in_order(name, same_bits), in_place=True)
            check_links(program, cluster)
        except SleyError:  # an algorithm for other numbers of ranks, or other links
            continue
        if (program.transfers.group != NONE).any():
            continue
        if not same_bits or SumOrder.of(sley.compile(program)).follows(order):
            yield program


def text(time_us: float) -> str:
    """A time with two digits at least."""
    return f"{time_us:.{int(time_us < 10)}f}"


def main() -> None:
    for kind in sys.argv[1:] or ["all_reduce", "reduce_scatter", "reduce"]:
        print(f"\n| {kind} | {' | '.join(map(size_text, SIZES))} |\n{'|---' * (len(SIZES) + 1)}|")
        for times, nodes in ((on_one_node, ""), (on_two_nodes, ":2")):
            for machine in MACHINES:
                both = [times(kind, machine, same_bits) for same_bits in (True, False)]
                cells = (f"{text(a)}, {text(b)}" for a, b in zip(*both, strict=True))
                print(f"| {machine}{nodes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
