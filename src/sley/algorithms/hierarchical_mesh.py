"""Hierarchical mesh: ResCCL's expert algorithms (ResCCL, appendix A), in the transfer language.

The cluster has a full mesh inside each node, and for each GPU number a ring through the GPUs with
that number on all nodes. The data has one chunk for each rank. The folder `texts` has the same
algorithms in ResCCLang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np

from sley.algorithms.algorithm import algorithm, stage_numbers
from sley.ir.collective import Collective
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.ir.topology import Topology
from sley.lang import ChunkProgram, trace


@algorithm("allgather", "ResCCL, appendix A, figure 15(a)")
def hm_allgather(
    nodes: int,
    gpus: int,
    *,
    nics: int | None = None,
    stage_channels: Sequence[int] | None = None,
    in_place: bool = False,
) -> Program:
    """AllGather: every GPU sends its chunk over its node's mesh and around its ring, and forwards
    the ring's chunks over the mesh.

    nics: number of network cards of a node, by default one for each GPU. stage_channels: a channel
    for each of the three stages (mesh, ring, mesh); with None the compiler chooses them.
    Source: ResCCL, appendix A, figure 15(a). Errors: L102, L121, C308.
    """
    mesh, ring, second = stage_numbers("hm-allgather", stage_channels, 3)
    grid = _Grid(nodes, gpus, nics)

    def body(p: ChunkProgram) -> None:
        for peer in grid.peers():
            p.transfer(grid.rank, peer, 0, grid.rank, "recv", channel=mesh)
        for turn in range(nodes - 1):
            p.transfer(grid.rank, grid.next, turn, grid.chunk(-turn), "recv", channel=ring)
        for turn in range(1, nodes):
            for peer in grid.peers():
                step = nodes - 2 + turn
                p.transfer(grid.rank, peer, step, grid.chunk(-turn), "recv", channel=second)

    return grid.program(AllGather(grid.ranks, 1, in_place), body)


@algorithm("reducescatter", "ResCCL, appendix A")
def hm_reducescatter(
    nodes: int,
    gpus: int,
    *,
    nics: int | None = None,
    stage_channels: Sequence[int] | None = None,
    in_place: bool = False,
) -> Program:
    """ReduceScatter: each node reduces the chunks of each ring over its mesh, then the rings reduce
    over the nodes.

    nics, stage_channels: as for `hm_allgather`; two stages (mesh, ring).
    Source: ResCCL, appendix A, the first half of HM AllReduce. Errors: L102, L121, C308.
    """
    mesh, ring = stage_numbers("hm-reducescatter", stage_channels, 2)
    grid = _Grid(nodes, gpus, nics)

    def body(p: ChunkProgram) -> None:
        grid.reduce_over_mesh(p, mesh)
        grid.reduce_over_ring(p, ring, ahead=1)

    return grid.program(ReduceScatter(grid.ranks, 1, in_place), body)


@algorithm("allreduce", "ResCCL, appendix A, figure 16")
def hm_allreduce(
    nodes: int,
    gpus: int,
    *,
    nics: int | None = None,
    stage_channels: Sequence[int] | None = None,
    in_place: bool = False,
) -> Program:
    """AllReduce: a ReduceScatter over the meshes and then the rings, and an AllGather over the
    rings and then the meshes.

    nics, stage_channels: as for `hm_allgather`; four stages (mesh, ring, ring, mesh).
    Source: ResCCL, appendix A, and figure 16. Errors: L102, L121, C308.
    """
    mesh, ring, back, second = stage_numbers("hm-allreduce", stage_channels, 4)
    grid = _Grid(nodes, gpus, nics)

    def body(p: ChunkProgram) -> None:
        after = grid.reduce_over_mesh(p, mesh)
        grid.reduce_over_ring(p, ring, ahead=0)
        after += nodes - 1
        for turn in range(nodes - 1):
            chunk = grid.chunk(1 - nodes - turn)
            p.transfer(grid.rank, grid.next, after + turn, chunk, "recv", channel=back)
        after += nodes - 1
        for turn in range(nodes):
            for peer in grid.peers():
                chunk = grid.chunk(turn)
                p.transfer(grid.rank, peer, after + turn, chunk, "recv", channel=second)

    return grid.program(AllReduce(grid.ranks, grid.ranks, in_place), body)


def resccl_text(name: str) -> str:
    """The text of hm-allgather, hm-reducescatter or hm-allreduce in ResCCLang, for 4 nodes of 8
    GPUs; `sley.rescclang` can replace the sizes in its header.

    Errors: KeyError for other names.
    """
    if name not in TEXTS:
        raise KeyError(name)
    return (files("sley.algorithms") / "texts" / f"{name}.resccl").read_text()


TEXTS = ("hm-allgather", "hm-reducescatter", "hm-allreduce")
"""The algorithms that also exist in ResCCLang."""


class _Grid:
    """The ranks of a cluster, and the steps that the algorithms share.

    rank: int64 (ranks,). next: each rank's counterpart on the next node.
    Errors: C308.
    """

    def __init__(self, nodes: int, gpus: int, nics: int | None) -> None:
        self.nodes, self.gpus, self.ranks = nodes, gpus, nodes * gpus
        self.rank: LongArray = np.arange(self.ranks)
        self.next: LongArray = (self.rank + gpus) % self.ranks
        self._topology = Topology.cluster(nodes, gpus, nics)

    def peers(self) -> list[LongArray]:
        """For each distance in the mesh, every rank's peer at that distance."""
        node, gpu = np.divmod(self.rank, self.gpus)
        return [node * self.gpus + (gpu + turn) % self.gpus for turn in range(1, self.gpus)]

    def chunk(self, nodes: int) -> LongArray:
        """For each rank the chunk of its counterpart `nodes` nodes ahead."""
        return (self.rank + nodes * self.gpus) % self.ranks

    def reduce_over_mesh(self, p: ChunkProgram, channel: int | None) -> int:
        """Reduces the chunks of each rank's ring within each node; returns the first step
        afterwards."""
        for turn in range(self.nodes):
            for distance, peer in enumerate(self.peers()):
                chunk = (peer + turn * self.gpus) % self.ranks
                step = turn * (self.gpus - 1) + distance
                p.transfer(self.rank, peer, step, chunk, "rrc", channel=channel)
        return self.nodes * (self.gpus - 1)

    def reduce_over_ring(self, p: ChunkProgram, channel: int | None, ahead: int) -> None:
        """Reduces around each ring, after the mesh; a rank ends with the sum of the chunk
        `1 - ahead` nodes ahead of its own."""
        first = self.nodes * (self.gpus - 1)
        for turn in range(self.nodes - 1):
            chunk = self.chunk(-turn - ahead)
            p.transfer(self.rank, self.next, first + turn, chunk, "rrc", channel=channel)

    def program(self, collective: Collective, body: Callable[[ChunkProgram], None]) -> Program:
        """The program that `body` writes, for this cluster."""
        return replace(trace(collective, body), topology=self._topology)
