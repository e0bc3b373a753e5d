"""How PyTorch comes to know the backend."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from sley.communicator import Settings
from sley.engine.limits import TIMEOUT_S
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
