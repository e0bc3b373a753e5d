"""NCCL's names: what the decisions of a policy are called in NCCL, and which of them it has.

Sources: NVIDIA/nccl, src/include/plugin/nccl_tuner.h (the numbers), src/enqueue/enqueue.cc (what a
tuner's answer changes), plugins/tuner/example (the words of the CSV). RCCL and NCCLX use the same
words and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sley.errors.policy import D905
from sley.ir.words import Protocol
from sley.tuning.policy.policy import Decision, Policy, Range

COLLECTIVES: Mapping[str, int] = MappingProxyType(
    {"broadcast": 0, "reduce": 1, "allgather": 2, "reducescatter": 3, "allreduce": 4}
)
"""NCCL's number of each collective whose algorithm a tuner may choose."""

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""NCCL's algorithms, in the order of their numbers."""

PROTOCOLS: Mapping[Protocol, str] = MappingProxyType(
    {Protocol.LL: "ll", Protocol.LL128: "ll128", Protocol.SIMPLE: "simple"}
)
"""NCCL's protocols, in the order of their numbers."""

RINGS = tuple(f"ring-{collective}" for collective in COLLECTIVES)
MULTI_RINGS = tuple(f"multi-ring-{collective}" for collective in COLLECTIVES)
TREES = ("double-binary-tree-allreduce",)
MULTI_TREES = ("multi-tree-allreduce",)
NVLS = ("nvls-allreduce", "nvls-allgather", "nvls-reducescatter")
NVLS_TREES = ("nvls-tree-allreduce",)

NCCL_ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((*RINGS, *MULTI_RINGS), "ring"),
        **dict.fromkeys((*TREES, *MULTI_TREES), "tree"),
        **dict.fromkeys(NVLS, "nvls"),
        **dict.fromkeys(NVLS_TREES, "nvls_tree"),
    }
)
"""NCCL's algorithm for each of sley's that NCCL also has.

Not in it: recursive doubling, which has as many steps as PAT but other partners.
"""

_TREES_OF_A_PAIR = 2
"""A double tree is two trees, each with its own channel."""

_KNOWN_OPTIONS = ("protocol", "channels", "instances")
"""The options that NCCL has, too."""


@dataclass(frozen=True)
class NcclChoice:
    """A decision as NCCL's tuner expresses it.

    algorithm, protocol: of `ALGORITHMS` and `PROTOCOLS`. channels: the most that NCCL uses; it uses
    no more than the communicator has. tile: the chunk's size as a share of NCCL's own; always 1 for
    trees and NVLS, whose chunks NCCL makes smaller by itself.
    """

    algorithm: str
    protocol: str
    channels: int
    tile: float = 1.0

    @property
    def algorithm_number(self) -> int:
        """NCCL's number of the algorithm."""
        return ALGORITHMS.index(self.algorithm)

    @property
    def protocol_number(self) -> int:
        """NCCL's number of the protocol."""
        return tuple(PROTOCOLS.values()).index(self.protocol)


@dataclass(frozen=True)
class NcclRange:
    """A range of a policy whose decision NCCL can run, and the decision in NCCL's words."""

    collective: str
    range: Range
    choice: NcclChoice

    @property
    def label(self) -> str:
        """The range in words, for messages."""
        return self.range.label(self.collective)


def nccl_choice(decision: Decision, gpus: int) -> NcclChoice | None:
    """A decision in NCCL's words; None if NCCL doesn't have its algorithm or protocol.

    gpus: ranks of a node. An open protocol is Simple, as in the compiler. The number of channels is
    that of the plan: channels times instances for a ring, two times instances for a double tree,
    and for several rings or double trees as many for each GPU of a node, or for each given order
    of a ring; NCCL's channels of NVLS have all heads.
    """
    algorithm = NCCL_ALGORITHMS.get(decision.algorithm)
    protocol = PROTOCOLS.get(decision.options.protocol or Protocol.SIMPLE)
    if algorithm is None or protocol is None:
        return None
    if decision.algorithm in (*NVLS, *NVLS_TREES) and protocol != "simple":
        return None
    instances = decision.options.instances or 1
    if decision.algorithm in MULTI_RINGS:
        channels = (len(decision.orders) or gpus) * instances
    elif decision.algorithm in MULTI_TREES:
        channels = _TREES_OF_A_PAIR * gpus * instances
    elif decision.algorithm in (*TREES, *NVLS_TREES):
        channels = _TREES_OF_A_PAIR * instances
    elif decision.algorithm in NVLS:
        channels = instances
    else:
        channels = (decision.options.channels or 1) * instances
    tile = decision.tile if algorithm == "ring" else 1.0
    return NcclChoice(algorithm, protocol, channels, tile)


def nccl_ranges(policy: Policy, runtime: str) -> tuple[tuple[NcclRange, ...], tuple[str, ...]]:
    """The ranges of a policy that NCCL can run, and remarks on what is left out.

    runtime: its name, for the message. Errors: D905 if no range remains.
    """
    found: list[NcclRange] = []
    remarks: list[str] = []
    for collective, ranges in policy.ranges.items():
        for one in ranges:
            choice = nccl_choice(one.decision, policy.machine.gpus)
            if choice is None:
                remarks.append(
                    f"{one.label(collective)}: left out, NCCL's tuner has no {one.decision}"
                )
                continue
            found.append(NcclRange(collective, one, choice))
            given = one.decision.options.given()
            ignored = [word for word in given if word not in _KNOWN_OPTIONS]
            word = "trees" if choice.algorithm == "tree" else "NVLS"
            ignored += [f"tile of {word}"] if choice.tile != one.decision.tile else []
            ignored += ["orders of rings"] if one.decision.orders else []
            if ignored:
                remarks.append(
                    f"{one.label(collective)}: NCCL has no {', '.join(ignored)}, and ignores it"
                )
    if not found:
        raise D905.error(
            expected=f"a range with an algorithm that {runtime} has: {', '.join(NCCL_ALGORITHMS)}",
            found="; ".join(remarks[:4]) or "a policy without ranges",
        )
    return tuple(found), tuple(remarks)
