"""A rank of torch.distributed: `python -m cpu_peers.torch_worker BACKEND FOLDER RANK RANKS`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from cpu_peers.cells import ROOT, Collective
from cpu_peers.worker import Array, Repeated, arguments, exchange, looped, serve

TIMEOUT_S = 120


class TorchCalls:
    """The collectives of torch.distributed's default group; tensors share NumPy's memory."""

    def __init__(self, backend: str, folder: Path, rank: int, ranks: int) -> None:
        self.version = f"torch {torch.__version__}, {backend}"
        self.rank, self.ranks = rank, ranks
        torch.set_num_threads(1)  # as torchrun does
        store: dist.Store = dist.FileStore(str(folder / "store"), ranks)
        if backend == "sley":
            import sley.torch  # noqa: F401  (registers the backend)
        if backend == "fake":
            from torch.testing._internal.distributed.fake_pg import FakeStore

            store = FakeStore()
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=TIMEOUT_S),
        )

    def empty(self, elements: int) -> Array:
        return np.empty(elements, np.float32)

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        output, input_ = torch.from_numpy(target), torch.from_numpy(source)
        is_root, parts = self.rank == ROOT, partial(torch.chunk, chunks=self.ranks)
        calls: dict[Collective, Callable[[], Callable[[], object]]] = {
            Collective.ALL_REDUCE: lambda: partial(dist.all_reduce, output),
            Collective.ALL_GATHER: lambda: partial(dist.all_gather_into_tensor, output, input_),
            Collective.REDUCE_SCATTER: lambda: partial(dist.reduce_scatter_tensor, output, input_),
            Collective.ALL_TO_ALL: lambda: partial(dist.all_to_all_single, output, input_),
            Collective.BROADCAST: lambda: partial(dist.broadcast, output, ROOT),
            Collective.REDUCE: lambda: partial(dist.reduce, output, ROOT),
            Collective.GATHER: lambda: partial(
                dist.gather, input_, list(parts(output)) if is_root else None, ROOT
            ),
            Collective.SCATTER: lambda: partial(
                dist.scatter, output, list(parts(input_)) if is_root else None, ROOT
            ),
            Collective.SEND_RECV: lambda: exchange(
                self.rank, self.ranks, partial(dist.send, input_), partial(dist.recv, output)
            ),
        }
        return looped(calls[collective]())

    def barrier(self) -> None:
        dist.barrier()


def main() -> None:
    backend, folder, rank, ranks = arguments()
    serve(TorchCalls(backend, folder, rank, ranks), folder, rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
