"""Topologies: those of msccl.topologies. sley reads which ranks they link; bandwidths and switches
are there for the script."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sley.errors.language import L102
from sley.lang.recorder import refuse

MAX_RANKS = 4096
"""Bound on ranks: links have a number for each two of them, here 17 million."""

Links = list[list[int]]
"""links[dst][src]: the bandwidth from src to dst; 0 for no link."""


class Topology:
    """Linked ranks.

    links: links[dst][src] is a bandwidth, 0 for no link. switches: (sources, destinations,
    bandwidth, name) of shared links.
    """

    def __init__(self, name: str, links: Links, switches: Sequence[Any] = ()) -> None:
        self.name = name
        self.links = links
        self.switches = list(switches)

    def sources(self, dst: int) -> Iterator[int]:
        """The ranks with a link to `dst`."""
        return (src for src in self.nodes() if self.links[dst][src] > 0)

    def destinations(self, src: int) -> Iterator[int]:
        """The ranks to which `src` has a link."""
        return (dst for dst in self.nodes() if self.links[dst][src] > 0)

    def link(self, src: int, dst: int) -> int:
        """The bandwidth from `src` to `dst`."""
        return self.links[dst][src]

    def num_nodes(self) -> int:
        """The number of ranks."""
        return len(self.links)

    def nodes(self) -> range:
        """All ranks."""
        return range(len(self.links))


def _ranks(number: int) -> range:
    """The ranks of a topology, whose links take memory for each pair. Errors: L102."""
    if number > MAX_RANKS:
        refuse(L102, f"at most {MAX_RANKS} ranks in a topology", str(number))
    return range(number)


def _linked(name: str, ranks: int, linked: Callable[[int, int], bool]) -> Topology:
    """`ranks` ranks with links of bandwidth 1 between those that `linked(dst, src)` names."""
    everyone = _ranks(ranks)
    return Topology(name, [[int(d != s and linked(d, s)) for s in everyone] for d in everyone])


def fully_connected(num_nodes: int) -> Topology:
    """Every rank has a link to every other one."""
    return _linked(f"FullyConnected(n={num_nodes})", num_nodes, lambda dst, src: True)


def hub_and_spoke(num_nodes: int) -> Topology:
    """Every rank reaches every other one by a switch."""
    return _linked(f"HubAndSpoke(n={num_nodes})", num_nodes, lambda dst, src: True)


def ring(num_nodes: int) -> Topology:
    """Every rank has links to its two neighbours; the last one is the first one's neighbour."""
    return _linked(
        f"Ring(n={num_nodes})",
        num_nodes,
        lambda dst, src: (dst - src) % num_nodes in (1, num_nodes - 1),
    )


def line(num_nodes: int) -> Topology:
    """Every rank has links to the one before and the one after it."""
    return _linked(f"Line(n={num_nodes})", num_nodes, lambda dst, src: abs(dst - src) == 1)


def star(num_nodes: int, non_blocking: bool = True) -> Topology:
    """Every rank has links to rank 0 and from it."""
    return _linked(f"Star(n={num_nodes})", num_nodes, lambda dst, src: 0 in (dst, src))


def dgx1() -> Topology:
    """The NVLinks of a DGX-1: two double links and two single ones of each GPU."""
    double = {(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)}
    single = {(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)}
    links = [[0] * 8 for _ in range(8)]
    for bandwidth, pairs in ((2, double), (1, single)):
        for a, b in pairs:
            links[a][b] = links[b][a] = bandwidth
    return Topology("DGX1", links)


def dgx_a100() -> Topology:
    """The NVSwitch of a DGX A100: 12 links of each GPU."""
    return Topology("DGX_A100", [[12 * (dst != src) for src in range(8)] for dst in range(8)])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """The NVLinks in the output of `nvidia-smi topo -m`, by default of this machine."""
    if nvidia_smi_topo is None:
        command = ["nvidia-smi", "topo", "-m"]
        nvidia_smi_topo = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [row.split("\t") for row in nvidia_smi_topo.splitlines()[1:] if row.startswith("GPU")]
    words = [[word.strip() for word in row[1 : len(rows) + 1]] for row in rows]
    links = [[int(w[2:]) if w.startswith("NV") else 0 for w in row] for row in words]
    return Topology("NVLinkOnly", links)


def distributed_fully_connected(
    local_topology: Topology, num_copies: int, remote_bw: int
) -> Topology:
    """Copies of a topology, with a link between any two ranks of different copies."""
    return _distributed("FullyConnected", local_topology, num_copies, remote_bw)


def distributed_hub_and_spoke(
    local_topology: Topology, num_copies: int, remote_bw: int
) -> Topology:
    """Copies of a topology, which reach one another by a switch."""
    return _distributed("HubAndSpoke", local_topology, num_copies, remote_bw)


def distributed_node_local(
    local_topology: Topology,
    num_copies: int,
    node_topology: Iterable[tuple[int, int]],
    remote_bw: int,
) -> Topology:
    """Copies of a topology, with links between the pairs of ranks in `node_topology`."""
    found = _distributed("NodeLocal", local_topology, num_copies, 0)
    for one, other in node_topology:
        found.links[one][other] = 1
    return found


def _distributed(kind: str, local: Topology, copies: int, remote: int) -> Topology:
    """Copies of a topology, with bandwidth `remote` between different copies."""
    size = local.num_nodes()
    everyone = _ranks(size * copies)
    links = [
        [local.links[d % size][s % size] if d // size == s // size else remote for s in everyone]
        for d in everyone
    ]
    return Topology(f"Distributed{kind}(local={local.name},copies={copies})", links)
