"""Allocation: raises R507, naming the requested size, when memory runs out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from sley.engine.native import LARGEST
from sley.errors import SleyError
from sley.errors.communicator import N610
from sley.errors.runtime import R507

_T = TypeVar("_T")

BEYOND = "less, on any machine"
"""The finding of R507 for sizes beyond the engine's integers."""


class HostBytes:
    """Bytes of the host for NumPy: `np.asarray` makes an array over them that keeps this object
    alive. The memory's owner frees it when this object is collected (`weakref.finalize`)."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def allocate(create: Callable[[], _T], what: str, size_bytes: int) -> _T:
    """The result of `create`, which allocates `size_bytes` of memory for `what`. Errors: R507 if
    memory runs out, N610 if the limit of descriptors is reached."""
    if size_bytes > LARGEST:
        raise no_memory(what, size_bytes, BEYOND)
    try:
        return create()
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            found = os.strerror(error.errno)
            raise N610.error(expected=f"a descriptor for {what}", found=found) from error
        raise R507.error(
            expected=f"{size_bytes:,} bytes of memory for {what}",
            found=str(error) or "less",
            remedy=_remedy(error, size_bytes),
        ) from error


_REMEDIES: Mapping[int, str] = {
    errno.EDQUOT: "Raise SLEY_HEAP_BYTES if the machine has more memory, or use fewer or smaller "
    "arrays.",
    errno.EFBIG: "Raise the limit of the sizes of files (ulimit -f): shared memory is a file.",
    **dict.fromkeys(
        (errno.EPERM, errno.EACCES, errno.ENOSYS),
        "Allow the system call: a container's seccomp profile, or a sandbox, refuses it.",
    ),
}


def _remedy(error: Exception, size_bytes: int) -> str:
    """What helps against an error that isn't a lack of memory; empty for other errors."""
    if not isinstance(error, OSError):
        return ""
    is_of_addresses = error.errno == errno.ENOMEM and str(error.strerror).startswith("mmap")
    if is_of_addresses and size_bytes <= memory_of_machine():
        return (
            "Raise the limit of the process' addresses (ulimit -v), or of its mappings (sysctl "
            "vm.max_map_count)."
        )
    return _REMEDIES.get(error.errno or 0, "")


def memory_of_machine() -> int:
    """Its bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def no_memory(what: str, size_bytes: int, found: str) -> SleyError:
    """R507 for `what`, whose size is `size_bytes`."""
    return R507.error(expected=f"{size_bytes:,} bytes of memory for {what}", found=found)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that the system is out of memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )
