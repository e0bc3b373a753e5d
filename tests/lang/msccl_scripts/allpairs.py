"""An AllReduce in which every pair of ranks exchanges chunks directly, on blocks set by hand."""

import argparse

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

parser = argparse.ArgumentParser()
parser.add_argument("size", type=int)
parser.add_argument("instances", type=int)
parser.add_argument("--interleaved", action="store_true")
parser.add_argument("--fused", type=int, default=1)
given = parser.parse_args()
size = given.size

program = MSCCLProgram(
    "allpairs",
    fully_connected(size),
    AllReduce(size, size, True),
    given.instances,
    protocol="LL",
    threadblock_policy=ThreadblockPolicy.manual,
    interleaved_replication=given.interleaved,
    instr_fusion=bool(given.fused),
    check_xml=False,
    dependence_nop=True,
)
with program:
    for src in range(size):
        for dst in range(size):
            if src != dst:
                chunk(src, Buffer.input, dst).copy(dst, "scratch", sendtb=dst, recvtb=src)
    for rank in range(size):
        total = chunk(rank, Buffer.input, rank)
        for index in range(size - 1):
            total.reduce(chunk(rank, "scratch", index), sendtb=rank)
    for src in range(size):
        for dst in range(size):
            if src != dst:
                chunk(src, Buffer.input, src).copy(dst, sendtb=dst, recvtb=src)
    Check()
    XML()
