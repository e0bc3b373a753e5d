"""Stores: where ranks leave messages for one another until they have found one another.

Rank 0 collects what the ranks say and answers each of them (gather.py), so all messages go to rank
0 or come from it. A message has one writer and one reader, who deletes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from sley.errors import SleyError
from sley.errors.communicator import N605

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05
"""Pauses between looks into a store; each is twice the one before."""


@runtime_checkable
class Store(Protocol):
    """Messages between rank 0 and the others. One thread at a time uses it for one communicator.

    `topic` says what a message is about; there is at most one message about it from `src` to `dst`.
    Errors: N605 where the store itself fails.
    """

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        """Leaves a message, unless one is there; returns the one that is there now."""
        ...

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        """The message, waiting for it up to `timeout_s`; None where it doesn't come."""
        ...

    def delete(self, topic: str, src: int, dst: int) -> None:
        """Takes the message away, if it is there."""
        ...

    def has(self, topic: str, src: int, dst: int) -> bool:
        """Whether the message is there, unread; True too where only its reader could tell."""
        ...


class KeyValueStore(ABC):
    """A Store over anything that keeps values by key.

    It looks again and again instead of waiting in the store: a torch store that many threads share
    serves nobody else while one waits in it, and prints a warning when the wait ends in vain.
    """

    @abstractmethod
    def _put(self, key: str, value: bytes) -> bytes:
        """Keeps the value, unless the key has one; returns what the key has now. In one step."""

    @abstractmethod
    def _find(self, key: str) -> bytes | None:
        """The value of a key, or None, at once."""

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Forgets a key, if it is known."""

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        return self._put(_key(topic, src, dst), value)

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        key, end, pause_s = _key(topic, src, dst), time.monotonic() + timeout_s, FIRST_PAUSE_S
        while (value := self._find(key)) is None:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return value

    def delete(self, topic: str, src: int, dst: int) -> None:
        self._delete(_key(topic, src, dst))

    def has(self, topic: str, src: int, dst: int) -> bool:
        return self._find(_key(topic, src, dst)) is not None


def _key(topic: str, src: int, dst: int) -> str:
    return f"{topic}/{src}/{dst}"


_ABSENT = "?"
"""What no message is: messages are longer."""


class TorchStore(KeyValueStore):
    """A store of torch.distributed, of any class: TCPStore, FileStore, HashStore, PrefixStore.

    store: the object; torch itself is not imported here.
    """

    def __init__(self, store: Any) -> None:
        if not callable(getattr(store, "compare_set", None)):
            raise N605.error(
                expected="a store of torch.distributed", found=f"{type(store).__name__}"
            )
        self._store = store

    def _put(self, key: str, value: bytes) -> bytes:
        return bytes(self._call("compare_set", key, "", value))

    def _find(self, key: str) -> bytes | None:
        # The only look at a key that neither waits nor fails when another rank deletes the key
        # meanwhile: what isn't there isn't replaced, and what was expected comes back.
        value = self._call("compare_set", key, _ABSENT, _ABSENT)
        return None if value == _ABSENT.encode() else value

    def _delete(self, key: str) -> None:
        self._call("delete_key", key)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._store, method)(*arguments)
        except (RuntimeError, NotImplementedError) as error:  # torch's DistError is a RuntimeError
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise N605.error(
                expected=f"an answer of the {type(self._store).__name__}", found=words[0]
            ) from error


class FolderStore(KeyValueStore):
    """A folder that all ranks see: a file for each message, as long as nobody has read it.

    folder: made if it isn't there. It must allow hard links, which NFS and all local file systems
        do. Only this user can read the files; none remains, unless a rank is killed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error) from error

    def _put(self, key: str, value: bytes) -> bytes:
        path = self._path(key)
        draft = path.with_suffix(f".{uuid4().hex}")
        try:
            # For this user alone: a message may hold the job's secret.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(value)
            while True:
                # A link appears with its content, or not at all, and never replaces another.
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
        # A digest, since names of communicators may be long and hold anything.
        return self._folder / f"sley-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def _failure(self, error: OSError) -> SleyError:
        return N605.error(
            expected="a folder that can be written, on a file system with hard links",
            found=f"{self._folder}: {error.strerror or error}",
        )


class LocalStore(KeyValueStore):
    """A store for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        """How many messages nobody has read."""
        return len(self._values)

    def _put(self, key: str, value: bytes) -> bytes:
        with self._lock:
            return self._values.setdefault(key, value)

    def _find(self, key: str) -> bytes | None:
        return self._values.get(key)

    def _delete(self, key: str) -> None:
        self._values.pop(key, None)


class MpiStore:
    """A Store over an mpi4py communicator, of which it makes a duplicate: all ranks make their
    MpiStore together. A store serves one communicator of sley at a time; after a start that failed
    make a new one, since messages of the old one may still be under way.

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

    def put(self, topic: str, src: int, dst: int, value: bytes) -> bytes:
        if dst == self._rank:
            return value
        self._sent.append(self._call(self._comm.isend, (topic, value), dest=dst))
        return value

    def get(self, topic: str, src: int, dst: int, timeout_s: float) -> bytes | None:
        if src == self._rank:
            return None
        end, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while (value := self._newest(topic, src)) is None:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return value

    def delete(self, topic: str, src: int, dst: int) -> None:
        """Nothing: who reads a message of MPI takes it."""

    def has(self, topic: str, src: int, dst: int) -> bool:
        """For messages of this rank, whether any is still under way, which asking moves on."""
        if src != self._rank:
            return True
        # mpi4py's requests hold the messages' memory, so they are kept until then.
        self._sent = [request for request in self._sent if not self._call(request.Test)]
        return bool(self._sent)

    def _newest(self, topic: str, src: int) -> bytes | None:
        """The last of the messages that are there; earlier ones are of starts that failed."""
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
