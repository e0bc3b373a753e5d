"""Two programs: an AllGather and a ReduceScatter in place, by places in the smaller buffer."""

import msccl.language.collectives as collectives
from msccl.language import *
from msccl.language.routines import allgather_ring_inplace
from msccl.topologies import fully_connected, ring

SIZE = 4

with MSCCLProgram("gather", ring(SIZE), collectives.AllGather(SIZE, 1, True), 2):
    allgather_ring_inplace(SIZE)
    assert Check()

everyone = range(SIZE)
collective = collectives.ReduceScatter(SIZE, 1, True)
with MSCCLProgram("scatter", fully_connected(SIZE), collective, 1, "LL"):
    for here in everyone:
        for there in everyone:
            if here != there:
                sent = chunk(there, Buffer.input, here)
                chunk(here, Buffer.output, 0).reduce(sent)
    assert Check()
exit(0)
