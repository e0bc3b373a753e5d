"""Arms: the choices of a tuner for one collective on one cluster (GC3, section 12.10).

An arm is a compiled plan of the library, with its protocol, channels and parallel parts, and the
size of its tiles. Nothing else can be chosen: routes, thread blocks and waits are the plan's, no
rank has more blocks than fit on its GPU, and a program's own requests are kept (section 12.2).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sley.algorithms import CATALOG
from sley.communicator.selection.policy import program_of
from sley.compiler import Options, compile
from sley.compiler.candidates import candidates
from sley.compiler.space import INSTANCES, Space
from sley.compiler.synthesis import arguments_on
from sley.errors import SleyError, check_name
from sley.errors.tuning import D921
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE, BoolArray, FloatArray, LongArray
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS, Allocation, Protocol, Schedule
from sley.model.nccl import choice as nccl
from sley.model.nccl.choice import as_run, tiled
from sley.model.simulation import LeastTime, Simulator
from sley.model.simulation.inputs import Tiling
from sley.topologies.graph import graph_text
from sley.tuning.policy import Recipe
from sley.tuning.policy.nccl_names import NCCL_ALGORITHMS

CHANNELS = (1, 4, 8)
"""The numbers of channels to try (GC3, section 4, axis 5)."""

TILES = (1.0, 0.25)
"""The tiles to try, as shares of the cluster's own."""

ACTIONS = ("all", "nccl")
"""The sets of algorithms to choose from: the library's, or those that NCCL has."""

_OF_NCCL = frozenset({*NCCL_ALGORITHMS, "all-pairs-alltoall", "direct-alltonext"})
"""The library's algorithms that NCCL has, or runs as grouped sends and receives."""

SIZES = tuple(1 << exponent for exponent in range(10, 31))
"""1 KB to 1 GB."""

IN_PLACE: Mapping[str, bool] = MappingProxyType(
    {
        "allreduce": True,
        "allgather": False,
        "reducescatter": False,
        "alltoall": False,
        "alltonext": False,
    }
)
"""The collectives of the paper (GC3, section 12.3), and whether their plans are in place, as calls
of torch.distributed are. It matters: in NCCL's trees the reduction of a tile runs beside the
broadcast of another, in place or not, and in sley's plans only in place."""

COLLECTIVES = tuple(IN_PLACE)

LIVE = tuple(collective for collective in COLLECTIVES if collective != "alltonext")
"""Those that are calls of a communicator, and so can be measured on a machine."""


@dataclass(frozen=True, eq=False)
class Arm:
    """A choice: a recipe, its plan, and a lower bound of its times on `Arms.topology`.
    index: its place among the arms. block_shares: `Choice.block_shares` if it is NCCL's choice for
    some size, otherwise 1 and 1."""

    index: int
    recipe: Recipe
    plan: Plan
    least: LeastTime
    block_shares: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Arms:
    """All choices for a collective on a cluster.

    topology: the cluster that NCCL and all estimates see. world: the cluster that is simulated;
    `in_world` gives another one.
    nodes, gpus: the grid of ranks. actions: the set of algorithms that they are from.
    """

    collective: str
    topology: Topology
    world: Topology
    nodes: int
    gpus: int
    rows: tuple[Arm, ...]
    actions: str

    @classmethod
    def of(
        cls,
        collective: str,
        topology: Topology,
        *,
        actions: str = "all",
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Arms:
        """The distinct plans that fit on the cluster's GPUs.

        actions: "all" algorithms of the library that run on its number of ranks, or only those of
        "nccl". progress: called with the number of combinations that are compiled, and of all.
        Errors: D921, D931.
        """
        check_name(D921, "a collective", collective, COLLECTIVES)
        check_name(D921, "actions", actions, ACTIONS)
        # One schedule and one allocation, MSCCLang's: the others would multiply the arms.
        fixed = Options(schedule=Schedule.MSCCL, allocate=Allocation.CONNECTION)
        tried = {"protocol": FIFO_PROTOCOLS, "channels": CHANNELS, "instances": INSTANCES}
        space = Space.of(fixed, tried)
        known = _programs(collective, topology, actions)
        contenders = [(program, None) for _, program in known]
        found = candidates(contenders, topology, space, interpreter=False, progress=progress)
        bare = {id(program): recipe for recipe, program in known}
        plans = {}
        for one in found:
            options = {word: getattr(one.options, word) for word in tried}
            plans[replace(bare[id(one.program)], options=options)] = one.plan
        recipes = [
            replace(recipe, tile=tile)
            for recipe in plans
            for tile in (TILES if recipe.options["protocol"] != Protocol.LL.value else TILES[:1])
        ]
        choices = [nccl.default(collective, topology, size) for size in SIZES]
        theirs = {recipe_of(choice): choice.block_shares for choice in choices}
        nodes, gpus = grid_of(topology)
        verified = {recipe.name for recipe in plans}
        least: dict[Recipe, LeastTime] = {}
        rows: list[Arm] = []
        # NCCL's choices are arms too, even if no combination above gives them: a tuner is compared
        # with them, and may keep them.
        for recipe in dict.fromkeys([*recipes, *theirs]):
            whole = replace(recipe, tile=1.0)
            if whole not in plans:
                program = program_of(whole, nodes, gpus, in_place=IN_PLACE[collective])
                # A program's first plan shows whether the program is wrong.
                is_first = whole.name not in verified
                plans[whole] = compile(program, topology=topology, verify=is_first, **whole.options)
                verified.add(whole.name)
            if whole not in least:
                least[whole] = Simulator(plans[whole], topology).least
            shares = theirs.get(recipe, (1.0, 1.0))
            rows.append(Arm(len(rows), recipe, plans[whole], least[whole], shares))
        return cls(collective, topology, topology, nodes, gpus, tuple(rows), actions)

    def in_world(self, world: Topology) -> Arms:
        """The same arms on a cluster that is not as it is known: with a degraded link, or with
        other latencies. It has the same ranks."""
        return replace(self, world=world)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes, in order."""
        return tuple(arm.recipe for arm in self.rows)

    def feasible(self, size_bytes: int) -> BoolArray:
        """bool (arms,): the arms that differ at a size. Smaller tiles that cut nothing are equal to
        larger ones, and are masked."""
        seen: set[tuple[object, ...]] = set()
        mask = np.zeros(len(self), np.bool_)
        # In their order: whole tiles come before smaller ones, which differ only if they cut more.
        for arm in self.rows:
            model = tiled(self.topology, arm.recipe.tile).model
            tiles = Tiling.of(arm.plan, model, size_bytes).tiles
            key = (id(arm.plan), arm.block_shares, tiles)
            mask[arm.index] = key not in seen
            seen.add(key)
        # The default stays even where a simpler arm is equal: all others are compared with it.
        mask[self.default(size_bytes)] = True
        return mask

    def default(self, size_bytes: int) -> int:
        """The arm that is NCCL's own choice for a size. For sizes other than SIZES it is the one of
        the next smaller of them if there is no arm for the size's own."""
        near = max((size for size in SIZES if size <= size_bytes), default=SIZES[0])
        # NCCL's choice is an arm for SIZES alone: at a size between them it may be a plan that is
        # none.
        for size in (size_bytes, near):
            recipe = recipe_of(nccl.default(self.collective, self.topology, size))
            if recipe in self.recipes:
                return self.recipes.index(recipe)
        raise D921.error(expected=f"an arm for NCCL's choice, {recipe}", found="none")

    def time_us(self, index: int, size_bytes: int) -> float:
        """The simulated time of an arm."""
        arm = self.rows[index]
        theirs = arm.block_shares != (1, 1)
        world = as_run(self.world, arm.recipe.tile, arm.block_shares, streams=theirs)
        return Simulator(arm.plan, world).time_us(size_bytes)

    @cached_property
    def blocks(self) -> LongArray:
        """int64 (arms,): the thread blocks of a rank."""
        return np.array([arm.plan.blocks_per_rank for arm in self.rows], np.int64)

    @cached_property
    def features(self) -> FloatArray:
        """float64 (arms, features): what an agent knows of the arms, see `features_of`."""
        return features_of(self.recipes, [arm.plan for arm in self.rows])

    def expected(self, sizes: LongArray) -> FloatArray:
        """float64 (sizes, arms): logarithms of rough estimates of the times in microseconds: a call
        takes as long as its busiest block or link needs for its bytes. The steps' latencies, the
        tiles and the waits are left for an agent to learn."""
        least = [[arm.least(size) for arm in self.rows] for size in sizes.tolist()]
        return np.log(least)


def features_of(recipes: Sequence[Recipe], plans: Sequence[Plan]) -> FloatArray:
    """float64 (arms, features): what is known of plans before they run: logarithms of channels,
    parallel parts, thread blocks of a rank, steps, data moved, tile; whether instructions are
    fused; then the protocol and the algorithm, one-hot."""
    names = list(dict.fromkeys(recipe.name for recipe in recipes))
    known = {id(plan): (plan.blocks_per_rank, steps_of(plan), moved_by(plan)) for plan in plans}
    rows = []
    for recipe, plan in zip(recipes, plans, strict=True):
        options, (blocks, steps, moved) = recipe.options, known[id(plan)]
        counts = (options.get("channels", 1), options.get("instances", 1), blocks, max(steps, 1))
        rows.append(
            [
                *np.log2([*counts, max(moved, 2**-10), recipe.tile]).tolist(),
                float(options.get("fusion") is not False),
                *(float(plan.protocol is protocol) for protocol in Protocol),
                *(float(recipe.name == name) for name in names),
            ]
        )
    return np.array(rows)


def steps_of(plan: Plan) -> int:
    """The most instructions of a thread block."""
    return int(np.diff(plan.block_offset).max(initial=0))


def moved_by(plan: Plan) -> float:
    """The most data that a rank sends, as a share of the call's size."""
    sends, collective = plan.sends, plan.collective
    chunks = np.bincount(plan.rank[sends], plan.instructions.count[sends], minlength=1)
    return float(chunks.max()) / (collective.blocks * collective.chunks)


def grid_of(topology: Topology) -> tuple[int, int]:
    """The nodes of a cluster, and the GPUs of each. Errors: D921 if they differ."""
    count = np.bincount(topology.node)
    if len(set(count.tolist())) != 1:
        raise D921.error(
            expected="a cluster whose nodes have equally many GPUs",
            found=f"{topology.name} with {', '.join(map(str, count.tolist()))}",
        )
    return len(count), int(count[0])


def fingerprint(topology: Topology) -> str:
    """16 hexadecimal digits, equal for clusters with the same graph and cost model."""
    text = graph_text(replace(topology, name=""))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recipe_of(choice: nccl.CollectiveChoice) -> Recipe:
    """The recipe that is a choice of NCCL's."""
    options = {"protocol": choice.protocol, "channels": 1, "instances": choice.instances}
    arguments = {"rings": choice.rings, "orders": choice.orders or None, "heads": choice.heads}
    arguments = {word: value for word, value in arguments.items() if value is not None}
    return Recipe(choice.program, arguments, options, choice.tile)


def _programs(collective: str, topology: Topology, actions: str) -> list[tuple[Recipe, Program]]:
    """The algorithms of a collective that run on a cluster, and their programs. Errors: D921."""
    known = [a for a in CATALOG.values() if a.collective == collective]
    if actions == "nccl":
        known = [a for a in known if a.name in _OF_NCCL]
    (nodes, gpus), found = grid_of(topology), []
    for one in known:
        fitting = arguments_on(topology, one.parameters, {}, collective, switches=False)
        recipe = Recipe(one.name, fitting)
        # Some algorithms need a power of two, or more than one node or GPU in a node.
        with contextlib.suppress(SleyError):
            program = program_of(recipe, nodes, gpus, in_place=IN_PLACE[collective])
            t = program.transfers
            # Algorithms in the switch have one protocol; they are arms where NCCL chooses them.
            if (t.group != NONE).any():
                continue
            if (topology.are_linked(t.src, t.dst) | ~t.remote).all():
                found.append((recipe, program))
    if not found:
        raise D921.error(
            expected=f"algorithms for {nodes} x {gpus} ranks and their links", found="none"
        )
    return found
