"""A rank of collectives that are operators of PyTorch:
`python -m cpu_peers.operator_worker KIND FOLDER RANK RANKS [LIBRARY]`.

KIND is `sley`, `vllm` or `deepspeed`; LIBRARY has the operators of the last two, whose ranks find
each other through a gloo group, which also makes the barriers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
import torch.distributed as dist

from cpu_peers.cells import ROOT, Collective
from cpu_peers.torch_worker import TorchCalls
from cpu_peers.worker import Array, Repeated, arguments, looped, serve


class SleyOperators(TorchCalls):
    """`torch.ops.sley` on the default group."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        super().__init__("sley", folder, rank, ranks)

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        output, input_ = torch.from_numpy(target), torch.from_numpy(source)
        operators, name = torch.ops.sley, dist.group.WORLD.group_name
        calls: dict[Collective, Callable[[], object]] = {
            Collective.ALL_REDUCE: partial(operators.all_reduce_, output, "sum", name),
            Collective.ALL_GATHER: partial(operators.all_gather_into, output, input_, name),
            Collective.REDUCE_SCATTER: partial(
                operators.reduce_scatter_into, output, input_, "sum", name
            ),
            Collective.ALL_TO_ALL: partial(operators.all_to_all_into, output, input_, name),
            Collective.BROADCAST: partial(operators.broadcast_, output, ROOT, name),
            Collective.REDUCE: partial(operators.reduce_, output, ROOT, "sum", name),
        }
        return looped(calls[collective])


class VllmOperators(TorchCalls):
    """vLLM's collectives over shared memory, as its communicator for CPUs makes them."""

    def __init__(self, folder: Path, rank: int, ranks: int, libraries: str) -> None:
        super().__init__("gloo", folder, rank, ranks)
        library = Path(libraries) / f"{_vllm_library()}.abi3.so"
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
        operators, handle = self._operators, self._handle
        if collective is Collective.ALL_REDUCE:
            return looped(partial(operators.shm_allreduce, handle, output))
        return looped(partial(operators.shm_all_gather, handle, input_, output))


class DeepSpeedOperators(TorchCalls):
    """DeepSpeed's AllReduce over shared memory, which inference uses."""

    def __init__(self, folder: Path, rank: int, ranks: int, library: str) -> None:
        super().__init__("gloo", folder, rank, ranks)
        self.version = f"torch {torch.__version__}, {Path(library).stem}"
        # DeepSpeed's launcher sets them; the last two name the shared memory.
        os.environ["LOCAL_SIZE"] = str(ranks)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", folder.name
        spec = spec_from_file_location(Path(library).stem, library)
        if spec is None or spec.loader is None:
            raise ImportError(f"{library} is no extension module")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.initialize(ranks, rank)
        dist.barrier()

    def bound(self, collective: Collective, source: Array, target: Array) -> Repeated:
        output = torch.from_numpy(target)
        return looped(partial(torch.ops.deepspeed.inference_all_reduce_, output))


def _vllm_library() -> str:
    """The library that vLLM chooses on this machine."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"


KINDS: dict[str, Callable[..., TorchCalls]] = {
    "sley": SleyOperators,
    "vllm": VllmOperators,
    "deepspeed": DeepSpeedOperators,
}


def main() -> None:
    kind, folder, rank, ranks = arguments()
    serve(KINDS[kind](folder, rank, ranks, *sys.argv[5:]), folder, rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
