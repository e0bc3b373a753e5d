"""The collective of teams.py."""

from msccl.language import *
from msccl.language.collectives import Collective


class Teams(Collective):
    def __init__(self, num_ranks, chunk_factor, inplace):
        Collective.__init__(self, num_ranks, chunk_factor, inplace)
        self.name = "teams"

    def init_buffers(self):
        found = []
        for rank in range(self.num_ranks):
            chunks = [Chunk(rank, i, -1, i) for i in range(self.chunk_factor)]
            outputs = chunks if self.inplace else [None] * self.chunk_factor
            found.append({Buffer.input: chunks, Buffer.output: outputs})
        return found

    def check(self, prog):
        half = self.num_ranks // 2
        for captain, other in ((0, half), (half, 0)):
            for index in range(self.chunk_factor):
                wanted = ReduceChunk(-1, [])
                for rank in range(other, other + half):
                    wanted = wanted.reduce(-1, Chunk(rank, index))
                if prog.buffers[captain][Buffer.output][index] != wanted:
                    print("captain", captain, "lacks the sum of chunk", index)
                    return False
        return True
