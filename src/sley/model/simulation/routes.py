"""Routes: the links, latencies and switches between the ends of a plan's connections."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sley.errors.compiler import C301, C315
from sley.ir.connections import Connections
from sley.ir.fabric import LinkKind
from sley.ir.faults import check_tables
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, Edges, FloatArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import Protocol


@dataclass(frozen=True)
class ConnectionRoutes:
    """The links that the connections of a plan cross on a topology.

    connections: those of the plan.
    path: CSR, connection -> links.
    kind: int8 (connections,), the slowest LinkKind on the way.
    switched: bool (connections,), whether a switch combines or copies messages on it. gathered:
        whether it combines them.
    topology: the topology.
    """

    connections: Connections
    path: Edges
    kind: NDArray[np.int8]
    switched: BoolArray
    gathered: BoolArray
    topology: Topology

    @classmethod
    def of(cls, plan: Plan, topology: Topology) -> ConnectionRoutes:
        """Errors: V201, C301, C305."""
        check_tables(plan)
        t, ranks = plan.instructions, plan.collective.ranks
        topology.check_ranks(ranks)
        c = Connections.of(plan)
        # Each pair of ranks once: its channels share one path.
        pairs, pair = np.unique(c.src.astype(np.int64) * ranks + c.dst, return_inverse=True)
        path = topology.paths(*np.divmod(pairs, ranks)).pick(pair)
        for missing in np.flatnonzero(np.diff(path.offset) == 0)[:1]:
            raise C301.error(
                at=plan.place(c.first_user(missing)),
                expected="a message between two ranks that are linked",
                found=f"rank {c.src[missing]} -> rank {c.dst[missing]}, which {topology.name} "
                "does not link",
            )
        kind = topology.slowest_kinds(path)
        grouped = plan.grouped
        _check_switches(plan, topology, grouped)
        copied, gathered = np.zeros((2, len(c)), bool)
        copied[c.sending.connection[t.send_peer[c.sending.instruction] >= ranks]] = True
        gathered[c.receiving.connection[t.recv_peer[c.receiving.instruction] >= ranks]] = True
        return cls(c, path, kind, copied | gathered, gathered, topology)

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """bool (connections,): those with a second hop, from card to card."""
        return np.asarray(self.kind == LinkKind.NETWORK)


def _check_switches(plan: Plan, topology: Topology, grouped: LongArray) -> None:
    """Refuses groups that no switch serves. Errors: C315."""
    t = plan.instructions
    far = np.zeros(len(t), bool)
    for peer in (t.send_peer, t.recv_peer):
        rows, member = plan.ends(grouped[peer[grouped] >= plan.collective.ranks], peer)
        far[rows[topology.node[member] != topology.node[plan.rank[rows]]]] = True
    wrong = grouped[far[grouped]] if topology.in_network else grouped
    for row in wrong[:1].tolist():
        raise C315.error(
            at=plan.place(row),
            expected="a switch that reduces and multicasts for the ranks of a group",
            found=f"{topology.name}, "
            + ("where they are on several nodes" if far[row] else "whose switches don't"),
        )


def latencies(topology: Topology, protocol: Protocol, routes: ConnectionRoutes) -> FloatArray:
    """float64 (connections,): time from the end of a move until the receiver sees it
    (`Topology.hop_latencies`); a switch that combines or copies has a latency of its own."""
    by_kind = np.array([topology.model.latency_us(kind)[protocol] for kind in LinkKind])
    # LL's is that of credits, words that no switch combines.
    switched = routes.switched & (protocol is not Protocol.LL)
    model = np.where(switched, topology.model.switch_latency_us, by_kind[routes.kind])
    return topology.hop_latencies(routes.path, model)
