"""A rank of collectives that are operators of PyTorch:
`python -m cpu_peers.operator_worker KIND FOLDER RANK RANKS LIBRARIES`.

KIND is `vllm`, LIBRARIES the folder of its libraries. The ranks find each other
through a gloo group, which also makes the barriers.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from cpu_peers.cells import Collective
from cpu_peers.torch_worker import TorchCalls
from cpu_peers.worker import Array, Repeated, arguments, looped, serve


class VllmCalls(TorchCalls):
    """vLLM's collectives over shared memory, as its communicator for CPUs makes them."""

    def __init__(self, libraries: Path, folder: Path, rank: int, ranks: int) -> None:
        super().__init__("gloo", folder, rank, ranks)
        library = libraries / f"{_vllm_library()}.abi3.so"
        self.version = f"torch {torch.__version__}, {library.name}"
        torch.ops.load_library(library)
        self._operators = torch.ops._C
        name = folder.name
        self._handle = self._operators.init_shm_manager(name, ranks, rank, torch.get_num_threads())
        dist.barrier()
        self._operators.join_shm_manager(self._handle, name)
        dist.barrier()

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        output, input_ = torch.from_numpy(target), torch.from_numpy(source)
        if collective is Collective.ALL_REDUCE:
            return looped(partial(self._operators.shm_allreduce, self._handle, output))
        return looped(partial(self._operators.shm_all_gather, self._handle, input_, output))


def _vllm_library() -> str:
    """The library that vLLM chooses on this machine."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"


KINDS = {"vllm": VllmCalls}


def main() -> None:
    kind, folder, rank, ranks = arguments()
    serve(KINDS[kind](Path(sys.argv[5]), folder, rank, ranks), folder, rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
