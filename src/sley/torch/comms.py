"""Comms: sley as a backend of torchcomms, PyTorch's newer interface to collectives.

torchcomms loads this module, its entry point "sley" of the group `torchcomms.backends`, at
`torchcomms.new_comm("sley", torch.device("cpu"), name)`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from sley.communicator import Settings, from_environment
from sley.communicator.rendezvous.environment import find_place
from sley.errors.communicator import N606
from sley.errors.torch import B903, B906
from sley.torch.arguments import unfit
from sley.torch.group import ProcessGroupSley

try:
    import torchcomms
    from torchcomms import TorchCommBackend, register_backend
except ImportError as error:
    raise B906.error(
        expected="the package torchcomms, with TorchCommBackend", found=str(error)
    ) from None

_PLACES = (("RANK", "TORCHCOMM_RANK"), ("WORLD_SIZE", "TORCHCOMM_SIZE"))
"""torchrun's variables, and those that replace them for a communicator of torchcomms."""


_STORES: dict[object, dist.Store] = {}
"""The stores that communicators without one have started, by address and place. They live as long
as the process: a rank that makes its next communicator could still find the last one's store,
which another rank is about to close."""


class TorchCommSley(TorchCommBackend):
    """A communicator of torchcomms, whose calls run on a process group of sley's.

    A method with `async_op` returns None if that is False, after the end of the call; otherwise a
    work object. Roots and peers are ranks of the communicator. Errors are those of the group.
    """

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._group: Any = None

    def init(self, device: torch.device, name: str, options: Any) -> None:
        """Finds the other ranks.

        options: torchcomms' CommOptions. Their timeout is that of every call; SLEY_TIMEOUT_S
            replaces torchcomms' default. Without a store, the environment's is used.
        Errors: B903, N603, N605, N606 and those of a new communicator.
        """
        if device.type != "cpu":
            raise B903.error(expected="a communicator for the CPU", found=f"one for {device}")
        store, rank, ranks = _find_ranks(options.store)
        settings, timeout = Settings.from_environment(), options.timeout
        if settings.timeout_s is not None and timeout == torchcomms.CommOptions().timeout:
            timeout = timedelta(seconds=settings.timeout_s)
        self._name = name
        self._group = ProcessGroupSley(
            dist.PrefixStore(f"{name}/", store),
            rank,
            ranks,
            name=name,
            timeout=timeout,
            settings=settings,
        )

    def finalize(self) -> None:
        """Leaves the communicator."""
        self._group.shutdown()

    def split(self, ranks: Sequence[int], name: str, options: Any) -> TorchCommSley | None:
        """A communicator of the ranks `ranks` of this one; None on the others."""
        # Other ranks may make another communicator of the same name meanwhile.
        unique = f"{name} of {'-'.join(map(str, ranks))}"
        group = self._group.split_group(list(ranks), timeout=options.timeout, group_name=unique)
        if group is None:
            return None
        made = TorchCommSley()
        made._name, made._group = name, group
        # torchcomms sets these itself only in `init`; releases before May 2026 can't be told.
        if hasattr(made, "_set_device_and_options"):
            made._set_device_and_options(torch.device("cpu"), options)
        return made

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of all later calls."""
        self._group.set_timeout(timeout)

    def get_rank(self) -> int:
        return self._group.rank()

    def get_size(self) -> int:
        return self._group.size()

    def get_backend_name(self) -> str:
        return "sley"

    def get_comm_name(self) -> str:
        return self._name

    # Messages.

    def send(self, tensor: Tensor, dst: int, async_op: bool) -> dist.Work | None:
        return _end(self._group.send([tensor], dst), async_op)

    def recv(self, tensor: Tensor, src: int, async_op: bool) -> dist.Work | None:
        return _end(self._group.recv([tensor], src), async_op)

    # Collectives.

    def broadcast(self, tensor: Tensor, root: int, async_op: bool) -> dist.Work | None:
        opts = _options(BroadcastOptions, async_op, rootRank=root)
        return _end(self._group.broadcast([tensor], opts), async_op)

    def all_reduce(self, tensor: Tensor, op: Any, async_op: bool) -> dist.Work | None:
        opts = _options(AllreduceOptions, async_op, reduceOp=_reduction(op))
        return _end(self._group.allreduce([tensor], opts), async_op)

    def reduce(self, tensor: Tensor, root: int, op: Any, async_op: bool) -> dist.Work | None:
        opts = _options(ReduceOptions, async_op, rootRank=root, reduceOp=_reduction(op))
        return _end(self._group.reduce([tensor], opts), async_op)

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, async_op: bool
    ) -> dist.Work | None:
        opts = _options(AllgatherOptions, async_op)
        return _end(self._group.allgather([tensor_list], [tensor], opts), async_op)

    all_gather_v = all_gather  # the parts may differ in size

    def all_gather_single(self, output: Tensor, input: Tensor, async_op: bool) -> dist.Work | None:
        opts = _options(AllgatherOptions, async_op)
        return _end(self._group.all_gather_single(output, input, opts), async_op)

    def reduce_scatter(
        self, output: Tensor, input_list: Sequence[Tensor], op: Any, async_op: bool
    ) -> dist.Work | None:
        opts = _options(ReduceScatterOptions, async_op, reduceOp=_reduction(op))
        return _end(self._group.reduce_scatter([output], [input_list], opts), async_op)

    reduce_scatter_v = reduce_scatter  # the parts may differ in size

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: Any, async_op: bool
    ) -> dist.Work | None:
        opts = _options(ReduceScatterOptions, async_op, reduceOp=_reduction(op))
        return _end(self._group.reduce_scatter_single(output, input, opts), async_op)

    def all_to_all_single(self, output: Tensor, input: Tensor, async_op: bool) -> dist.Work | None:
        opts = _options(AllToAllOptions, async_op)
        return _end(self._group.all_to_all_single(output, input, (), (), opts), async_op)

    def all_to_all_v_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        async_op: bool,
    ) -> dist.Work | None:
        opts = _options(AllToAllOptions, async_op)
        sizes = output_split_sizes, input_split_sizes
        return _end(self._group.all_to_all_single(output, input, *sizes, opts), async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Tensor],
        input_tensor_list: Sequence[Tensor],
        async_op: bool,
    ) -> dist.Work | None:
        opts = _options(AllToAllOptions, async_op)
        return _end(self._group.alltoall(output_tensor_list, input_tensor_list, opts), async_op)

    def barrier(self, async_op: bool) -> dist.Work | None:
        return _end(self._group.barrier(_options(BarrierOptions, async_op)), async_op)

    def gather_single(
        self, output: Tensor, input: Tensor, root: int, async_op: bool
    ) -> dist.Work | None:
        opts = _options(GatherOptions, async_op, rootRank=root)
        return _end(self._group.gather_single(output, input, opts), async_op)

    def scatter(
        self, output_tensor: Tensor, input_tensor_list: Sequence[Tensor], root: int, async_op: bool
    ) -> dist.Work | None:
        opts = _options(ScatterOptions, async_op, rootRank=root)
        return _end(self._group.scatter([output_tensor], [input_tensor_list], opts), async_op)

    def gather(
        self, output_tensor_list: Sequence[Tensor], input_tensor: Tensor, root: int, async_op: bool
    ) -> dist.Work | None:
        opts = _options(GatherOptions, async_op, rootRank=root)
        return _end(self._group.gather([output_tensor_list], [input_tensor], opts), async_op)


def _find_ranks(store: dist.Store | None) -> tuple[dist.Store, int, int]:
    """A store, the rank and the number of ranks; from the environment what isn't given."""
    environ = dict(os.environ)
    for name, own in _PLACES:
        environ[name] = environ.get(own) or environ.get(name, "")
    place = find_place(environ)
    if place is None:
        raise N606.error(
            expected="TORCHCOMM_RANK and TORCHCOMM_SIZE in the environment, or RANK and WORLD_SIZE",
            found="neither",
        )
    if store is None:
        # With these, the environment must have a torch store.
        environ |= {"RANK": str(place[0]), "WORLD_SIZE": str(place[1])}
        key = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT"), place
        if key not in _STORES:
            started: Any = from_environment(environ).store
            _STORES[key] = started.store
        store = _STORES[key]
    return store, *place


def _options(kind: type, async_op: bool, **fields: Any) -> Any:
    made = kind()
    made.asyncOp = async_op
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _reduction(op: Any) -> Any:
    """torchcomms' reduction as torch.distributed's, which has the same names. Errors: B902 for a
    PREMUL_SUM whose factor torchcomms doesn't let Python read."""
    if op.type.name != "PREMUL_SUM":
        return dist.ReduceOp(getattr(dist.ReduceOp, op.type.name))
    factor = getattr(op, "factor", None)
    if factor is None:
        remedy = "Multiply the tensor first, and take the SUM."
        raise unfit("PREMUL_SUM", "a ReduceOp with an attribute `factor`", f"{op!r}", remedy)
    return dist._make_nccl_premul_sum(factor)


def _end(work: dist.Work | None, async_op: bool) -> dist.Work | None:
    """What torchcomms expects of a call: None if it has ended, as the group's ready calls do."""
    if async_op or work is None:
        return work
    work.wait()
    return None


register_backend("sley", TorchCommSley)
