"""Every rank sends its data to the next one; between nodes, all GPUs of a node help."""

import argparse

from msccl.language import *
from msccl.language.collectives import Collective
from msccl.topologies import *
from msccl.topologies.distributed import *


class AllToNext(Collective):
    def init_buffers(self):
        found = []
        for rank in range(self.num_ranks):
            chunks = [Chunk(rank, i, rank + 1, i) for i in range(self.chunk_factor)]
            if rank == self.num_ranks - 1:
                chunks = [None] * self.chunk_factor
            found.append({Buffer.input: chunks, Buffer.output: [None] * self.chunk_factor})
        return found

    def check(self, prog):
        right = True
        for rank in range(1, self.num_ranks):
            for index, c in enumerate(prog.buffers[rank][Buffer.output]):
                if c is None or (c.origin_rank, c.origin_index) != (rank - 1, index):
                    print(f"rank {rank} has {c} at {index}")
                    right = False
        return right


def alltonext(nodes, gpus, instances, interleaved):
    size = nodes * gpus
    with MSCCLProgram(
        "alltonext",
        fully_connected(size),
        AllToNext(size, gpus, False),
        instances,
        interleaved_replication=interleaved,
    ):
        for rank in range(size - 1):
            node, gpu = divmod(rank, gpus)
            if gpu < gpus - 1:
                chunk(rank, Buffer.input, 0, gpus).copy(rank + 1, Buffer.output, 0, ch=gpu % 2)
                continue
            for index in range(gpus):
                c = chunk(rank, Buffer.input, index)
                if index < gpus - 1:
                    c = c.copy(node * gpus + index, f"{node} to {node + 1}", 0)
                if index > 0:
                    c = c.copy((node + 1) * gpus + index, f"{node} to {node + 1}", 0)
                c.copy(rank + 1, Buffer.output, c.get_dst_index(), ch=index % 2)
        assert Check()
        XML()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("gpus", type=int)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--batched", action="store_true")
    given = parser.parse_args()
    alltonext(given.nodes, given.gpus, given.instances, not given.batched)
