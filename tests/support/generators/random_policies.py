"""Random policies, and what NCCL is to make of their decisions, written down once more."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from sley.algorithms import CATALOG
from sley.compiler import Options
from sley.ir.sizes import SizeRange
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
PROTOCOLS = (None, "LL", "LL128", "Simple", "Direct")
LARGEST = 1 << 40


def expected_choice(recipe: Recipe, gpus: int) -> tuple[str, str, int] | None:
    """Algorithm, protocol and channels in NCCL's words; None for what NCCL doesn't have."""
    name, o = recipe.name, Options.of(None, recipe.options)
    protocol = (o.protocol.value if o.protocol else "Simple").lower()
    instances = o.instances or 1
    if protocol == "direct":
        return None
    if name.startswith("ring-"):
        return "ring", protocol, (o.channels or 1) * instances
    if name.startswith("multi-ring-"):
        return "ring", protocol, (len(recipe.arguments.get("orders", ())) or gpus) * instances
    if name == "double-binary-tree-allreduce":
        return "tree", protocol, 2 * instances
    if name == "multi-tree-allreduce":
        return "tree", protocol, 2 * gpus * instances
    if name.startswith("nvls-") and protocol == "simple":
        is_tree = name == "nvls-tree-allreduce"
        return ("nvls_tree", protocol, 2 * instances) if is_tree else ("nvls", protocol, instances)
    return None


def random_policy(seed: int, collectives: tuple[str, ...] = COLLECTIVES) -> Policy:
    """A policy with several ranges for each collective, at least one of which NCCL has."""
    r = random.Random(seed)
    machine = Machine("simulator", "ndv4", "f00d", r.choice((1, 2, 3)), r.choice((2, 4, 8)))
    rows: list[PlanRow] = []
    for collective in collectives:
        cuts = sorted({int(2 ** r.uniform(0, 40)) for _ in range(r.randrange(2, 14))})
        names = [a.name for a in CATALOG.values() if a.collective == collective]
        likely = [name for name in names if "ring-" in name or "-tree-" in name] or names
        made: list[PlanRow] = []
        for begin, end in zip(cuts[::2], cuts[1::2], strict=False):
            options = Options(
                protocol=r.choice(PROTOCOLS),
                channels=r.choice((None, 2)),
                instances=r.choice((None, 1, 5)),
            )
            name = r.choice(likely if r.random() < 0.8 else names)
            tile = r.choice((1.0, 0.5, 0.125))
            rank = range(machine.ranks)
            rings = r.choice((0, 0, 1, 3)) if name.startswith("multi-ring-") else 0
            orders = tuple(tuple(r.sample(rank, len(rank))) for _ in range(rings))
            recipe = Recipe(name, {"orders": orders} if orders else {}, options.given(), tile)
            made.append(PlanRow(recipe, SizeRange(begin, end), collective))
        if made and r.random() < 0.5:
            last = made.pop()
            made.append(replace(last, sizes=SizeRange(last.sizes.begin_bytes)))
        rows += made
    ring = Recipe("ring-allreduce", options={"protocol": "LL", "instances": 3})
    if not any(expected_choice(row.recipe, machine.gpus) for row in rows):
        others = [row for row in rows if row.collective != "allreduce"]
        rows = [*others, PlanRow(ring, SizeRange(), "allreduce")]
    return Policy(tuple(rows), machine=machine, facts={"agent": "random"})


policies = st.integers(0, 1 << 20).map(random_policy)


def interesting_sizes(policy: Policy, seed: int = 0) -> list[int]:
    """Sizes at the ends of ranges, beside them, and in between."""
    r = random.Random(seed)
    ends = {
        end
        for one in policy.rows
        for end in (one.sizes.begin_bytes, one.sizes.end_bytes)
        if end is not None
    }
    near = {max(end + step, 0) for end in ends for step in (-1, 0, 1)}
    return sorted(near | {int(2 ** r.uniform(0, 42)) for _ in range(10)} | {0, 8191, 8192})
