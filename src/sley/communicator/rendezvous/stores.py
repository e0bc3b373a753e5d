"""Stores: where ranks leave messages for one another until they have found one another.

Rank 0 collects the ranks' values and answers each of them (gather.py), so rank 0 is the sender or
the receiver of every message. A message has one writer, and one reader, which deletes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from sley.errors import SleyError
from sley.errors.communicator import N605

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
"""Pauses between looks into a store; each is twice as long as the one before."""


@runtime_checkable
class Store(Protocol):
    """Messages between rank 0 and the others. One thread at a time uses it for one communicator.

    A `topic` has at most one message from `src` to `dst`. Errors: N605 if the store itself fails.
    """

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        """Stores a message unless there is one; returns the message that is there now."""
        ...

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        """The message, waiting for it up to `timeout_s`; None if it doesn't arrive."""
        ...

    def delete(self, topic: str, src: int, dst: int) -> None:
        """Deletes the message, if it is there."""
        ...

    def has(self, topic: str, src: int, dst: int) -> bool:
        """Whether the message is there, unread; also True if only its reader can tell."""
        ...


class KeyValueStore(ABC):
    """A Store over anything that keeps values by key.

    It polls instead of waiting in the store: while one thread waits in a torch store, other threads
    can't use it, and the store prints a warning when the wait times out.
    """

    def __repr__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def _put(self, key: str, value: bytes) -> bytes:
        """Stores the value unless the key has one; returns the key's value. Atomic."""

    @abstractmethod
    def _find(self, key: str) -> bytes | None:
        """The value of a key, or None, without waiting."""

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Deletes a key, if it is there."""

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        return self._put(_key(topic, src, dst), value)

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        key = _key(topic, src, dst)
        return _poll(lambda: self._find(key), timeout_s)

    def delete(self, topic: str, src: int, dst: int) -> None:
        self._delete(_key(topic, src, dst))

    def has(self, topic: str, src: int, dst: int) -> bool:
        return self._find(_key(topic, src, dst)) is not None


def _key(topic: str, src: int, dst: int) -> str:
    return f"{topic}/{src}/{dst}"


def _poll(find: Callable[[], bytes | None], timeout_s: float) -> bytes | None:
    end, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while (value := find()) is None:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return value


_ABSENT = "?"
"""A value that differs from all messages: these are longer."""


class TorchStore(KeyValueStore):
    """A store of torch.distributed, of any class: TCPStore, FileStore, HashStore, PrefixStore.

    store: the object; torch itself is not imported here.
    """

    def __init__(self, store: Any) -> None:
        if not callable(getattr(store, "compare_set", None)):
            raise N605.error(
                expected="a store of torch.distributed", found=f"{type(store).__name__}"
            )
        self.store = store

    def __repr__(self) -> str:
        return f"TorchStore({type(self.store).__name__})"

    def _put(self, key: str, value: bytes) -> bytes:
        return bytes(self._call("compare_set", key, "", value))

    def _find(self, key: str) -> bytes | None:
        # No other method of the store neither waits nor fails if another rank deletes the key
        # meanwhile. A missing key stays missing, and the expected value is returned.
        value = self._call("compare_set", key, _ABSENT, _ABSENT)
        return None if value == _ABSENT.encode() else value

    def _delete(self, key: str) -> None:
        self._call("delete_key", key)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.store, method)(*arguments)
        except (RuntimeError, NotImplementedError) as error:  # torch's DistError is a RuntimeError
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise N605.error(
                expected=f"an answer of the {type(self.store).__name__}", found=words[0]
            ) from error


class FolderStore(KeyValueStore):
    """A folder that all ranks see, with a file for each unread message.

    folder: made if it is missing. It must support hard links, as NFS and all local file systems do.
        Only this user can read the files; none remains, unless a rank is killed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error) from error

    def __repr__(self) -> str:
        return f"FolderStore({str(self._folder)!r})"

    def _put(self, key: str, value: bytes) -> bytes:
        path = self._path(key)
        draft = path.with_suffix(f".{uuid4().hex}")
        try:
            # For this user alone: a message may contain the job's secret.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(value)
            while True:
                # A link appears with its whole content, and never replaces another.
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(draft)
                    return value
                present = self._find(key)
                if present is not None:
                    return present
        except OSError as error:
            raise self._failure(error) from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _find(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error) from error

    def _delete(self, key: str) -> None:
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from error

    def _path(self, key: str) -> Path:
        # A digest, since names of communicators may be long and contain any characters.
        return self._folder / f"sley-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def _failure(self, error: OSError) -> SleyError:
        return N605.error(
            expected="a writable folder on a file system with hard links",
            found=f"{self._folder}: {error.strerror or error}",
        )


class LocalStore(KeyValueStore):
    """A store for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        """The number of unread messages."""
        return len(self._values)

    def _put(self, key: str, value: bytes) -> bytes:
        with self._lock:
            return self._values.setdefault(key, value)

    def _find(self, key: str) -> bytes | None:
        return self._values.get(key)

    def _delete(self, key: str) -> None:
        self._values.pop(key, None)


class MpiStore:
    """A Store over a duplicate of an mpi4py communicator: all ranks make their MpiStore together. A
    store serves one communicator of sley at a time; after a failed start make a new store, since
    messages of the old one may still be in flight.

    comm: an intracommunicator; its ranks are those of sley's communicator. mpi4py itself is not
        imported here.
    """

    def __init__(self, comm: Any) -> None:
        if not callable(getattr(comm, "improbe", None)):
            raise N605.error(expected="a communicator of mpi4py", found=f"{type(comm).__name__}")
        self._comm = comm.Dup()
        self._rank: int = comm.Get_rank()
        self._ranks: int = comm.Get_size()
        self._sent: list[Any] = []

    def __repr__(self) -> str:
        return "MpiStore"

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        if dst == self._rank:
            return value
        self._sent.append(self._call(self._comm.isend, (topic, value), dest=dst))
        return value

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        if src == self._rank:
            return None
        return _poll(lambda: self._newest(topic, src), timeout_s)

    def delete(self, topic: str, src: int, dst: int) -> None:
        """Does nothing: receiving a message of MPI deletes it."""

    def has(self, topic: str, src: int, dst: int) -> bool:
        """Whether any message of this rank is still in flight; the test makes MPI progress."""
        if src != self._rank:
            return True
        # mpi4py's requests own the messages' memory, so they are kept until these have arrived.
        self._sent = [request for request in self._sent if not self._call(request.Test)]
        return bool(self._sent)

    def _newest(self, topic: str, src: int) -> bytes | None:
        """The last message that has arrived; earlier ones are of failed starts."""
        value: bytes | None = None
        while (message := self._call(self._comm.improbe, source=src)) is not None:
            about, content = self._call(message.recv)
            value = content if about == topic else value
        return value

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except RuntimeError as error:  # mpi4py's Exception is one
            raise N605.error(
                expected=f"MPI to pass messages among its {self._ranks} ranks", found=str(error)
            ) from error
