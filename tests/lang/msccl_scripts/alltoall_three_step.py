"""An AllToAll on nodes in three steps: one GPU of a node gathers all that goes to another node,
sends it on several channels, and the receiver scatters it."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *


def gateways(one, other, gpus):
    """The ranks that carry what nodes `one` and `other` exchange."""
    local = [(b if a > b else b - 1) % gpus for a, b in ((one, other), (other, one))]
    return one * gpus + local[0], other * gpus + local[1]


def three_step(nodes, gpus, channels, instances):
    size = nodes * gpus
    collective = AllToAll(size, channels, inplace=False)
    with MSCCLProgram("three-step", hub_and_spoke(size), collective, instances):
        messages = {}
        for rank in range(size):
            node = rank // gpus
            for other in range(nodes):
                first = other * gpus * channels
                if other == node:
                    for c in chunk(rank, Buffer.input, first, gpus * channels).split(
                        gpus * channels
                    ):
                        c.copy(c.get_dst_rank(), Buffer.output, c.get_dst_index(), ch=0)
                    continue
                key = (node, other)
                c = chunk(rank, Buffer.input, first, gpus * channels)
                c = c.copy(gateways(node, other, gpus)[0], buffer=key, ch=0)
                messages[key] = messages[key].group(c) if key in messages else c
        for (node, other), message in messages.items():
            for ch, part in enumerate(message.split(channels)):
                arrived = part.copy(gateways(node, other, gpus)[1], (node, other), ch=ch + 1)
                for c in arrived.split(arrived.size):
                    c.copy(c.get_dst_rank(), Buffer.output, index=c.get_dst_index(), ch=1)
        XML()
        Check()


parser = argparse.ArgumentParser()
parser.add_argument("nodes", type=int)
parser.add_argument("gpus", type=int)
parser.add_argument("--channels", type=int, default=1)
parser.add_argument("--instances", type=int, default=1)
given = parser.parse_args()
three_step(given.nodes, given.gpus, given.channels, given.instances)
