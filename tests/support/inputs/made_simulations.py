"""Simulations for tests of reports: real plans with times from a few lines of arithmetic."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
from ring_program import ring

import sley
from sley.ir.cost_model import CostModel
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, SENDS, LoopOrder
from sley.model.bounds import Bound
from sley.model.simulation.result import BlockTimes, Cause, LinkLoad, Simulation, TileExecutions

LAUNCH_US = 8.0
HOP_US = 3.0
WAIT_US = 0.5
BLOCK_GBPS = 20.0
BINS = 32


@cache
def ring_simulation(size_bytes: int = 2**24, tiles: int = 2) -> Simulation:
    """The ring over 4 GPUs of one node."""
    return simulated(sley.compile(ring), sley.Topology.cluster(1, 4), size_bytes, tiles)


@cache
def mesh_simulation(nodes: int, gpus: int, size_bytes: int = 2**28, tiles: int = 4) -> Simulation:
    """ResCCL's hierarchical mesh AllReduce, scheduled by HPDS with blocks by state."""
    program = sley.algorithms.hm_allreduce(nodes, gpus, in_place=True)
    plan = sley.compile(program, schedule="hpds", allocate="state")
    return simulated(plan, sley.Topology.cluster(nodes, gpus), size_bytes, tiles)


def simulated(plan: Plan, topology: sley.Topology, size_bytes: int, tiles: int) -> Simulation:
    """A run in which every instruction has the same rate and no link is shared."""
    run = _Run(plan, size_bytes / plan.collective.blocks / plan.collective.chunks / tiles)
    run.until_done(tiles)
    executions, rows = run.executions()
    time_us = float(executions.end_us[-1])
    narrowest_us = 0.9 * (time_us - LAUNCH_US)
    return Simulation(
        plan=plan,
        topology=topology,
        model=CostModel(),
        size_bytes=size_bytes,
        tiles=tiles,
        tile_bytes=run.tile_bytes,
        interpreter=True,
        launch_us=LAUNCH_US,
        startup_us=0.0,
        time_us=time_us,
        bound=Bound(size_bytes, narrowest_us, LAUNCH_US + HOP_US, "all but GPU 0", "launch, 1 hop"),
        blocks=run.block_times(),
        links=_link_load(run, topology, executions, time_us),
        critical=_critical(executions, rows),
        executions=executions,
    )


class _Run:
    """Executes each instruction as soon as those that it waits for have ended."""

    def __init__(self, plan: Plan, tile_bytes: float) -> None:
        self.plan, self.tile_bytes = plan, tile_bytes
        self.ended: dict[tuple[int, int], float] = {}
        self.sent: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        self.taken: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        self.rows: list[tuple] = []
        blocks = len(plan.block_rank)
        self.times = {n: np.zeros(blocks) for n in BlockTimes.column_names()}
        self.times["end_us"] += LAUNCH_US

    def until_done(self, tiles: int) -> None:
        plan = self.plan
        todo = []
        for b in range(len(plan.block_rank)):
            span = range(int(plan.block_offset[b]), int(plan.block_offset[b + 1]))
            if plan.loop_order is LoopOrder.TILE:
                todo.append([(i, t) for t in range(tiles) for i in span])
            else:
                todo.append([(i, t) for i in span for t in range(tiles)])
        done = [0] * len(todo)
        moved = True
        while moved:
            moved = False
            for block, work in enumerate(todo):
                while done[block] < len(work) and self.step(block, *work[done[block]]):
                    done[block] += 1
                    moved = True
        assert done == [len(work) for work in todo]

    def step(self, block: int, row: int, tile: int) -> bool:
        i, rank = self.plan.instructions[row], int(self.plan.block_rank[block])
        key_in, key_out = (i.recv_peer, rank, i.channel), (rank, i.send_peer, i.channel)
        needs = [(Cause.WAIT, (w, tile), WAIT_US) for w in self.plan.waits[row].tolist()]
        if RECEIVES[i.op]:
            number = len(self.taken[key_in])
            if number == len(self.sent[key_in]):
                return False
            needs.append((Cause.MESSAGE, self.sent[key_in][number], HOP_US))
        if SENDS[i.op] and len(self.sent[key_out]) >= self.plan.slots:
            number = len(self.sent[key_out]) - self.plan.slots
            if number >= len(self.taken[key_out]):
                return False
            needs.append((Cause.SLOT, self.taken[key_out][number], 0.0))
        if any(key not in self.ended for _, key, _ in needs):
            return False
        self.execute(block, row, tile, needs)
        if RECEIVES[i.op]:
            self.taken[key_in].append((row, tile))
        if SENDS[i.op]:
            self.sent[key_out].append((row, tile))
        return True

    def execute(self, block: int, row: int, tile: int, needs: list[tuple]) -> None:
        turn = float(self.times["end_us"][block])
        start, cause, after = turn, Cause.TURN if turn > LAUNCH_US else Cause.LAUNCH, None
        for why, key, cost in needs:
            if self.ended[key] + cost > start:
                start, cause, after = self.ended[key] + cost, why, key
        column = {Cause.WAIT: "waiting_us", Cause.MESSAGE: "message_us", Cause.SLOT: "slot_us"}
        if cause in column:
            self.times[column[cause]][block] += start - turn
        moving = self.plan.instructions.count[row] * self.tile_bytes / BLOCK_GBPS / 1e3
        self.times["moving_us"][block] += moving
        self.times["end_us"][block] = self.ended[row, tile] = start + moving
        self.rows.append((row, tile, turn, start, start + moving, cause, after, block))

    def executions(self) -> tuple[TileExecutions, list[int]]:
        """The table of executions, and for each row its predecessor on the path through the run."""
        rows = sorted(self.rows, key=lambda r: (r[4], r[3], r[0]))
        at = {(r[0], r[1]): number for number, r in enumerate(rows)}
        last: dict[int, int] = {}
        after = []
        for number, r in enumerate(rows):
            after.append(at[r[6]] if r[6] else last.get(r[7], NONE))
            last[r[7]] = number
        columns = list(zip(*rows, strict=True))[:6]
        moving = np.array(columns[4]) - np.array(columns[3])
        return TileExecutions(*map(np.array, columns), np.array(after), moving), after

    def block_times(self) -> BlockTimes:
        return BlockTimes(**self.times)


def _critical(executions: TileExecutions, after: list[int]) -> TileExecutions:
    way = [len(executions) - 1]
    while after[way[-1]] != NONE:
        way.append(after[way[-1]])
    rows = np.array(way[::-1])
    return TileExecutions(*(getattr(executions, n)[rows] for n in TileExecutions.column_names()))


def _link_load(
    run: _Run, topology: sley.Topology, executions: TileExecutions, time_us: float
) -> LinkLoad:
    plan, bin_us = run.plan, time_us / BINS
    load = np.zeros((BINS, len(topology.links)))
    moved = np.zeros(len(topology.links))
    edges = np.arange(BINS + 1) * bin_us
    paths = topology.paths(plan.rank[plan.sends], plan.instructions.send_peer[plan.sends])
    number = {int(row): n for n, row in enumerate(plan.sends)}
    for e in executions:
        if e.instruction in number:
            size = float(plan.instructions.count[e.instruction] * run.tile_bytes)
            part = np.diff(np.clip(edges, e.start_us, e.end_us)) / max(e.end_us - e.start_us, 1e-9)
            for link in paths[number[e.instruction]].tolist():
                load[:, link] += part * size / bin_us / 1e3
                moved[link] += size
    return LinkLoad(moved, bin_us, load)
