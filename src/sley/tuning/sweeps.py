"""Sweeps: the times of all arms at all sizes by simulation, and with them the oracle's choice.

Each size is a task for an executor of `concurrent.futures`, so a sweep uses whatever machines that
executor has.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sley.compiler.interrupts import interruptible
from sley.errors import Place
from sley.errors.tuning import D922
from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.arms import SIZES, Arms, fingerprint
from sley.tuning.arrays import columns_of, read_arrays, write_arrays

HOPELESS = 2.0
"""An arm whose lower bound is above this multiple of the best time is not simulated."""

_MOST_US = 1e12
"""Bound on times in files."""


@dataclass(frozen=True, eq=False)
class ArmTimes:
    """The times of all arms for a collective on a cluster, as far as they are known.

    sizes: int64 (sizes,), ascending. time_us: float64 (sizes, arms). is_exact: bool (sizes, arms):
    simulated; other times are lower bounds of arms that take more than HOPELESS times as long as
    the best.
    mask: bool (sizes, arms), the arms that differ from all simpler ones at a size.
    default: int64 (sizes,), the arm that is the runtime's own choice.
    """

    arms: Arms
    sizes: LongArray
    time_us: FloatArray
    is_exact: BoolArray
    mask: BoolArray
    default: LongArray

    @classmethod
    def of(cls, arms: Arms, sizes: Iterable[int]) -> ArmTimes:
        """Nothing but lower bounds, without a simulation."""
        ascending = sorted({*sizes})
        return cls(
            arms,
            np.array(ascending, np.int64),
            np.array([[arm.least(size) for arm in arms.rows] for size in ascending]),
            np.zeros((len(ascending), len(arms)), np.bool_),
            np.stack([arms.feasible(size) for size in ascending]),
            np.array([arms.default(size) for size in ascending], np.int64),
        )

    @cached_property
    def best(self) -> LongArray:
        """int64 (sizes,): the fastest arm at each size: the oracle's choice."""
        fastest: LongArray = np.where(self.mask, self.time_us, np.inf).argmin(axis=1)
        return fastest

    @cached_property
    def best_us(self) -> FloatArray:
        """float64 (sizes,): the time of the fastest arm."""
        return self.time_us[np.arange(len(self.sizes)), self.best]

    @cached_property
    def default_us(self) -> FloatArray:
        """float64 (sizes,): the time of the default."""
        return self.time_us[np.arange(len(self.sizes)), self.default]

    def true_us(self, cell: int, arm: int) -> float:
        """The time of an arm at a size; an arm of which only a lower bound is known is simulated
        now."""
        key = cell, arm
        if self.is_exact[key]:
            return float(self.time_us[key])
        if key not in self._simulated:
            self._simulated[key] = self.arms.time_us(arm, int(self.sizes[cell]))
        return self._simulated[key]

    @cached_property
    def _simulated(self) -> dict[tuple[int, int], float]:
        """The arms that were simulated after the sweep."""
        return {}

    @property
    def columns(self) -> dict[str, Any]:
        """All arrays, by name."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def at(self, sizes: Sequence[int]) -> ArmTimes:
        """The rows of these sizes, ascending; all of them are known."""
        rows = np.searchsorted(self.sizes, sorted(sizes))
        return ArmTimes(self.arms, **{name: one[rows] for name, one in self.columns.items()})

    def join(self, *others: Mapping[str, Any]) -> ArmTimes:
        """These rows and those of other columns, of the same arms and no size in common."""
        parts = (self.columns, *others)
        order = np.argsort(np.concatenate([part["sizes"] for part in parts]))
        return ArmTimes(
            self.arms,
            **{name: np.concatenate([part[name] for part in parts])[order] for name in _COLUMNS},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the sweep as an .npz file of NumPy. Errors: F461."""
        write_arrays(path, _facts(self.arms), self.columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str], arms: Arms) -> ArmTimes:
        """The sweep of these arms from a file. Errors: D922."""
        try:
            facts, arrays = read_arrays(path)
            columns = columns_of(arrays, _COLUMNS)
            for word, wanted in _facts(arms).items():
                if facts.get(word) != wanted:
                    raise ValueError(f"one with other {word}")
            _check(columns, arms)
        except ValueError as error:
            raise D922.error(
                at=Place(os.fspath(path)),
                expected=f"a sweep of {arms.collective} on {arms.topology.name}, as `sley tune "
                "sweep` writes it",
                found=str(error),
            ) from error
        return cls(arms, **columns)


def _facts(arms: Arms) -> dict[str, Any]:
    """What must be equal for a file to fit."""
    return {
        "collective": arms.collective,
        "fingerprint": fingerprint(arms.world),
        "decisions": [str(recipe) for recipe in arms.recipes],
    }


def _check(columns: Mapping[str, Any], arms: Arms) -> None:
    """Raises ValueError for columns that no sweep has."""
    shape = columns["sizes"].size, len(arms)
    for name, column in columns.items():
        if column.shape != (shape[:1] if name in ("sizes", "default") else shape):
            raise ValueError(f"{name} of shape {column.shape} instead of {shape}")
    default, times, ascending = columns["default"], columns["time_us"], columns["sizes"]
    is_arm = ((default >= 0) & (default < len(arms))).all()
    is_time = ((times > 0) & (times < _MOST_US)).all()
    if not (is_arm and is_time and (np.diff(ascending, prepend=0) > 0).all()):
        raise ValueError("other arms, times that are none, or sizes that don't ascend")
    feasible = [arms.feasible(size) for size in ascending.tolist()]
    if not np.array_equal(columns["mask"], np.reshape(feasible, shape)):
        raise ValueError("other arms that differ at a size")


_COLUMNS: Mapping[str, type] = {
    "sizes": np.int64,
    "time_us": np.float64,
    "is_exact": np.bool_,
    "mask": np.bool_,
    "default": np.int64,
}


def sweep(
    arms: Arms,
    sizes: Sequence[int] = SIZES,
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ArmTimes:
    """The times of these arms. executor: runs the sizes; by default this thread does.

    The best arm and the default of each size are simulated. Each size is a task.
    """
    # The largest sizes take longest, so they start first.
    tasks = sorted(set(sizes), reverse=True)
    rows: list[dict[str, Any]] = []
    # What a task needs to make the arms again, which takes less than to send their plans.
    needed = pickle.dumps((arms.collective, arms.topology, arms.world, arms.actions))
    if executor is None:
        found = (_row(arms, size) for size in tasks)
    else:
        futures = [executor.submit(_row_elsewhere, needed, size) for size in tasks]
        found = (future.result() for future in as_completed(futures))
    for row in found:
        rows.append(row)
        progress(len(rows), len(tasks))
    return ArmTimes(arms, **rows[0]).join(*rows[1:])


def _row(arms: Arms, size_bytes: int) -> dict[str, Any]:
    """The columns of one size."""
    row = ArmTimes.of(arms, [size_bytes])
    (time_us,), (is_exact,), (mask,) = row.time_us, row.is_exact, row.mask

    def run(index: int) -> None:
        time_us[index] = arms.time_us(index, size_bytes)
        is_exact[index] = True

    # By ascending lower bound: the first arm whose bound is hopeless ends the search, since the
    # bounds of all further arms, and so their times, are no smaller.
    for index in np.flatnonzero(mask)[np.argsort(time_us[mask], kind="stable")].tolist():
        if time_us[index] > HOPELESS * time_us[is_exact].min(initial=np.inf):
            break
        run(index)
    if not is_exact[chosen := int(row.default[0])]:
        run(chosen)
    return row.columns


def _row_elsewhere(needed: bytes, size_bytes: int) -> dict[str, Any]:
    with interruptible():
        return _row(_arms(needed), size_bytes)


@lru_cache(maxsize=2)
def _arms(needed: bytes) -> Arms:
    """The arms of a task, compiled once in each process."""
    collective, topology, world, actions = pickle.loads(needed)  # of this program's own
    return Arms.of(collective, topology, actions=actions).in_world(world)
