"""How PyTorch comes to know the backend."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from sley.communicator import Settings
from sley.torch.group import ProcessGroupSley


def register() -> None:
    """Registers the backend "sley", for CPU tensors; doing it again changes nothing.

    From 2.15 on, PyTorch calls this itself when somebody asks for the backend: it is the entry
    point "sley" of the group `torch.distributed.backends`.
    """
    if dist.is_available():
        dist.Backend.register_backend("sley", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, settings: Settings | None) -> ProcessGroupSley:
    """The group that c10d's DistributedBackendOptions describe. `settings` are what the user gave
    as `pg_options`; their timeout gives way to the group's."""
    return ProcessGroupSley(
        options.store,
        options.group_rank,
        options.group_size,
        name=options.group_id,
        timeout=options.timeout,
        settings=settings,
    )
