"""NCCL's names: what the recipes of a policy are called in NCCL, and which of them it has.

Sources: NVIDIA/nccl, src/include/plugin/nccl_tuner.h (the numbers), src/enqueue/enqueue.cc (what a
tuner's answer changes), plugins/tuner/example (the words of the CSV). RCCL and NCCLX use the same
words and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sley.algorithms import CATALOG
from sley.communicator.selection.policy import Policy, label
from sley.compiler import Options
from sley.errors.policy import D905
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.words import Protocol

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

_FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "ring": "ring",
        "multi-ring": "ring",
        "double-binary-tree": "tree",
        "multi-tree": "tree",
        "nvls": "nvls",
        "nvls-tree": "nvls_tree",
    }
)
"""NCCL's algorithm for each family of sley's that NCCL also has.

Not in it: recursive doubling, which has as many steps as PAT but other partners.
"""

NCCL_ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {
        name: family
        for family in _FAMILIES
        for name in (f"{family}-{collective}" for collective in COLLECTIVES)
        if name in CATALOG
    }
)
"""The family of each of sley's algorithms that NCCL also has."""

_KNOWN_OPTIONS = ("protocol", "channels", "instances")
"""The options that NCCL has, too."""


@dataclass(frozen=True)
class NcclChoice:
    """A recipe as NCCL's tuner expresses it.

    algorithm, protocol: of `ALGORITHMS` and `PROTOCOLS`. channels: the most that NCCL uses; it uses
    no more than the communicator has. tile: the chunk's size as a share of NCCL's own; always 1 for
    trees and NVLS, whose chunks NCCL makes smaller by itself.
    """

    algorithm: str
    protocol: str
    channels: int
    tile: float = 1.0


def nccl_choice(recipe: Recipe, gpus: int) -> NcclChoice | None:
    """A recipe in NCCL's words; None if NCCL doesn't have its algorithm or protocol.

    gpus: ranks of a node. An open protocol is Simple, as in the compiler. The number of channels is
    that of the plan: channels times instances for a ring, two times instances for a double tree,
    and for several rings or double trees as many for each GPU of a node, or for each given order;
    NCCL's channels of NVLS have all heads.
    """
    options = Options.of(None, recipe.options)
    family = NCCL_ALGORITHMS.get(recipe.name)
    protocol = PROTOCOLS.get(options.protocol or Protocol.SIMPLE)
    if family is None or protocol is None or (family.startswith("nvls") and protocol != "simple"):
        return None
    rings = len(recipe.arguments.get("orders", ())) or gpus
    # A double tree is two trees, each with its own channel.
    channels = {
        "ring": options.channels or 1,
        "multi-ring": rings,
        "double-binary-tree": 2,
        "multi-tree": 2 * rings,
        "nvls": 1,
        "nvls-tree": 2,
    }[family]
    algorithm = _FAMILIES[family]
    tile = recipe.tile if algorithm == "ring" else 1.0
    return NcclChoice(algorithm, protocol, channels * (options.instances or 1), tile)


def nccl_rows(
    policy: Policy, runtime: str, whole_tiles: str
) -> tuple[list[tuple[PlanRow, NcclChoice]], list[str]]:
    """The rows of a policy that NCCL can run, each with its recipe in NCCL's words, and remarks on
    what is left out.

    runtime: its name, for messages. whole_tiles: what has no share of the tile, such as "the CSV
    has". Errors: D905 if no row remains.
    """
    found: list[tuple[PlanRow, NcclChoice]] = []
    remarks: list[str] = []
    for row in policy.rows:
        recipe, choice = row.recipe, nccl_choice(row.recipe, policy.machine.gpus)
        if choice is None:
            remarks.append(f"{label(row)}: left out, NCCL's tuner has no {recipe}")
            continue
        found.append((row, choice))
        ignored = [word for word in recipe.options if word not in _KNOWN_OPTIONS]
        word = "trees" if choice.algorithm == "tree" else "NVLS"
        ignored += [f"tile of {word}"] if choice.tile != recipe.tile else []
        ignored += ["orders"] if "orders" in recipe.arguments else []
        if ignored:
            remarks.append(f"{label(row)}: NCCL has no {', '.join(ignored)}, and ignores it")
        if choice.tile != 1:
            said = f"{whole_tiles} no share of the tile, so tile={choice.tile:g} is ignored"
            remarks.append(f"{label(row)}: {said}")
    if not found:
        raise D905.error(
            expected=f"a range with an algorithm that {runtime} has: {', '.join(NCCL_ALGORITHMS)}",
            found="; ".join(remarks[:4]) or "a policy without ranges",
        )
    return found, remarks
