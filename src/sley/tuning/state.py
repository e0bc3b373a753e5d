"""State: what a tuner observes of the calls on a cluster (GC3, section 12.3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import log2

import numpy as np
from numpy.typing import NDArray

from sley.ir.fabric import VertexKind
from sley.ir.tables import NONE, FloatArray
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS
from sley.tuning.arms import COLLECTIVES
from sley.tuning.backends import SHARED, Backend, Tally
from sley.tuning.exploration import exploration
from sley.tuning.levels import Levels, Vocabulary

WINDOW = 8
"""The number of recent calls that a state contains."""

CALL = 10
"""The numbers of a recent call: see `CallWindow.rows`."""

BOUND = 4.0
"""Bound on the absolute values of all observed numbers."""

_SHARED_DEVIATION = 0.1
"""A network whose times vary by more is shared: three times the deviation of an idle one."""

_FEWEST = 8
"""Pairs of equal calls before their variance is trusted."""

_PAIRS = 64
"""The most recent pairs of equal calls that count."""


class Fabric(IntEnum):
    """A class of topologies: one node whose GPUs are equally far apart (NVSwitch), one with boards
    or rings of GPUs, several nodes, and several nodes on a network shared with others."""

    FLAT = 0
    BOARDS = 1
    NODES = 2
    SHARED = 3


NUMBERS = (
    "size",  # see `size_number`
    "nodes",  # log2 of their number / 10
    "gpus",  # log2 of those of a node / 4
    "cards",  # network cards for each pair of GPUs / 2
    "is_one_node",
    "is_shared",
    "utilisation",  # of the links, 0 to 1
    "is_overlapped",
    "is_pipeline",
    "is_reduction",
)
"""The first numbers of a state, in order."""


@dataclass(frozen=True, eq=False)
class Site:
    """A back end with what is known of its cluster and of the caller.

    fabric: the cluster's class; never SHARED, which is detected. cards_per_pair: network cards for
    each pair of neighbouring GPUs: 2 on NDv4, 1 on DGX-2, 0 on one node.
    is_overlapped: the caller computes while a call runs. is_pipeline: its GPUs form a pipeline.
    """

    backend: Backend
    fabric: Fabric
    cards_per_pair: float = 0.0
    is_overlapped: bool = False
    is_pipeline: bool = False

    @classmethod
    def of(cls, backend: Backend, topology: Topology, *, is_overlapped: bool = False) -> Site:
        """The site of a back end on a topology. AllToNext is the pattern of a pipeline."""
        is_pipeline = backend.collective == "alltonext"
        if topology.nodes > 1:
            cards = int((topology.vertices.kind == VertexKind.NIC).sum())
            per_pair = 2 * cards / topology.ranks
            return cls(backend, Fabric.NODES, per_pair, is_overlapped, is_pipeline)
        ranks = np.arange(topology.ranks)
        src, dst = (grid.ravel() for grid in np.meshgrid(ranks, ranks))
        pairs = src != dst
        # Equal numbers of hops between all pairs: a switch; boards have GPUs that are nearer.
        hops = np.diff(topology.paths(src[pairs], dst[pairs]).offset)
        fabric = Fabric.FLAT if len(np.unique(hops)) <= 1 else Fabric.BOARDS
        return cls(backend, fabric, 0.0, is_overlapped, is_pipeline)

    @cached_property
    def least_us(self) -> FloatArray:
        """float64 (cells,): a lower bound of the times at each size: that of the arm with the
        lowest. It uses the links best, so it is what a link's utilisation is relative to. For a
        back end whose estimates have other units than microseconds, utilisations do as well."""
        allowed = np.where(self.backend.mask, self.backend.expected, np.inf)
        least: FloatArray = np.exp(allowed.min(axis=1))
        return least

    def utilisation(self, cell: int, time_us: float) -> float:
        """The lower bound over a time, 0 to 1."""
        return float(min(self.least_us[cell] / time_us, 1.0))


class CallWindow:
    """The most recent calls, of all sites of a caller.

    rows: float32 (WINDOW, CALL), the latest call first, zeros before the first. A row: 1; the
        size (`size_number`); the logarithms (base 2) of channels / 3, parallel parts / 5 and
        tile / 6; the protocol one-hot (Simple, LL, LL128); whether the default ran; the natural
        logarithm of the default's time over the call's.
    """

    def __init__(self) -> None:
        self.rows = np.zeros((WINDOW, CALL), np.float32)
        self._utilisation: deque[float] = deque(maxlen=WINDOW)

    def add(self, site: Site, cell: int, arm: int, time_us: float, speedup: float) -> None:
        """Adds a call. speedup: the logarithm."""
        backend = site.backend
        recipe = backend.recipes[arm]
        options = recipe.options
        self.rows[1:] = self.rows[:-1].copy()
        self.rows[0] = (
            1.0,
            size_number(int(backend.sizes[cell])),
            np.log2(options.get("channels", 1)) / 3,
            np.log2(options.get("instances", 1)) / 5,
            np.log2(recipe.tile) / 6,
            *(options.get("protocol") == protocol.value for protocol in FIFO_PROTOCOLS),
            arm == backend.default[cell],
            np.clip(speedup, -BOUND, BOUND),
        )
        self._utilisation.append(site.utilisation(cell, time_us))

    @property
    def utilisation(self) -> float:
        """The mean utilisation of the links by these calls; 1 without any."""
        return float(np.mean(self._utilisation)) if self._utilisation else 1.0


class Variance:
    """Detects a shared network by how much the times of equal calls differ.

    Only sizes of `backends.SHARED` count: smaller calls rarely meet congestion, larger ones average
    it. Each time is compared with the one before of the same size and arm, and the largest eighth
    of the differences is left out, so that a change of the cluster is no variance.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], float] = {}
        self._squares: deque[float] = deque(maxlen=_PAIRS)

    def add(self, size_bytes: int, arm: int, log_time: float) -> None:
        """Adds the logarithm of a call's time."""
        if not SHARED.covers(size_bytes):
            return
        before = self._last.get((size_bytes, arm))
        self._last[size_bytes, arm] = log_time
        if before is not None:
            self._squares.append((log_time - before) ** 2 / 2)

    @property
    def is_shared(self) -> bool:
        """Whether the network is shared."""
        # Half the squared difference of two equal draws has their variance as its mean.
        squares = sorted(self._squares)
        if len(squares) < _FEWEST:
            return False
        rest = squares[: -max(len(squares) // 8, 1)]
        return float(np.sqrt(np.mean(rest))) > _SHARED_DEVIATION


class Stream:
    """The calls at a site, and what a tuner observes of them.

    tally: the measured times. window: the recent calls; shared by the streams of a caller's sites.
    levels: the arms as actions.
    """

    def __init__(self, site: Site, levels: Levels, window: CallWindow) -> None:
        backend = site.backend
        self.site, self.window, self.levels = site, window, levels
        self.tally = Tally.of(len(backend.sizes), len(backend.recipes))
        self._variance = Variance()
        self._last = np.full(len(backend.sizes), NONE, np.int64)

    def measure_default(self, cell: int, time_us: float) -> None:
        """Adds a time of the default that was measured beside the calls."""
        self._add(cell, int(self.site.backend.default[cell]), time_us)

    def record(self, cell: int, arm: int, time_us: float) -> None:
        """Adds a call."""
        self._add(cell, arm, time_us)
        default_us = self.default_us(cell)
        speedup = 0.0 if default_us is None else float(np.log(default_us / time_us))
        self.window.add(self.site, cell, arm, time_us, speedup)
        self._last[cell] = arm

    def _add(self, cell: int, arm: int, time_us: float) -> None:
        self.tally.add(cell, arm, time_us)
        if self.site.backend.machine.nodes > 1:
            size_bytes = int(self.site.backend.sizes[cell])
            self._variance.add(size_bytes, arm, float(np.log(time_us)))

    def default_us(self, cell: int) -> float | None:
        """The geometric mean of the default's measured times; None without any."""
        mean = self.tally.mean(cell)[self.site.backend.default[cell]]
        return float(np.exp(mean)) if np.isfinite(mean) else None

    def speedups(self, cell: int) -> FloatArray:
        """float64 (arms,): the logarithm of the measured speed-up of each arm over the default; NaN
        where one of them was not measured."""
        mean = np.where(self.tally.count[cell] > 0, self.tally.mean(cell), np.nan)
        speedups: FloatArray = mean[self.site.backend.default[cell]] - mean
        return speedups

    @property
    def is_shared(self) -> bool:
        """Whether the network is shared with others, as the times show."""
        return self._variance.is_shared

    def exploration(self, cell: int) -> float:
        """The share of calls of a size that explore, 0 to 1."""
        backend = self.site.backend
        return exploration(
            backend.collective,
            backend.machine,
            int(backend.sizes[cell]),
            samples=int(self.tally.count[cell].sum()),
            is_shared=self.is_shared,
        )

    def state(self, cell: int) -> NDArray[np.float32]:
        """float32 (`state_size`,): NUMBERS; the class of the topology (`Fabric`), the collective
        (`COLLECTIVES`) and the plan last used at this size, one-hot (GC3, section 12.3)."""
        site, backend = self.site, self.site.backend
        nodes, gpus, collective = backend.machine.nodes, backend.machine.gpus, backend.collective
        is_shared = self.is_shared
        fabric = Fabric.SHARED if is_shared else site.fabric
        last = self._last[cell]
        plan = NONE if last == NONE else self.levels.plan[last]
        numbers = (
            size_number(int(backend.sizes[cell])),
            log2(nodes) / 10,
            log2(gpus) / 4,
            min(site.cards_per_pair / 2, BOUND),
            nodes == 1,
            is_shared,
            self.window.utilisation,
            site.is_overlapped,
            site.is_pipeline,
            collective in ("allreduce", "reducescatter"),
        )
        state = np.zeros(state_size(self.levels.vocabulary), np.float32)
        state[: len(numbers)] = numbers
        state[len(numbers) + fabric] = 1
        if collective in COLLECTIVES:
            state[len(numbers) + len(Fabric) + COLLECTIVES.index(collective)] = 1
        if plan != NONE:
            state[len(numbers) + len(Fabric) + len(COLLECTIVES) + plan] = 1
        return state


def size_number(size_bytes: int) -> float:
    """A size as a number around 0: the logarithm (base 2) of its ratio to 1 MB, / 5; -2 for 1 KB, 2
    for 1 GB."""
    return float(np.clip((np.log2(max(size_bytes, 1)) - 20) / 5, -BOUND, BOUND))


def state_size(vocabulary: Vocabulary) -> int:
    """The number of entries of a state."""
    return len(NUMBERS) + len(Fabric) + len(COLLECTIVES) + len(vocabulary.plans)
