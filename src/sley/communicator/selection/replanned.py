"""Replanned: rows of a communicator's plans for a network whose interfaces have different rates, or
that some hosts' ranks share unevenly: trees that are made for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.survey import Survey
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.ready_plans import Capacity, prove
from sley.communicator.selection.rules import default_program, default_rows
from sley.compiler import Options, compile
from sley.compiler.synthesis import Synthesis
from sley.errors import SleyError
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.sizes import SizeRange, size_text
from sley.ir.tables import NONE, FloatArray
from sley.ir.topology import Builder, Topology
from sley.ir.words import Protocol
from sley.model.simulation import simulate
from sley.topologies.forests import MOST_RANKS

REPLANNED = ("all_reduce", "all_gather", "reduce_scatter")
"""The kinds of calls that trees serve."""

_HOST_GBPS = 8.0
"""The rate at which ranks of a host send to one another: an assumption. It matters only beside
interfaces that are nearly as fast."""

_TILE_BYTES = 128 << 10
"""Of a message between hosts (`communicator.memory`)."""

_GAIN = 1.1
"""How many times as fast as the library's plan trees must be in the simulator."""

_SIZES = tuple(1 << power for power in range(18, 29, 2))
"""The sizes that are simulated: trees run from the least one on from which they are always
faster."""

Rows: TypeAlias = Mapping[str, tuple[PlanRow, ...]]
"""Of kinds of calls, rows before the library's."""


def topology_of(hosts: Hosts, found: Survey) -> Topology:
    """The hosts as the survey found them: each with memory that its ranks share, and interfaces, to
    which they are bound in turn; and for each number of interfaces a network of its own."""
    node, numbers = np.array(hosts.host), len(found.nics)
    builder, rank = Builder("the hosts", node), np.arange(len(node))
    memory = builder.add(VertexKind.SWITCH, np.arange(hosts.count))
    builder.both(rank, memory[node], LinkKind.NVLINK, _HOST_GBPS, _HOST_GBPS)
    card = builder.add(VertexKind.NIC, np.repeat(np.arange(hosts.count), numbers))
    bound = card[node * numbers + np.array(hosts.local) % numbers]
    # An interface is no faster than the host's memory here, whose rate then counts.
    builder.both(rank, bound, LinkKind.PCIE, _HOST_GBPS, _HOST_GBPS)
    network = np.tile(builder.add(VertexKind.NETWORK, [NONE] * numbers), hosts.count)
    sent, received = (one.ravel() * found.most_GBps for one in found.shares)
    builder.link(card, network, LinkKind.NETWORK, sent, sent)
    builder.link(network, card, LinkKind.NETWORK, received, received)
    return builder.topology(
        CostModel(
            nvlink_block_GBps=_HOST_GBPS,
            pcie_block_GBps=_HOST_GBPS,
            network_block_GBps=_HOST_GBPS,
            local_block_GBps=_HOST_GBPS,
            wire_efficiency=ByProtocol.same(1.0),
            tile_bytes=ByProtocol.same(_TILE_BYTES),
            slices=ByProtocol.same(1),
        )
    )


def is_even(hosts: Hosts, found: Survey) -> bool:
    """Whether the library's plans fit: all rates are equal, and as many ranks share each
    interface."""
    numbers = len(found.nics)
    has_equal = all((share == 1).all() for share in found.shares)
    return has_equal and hosts.is_uniform and len(hosts.members[0]) % numbers == 0


def faster_trees(hosts: Hosts, found: Survey, capacity: Capacity) -> dict[str, Any]:
    """For each kind of calls, trees that the simulator finds faster than the library's plan on the
    network of the survey, as plain values for `rows_of`; nothing for other kinds."""
    made: dict[str, Any] = {}
    if is_even(hosts, found) or len(hosts.host) > MOST_RANKS:
        return made
    topology = topology_of(hosts, found)
    for kind in REPLANNED:
        trees = Synthesis.of(CALLS[kind].name, topology)
        recipe = _recipe(kind, trees.arguments, len(hosts.host))
        plan = _compiled(recipe)
        try:
            prove(plan, capacity, recipe.name, is_proven=True)
        except SleyError:  # more channels than connections have
            continue
        row = default_rows(kind, hosts, in_place=True)[-1]
        before, after = (_times_us(one, topology) for one in (_compiled(row.recipe), plan))
        if before is None or after is None:
            continue
        is_slower = np.flatnonzero(before < after * _GAIN)
        least = int(is_slower[-1]) + 1 if len(is_slower) else 0
        if least < len(_SIZES):
            gain = float(before[-1] / after[-1])
            made[kind] = {"arguments": trees.arguments, "size": _SIZES[least], "gain": gain}
    return made


def rows_of(made: Mapping[str, Any], hosts: Hosts) -> Rows:
    """The rows of what `faster_trees` has found, on any rank."""
    found = {}
    for kind, one in made.items():
        row = default_rows(kind, hosts, in_place=True)[-1]
        recipe = _recipe(kind, one["arguments"], len(hosts.host))
        gain, largest = f"{one['gain']:.2f} times", size_text(_SIZES[-1])
        note = f"trees for the measured rates: simulated {gain} as fast at {largest}"
        found[kind] = (
            replace(
                row,
                recipe=recipe,
                sizes=SizeRange(one["size"], None),
                note=note,
                refused=(f"{row.recipe.name}: its ranks' interfaces have one rate",),
            ),
        )
    return found


def _recipe(kind: str, arguments: Mapping[str, Any], ranks: int) -> Recipe:
    name = f"forest-{CALLS[kind].name}"
    given = {"ranks": ranks, **arguments, "in_place": True}
    return Recipe(name, given, {"protocol": Protocol.SIMPLE})


def _compiled(recipe: Recipe) -> Plan:
    return compile(default_program(recipe), Options.of(None, recipe.options))


def _times_us(plan: Plan, topology: Topology) -> FloatArray | None:
    """float64 (sizes,): simulated times; None for a plan between ranks that are bound to interfaces
    of different numbers, which the topology doesn't join."""
    try:
        found = simulate(replace(plan, topology=topology), list(_SIZES))
    except SleyError as error:
        if error.code != "C301":
            raise
        return None
    return np.array([one.time_us for one in found])
