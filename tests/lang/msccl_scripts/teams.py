"""A collective of its own: each team of ranks sums its data on its captain, and the captains swap
their sums. A module beside the script has the collective."""

import sys

from msccl.language import *
from msccl.topologies import fully_connected
from teams_collective import Teams

size, instances = int(sys.argv[1]), int(sys.argv[2])
captains = (0, size // 2)
collective = Teams(size, 2, "in-place" in sys.argv)

with MSCCLProgram(
    "teams",
    fully_connected(size),
    collective,
    instances,
    interleaved_replication="batched" not in sys.argv,
):
    for captain in captains:
        first, second = chunk(captain, Buffer.input, 0, 2).copy(captain, "own").split(2)
        for rank in range(captain + 1, captain + size // 2):
            first.reduce(chunk(rank, Buffer.input, 0))
            second.reduce(chunk(rank, Buffer.input, 1), ch=1)
    for captain, other in (captains, captains[::-1]):
        chunk(captain, "own", 0).copy(other, "sums")
        chunk(captain, "own", 1).copy(other, "sums")
    for captain in captains:
        chunk(captain, "sums", 0, 2).copy(captain, Buffer.output, 0)
    XML()
    Check()
