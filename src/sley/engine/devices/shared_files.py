"""Files in memory that the processes of an executor share: made by one, mapped by all."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from sley.engine.devices.device import Bytes
from sley.errors.devices import K514

_FOLDER = "/dev/shm"


@contextmanager
def shared_file(size_bytes: int) -> Iterator[str]:
    """The path of a new file of zeros, which is removed at the end of the context: by then all
    processes have mapped it. K514 if there is no room."""
    try:
        folder = _FOLDER if os.access(_FOLDER, os.W_OK) else None
        descriptor, path = tempfile.mkstemp(prefix="sley-", dir=folder)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise K514.error(
            expected=f"{size_bytes} bytes that processes share", found=str(problem)
        ) from problem
    try:
        yield path
    finally:
        with suppress(OSError):
            Path(path).unlink()


def map_bytes(path: str, size_bytes: int) -> Bytes:
    """The bytes of a file, mapped as long as the array is alive; K514 if they can't be."""
    try:
        with Path(path).open("r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
    except (OSError, ValueError) as problem:
        raise K514.error(
            expected="a file that all processes map", found=f"{path}: {problem}"
        ) from problem
