"""An AllReduce on nodes: rings within each node, then between the nodes, and back.

Rank g of a node has blocks 0 and 1 for its node's ring, and blocks 2 and 3 for the others.
"""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def reduce_scatter(ranks, first, width, block):
    """A ring over `ranks`; the r-th one ends with `width` chunks of its own."""
    size = len(ranks)
    for part in range(size):
        for hop in range(1, size):
            here, before = (ranks[(part + hop - back) % size] for back in (0, 1))
            # The part ends at the rank whose part it is.
            index = first + ((part + size - 1) % size) * width
            sent = chunk(before, Buffer.input, index, width)
            chunk(here, Buffer.input, index, width).reduce(
                sent, sendtb=block, recvtb=block, ch=block
            )


def all_gather(ranks, first, width, block):
    """A ring over `ranks`, of which the r-th one has part r."""
    size = len(ranks)
    for part in range(size):
        sent = chunk(ranks[part], Buffer.input, first + part * width, width)
        for hop in range(1, size):
            sent = sent.copy(ranks[(part + hop) % size], sendtb=block, recvtb=block, ch=block)


def hierarchical(nodes, gpus, instances, interleaved):
    size = nodes * gpus
    with MSCCLProgram(
        "hierarchical",
        distributed_fully_connected(fully_connected(gpus), nodes, 1),
        AllReduce(size, size, True),
        instances,
        threadblock_policy=ThreadblockPolicy.manual,
        interleaved_replication=interleaved,
    ):
        local = [[node * gpus + gpu for gpu in range(gpus)] for node in range(nodes)]
        across = [[node * gpus + gpu for node in range(nodes)] for gpu in range(gpus)]
        for ranks in local:
            reduce_scatter(ranks, 0, nodes, 0)
        for gpu, ranks in enumerate(across):
            reduce_scatter(ranks, gpu * nodes, 1, 2)
        for gpu, ranks in enumerate(across):
            all_gather(ranks, gpu * nodes, 1, 3)
        for ranks in local:
            all_gather(ranks, 0, nodes, 1)
        XML()
        Check()


parser = argparse.ArgumentParser()
parser.add_argument("nodes", type=int)
parser.add_argument("gpus", type=int)
parser.add_argument("--instances", type=int, default=1)
parser.add_argument("--batched", action="store_true")
given = parser.parse_args()
hierarchical(given.nodes, given.gpus, given.instances, not given.batched)
