"""DeviceCommunicator: ranks on threads of the CPU, as threads and as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from sley.communicator import DeviceCommunicator, LocalStore
from sley.communicator.selection.kinds import BARRIER, CALLS
from sley.engine.devices import Engine
from sley.engine.devices import Settings as KernelSettings
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from support.devices.device_calls import threads
from support.processes.process_ranks import together

RANKS = 3
COUNTS = [0, 1, 2, 5, 17, 63, 255, 1000, 4099, 30_001]


def opened(
    ranks: int, *, store: Any = None, apart: bool = False, **options: Any
) -> list[DeviceCommunicator]:
    """The communicators of ranks that are threads. apart: each on a device of its own."""
    store, made = store or LocalStore(), dict[int, DeviceCommunicator]()
    options = {"kernels": KernelSettings(Engine.INTERPRETED, timeout_s=20)} | options

    def make(rank: int) -> None:
        device = threads(rank if apart else 0)
        made[rank] = DeviceCommunicator(store, rank, ranks, device, **options)

    together([lambda rank=rank: make(rank) for rank in range(ranks)])
    return [made[rank] for rank in range(ranks)]


@contextmanager
def ranks_of(ranks: int, **options: Any) -> Iterator[list[DeviceCommunicator]]:
    comms = opened(ranks, **options)
    try:
        yield comms
    finally:
        on_all(comms, lambda comm: comm.close())


def on_all(comms: Sequence[DeviceCommunicator], call: Callable[[DeviceCommunicator], Any]) -> None:
    together([lambda comm=comm: call(comm) for comm in comms])


def codes(
    comms: Sequence[DeviceCommunicator], call: Callable[[DeviceCommunicator], Any]
) -> list[str]:
    """The code of the error of each rank's call; empty for none."""
    found = [""] * len(comms)

    def attempt(number: int) -> None:
        try:
            call(comms[number])
        except SleyError as error:
            found[number] = error.code

    together([lambda number=number: attempt(number) for number in range(len(comms))])
    return found


@pytest.fixture(scope="module")
def three() -> Iterator[list[DeviceCommunicator]]:
    with ranks_of(RANKS, types=["int32"], ops=["sum", "max"]) as comms:
        yield comms


@dataclass(frozen=True)
class Case:
    """A call, and what it makes of small numbers, whose sums all types hold."""

    kind: str
    in_place: bool
    root: int
    dtype: str
    op: ReduceOp
    count: int

    @classmethod
    def draw(cls, random: Random, kind: str, ranks: int) -> Case:
        dtype = random.choice(list(DATA_TYPES))
        is_whole = DATA_TYPES[dtype].array.kind in "iu" and not DATA_TYPES[dtype].is_bits
        ops = [op for op in ReduceOp if is_whole or not op.name.startswith("B")]
        return cls(
            kind,
            random.random() < 0.5,
            random.randrange(ranks),
            dtype,
            random.choice(ops) if CALLS[kind].reduces else ReduceOp.SUM,
            random.choice(COUNTS),
        )

    def values(self, rank: int, ranks: int) -> Any:
        """A rank's input; in an average that of all."""
        seed = 0 if self.op is ReduceOp.AVG else rank
        parts = ranks if CALLS[self.kind].input_parts else 1
        return np.random.default_rng([seed, self.count]).integers(0, 3, (parts, self.count))

    def expected(self, ranks: int) -> list[Any]:
        """Each rank's output; None without one."""
        data = [self.values(rank, ranks) for rank in range(ranks)]
        row, root = CALLS[self.kind], [rank == self.root for rank in range(ranks)]
        if self.kind == "broadcast":
            return [data[self.root]] * ranks
        if self.kind == "scatter":
            return [data[self.root][rank] for rank in range(ranks)]
        if self.kind == "all_to_all":
            return [np.stack([own[rank] for own in data]) for rank in range(ranks)]
        if not row.reduces:
            return [np.concatenate(data) if is_root or not row.roles else None for is_root in root]
        total = _REDUCED[self.op](np.stack(data))
        if self.kind == "reduce_scatter":
            return list(total)
        return [total if is_root or not row.roles else None for is_root in root]

    def check(self, comm: DeviceCommunicator, **options: Any) -> None:
        kind, own = DATA_TYPES[self.dtype], CALLS[self.kind]
        size = comm.ranks * self.count if own.has_parts else self.count
        first = self.count * comm.rank
        given = kind.bits(self.values(comm.rank, comm.ranks).ravel()).astype(kind.array)
        data = given.copy()
        out = np.zeros(size if own.output_parts else self.count, kind.array)
        if self.in_place and self.kind == "all_gather":
            data = out[first : first + self.count]
            data[:] = given
        if self.in_place and self.kind == "reduce_scatter":
            out = data[first : first + self.count]
        if (self.in_place and self.kind in ("all_reduce", "all_to_all")) or self.kind in (
            "broadcast",
            "reduce",
        ):
            out = data
        arguments: dict[str, Any] = {"dtype": self.dtype}
        if self.kind not in ("broadcast", "reduce"):
            arguments["out"] = out
        if own.reduces:
            arguments["op"] = self.op
        if own.roles:
            arguments["root"] = self.root
        getattr(comm, self.kind)(data, **arguments, **options)
        comm.synchronize()
        wanted = self.expected(comm.ranks)[comm.rank]
        if wanted is not None:
            found = kind.values(out) if kind.is_bits else out
            np.testing.assert_array_equal(found, wanted.ravel(), err_msg=str(self))
        if out is not data and not np.shares_memory(out, data):
            np.testing.assert_array_equal(data, given, err_msg=str(self))


_REDUCED: dict[ReduceOp, Callable[[Any], Any]] = {
    ReduceOp.SUM: lambda all_: all_.sum(0),
    ReduceOp.PRODUCT: lambda all_: all_.prod(0),
    ReduceOp.MIN: lambda all_: all_.min(0),
    ReduceOp.MAX: lambda all_: all_.max(0),
    ReduceOp.AVG: lambda all_: all_[0],
    ReduceOp.BAND: np.bitwise_and.reduce,
    ReduceOp.BOR: np.bitwise_or.reduce,
    ReduceOp.BXOR: np.bitwise_xor.reduce,
}

KINDS = [kind for kind, row in CALLS.items() if not row.varies and kind != BARRIER]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_give_what_numpy_gives(three: list[DeviceCommunicator], kind: str) -> None:
    random = Random(kind)
    for _ in range(12):
        case = Case.draw(random, kind, RANKS)
        on_all(three, case.check)
