"""Routines of msccl.language.routines: rings in place."""

from __future__ import annotations

from sley.lang.msccl.buffers import Buffer
from sley.lang.msccl.functions import chunk


def allgather_ring_inplace(
    gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """AllGather among `gpus` ranks from `gpu_offset` on, to outputs from `index_offset` on."""
    for local in range(gpus):
        sent = chunk(gpu_offset + local, Buffer.input, 0)
        for hop in range(1, gpus):
            after = gpu_offset + (gpu_offset + local + hop) % gpus
            sent = sent.copy(after, Buffer.output, index_offset + local, ch=ch)


def allreduce_ring_inplace(
    gpus: int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """AllReduce among `gpus` ranks from `gpu_offset` on, of chunks from `index_offset` on."""
    for local in range(gpus):
        index = index_offset + local
        after = [gpu_offset + (gpu_offset + local + hop) % gpus for hop in range(gpus)]
        done = chunk(gpu_offset + local, Buffer.input, index)
        for rank in after[1:]:
            done = chunk(rank, Buffer.input, index).reduce(done, ch=ch)
        for rank in after[:-1]:
            done = done.copy(rank, Buffer.input, index, ch=ch)
