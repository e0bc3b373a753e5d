"""Targets: MSCCL++'s executor of execution plans, with its limits (0.9.0, by reading)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sley.formats.format import Target

SUFFIX = ".json"

LOCAL_MEMORIES = 3
"""The memories of a plan on its own GPU that ports can name: input, output and scratch."""


@dataclass(frozen=True, repr=False)
class PlanTarget(Target):
    """An executor of execution plans, and its tables.

    operations: limit of the operations of a block, with those inside of pipelines.
    channels, references: limits of the channels of a type, and of the references to remote buffers
        of a type, of a block.
    channels_per_operation, buffers_per_operation: limits of the channels of an operation, and of
        its sources, and of its destinations.
    semaphores, barriers: limits of those of a GPU.
    port_memories, port_channels: limits of the memories and channels that the triggers of ports can
        name, of all plans of a process. Three memories of each plan are local.
    threads: limit of the threads of a block.
    iterations: limit of the iterations of a pipeline.
    offset_bytes: limit of the offsets in a buffer.
    vector_bytes: a buffer_alignment is a multiple of it.
    shared_scratch_bytes: the part of the scratch that a plan with reuse_resources divides among its
        chunks.
    """

    operations: int
    channels: int
    references: int
    channels_per_operation: int
    buffers_per_operation: int
    semaphores: int
    barriers: int
    port_memories: int
    port_channels: int
    threads: int
    iterations: int
    offset_bytes: int
    vector_bytes: int
    shared_scratch_bytes: int


MSCCLPP = PlanTarget(
    name="mscclpp",
    suffix=SUFFIX,
    operations=64,
    channels=16,
    references=16,
    channels_per_operation=8,
    buffers_per_operation=10,
    semaphores=16,
    barriers=16,
    port_memories=1 << 9,
    port_channels=1 << 10,
    threads=1024,
    iterations=(1 << 16) - 1,
    offset_bytes=(1 << 32) - 1,
    vector_bytes=16,
    shared_scratch_bytes=64 << 20,
)

TARGETS: Mapping[str, PlanTarget] = MappingProxyType({MSCCLPP.name: MSCCLPP})
"""All targets, by name."""
