"""ResCCL's HM AllReduce (appendix A, figure 16) in the transfer language, with two schedules.

A transfer names its ranks, its chunk and its step; arrays make many transfers at once. Meshes
within the nodes reduce the chunks, rings across the nodes finish them, and the meshes copy them to
all ranks. The paper's own text comes with sley (`sley.algorithms.resccl_text`), so the two can be
compared. Then the program is compiled with MSCCLang's schedule and with ResCCL's, HPDS.

    python examples/hm_allreduce.py

prints:

    480 transfers; the paper's text has 480
    msccl 19 blocks on a rank, 9.3 GB/s
    hpds  16 blocks on a rank, 20.5 GB/s
"""

import numpy as np

import sley


def hm(nodes, gpus):
    ranks = nodes * gpus
    rank = np.arange(ranks)
    node_start, gpu = rank - rank % gpus, rank % gpus
    mesh, ring = nodes * (gpus - 1), nodes - 1  # the steps of a stage

    @sley.program(sley.AllReduce(ranks, chunks=ranks, in_place=True), name="hm")
    def program(p: sley.ChunkProgram):
        for turn in range(nodes):
            for offset in range(1, gpus):
                peer = node_start + (gpu + offset) % gpus
                chunk = (peer + turn * gpus) % ranks
                p.transfer(rank, peer, turn * (gpus - 1) + offset - 1, chunk, "rrc")
        following = (rank + gpus) % ranks
        for turn in range(ring):
            p.transfer(rank, following, mesh + turn, (rank - turn * gpus) % ranks, "rrc")
            done = (rank - (turn + ring) * gpus) % ranks
            p.transfer(rank, following, mesh + ring + turn, done, "recv")
        for turn in range(nodes):
            for offset in range(1, gpus):
                peer = node_start + (gpu + offset) % gpus
                chunk = (rank + turn * gpus) % ranks
                p.transfer(rank, peer, mesh + 2 * ring + turn, chunk, "recv")

    return program


if __name__ == "__main__":
    program = hm(nodes=2, gpus=8)
    text = sley.rescclang.parse(
        sley.algorithms.resccl_text("hm-allreduce"), file="hm.resccl", in_place=True, nRanks=16
    )
    print(f"{len(program.transfers)} transfers; the paper's text has {len(text.transfers)}")
    for schedule in ("msccl", "hpds"):
        plan = sley.compile(program, topology="resccl:2", schedule=schedule)
        rate = sley.simulate(plan, "256M").algbw_GBps
        print(f"{schedule:<6}{plan.blocks_per_rank} blocks on a rank, {rate:.1f} GB/s")
