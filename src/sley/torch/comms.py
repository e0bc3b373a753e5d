"""Comms: sley as a backend of torchcomms, PyTorch's newer interface to collectives.

torchcomms loads this module, its entry point "sley" of the group `torchcomms.backends`, at
`torchcomms.new_comm("sley", torch.device("cpu"), name)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sley.communicator import Settings, from_environment
from sley.communicator.rendezvous.environment import find_place
from sley.errors.communicator import N606
from sley.errors.runtime import R512
from sley.errors.torch import B903
from sley.torch.arguments import unfit
from sley.torch.forms import FORMS, Form
from sley.torch.group import ProcessGroupSley

try:
    import torchcomms
    from torchcomms import TorchCommBackend, register_backend
except ImportError as error:
    raise R512.error(
        expected="the package torchcomms, with TorchCommBackend (since April 2026)",
        found=str(error),
        remedy="Install torchcomms from PyTorch's own package index or from its sources (0.0.1 on "
        'PyPI is empty), or use the backend "sley" of torch.distributed, without '
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS.",
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


def _method(form: Form) -> Callable[..., dist.Work | None]:
    """A collective of a communicator: its tensors, root and reduction, and `async_op`."""

    def call(self: TorchCommSley, *arguments: Any) -> dist.Work | None:
        *given, async_op = arguments
        return _end(form.call(self._group, given, _reduction, asyncOp=async_op), async_op)

    return call


for _form in FORMS:
    for _name in _form.comms:
        setattr(TorchCommSley, _name, _method(_form))


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
