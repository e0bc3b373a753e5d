"""The process group "sley": a communicator for CPU tensors, and other backends for the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from sley.communicator import Settings, TorchStore
from sley.communicator.endpoint import Endpoint
from sley.engine.limits import TIMEOUT_S
from sley.selection.plans import Plans
from sley.torch.fallback import OtherBackends
from sley.torch.memory import empty
from sley.torch.messages import Messages


class ProcessGroupSley(Messages, dist.ProcessGroup):
    """What `init_process_group("sley")` and `new_group` make: the ranks of one communicator.

    It takes the place of PyTorch's own group object, so a call of `torch.distributed` on CPU
    tensors comes here without a detour. Other backends run what the communicator doesn't serve.

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
        endpoint = Endpoint(TorchStore(store), rank, ranks, name=f"group {name}", settings=settings)
        dist.ProcessGroup.__init__(self, rank, ranks)
        Messages.__init__(self, endpoint, OtherBackends(self))
        self._store = store
        self.timeout = timeout
        self._settings = settings
        self._name = name
        self._description = ""

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

    @property
    def plans(self) -> Plans:
        """Which plan runs for a call; user plans are registered here."""
        return self._endpoint.plans

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
        return [torch.device(name) for name in self._others.names()]

    def _get_backend(self, device: torch.device) -> Any:
        return self._others.on(device)._get_backend(device) if self._others.has(device) else self

    get_backend = _get_backend

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of `size` elements in memory that peers read directly (`sley.torch.empty`)."""
        return empty(size, dtype=dtype)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names the ranks that didn't come in time; gloo's."""
        self._others.gloo().monitored_barrier(timeout or self.timeout, wait_all_ranks)

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
            timeout=timeout or self.timeout,
            settings=self._settings,
        )
        group._description = group_desc or f"{self._description}:split"
        group._others.split_from(self._others)
        return group

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on, calls fail after `timeout`."""
        self.timeout = timeout
        self._endpoint.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        """Ends the group's part in this process; called by `destroy_process_group`."""
        self._endpoint.close()
        self._others.close()

    def abort(self) -> None:
        """Ends the group at once; calls that run fail, on the other ranks too."""
        self._endpoint.abort()
        self._others.close()


def register() -> None:
    """Registers the backend "sley", for CPU tensors; doing it again changes nothing.

    From 2.15 on, PyTorch calls this itself when somebody asks for the backend: it is the entry
    point "sley" of the group `torch.distributed.backends`.
    """
    if dist.is_available():
        dist.Backend.register_backend("sley", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, settings: Settings | None) -> ProcessGroupSley:
    """The group that c10d's DistributedBackendOptions describe. `settings` are what the user gave
    as `pg_options`; their timeout, or that of the environment, holds where PyTorch's is its
    default, since nobody asked for that one."""
    is_set = "SLEY_TIMEOUT_S" in os.environ if settings is None else settings.timeout_s != TIMEOUT_S
    settings = settings or Settings.from_environment()
    timeout = options.timeout
    if is_set and timeout == default_pg_timeout:
        timeout = timedelta(seconds=settings.timeout_s)
    return ProcessGroupSley(
        options.store,
        options.group_rank,
        options.group_size,
        name=options.group_id,
        timeout=timeout,
        settings=settings,
    )
