"""Cells: the compared engines, and the cells of the tables (collective, ranks and size)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

from sley.ir.sizes import size_text

FLOAT32_BYTES = 4

Row = dict[str, Any]
"""One engine's times in one cell; command.py lists the fields."""


class Collective(Enum):
    """The collectives, with their names in results and in commands to ranks."""

    ALL_REDUCE = "AllReduce"
    ALL_GATHER = "AllGather"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_TO_ALL = "AllToAll"
    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    GATHER = "Gather"
    SCATTER = "Scatter"
    SEND_RECV = "SendRecv"

    @property
    def is_in_place(self) -> bool:
        return self in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)

    @property
    def has_parts(self) -> bool:
        """Whether its larger buffer has a part for each rank."""
        return not self.is_in_place and self is not Collective.SEND_RECV


class Engine(Enum):
    """The engines, with their names in results."""

    GLOO = "gloo"
    OPEN_MPI = "openmpi"
    MPICH = "mpich"
    INTEL_MPI = "intelmpi"
    ONECCL = "oneccl"
    VLLM = "vllm"
    DEEPSPEED = "deepspeed"
    SLEY = "sley"
    SLEY_SYMMETRIC = "sley-symmetric"
    SLEY_TORCH = "sley-torch"
    SLEY_OPERATORS = "sley-operators"
    FAKE = "fake"

    @property
    def title(self) -> str:
        return TITLES[self]

    def has(self, collective: Collective) -> bool:
        """Whether the engine has the collective."""
        return collective in HAVE.get(self, Collective)


TITLES = {
    Engine.GLOO: "gloo",
    Engine.OPEN_MPI: "Open MPI",
    Engine.MPICH: "MPICH",
    Engine.INTEL_MPI: "Intel MPI",
    Engine.ONECCL: "oneCCL",
    Engine.VLLM: "vLLM's shm",
    Engine.DEEPSPEED: "DeepSpeed's shm",
    Engine.SLEY: "sley, private buffers",
    Engine.SLEY_SYMMETRIC: "sley, symmetric buffers",
    Engine.SLEY_TORCH: "sley through PyTorch",
    Engine.SLEY_OPERATORS: "sley's operators",
    Engine.FAKE: "PyTorch's fake",
}

PEERS = (
    Engine.GLOO,
    Engine.OPEN_MPI,
    Engine.MPICH,
    Engine.INTEL_MPI,
    Engine.ONECCL,
    Engine.VLLM,
    Engine.DEEPSPEED,
)

HAVE = {
    Engine.ONECCL: set(Collective) - {Collective.GATHER, Collective.SCATTER},
    Engine.VLLM: {Collective.ALL_REDUCE, Collective.ALL_GATHER},
    Engine.DEEPSPEED: {Collective.ALL_REDUCE},
    Engine.SLEY_OPERATORS: {
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALL_TO_ALL,
        Collective.BROADCAST,
        Collective.REDUCE,
    },
    Engine.FAKE: {Collective.ALL_REDUCE},
}
"""The collectives of engines that don't have all. vLLM has a gather and messages too, but of such
calls back to back some hang."""

ROOT = 0


def layout(collective: Collective, ranks: int, rank: int, whole: int) -> tuple[int, int]:
    """The elements of a rank's input and output; 0: it has none. In place the output is the input,
    and has none of its own. whole: the elements of the larger buffer of any rank."""
    part, of_root = whole // ranks, whole if rank == ROOT else 0
    if collective.is_in_place:
        return whole, 0
    return {
        Collective.ALL_GATHER: (part, whole),
        Collective.REDUCE_SCATTER: (whole, part),
        Collective.ALL_TO_ALL: (whole, whole),
        Collective.GATHER: (part, of_root),
        Collective.SCATTER: (of_root, part),
        Collective.SEND_RECV: (whole, whole),
    }[collective]


def partner_of(rank: int, ranks: int) -> int | None:
    """The rank with which a rank exchanges messages; of an odd number of ranks the last has none.
    The one with the lower number sends first."""
    return rank ^ 1 if rank ^ 1 < ranks else None


@dataclass(frozen=True)
class Cell:
    """One cell: `size_bytes` is the larger buffer of a rank, as in nccl-tests."""

    collective: Collective
    ranks: int
    size_bytes: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Its position in the tables."""
        return list(Collective).index(self.collective), self.ranks, self.size_bytes

    def __str__(self) -> str:
        return f"{self.collective.value}, {self.ranks} ranks, {size_text(self.size_bytes)}"

    @property
    def buffers_bytes(self) -> int:
        """The total memory of one engine's buffers on all ranks."""
        whole = self.size_bytes // FLOAT32_BYTES
        elements = [layout(self.collective, self.ranks, r, whole) for r in range(self.ranks)]
        return FLOAT32_BYTES * sum(map(sum, elements))

    @property
    def is_whole(self) -> bool:
        """Whether the size is one of float32, and has equal parts where the collective has any."""
        parts = self.ranks if self.collective.has_parts else 1
        return self.size_bytes % (parts * FLOAT32_BYTES) == 0


def cells(collectives: Iterable[Collective], ranks: int, sizes_bytes: Sequence[int]) -> list[Cell]:
    """The cells of one number of ranks, in the order of the measurement; without those whose size
    has no equal parts."""
    found = [Cell(collective, ranks, size) for collective in collectives for size in sizes_bytes]
    return [cell for cell in found if cell.is_whole]


def cell_of(row: Row) -> Cell:
    """The cell of a row of the results."""
    return Cell(Collective(row["collective"]), row["ranks"], row["size_bytes"])


class Times:
    """The times in ms of engines in cells; none for failures and missing measurements.

    Ratios are medians over the rounds of the ratio in each round, because two engines' turns in one
    round are close in time, and the machine's state changes.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._ms: dict[tuple[Cell, Engine], list[float]] = {}
        cells: dict[Cell, None] = {}
        engines: set[Engine] = set()
        for row in rows:
            cell, engine = cell_of(row), Engine(row["engine"])
            cells[cell] = None
            engines.add(engine)
            if "ms" in row:
                self._ms[cell, engine] = row["ms"]
        self.cells = sorted(cells, key=lambda cell: cell.place)
        self.engines = [engine for engine in Engine if engine in engines]

    def ms(self, cell: Cell, engine: Engine) -> float | None:
        """The median over the rounds."""
        found = self._ms.get((cell, engine))
        return median(found) if found else None

    def best_peer(self, cell: Cell) -> tuple[Engine, float] | None:
        """The fastest peer of a cell and its time."""
        found = [(peer, ms) for peer in PEERS if (ms := self.ms(cell, peer)) is not None]
        return min(found, key=lambda pair: pair[1], default=None)

    def over_best_peer(self, cell: Cell, engine: Engine) -> float | None:
        """The best peer's time over the engine's; above 1 the engine is faster."""
        peer = self.best_peer(cell)
        return self.over(cell, peer[0], engine) if peer else None

    def over(self, cell: Cell, other: Engine, engine: Engine) -> float | None:
        """The other engine's time over this engine's."""
        theirs, own = self._ms.get((cell, other)), self._ms.get((cell, engine))
        if not theirs or not own:
            return None
        return median(their / ours for their, ours in zip(theirs, own, strict=True))
