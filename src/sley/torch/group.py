"""The process group "sley": a communicator for CPU tensors, and other backends for the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sley.communicator import Communicator, Settings, TorchStore
from sley.errors.torch import B903
from sley.torch.memory import empty
from sley.torch.messages import Messages
from sley.torch.work import CollectiveError

logger = logging.getLogger("sley.torch")

_CPU = torch.device("cpu")


class ProcessGroupSley(Messages, dist.ProcessGroup):
    """What `init_process_group("sley")` and `new_group` make: the ranks of one communicator.

    It takes the place of PyTorch's own group object, so a call of `torch.distributed` on CPU
    tensors comes here without a detour. Two others help:

    - gloo, made when it is first needed, runs what the communicator doesn't serve: reductions of
      types or with operations that the engine lacks, and sparse tensors.
    - With a backend string such as "cpu:sley,cuda:nccl", a group of PyTorch's own with the
      backends of the other devices ("cuda:nccl") serves tensors on those. It is made when the
      first such tensor comes.

    `store` is where the ranks find one another, `timeout` that of every call. `settings` are those
    of the communicator.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        ranks: int,
        *,
        name: str,
        timeout: timedelta,
        settings: Settings | None = None,
    ) -> None:
        settings = replace(
            settings or Settings.from_environment(), timeout_s=timeout.total_seconds()
        )
        communicator = Communicator(
            TorchStore(store), rank, ranks, name=f"group {name}", settings=settings
        )
        dist.ProcessGroup.__init__(self, rank, ranks)
        Messages.__init__(self, communicator)
        self._store = store
        self._timeout = timeout
        self._settings = settings
        self._name = name
        self._description = ""
        self._backends: dict[str, str] = {}
        self._gloo: Any = None
        self._others: Any = None
        self._makes_others = False
        self._told: set[str] = set()

    # What PyTorch asks a group about itself; from C++ by these names.

    def getBackendName(self) -> str:  # noqa: N802
        return "sley"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def get_group_store(self) -> dist.Store:
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to agree on: every group counts its collectives from 0."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence_number

    # The group is its own backend for CPU tensors.

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._backend_names()]

    def _get_backend(self, device: torch.device) -> Any:
        # PyTorch may ask before it has registered the group, and while it makes the other one.
        if device.type == "cpu" or not self._backend_names() or self._makes_others:
            return self
        return self._group_of(device)._get_backend(device)

    get_backend = _get_backend

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of `size` elements in memory that peers read directly (`sley.torch.empty`)."""
        return empty(size, dtype=dtype)

    def _backend_names(self) -> dict[str, str]:
        """The backend of each type of device, from the string that the group was made with."""
        if not self._backends:
            try:
                config = dist.get_backend_config(self)
            except (AssertionError, TypeError, ValueError):
                return {}  # not registered yet
            self._backends = dict(pair.split(":", 1) for pair in config.split(","))
        return self._backends

    # Who else serves what this group's communicator doesn't.

    def _elsewhere(self, name: str, tensor: Tensor, op: Any = None) -> Any:
        if not tensor.is_cpu:
            return self._group_of(tensor.device)
        what = f"{name} of {tensor.dtype}"
        if tensor.layout is not torch.strided:
            what += f", {tensor.layout}"
        if op is not None:
            what += f", with {getattr(op, 'op', op)}"
        if what not in self._told:
            self._told.add(what)
            logger.info("group %s: %s runs on gloo, the engine has none", self._name, what)
        return self._on_gloo()

    def _on_gloo(self) -> Any:
        if self._gloo is None:
            store = dist.PrefixStore("gloo/", self._store)
            self._gloo = dist.ProcessGroupGloo(
                store, self._rank, self._ranks, timeout=self._timeout
            )
        return self._gloo

    def _group_of(self, device: torch.device) -> Any:
        others = {name: backend for name, backend in self._backend_names().items() if name != "cpu"}
        if device.type not in others:
            served = ", ".join(self._backend_names()) or "cpu"
            raise CollectiveError(
                [B903.diagnostic(expected=f"a tensor on {served}", found=f"one on {device}")]
            )
        if self._others is None:
            self._makes_others = True
            try:
                self._others = dist.new_group(
                    dist.get_process_group_ranks(self),
                    timeout=self._timeout,
                    backend=",".join(f"{name}:{backend}" for name, backend in others.items()),
                    use_local_synchronization=True,
                )
            finally:
                self._makes_others = False
        return self._others

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names the ranks that didn't come in time; gloo's."""
        self._on_gloo().monitored_barrier(timeout or self._timeout, wait_all_ranks)

    # Its life.

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> ProcessGroupSley | None:
        """A new group of this one's ranks `new_ranks`; None for a rank that isn't among them."""
        if self._rank not in new_ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, new_ranks))}"
        group = ProcessGroupSley(
            dist.PrefixStore(f"{name}/", self._store),
            new_ranks.index(self._rank),
            len(new_ranks),
            name=name,
            timeout=timeout or self._timeout,
            settings=self._settings,
        )
        group._description = group_desc or f"{self._description}:split"
        group._backends = self._backend_names()
        return group

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on, calls fail after `timeout`."""
        self._timeout = timeout
        self._communicator.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        """Ends the group's part in this process; called by `destroy_process_group`."""
        self._communicator.close()
        self._gloo = None

    def abort(self) -> None:
        """Ends the group at once; calls that run fail, on the other ranks too."""
        self._communicator.abort()
        self._gloo = None
