"""A rank of torch.distributed: `python -m cpu_peers.torch_worker BACKEND FOLDER RANK RANKS`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from cpu_peers.cells import Collective
from cpu_peers.worker import Array, Repeated, arguments, looped, serve

TIMEOUT_S = 120


class TorchCalls:
    """The collectives of torch.distributed's default group; tensors share NumPy's memory."""

    def __init__(self, backend: str, folder: Path, rank: int, ranks: int) -> None:
        self.version = f"torch {torch.__version__}, {backend}"
        torch.set_num_threads(1)  # as torchrun does
        if backend == "sley":
            import sley.torch  # noqa: F401  (registers the backend)
        dist.init_process_group(
            backend,
            store=dist.FileStore(str(folder / "store"), ranks),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=TIMEOUT_S),
        )

    def empty(self, elements: int) -> Array:
        return np.empty(elements, np.float32)

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        output, input_ = torch.from_numpy(target), torch.from_numpy(source)
        if collective is Collective.ALL_REDUCE:
            return looped(partial(dist.all_reduce, output))
        functions: dict[Collective, Callable[..., object]] = {
            Collective.ALL_GATHER: dist.all_gather_into_tensor,
            Collective.REDUCE_SCATTER: dist.reduce_scatter_tensor,
            Collective.ALL_TO_ALL: dist.all_to_all_single,
        }
        return looped(partial(functions[collective], output, input_))

    def barrier(self) -> None:
        dist.barrier()


def main() -> None:
    backend, folder, rank, ranks = arguments()
    serve(TorchCalls(backend, folder, rank, ranks), folder, rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
