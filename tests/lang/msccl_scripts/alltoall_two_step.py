"""An AllToAll on nodes in two steps: the GPUs of a node gather what goes to one GPU of another
node, which then travels as one message."""

import sys

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *

nodes, gpus = int(sys.argv[1]), int(sys.argv[2])
instances = int(sys.argv[3]) if len(sys.argv) > 3 else 1
size = nodes * gpus

with MSCCLProgram("two-step", fully_connected(size), AllToAll(size, 1, False), instances):
    for rank in range(size):
        node = rank // gpus
        for index in range(size):
            c = chunk(rank, Buffer.input, index)
            if index // gpus == node:
                c.copy(c.get_dst_rank(), Buffer.output, c.get_dst_index())
            else:
                c.copy(node * gpus + index % gpus, f"to_{index // gpus}")
    for rank in range(size):
        node, gpu = divmod(rank, gpus)
        for other in range(nodes):
            if other != node:
                c = chunk(rank, f"to_{other}", 0, gpus)
                assert c.get_dst_rank(gpus - 1) == other * gpus + gpu
                c.copy(other * gpus + gpu, Buffer.output, c.get_dst_index(), ch=1)
    Check()
    XML()
