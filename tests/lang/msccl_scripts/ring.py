"""A ring AllReduce whose chunks are spread over channels, each with a thread block of its own."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *


def ring_allreduce(size, channels, instances, interleaved, protocol):
    collective = AllReduce(size, size, True)
    with MSCCLProgram(
        "ring",
        ring(size),
        collective,
        instances,
        protocol,
        threadblock_policy=ThreadblockPolicy.manual,
        interleaved_replication=interleaved,
    ):
        for index in range(size):
            lane = index % channels
            for hop in range(1, size):
                here = chunk((index + hop) % size, Buffer.input, index)
                before = chunk((index + hop - 1) % size, Buffer.input, index)
                here.reduce(before, sendtb=lane, recvtb=lane, ch=lane)
            done = chunk((index - 1) % size, Buffer.input, index)
            for hop in range(size - 1):
                after = (index + hop) % size
                done = done.copy(after, Buffer.input, index, sendtb=lane, recvtb=lane, ch=lane)
        XML()
        assert Check()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("size", type=int)
    parser.add_argument("channels", type=int)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--protocol", default="LL128", choices=["Simple", "LL", "LL128"])
    given = parser.parse_args()
    ring_allreduce(given.size, given.channels, given.instances, not given.batched, given.protocol)
