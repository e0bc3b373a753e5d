"""Fallback: other backends of a group, for what its communicator doesn't support."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from sley.communicator.rendezvous.gather import GRACE_S
from sley.errors.aside import LateError, within
from sley.errors.communicator import N605
from sley.errors.torch import B903
from sley.torch import nccl
from sley.torch.arguments import unfit, unreducible
from sley.torch.elements import has_memory
from sley.torch.work import CollectiveError

logger = logging.getLogger("sley.torch")


class Fallback:
    """The other backends of `group`, made when they are first needed.

    - gloo runs the all_reduce of sparse tensors.
    - With a backend string such as "cpu:sley,cuda:nccl", a group of PyTorch's own with the
      backends of the other devices ("cuda:nccl") serves tensors on those.
    - With "cpu:sley,cuda:sley", a group with the backend of `nccl`, which PyTorch doesn't list.

    Errors: B903.
    """

    def __init__(self, group: Any) -> None:
        self._group_of = weakref.ref(group)  # weak: the group refers to this object
        self._names: dict[str, str] = {}
        self._ranks: list[int] = []
        self._gloo: Any = None
        self._rest: Any = None
        self._options: Any = None
        self._is_making = False
        self._logged: set[str] = set()

    @property
    def _group(self) -> Any:
        return self._group_of()

    @property
    def _is_own(self) -> bool:
        """Whether the other devices' group is sley's to make and to end."""
        return self._names.get("cuda") == "sley"

    def serve_cuda(self, names: dict[str, str], ranks: Sequence[int], options: Any) -> None:
        """Has sley's library serve CUDA tensors. names, ranks: as `names()` and `ranks()` are.
        options: the user's `pg_options`."""
        self._names, self._ranks, self._options = names, list(ranks), options

    def names(self) -> dict[str, str]:
        """The backend of each type of device, from the group's backend string; none before PyTorch
        has registered the group."""
        if not self._names:
            try:
                config = dist.get_backend_config(self._group)
            except (AssertionError, TypeError, ValueError):
                return {}
            self._names = dict(pair.split(":", 1) for pair in config.split(","))
        return self._names

    def has(self, device: torch.device) -> bool:
        """Whether another backend runs tensors on `device`. PyTorch also asks before it has
        registered the group, and while the group of the other devices is made."""
        return device.type != "cpu" and bool(self.names()) and not self._is_making

    def split(self, ranks: Sequence[int], timeout: timedelta, options: Any, name: str) -> Any:
        """The other devices' group for a part of the group; None if there is no such group yet, and
        on ranks that aren't in `ranks`. All ranks of the group call it."""
        if self._rest is None:
            return None
        return self._rest.split_group(list(ranks), timeout, options, f"{name}:other devices")

    def split_from(self, other: Fallback, ranks: Sequence[int], rest: Any) -> None:
        """Takes the backends of the group that this one's group was split from, which PyTorch
        doesn't know yet. ranks: in that group. rest: the result of its `split`."""
        self._names, self._options = other.names(), other._options
        if self._names:  # otherwise PyTorch doesn't know that group either
            self._ranks = [other.ranks()[rank] for rank in ranks]
        if rest is not None:
            self._take(rest)

    def ranks(self) -> list[int]:
        """The group's ranks in the default group."""
        return self._ranks or dist.get_process_group_ranks(self._group)

    def find(self, name: str, tensor: Tensor, op: Any = None) -> Any:
        """The backend that runs the collective `name` on a tensor that the communicator doesn't
        support. Errors: B902, if there is none."""
        if not tensor.is_cpu:
            return self.on(tensor.device)
        if tensor.layout is torch.strided and not has_memory(tensor):
            expected = "tensors with memory (wait for those that functional collectives return)"
            raise unfit(name, expected, f"{type(tensor).__name__}, without memory")
        if name != "all_reduce" or tensor.layout is torch.strided:
            raise unreducible(name, tensor, None if tensor.layout is not torch.strided else op)
        what = f"{name} of {tensor.dtype}, {tensor.layout}, with {getattr(op, 'op', op)}"
        if what not in self._logged:
            self._logged.add(what)
            where = self._group.getGroupName()
            logger.info("group %s: %s runs on gloo: the engine doesn't support it", where, what)
        return self.gloo()

    def gloo(self) -> Any:
        if self._gloo is None:
            group = self._group
            make = partial(
                dist.ProcessGroupGloo,
                dist.PrefixStore("gloo/", group.get_group_store()),
                group.rank(),
                group.size(),
                timeout=group.timeout,
            )
            try:
                self._gloo = within(group.timeout.total_seconds() + GRACE_S, make)
            except LateError:  # the process that serves the store is stopped
                expected = "an answer of the group's store, over which gloo's ranks connect"
                found = f"none within {group.timeout.total_seconds():g} s"
                raise CollectiveError([N605.diagnostic(expected=expected, found=found)]) from None
        return self._gloo

    def on(self, device: torch.device) -> Any:
        """The group for tensors on `device`, which isn't the CPU."""
        rest = {name: backend for name, backend in self.names().items() if name != "cpu"}
        if device.type not in rest:
            served = ", ".join(self.names()) or "cpu"
            raise CollectiveError(
                [B903.diagnostic(expected=f"a tensor on {served}", found=f"one on {device}")]
            )
        if self._rest is None:
            self._is_making = True
            try:
                self._take(self._make_nccl() if self._is_own else self._make(rest))
            finally:
                self._is_making = False
        return self._rest

    def _make(self, backends: dict[str, str]) -> Any:
        return dist.new_group(
            self.ranks(),
            timeout=self._group.timeout,
            backend=",".join(f"{name}:{backend}" for name, backend in backends.items()),
            use_local_synchronization=True,
        )

    def _make_nccl(self) -> Any:
        group = self._group
        return nccl.group(
            group.get_group_store(),
            group.rank(),
            group.size(),
            group.bound_device_id,
            ranks=self.ranks(),
            name=group.getGroupName(),
            timeout=group.timeout,
            given=self._options,
        )

    def _take(self, rest: Any) -> None:
        """Takes the group of the other devices."""
        self._rest = rest
        if self._is_own:
            # PyTorch's C++ asks for the backend (symmetric memory), and its functions for a name.
            kind, group = dist.ProcessGroup.BackendType.NCCL, self._group
            dist.ProcessGroup._register_backend(
                group, nccl.CUDA, kind, rest._get_backend(nccl.CUDA)
            )
            c10d._world.pg_map[rest] = dist.Backend("cuda:sley"), group.get_group_store()
            c10d._world.pg_group_ranks[rest] = {rank: at for at, rank in enumerate(self.ranks())}

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of the backends that exist; later ones take the group's."""
        if self._gloo is not None:
            self._gloo._set_default_timeout(timeout)
        if self._rest is not None:
            c10d._set_pg_timeout(timeout, self._rest)

    def close(self, abort: bool = False) -> None:
        self._gloo = None
        if self._rest is not None and self._is_own:
            self._rest.abort() if abort else self._rest.shutdown()
            c10d._world.pg_map.pop(self._rest, None)
            c10d._world.pg_group_ranks.pop(self._rest, None)


def serve_batches(message: type[dist.P2POp]) -> None:
    """Makes the messages of `batch_isend_irecv` in groups of sley's messages of the group that
    serves their tensors' device; a second time changes nothing. PyTorch starts only those at once
    whose group is of its own class; without that, NCCL's block one another."""
    original = message.__init__
    if original.__module__ == __name__:
        return

    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        fallback = getattr(self.group, "_fallback", None)
        if fallback is not None and not self.tensor.is_cpu:
            self.group = fallback.on(self.tensor.device)

    message.__init__ = init
