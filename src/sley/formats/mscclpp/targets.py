"""Targets: MSCCL++'s executor of execution plans in its versions, with its limits, by reading.

Source: microsoft/mscclpp, src/core/executor and src/core/include/execution_*, at the commits below.
The repository calls all of them 0.9.0: only a commit or its date tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from sley.errors import Place
from sley.errors.mscclpp import F478
from sley.formats.format import Problems, Target
from sley.formats.mscclpp.words import GROUP_STORE, GROUP_STORE_PACKETS

SUFFIX = ".json"


class Commit(NamedTuple):
    """A commit of MSCCL++. day: its date, as 2026-07-02."""

    name: str
    day: str

    def __str__(self) -> str:
        return f"commit {self.name} of {self.day}"


VERSIONS: Mapping[str, Commit] = MappingProxyType(
    {
        "2026-08": Commit("1f5f065d", "2026-08-20"),
        "2026-07": Commit("414f6d1a", "2026-07-02"),
        "2026-06": Commit("dc0b8d75", "2026-06-19"),
        "v0.9.0": Commit("ed565ceb", "2026-04-08"),
    }
)
"""The versions whose rules are known, the newest first. docs/mscclpp.md has what differs."""

FLUSHED_PUT = "the flush of a pwsf"
"""A capability: before it, the executor performs a pwsf as a pws."""

FIRST: Mapping[str, str] = MappingProxyType(
    {FLUSHED_PUT: "2026-06", GROUP_STORE: "2026-07", GROUP_STORE_PACKETS: "2026-07"}
)
"""The version whose commit is the first to have an operation, or another capability; all others are
in all versions."""

LOCAL_MEMORIES = 3
"""The memories of a plan on its own GPU that ports can name: input, output and scratch."""


@dataclass(frozen=True, repr=False, kw_only=True)
class PlanTarget(Target):
    """An executor of execution plans, and its tables, which are the same in all versions.

    commit: the commit of its version.
    operations: limit of the operations of a block, with those inside of pipelines.
    channels, references: limits of the channels of a type, and of the references to remote buffers
        of a type, of a block.
    channels_per_operation, buffers_per_operation, semaphores_per_operation: limits of the channels
        of an operation, of its sources and of its destinations, and of its semaphores.
    barriers: limit of the barriers of a GPU.
    port_memories, port_channels: limits of the memories and channels that the triggers of ports can
        name, of all plans of a process. Three memories of each plan are local.
    threads: limit of the threads of a block.
    iterations: limit of the iterations of a pipeline.
    offset_bytes: limit of the offsets in a buffer.
    vector_bytes: a buffer_alignment is a multiple of it.
    shared_scratch_bytes: the part of the scratch that a plan with reuse_resources divides among its
        chunks.
    """

    suffix: str = SUFFIX
    commit: Commit
    operations: int = 64
    channels: int = 16
    references: int = 16
    channels_per_operation: int = 8
    buffers_per_operation: int = 10
    semaphores_per_operation: int = 16
    barriers: int = 16
    port_memories: int = 1 << 9
    port_channels: int = 1 << 10
    threads: int = 1024
    iterations: int = (1 << 16) - 1
    offset_bytes: int = (1 << 32) - 1
    vector_bytes: int = 16
    shared_scratch_bytes: int = 64 << 20

    def lacks(self, capability: str) -> str | None:
        """The first version that has an operation, or another capability of FIRST, if it is later
        than this one."""
        first = FIRST.get(capability)
        is_later = first is not None and VERSIONS[first].day > self.commit.day
        return first if is_later else None


_VERSIONS = [
    PlanTarget(name="mscclpp", version=version, commit=commit)
    for version, commit in VERSIONS.items()
]
MSCCLPP = _VERSIONS[0]

TARGETS: Mapping[str, PlanTarget] = MappingProxyType(
    {MSCCLPP.name: MSCCLPP, **{str(target): target for target in _VERSIONS}}
)
"""All targets, by name. The name without a version is the newest one's."""


def refuse_absent(problems: Problems, at: Place, name: str, target: PlanTarget) -> None:
    """Adds the problem (F478) of an operation that a later version of the target has, if so."""
    first = target.lacks(name)
    if first is not None:
        later = replace(target, version=first)
        remedy = (
            f"Name the version of the executor, if it is a later one, such as {later}. For "
            "this one compile the plan with messages: --no-switches, or switches=False."
        )
        expected = f"an operation of {target} ({target.commit})"
        problems.add(F478, at, expected, f"{name}, which came with {VERSIONS[first]}", remedy)
