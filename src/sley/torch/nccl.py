"""NCCL: PyTorch's own backend for CUDA tensors, over sley's library with NCCL's interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from sley.errors.torch import B909

CUDA = torch.device("cuda")
_LIBRARY = ("sley", "nccl", "libnccl.so.2")
"""The end of the path of sley's library, in every installation."""


class _Place(ctypes.Structure):
    """What `dladdr` tells of an address."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("start", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def called_library(client: Path) -> Path | None:
    """The file of the NCCL that a loaded library calls, which the loader looks for among all that
    was loaded with the program (preloaded libraries too), then among what the library is linked
    with. None: there is none, as where NCCL is linked into the library itself."""
    for file in (None, str(client)):
        loaded, place = ctypes.CDLL(file), _Place()
        if function := getattr(loaded, "ncclCommInitRankConfig", None):
            address = ctypes.cast(function, ctypes.c_void_p)
            if ctypes.CDLL(None).dladdr(address, ctypes.byref(place)):
                path = Path(place.file.decode())
                return None if path.resolve() == client.resolve() else path
    return None


def _of_pytorch() -> Path:
    """The part of PyTorch that calls NCCL."""
    return Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"


def is_in_place() -> bool:
    """Whether PyTorch calls sley's library in this process."""
    path = called_library(_of_pytorch()) if dist.is_nccl_available() else None
    return path is not None and path.parts[-len(_LIBRARY) :] == _LIBRARY


def check_in_place() -> None:
    """Errors: B909, if PyTorch doesn't call sley's library."""
    if is_in_place():
        return
    remedy = "Start the program with `sley exec -- COMMAND`"
    if not dist.is_nccl_available():
        found = f"PyTorch {torch.__version__}, built without NCCL"
        remedy = f"Install PyTorch for CUDA. {remedy}"
    elif path := called_library(_of_pytorch()):
        found = f"another NCCL: {path}"
    else:
        found = f"PyTorch {torch.__version__}, with NCCL linked into it"
        remedy = f"Install a PyTorch that is linked with libnccl.so.2, as its wheels. {remedy}"
    raise B909.error(
        expected="sley's library with NCCL's interface, which PyTorch calls in this process",
        found=found,
        remedy=f"{remedy}.",
    )


def is_options(given: Any) -> bool:
    """Whether a group's `pg_options` are those of PyTorch's backend."""
    return dist.is_nccl_available() and isinstance(given, dist.ProcessGroupNCCL.Options)


def backend(
    store: dist.Store,
    rank: int,
    size: int,
    *,
    ranks: Sequence[int],
    name: str,
    timeout: timedelta,
    given: Any,
) -> Any:
    """PyTorch's backend, made as PyTorch makes it for "nccl": split from the default group's if
    that is bound to a device.

    ranks: in the default group; empty for that group itself. given: a group's `pg_options`.
    """
    options = given if is_options(given) else dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.global_ranks_in_group = list(ranks)
    options.group_name = name
    world = dist.group.WORLD
    if world is not None and world.bound_device_id and (parent := c10d._get_split_source(world)):
        options.split_from, options.split_color = parent, c10d._process_group_color(list(ranks))
    return dist.ProcessGroupNCCL(store, rank, size, options)


def group(
    store: dist.Store, rank: int, size: int, device: torch.device | None, **more: Any
) -> dist.ProcessGroup:
    """A group of PyTorch's own with that backend only, as for "nccl". device: to which it is bound.
    more: of `backend`."""
    store, kind = dist.PrefixStore("cuda/", store), dist.ProcessGroup.BackendType.NCCL
    made = dist.ProcessGroup(store, rank, size)
    made.bound_device_id = device
    made._set_default_backend(kind)
    made._register_backend(CUDA, kind, backend(store, rank, size, **more))
    made._set_group_name(more["name"])
    return made
