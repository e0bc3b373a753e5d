"""Equations: (1) to (6) of ResCCL's section 3, a plan's time at three levels of execution.

A *task* is a message of one tile. A *link* carries one task after another: inside a node the path
from one GPU to another, between nodes the cards of both, one for sending and one for receiving. The
time of a plan is that of its slowest link (equation 2), and a link's time is that of its tasks and
of the bubbles between them, in which it waits for data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from papers_turns import Turns

from sley.errors.runtime import R514
from sley.ir.connections import Connections
from sley.ir.fabric import LinkKind
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.sizes import checked_size
from sley.ir.tables import NONE, BoolArray, FloatArray, IntArray, distinct
from sley.ir.topology import Topology
from sley.ir.words import is_integer
from sley.model.simulation.inputs import Tiling, choose_topology
from sley.model.simulation.routes import ConnectionRoutes, latencies

_SAME = 1e-9
"""Relative difference up to which times are equal."""


@dataclass(frozen=True)
class LevelEstimate:
    """The time of one level of execution, by the terms of its equation, for the slowest link.

    link: the slowest link.
    stage: the slowest stage; NONE for levels without stages.
    tiles, tasks: n and m.
    transfer_us: the sum of alpha + c beta over the tasks of one tile, times z_k at stage level.
    contention_us: the sum of gamma L(z_k) over the tasks of one tile, at stage level.
    bubble_us: the sum of B_j for one tile.
    load_us: t_Load, once, at task level.
    """

    link: str
    stage: int
    tiles: int
    tasks: int
    transfer_us: float
    contention_us: float
    bubble_us: float
    load_us: float

    @property
    def limit_us(self) -> float:
        """The time of each further tile, which is the limit of the time over n. Equation (6) omits
        `transfer_us`, although it does not vanish."""
        return self.transfer_us + self.contention_us + self.bubble_us

    @property
    def time_us(self) -> float:
        """The time of all tiles, without launch."""
        return self.load_us + self.tiles * self.limit_us


@dataclass(frozen=True)
class Estimates:
    """The estimates of equations (3), (4) and (5) for one plan.

    size_bytes: the size of the call, as nccl-tests counts it.
    tiles: n, the number of micro-batches.
    stages: K, the number of stages in (4).
    algorithm: T_A (equation 3): one tile after another.
    stage: T_S (equation 4): stages in parallel, each one tile after another.
    task: T_P (equation 5): each task with all its tiles.
    """

    size_bytes: int
    tiles: int
    stages: int
    algorithm: LevelEstimate
    stage: LevelEstimate
    task: LevelEstimate


def estimate(
    plan: Plan,
    size: int | str,
    topology: Topology | str | None = None,
    stages: Sequence[int] | None = None,
) -> Estimates:
    """Equations (3) to (5) for a plan, for comparison with a simulation (ResCCL 3).

    All three use the plan's blocks and their order. The w blocks that send over a link work in
    parallel, each at rate r, its own or its share of the capacity on the path; so a task occupies
    each of its links for (alpha + c / r) / w, where alpha is a hop's latency. A timeline gives the
    bubbles: a task starts when its block reaches it, its data has arrived, and its links are free;
    a link takes the task that can start first.

    For (3) the timeline has one tile, and B_j is how long the link waits before task j. For (4) it
    has one tile of one stage, to which the data of other stages has already arrived; z_k is the
    factor by which data takes longer because the blocks of all stages send; L(z) = max(0, z - 1),
    where z is the rate of all blocks over the capacity; and gamma is the model's `contention` times
    this longer time of the data. For (5) the tasks have the order of (3), and each runs all tiles:
    the residual bubbles are the time that each further tile adds beyond the tasks, and t_Load is
    the rest of the time.

    A plan whose switches reduce or multicast is taken as one without such switches.

    Slots, receives, local operations, waits, the interpreter and the launch cost nothing here, and
    parallel blocks share even a single task; so all three are too low for few tiles.

    size, topology: as for `Simulator`. stages: the stage of each channel,
    from 0; by default each channel is a stage.
    Errors: S701, S702, V203, R514, V201, C301, C305, C307, T604.
    """
    chosen, size_bytes = choose_topology(plan, topology), checked_size(size)
    plan = without_groups(plan)
    stage = _stages(plan, stages)
    tasks = _Tasks.of(plan, chosen, size_bytes)
    every = np.ones(len(plan.instructions), bool)
    turns = Turns.of(plan, tasks.links)
    transfer_us, none_us = tasks.transfer_us(every), np.zeros((len(every), 2))
    order, end_us = turns.one_tile(transfer_us, every)
    algorithm = tasks.slowest(every, end_us, transfer_us, none_us)
    within = []
    for number in range(int(stage.max(initial=-1)) + 1):
        mine = stage == number
        alone_us, penalty_us = tasks.contended_us(mine)
        _, end_us = turns.one_tile(alone_us + penalty_us, mine | (stage == NONE))
        within.append(tasks.slowest(mine, end_us, alone_us, penalty_us, stage=number))
    all_us = turns.all_tiles(order, transfer_us, tasks.tiles)
    further_us = turns.all_tiles(order, transfer_us, 1, first=0.0)
    return Estimates(
        size_bytes=size_bytes,
        tiles=tasks.tiles,
        stages=max(len(within), 1),
        algorithm=algorithm,
        stage=max(within, key=lambda level: level.time_us, default=algorithm),
        task=tasks.slowest(every, further_us, transfer_us, none_us, all_us=all_us),
    )


def _stages(plan: Plan, stages: Sequence[int] | None) -> IntArray:
    """int32 (instructions,): the stage of each instruction that sends or receives, NONE for others.
    Errors: R514."""
    number = list(range(plan.channels)) if stages is None else list(stages)
    if len(number) != plan.channels or not all(is_integer(s) and s >= 0 for s in number):
        raise R514.error(
            expected=f"stages: a number from 0 for each of {plan.channels} channels",
            found=f"stages={stages!r}",
        )
    channel = plan.instructions.channel
    _, rank = np.unique(number, return_inverse=True)
    return np.where(channel == NONE, NONE, rank[channel]).astype(np.int32)


@dataclass(frozen=True)
class _Tasks:
    """The tasks of one tile, a row for each of the plan's `sends`.

    tiles: n. rows: the instructions that send.
    links: int32 (instructions, 2), the links of each, or NONE. labels: the names of links.
    alpha_us, wire_bytes, block_GBps: float64 (sends,), the latency of each task, its bytes on
        links, and the maximum rate of its block.
    crossing, crossed: int32, pairs of a task and a link of the topology on its path.
    """

    plan: Plan
    topology: Topology
    tiles: int
    rows: IntArray
    links: IntArray
    labels: list[str]
    alpha_us: FloatArray
    wire_bytes: FloatArray
    block_GBps: FloatArray  # noqa: N815 - a unit
    crossing: IntArray
    crossed: IntArray

    @classmethod
    def of(cls, plan: Plan, topology: Topology, size_bytes: int) -> _Tasks:
        """Errors: V201, C301, C305."""
        t, model, rows = plan.instructions, topology.model, plan.sends
        routes = ConnectionRoutes.of(plan, topology)
        number = routes.connections.uses.send[rows]
        tiles = Tiling.of(plan, model, size_bytes).tiles
        chunk_bytes = size_bytes / plan.collective.blocks / plan.collective.chunks
        messages = t.count[rows] if plan.per_chunk else np.ones(len(rows))
        towards = np.array([model.block_GBps(kind) for kind in LinkKind])
        links, labels = _used_links(plan, topology, routes.connections)
        crossed = routes.path.pick(number)
        efficiency = model.wire_efficiency[plan.protocol]
        return cls(
            plan=plan,
            topology=topology,
            tiles=tiles,
            rows=rows,
            links=links,
            labels=labels,
            alpha_us=latencies(topology, plan.protocol, routes)[number] * messages,
            wire_bytes=t.count[rows].astype(np.float64) * (chunk_bytes / tiles / efficiency),
            block_GBps=towards[routes.kind[number]],
            crossing=crossed.source,
            crossed=crossed.target,
        )

    def _width(self, mine: BoolArray) -> FloatArray:
        """float64 (sends, 2): w, how many blocks of `mine` send over each link of a task; infinite
        for NONE."""
        blocks = len(self.plan.block_rank)
        width = np.full((len(self.rows), 2), np.inf)
        for end, links in enumerate(self.links[self.rows].T):
            used = (links != NONE) & mine[self.rows]
            block = self.plan.block[self.rows[used]]
            pairs = distinct(links[used].astype(np.int64) * blocks + block)
            count = np.bincount(pairs // blocks, minlength=len(self.labels))
            width[used, end] = count[links[used]]
        return width

    def _demand(self, mine: BoolArray) -> FloatArray:
        """float64 (sends,): z, the rate of the blocks of `mine` over the capacity, the highest of
        the links on a task's path."""
        number = len(self.topology.links)
        counted = mine[self.rows[self.crossing]]
        key = self.plan.block[self.rows].astype(np.int64)[self.crossing] * number + self.crossed
        keys, place = np.unique(key[counted], return_inverse=True)
        rate = np.zeros(len(keys))
        np.maximum.at(rate, place, self.block_GBps[self.crossing[counted]])
        z = np.bincount(keys % number, rate, number) / self.topology.links.GBps
        most = np.zeros(len(self.rows))
        np.maximum.at(most, self.crossing, z[self.crossed])
        return most

    def _parts_us(self, mine: BoolArray) -> tuple[FloatArray, FloatArray]:
        """float64 (sends, 2): alpha and c beta of each task on each of its links if only `mine`
        send; 0 for NONE."""
        width = self._width(mine)
        rate = self.block_GBps / np.maximum(1, self._demand(mine))
        return self.alpha_us[:, None] / width, (self.wire_bytes / (rate * 1e3))[:, None] / width

    def _rows_of(self, task_us: FloatArray) -> FloatArray:
        """float64 (instructions, 2): the times of tasks, 0 for other instructions."""
        spread = np.zeros((len(self.plan.instructions), 2))
        spread[self.rows] = task_us
        return spread

    def transfer_us(self, mine: BoolArray) -> FloatArray:
        """float64 (instructions, 2): alpha + c beta on each link."""
        return self._rows_of(np.add(*self._parts_us(mine)))

    def contended_us(self, mine: BoolArray) -> tuple[FloatArray, FloatArray]:
        """float64 (instructions, 2) each: z_k (alpha + c beta), and gamma L(z_k), on each link:
        equation (1) for one tile. The paper's (1) has gamma L(z) once for all tiles, its (4) for
        each tile, as here."""
        alpha_us, data_us = self._parts_us(mine)
        z = self._demand(np.ones_like(mine))[:, None]
        longer = np.maximum(1, z) / np.maximum(1, self._demand(mine))[:, None]
        gamma_us = self.topology.model.contention * longer * data_us
        return (
            self._rows_of(longer * (alpha_us + data_us)),
            self._rows_of(gamma_us * np.maximum(0, z - 1)),
        )

    def slowest(
        self,
        mine: BoolArray,
        end_us: FloatArray,
        transfer_us: FloatArray,
        contention_us: FloatArray,
        *,
        all_us: FloatArray | None = None,
        stage: int = NONE,
    ) -> LevelEstimate:
        """Equation (2): the link that ends last, of several the busiest.

        end_us: when each instruction ends, or the time that a further tile adds. all_us: when each
        ends with all tiles, by default `tiles` times `end_us`.
        """
        rows = np.flatnonzero(mine[:, None] & (self.links != NONE))
        row, link = rows // 2, self.links.ravel()[rows]
        if not len(rows):
            return LevelEstimate("none", stage, self.tiles, 0, 0.0, 0.0, 0.0, 0.0)

        def last(times: FloatArray) -> FloatArray:
            latest = np.zeros(len(self.labels))
            np.maximum.at(latest, link, times[row])
            return latest

        period = last(end_us)
        total = period * self.tiles if all_us is None else last(all_us)
        busy = np.bincount(link, (transfer_us + contention_us).ravel()[rows], len(self.labels))
        slowest = int(np.where(total >= total.max() * (1 - _SAME), busy, -1).argmax())
        on = rows[link == slowest]
        transfer, contention = (float(us.ravel()[on].sum()) for us in (transfer_us, contention_us))
        return LevelEstimate(
            link=self.labels[slowest],
            stage=stage,
            tiles=self.tiles,
            tasks=len(on),
            transfer_us=transfer,
            contention_us=contention,
            bubble_us=max(float(period[slowest]) - transfer - contention, 0.0),
            load_us=max(float(total[slowest] - self.tiles * period[slowest]), 0.0),
        )


def _used_links(
    plan: Plan, topology: Topology, connections: Connections
) -> tuple[IntArray, list[str]]:
    """int32 (instructions, 2): the links of each instruction; and the names of links."""
    src, dst, ranks = connections.src.astype(np.int64), connections.dst, topology.ranks
    outside = topology.crosses_network(connections.src, dst)
    card = topology.nic.astype(np.int64)
    first = np.where(outside, card[src], 2 * ranks + src * ranks + dst)
    second = np.where(outside, ranks + card[dst], NONE)
    keys = distinct(np.concatenate([first, second[outside]]))
    labels = []
    for key in keys.tolist():
        if key >= 2 * ranks:
            labels.append("GPU {} -> GPU {}".format(*divmod(key - 2 * ranks, ranks)))
        else:
            labels.append(f"card {key % ranks}, {'receiving' if key >= ranks else 'sending'}")
    used = np.full((len(plan.instructions), 2), NONE, np.int32)
    number = connections.uses.send[plan.sends]
    used[plan.sends, 0] = np.searchsorted(keys, first)[number]
    used[plan.sends, 1] = np.where(outside, np.searchsorted(keys, second), NONE)[number]
    return used, labels
