"""Aims: the ratios that sley should reach over its peers, and the cells that meet them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpu_peers.cells import Cell, Collective, Engine, Times

KB, MB = 2**10, 2**20


@dataclass(frozen=True)
class Aim:
    """One aim: the smallest ratio of the other's time to the engine's time in every covered cell.

    other: None for the best peer of the cell.
    """

    text: str
    engine: Engine
    other: Engine | None
    least: float
    covers: Callable[[Cell], bool]

    def ratio(self, times: Times, cell: Cell) -> float | None:
        """The ratio of a cell; None if it wasn't measured."""
        if self.other is None:
            return times.over_best_peer(cell, self.engine)
        return times.over(cell, self.other, self.engine)


def _every(cell: Cell) -> bool:
    return True


def _all_reduce(cell: Cell) -> bool:
    return cell.collective is Collective.ALL_REDUCE


AIMS = (
    Aim("private buffers: not slower than the best peer", Engine.SLEY, None, 1.0, _every),
    Aim(
        "symmetric buffers: not slower than the best peer",
        Engine.SLEY_SYMMETRIC,
        None,
        1.0,
        _every,
    ),
    Aim(
        "AllReduce, private buffers: 1.5x the best peer from 1 MB up",
        Engine.SLEY,
        None,
        1.5,
        lambda cell: _all_reduce(cell) and cell.size_bytes >= MB,
    ),
    Aim(
        "AllReduce, private buffers: 2x the best peer at 8 ranks",
        Engine.SLEY,
        None,
        2.0,
        lambda cell: _all_reduce(cell) and cell.ranks == 8,
    ),
    Aim(
        "AllReduce, symmetric buffers: 3x the best peer at 4 and 8 ranks from 1 MB up",
        Engine.SLEY_SYMMETRIC,
        None,
        3.0,
        lambda cell: _all_reduce(cell) and cell.ranks in (4, 8) and cell.size_bytes >= MB,
    ),
    Aim("operators: not slower than the best peer", Engine.SLEY_OPERATORS, None, 1.0, _every),
    Aim(
        "AllReduce, operators: not slower than vLLM's shm at 2 and 4 ranks up to 1 MB",
        Engine.SLEY_OPERATORS,
        Engine.VLLM,
        1.0,
        lambda cell: _all_reduce(cell) and cell.ranks in (2, 4) and cell.size_bytes <= MB,
    ),
    Aim(
        "AllReduce, through PyTorch: 1.5x the time of PyTorch's fake at 2 ranks and 1 KB",
        Engine.SLEY_TORCH,
        Engine.FAKE,
        1 / 1.5,
        lambda cell: _all_reduce(cell) and cell.ranks == 2 and cell.size_bytes == KB,
    ),
    Aim("through PyTorch: 2x gloo", Engine.SLEY_TORCH, Engine.GLOO, 2.0, _every),
    Aim(
        "through PyTorch: 5x gloo at 1 KB",
        Engine.SLEY_TORCH,
        Engine.GLOO,
        5.0,
        lambda cell: cell.size_bytes == KB,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """An aim, the ratios of the cells that meet it and of those that miss it, and the cells without
    a ratio."""

    aim: Aim
    met: dict[Cell, float]
    missed: dict[Cell, float]
    unknown: list[Cell]


def verdict(aim: Aim, times: Times) -> Verdict:
    """The verdict on an aim: the cells that meet it and those that miss it."""
    found = Verdict(aim, {}, {}, [])
    covered = (cell for cell in times.cells if aim.covers(cell))
    for cell in (cell for cell in covered if aim.engine.has(cell.collective)):
        ratio = aim.ratio(times, cell)
        if ratio is None:
            found.unknown.append(cell)
        else:
            (found.met if ratio >= aim.least else found.missed)[cell] = ratio
    return found
