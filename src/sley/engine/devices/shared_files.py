"""Files in memory that the processes of an executor share: made by one, mapped by all; and file
descriptors that they pass to one another."""

from __future__ import annotations

import array
import mmap
import os
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from sley.engine.devices.device import Bytes
from sley.errors.devices import K514

_FOLDER = "/dev/shm"
_LATE_S = 30.0
"""By then processes that have met have sent their descriptors."""
_TURN_S = 0.05


@contextmanager
def shared_file(size_bytes: int) -> Iterator[str]:
    """The path of a new file of zeros, which is removed at the end of the context: by then all
    processes have mapped it. K514 if there is no room."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="sley-", dir=_folder())
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


@contextmanager
def descriptor_box() -> Iterator[socket.socket]:
    """A socket to which other processes send file descriptors, by its path, `getsockname`; K514 if
    there is none."""
    with (
        tempfile.TemporaryDirectory(prefix="sley-", dir=_folder()) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box,
    ):
        try:
            box.bind(f"{folder}/box")
        except OSError as problem:
            raise K514.error(
                expected="a socket for other processes", found=str(problem)
            ) from problem
        box.settimeout(_TURN_S)
        yield box


def pass_descriptors(
    box: socket.socket, own: Mapping[int, int], paths: Collection[str], others: int
) -> dict[int, int]:
    """Sends the descriptors of this process's ranks to the boxes of other processes, at `paths`,
    and takes those of the `others` ranks from its own, by rank; the caller closes them. K514 if a
    box isn't reached, or if a process sends none in time."""
    found: dict[int, int] = {}
    try:
        _pass(box, own, [(path, rank) for path in paths for rank in own], others, found)
    except BaseException:  # a descriptor keeps the memory of its process
        for descriptor in found.values():
            os.close(descriptor)
        raise
    return found


def _pass(
    box: socket.socket,
    own: Mapping[int, int],
    left: list[tuple[str, int]],
    others: int,
    found: dict[int, int],
) -> None:
    """Sends what is left to send, by path and rank, and puts what comes into `found`."""
    until = time.monotonic() + _LATE_S
    # A box holds few messages: whoever finds one full goes on to empty his own, so that none waits
    # for ever for another.
    while left or len(found) < others:
        with suppress(TimeoutError):
            while left:
                path, rank = left[-1]
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own[rank]]))
                try:
                    box.sendmsg([b"%d" % rank], [rights], 0, path)
                except TimeoutError:
                    break
                except OSError as problem:
                    raise K514.error(
                        expected="another process's socket for file descriptors, in a folder that "
                        "all processes see",
                        found=f"{path}: {problem}",
                    ) from problem
                left.pop()
            if len(found) < others:
                message, descriptors, _, _ = socket.recv_fds(box, 16, 1)
                found[int(message)] = descriptors[0]
        if time.monotonic() > until:
            raise K514.error(
                expected=f"file descriptors of {others} ranks of other processes",
                found=f"those of {len(found)}",
            )


def _folder() -> str | None:
    return _FOLDER if os.access(_FOLDER, os.W_OK) else None
