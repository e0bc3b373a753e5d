"""One GPU that all ranks share: its memory, and the costs of sley's kernels there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.topology import Topology

_THREADS, _WARP = 512, 32
_VECTORS_BYTES = 64
"""What a thread loads of an operand before it stores any: four vectors."""

_FREE_GBPS = 1e6
"""Of links that cost nothing: messages cross the memory alone."""


@dataclass(frozen=True)
class OneGPU:
    """The costs of sley's kernels where all ranks share a GPU, for blocks of any number of threads.

    name: of the topology, with the day of the measurements.
    launch_us: from the launch to the first step, and from the last one to the end.
    step_us, wide_us: from a block's store until the next rank's block can use it, without its
        data; and what 512 threads add to it.
    turn_us, warp_us: the time in which each thread of a block moves its four vectors: a part that
        all have, and one for each warp.
    share: of a block's rate by protocol.
    memory_GBps: of the memory, read and written.
    block_us: by which each block of all ranks delays a call.
    wait_us: of a wait for another block of the rank. fence_share: of a step of Simple.
    decode_us, loss: what the interpreter takes for an instruction, and of a block's rate.
    """

    name: str
    launch_us: ByProtocol
    step_us: ByProtocol
    wide_us: ByProtocol
    turn_us: float
    warp_us: float
    share: ByProtocol
    memory_GBps: float  # noqa: N815 - a unit
    block_us: float
    wait_us: float
    fence_share: float
    decode_us: float
    loss: float

    @property
    def kernels(self) -> dict[str, Any]:
        """What a cost model of any GPUs says of sley's kernels alone."""
        return {
            "runs": 1,
            "block_us": self.block_us,
            "decode_us": self.decode_us,
            "interpreter_loss": self.loss,
        }

    def topology(self, ranks: int, threads: int = _THREADS) -> Topology:
        """The GPU as a machine of so many ranks, whose blocks have so many threads."""
        step, wide, part = self.step_us, self.wide_us, threads / _THREADS
        latency = ByProtocol(
            step.ll + wide.ll * part,
            step.ll128 + wide.ll128 * part,
            step.simple + wide.simple * part,
        )
        workers = max(threads - _WARP, _WARP)
        turn_us = self.turn_us + self.warp_us * workers / _WARP
        rate = workers * _VECTORS_BYTES / turn_us / 1e3
        model = CostModel(
            architecture=90,
            multiprocessors=132 // min(max(ranks, 1), 132),  # which all ranks share
            launch_us=self.launch_us,
            nvlink_latency_us=latency,
            fence_share=ByProtocol(0.0, 0.0, self.fence_share),
            wire_efficiency=self.share,
            tile_bytes=ByProtocol(34 << 10, 120 << 10, 128 << 10),
            nvlink_block_GBps=rate,
            local_block_GBps=rate,
            memory_GBps=self.memory_GBps,
            wait_us=self.wait_us,
            **self.kernels,
        )
        free = (_FREE_GBPS, _FREE_GBPS)
        cluster = Topology.cluster(1, ranks, name=self.name, nvlink_GBps=free, model=model)
        return replace(cluster, shared_memory=True)


ONE_H100 = OneGPU(
    name="one H100 (measured on 26 November 2026)",
    launch_us=ByProtocol(4.8, 5.3, 5.5),
    step_us=ByProtocol(1.15, 1.05, 1.45),
    wide_us=ByProtocol(0.15, 0.25, 0.45),
    turn_us=0.225,
    warp_us=0.0175,
    share=ByProtocol(0.44, 0.47, 1.0),
    memory_GBps=4400.0,
    block_us=0.028,
    wait_us=1.35,
    fence_share=0.75,
    decode_us=0.27,
    loss=0.05,
)
"""Fitted by `benchmarks/one_gpu.py`, which prints the errors, to measured AllReduces of 2, 4 and 8
ranks. Only the topology's `tile_bytes` and `slices` are no fits, but the kernels' own numbers.
With the data of LL's slots as tiles (34 KiB; 64 before) its share alone was fitted anew: the other
numbers would move by less than their standard errors."""
