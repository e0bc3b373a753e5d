"""A rank of sley's communicator: `python -m cpu_peers.sley_worker BUFFERS FOLDER RANK RANKS`.

BUFFERS is `private` (NumPy's) or `symmetric` (`sley.empty`, which peers read directly).
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np

import sley
from cpu_peers.cells import Collective
from cpu_peers.worker import Array, Repeated, arguments, serve
from sley.communicator import Call, FolderStore
from sley.engine.types import DATA_TYPES

_KINDS = {
    Collective.ALL_REDUCE: "all_reduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "all_to_all",
}


class SleyCalls:
    """The collectives of a communicator, on NumPy arrays."""

    def __init__(self, buffers: str, folder: Path, rank: int, ranks: int) -> None:
        self.version = f"sley {version('sley')}, {buffers} buffers"
        self._symmetric = buffers == "symmetric"
        self._communicator = sley.Communicator(FolderStore(folder / "store"), rank, ranks)

    def empty(self, elements: int) -> Array:
        if self._symmetric:
            return sley.empty(elements, dtype="float32")
        return np.empty(elements, np.float32)

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        """A call that the engine repeats without Python in between, as the MPIs do."""
        communicator = self._communicator
        call = Call(
            _KINDS[collective],
            source.ctypes.data,
            source.nbytes,
            target.ctypes.data,
            target.nbytes,
            self._count(collective, source, target),
            DATA_TYPES["float32"],
        )
        return lambda iterations: communicator.endpoint.time_us(call, iterations) / 1e6

    def _count(self, collective: Collective, source: Array, target: Array) -> int:
        if collective is Collective.ALL_TO_ALL:
            return source.size // self._communicator.ranks
        return target.size if collective is Collective.REDUCE_SCATTER else source.size

    def barrier(self) -> None:
        self._communicator.barrier()

    def close(self) -> None:
        self._communicator.close()


def main() -> None:
    buffers, folder, rank, ranks = arguments()
    calls = SleyCalls(buffers, folder, rank, ranks)
    serve(calls, folder, rank, ranks)
    calls.close()


if __name__ == "__main__":
    main()
