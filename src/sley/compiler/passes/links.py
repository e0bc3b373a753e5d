"""Links: whether a topology has the links that a program needs, and which transfers share one."""

from __future__ import annotations

import numpy as np

from sley.errors import Place
from sley.errors.compiler import C301, C305, C315
from sley.ir.dag import Links
from sley.ir.program import Program
from sley.ir.sources import place_to_mend
from sley.ir.tables import NONE, numbering
from sley.ir.topology import Topology
from sley.topologies import machine_names


def _more_nodes(topology: Topology, ranks: int) -> str:
    """The remedy for a topology with too few ranks; empty without a better one than the rule's."""
    nodes, rest = divmod(ranks, topology.ranks)
    if rest or topology.name not in machine_names():
        return ""
    return f"Use {nodes} nodes: {topology.name}:{nodes}."


def check_links(program: Program, topology: Topology) -> None:
    """Refuses a program that sends where the topology has no link. Errors: C301, C305."""
    ranks = program.collective.ranks
    if topology.ranks < ranks:
        raise C305.error(
            at=Place(detail=topology.name),
            expected=f"at least {ranks} ranks",
            found=f"{topology.ranks} ranks",
            remedy=_more_nodes(topology, ranks),
        )
    t = program.transfers
    missing = np.flatnonzero(t.remote & ~topology.are_linked(t.src, t.dst))
    if len(missing):
        row = int(missing[0])
        src, dst = int(t.src[row]), int(t.dst[row])
        neighbours = ", ".join(map(str, np.flatnonzero(topology.linked[src]).tolist()))
        raise C301.error(
            at=place_to_mend(program.sources.place(int(t.source[row])), program.name),
            expected=f"a transfer from rank {src} to a rank that it is linked to: {neighbours}",
            found=f"rank {src} -> rank {dst}, which {topology.name} does not link "
            f"({len(missing)} such transfers)",
        )


def check_switches(program: Program, topology: Topology) -> None:
    """Refuses groups of transfers that no switch makes together. Errors: C315."""
    t = program.transfers
    grouped = t.group != NONE
    far = grouped & (topology.node[t.src] != topology.node[t.dst])
    row = int(np.argmax(far if far.any() else grouped))
    if far.any():
        expected = "the ranks of a group on one node"
        found = f"ranks {t.src[row]} and {t.dst[row]}, on two nodes of {topology.name}"
    elif not topology.in_network:
        expected = "switches that reduce and multicast"
        found = f"{topology.name}, whose switches don't"
    else:
        return
    at = place_to_mend(program.sources.place(int(t.source[row])), program.name)
    raise C315.error(at=at, expected=expected, found=found)


def used_links(program: Program, topology: Topology | None) -> Links:
    """The links that a program uses; without a topology all ranks are in one node."""
    t, ranks = program.transfers, program.collective.ranks
    key = t.src.astype(np.int64) * ranks + t.dst
    second = np.full(len(t), NONE, np.int64)
    crosses = np.zeros(len(t), bool)
    if topology is not None:
        crosses = topology.crosses_network(t.src, t.dst)
        cards = int(topology.nic.max(initial=0)) + 1
        sender, receiver = topology.nic[t.src], topology.nic[t.dst]
        # Within a node each pair has its own link; across the network a transfer holds a card at
        # each end, which others share. Numbers of cards begin behind those of pairs.
        key = np.where(crosses, ranks * ranks + sender, key)
        second = np.where(crosses, ranks * ranks + cards + receiver, NONE)
    first = np.where(t.remote, key * t.lanes + t.lane, NONE)
    second = np.where(second != NONE, second * t.lanes + t.lane, NONE)
    keys = np.concatenate([first, second])
    link, used = np.full(len(keys), NONE, np.int32), keys != NONE
    link[used] = numbering(keys[used], int(keys.max(initial=NONE)) + 1)[1]
    return Links(link[: len(t)], link[len(t) :], int(link.max(initial=NONE)) + 1, crosses)
