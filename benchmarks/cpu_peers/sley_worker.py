"""A rank of sley's communicator: `python -m cpu_peers.sley_worker BUFFERS FOLDER RANK RANKS`.

BUFFERS is `private` (NumPy's) or `symmetric` (`sley.empty`, which peers read directly).
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np

import sley
from cpu_peers.cells import Collective, partner_of
from cpu_peers.worker import Array, Repeated, arguments, looped, serve
from sley.communicator import Call, FolderStore
from sley.engine.types import DATA_TYPES

_KINDS = {
    Collective.ALL_REDUCE: "all_reduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
    Collective.GATHER: "gather",
    Collective.SCATTER: "scatter",
}


_BY_OUTPUT = (Collective.REDUCE_SCATTER, Collective.SCATTER)
"""Collectives whose output has the elements that their calls count; of the others the input has."""


def _span(array: Array) -> tuple[int, int]:
    """The address and the bytes of an array; 0 of an empty one."""
    return (array.ctypes.data, array.nbytes) if array.size else (0, 0)


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
        endpoint = communicator.endpoint
        if collective is Collective.SEND_RECV:
            rank = communicator.rank
            partner = partner_of(rank, communicator.ranks)
            if partner is None:
                return looped(lambda: None)
            spans = _span(source), _span(target)
            is_first = rank < partner
            return lambda n: endpoint.messages.time_us(*spans, partner, is_first, n) / 1e6
        count = target.size if collective in _BY_OUTPUT else source.size
        if collective is Collective.ALL_TO_ALL:
            count //= communicator.ranks
        kind, dtype = _KINDS[collective], DATA_TYPES["float32"]
        call = Call(kind, *_span(source), *_span(target), count, dtype)
        return lambda iterations: endpoint.time_us(call, iterations) / 1e6

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
