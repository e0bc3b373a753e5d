"""Disk cache: compiled files on disk, named by their inputs.

The cache is $SLEY_CACHE_DIR, or $XDG_CACHE_HOME/sley, or ~/.cache/sley; kernels are in its folder
`kernels`, other files in other folders. A name contains a digest of the file's inputs and one of
its content, so a truncated or changed file does not match its name, and is made again. Files are
never visible in part. If several processes need the same file, one makes it, and the others wait
as long as that one is seen to be at work: a stopped process, or a file system that doesn't answer,
holds no other up for longer than `PATIENCE_S`. Of a process' threads that need the same file, one
makes it. What the folder can't keep the process keeps, and logs this once (N655).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sley.errors import Place, reason_of
from sley.errors.aside import LateError, within
from sley.errors.selection import N655

T = TypeVar("T")

KERNELS = "kernels"
"""The folder of compiled kernels, within the cache."""

_DIGEST_CHARACTERS = 32

PATIENCE_S = 2.0
"""How long a process waits for the file system, and for a sign of life of a lock's owner."""

_SIGN_S, _LOOK_S = 0.25, 0.01
"""How often a lock's owner gives a sign of life, and how often others look for it."""

_MOST_BYTES = 64 << 20
"""What a process keeps in memory: some hundred kernels of 180 KB, more than a job's plans have."""


def folder(section: str = KERNELS) -> Path:
    """A folder of the cache; it may not exist."""
    named = os.environ.get("SLEY_CACHE_DIR")
    if named:
        return Path(named) / section
    caches = os.environ.get("XDG_CACHE_HOME")
    if caches:
        return Path(caches) / "sley" / section
    try:
        return Path.home() / ".cache" / "sley" / section
    except RuntimeError:  # a user without a home gets a place that keeps nothing
        return Path(os.devnull) / section


def cached(key_parts: Sequence[str | bytes], suffix: str, build: Callable[[Path], None]) -> Path:
    """The file made of `key_parts`, from the cache if it is there.

    key_parts: everything that the file depends on: text, options, compiler version, platform.
    suffix: the end of its name, ".so".
    build: writes the file to a path. Its errors are raised, and nothing is kept.

    If the cache can't be written, the file is in a folder that is deleted when this process ends.
    """
    key = _key(key_parts)

    def content() -> bytes:
        # A folder for this file alone: a process that multiprocessing forked ends without the end
        # at which `_own.folder()` would be deleted.
        with tempfile.TemporaryDirectory(prefix="sley-") as own:
            path = Path(own, f"made{suffix}")
            build(path)
            return path.read_bytes()

    path, data = _make(folder(), key, suffix, content)
    if path is None:
        path = _own.folder() / _name(key, suffix, data)
        # By its name its content is right; the loader knows it again, if it isn't another file.
        if not path.exists():
            _write(path, data)
    return path


def cached_bytes(
    key_parts: Sequence[str | bytes],
    suffix: str,
    build: Callable[[], bytes],
    *,
    section: str = KERNELS,
) -> bytes:
    """The bytes made of `key_parts`, from the cache if they are there, else from `build`; otherwise
    as `cached`. section: the folder of the cache."""
    return _make(folder(section), _key(key_parts), suffix, build)[1]


def put(section: str, name: str, content: bytes) -> None:
    """Puts a file into a folder of the cache, under a name by which others open it. OSError if the
    cache can't be written."""
    place = folder(section)
    _make_folder(place)
    _write(place / name, content)


def is_cached(key_parts: Sequence[str | bytes], suffix: str) -> bool:
    """Whether the cache has the bytes made of `key_parts` by `cached_bytes`."""
    place, key = folder(), _key(key_parts)
    return (place, key, suffix) in _own.kept or _Turn(place, key, suffix).found() is not None


def _make(
    place: Path, key: str, suffix: str, build: Callable[[], bytes]
) -> tuple[Path | None, bytes]:
    """The file of a key, built if it isn't there, and its content; None for a file that could not
    be kept."""
    with _own.turn((place, key, suffix)) as kept:
        if kept is not None:
            return None, kept
        turn = _Turn(place, key, suffix)
        try:
            found = turn.wait()
            if found is not None:
                return found
            with turn.at_work():
                content = build()
            why = f"no answer of its file system within {PATIENCE_S:g} s"
            try:
                path = turn.ask(_keep, place, key, suffix, content)
            except OSError as error:
                path, why = None, reason_of(error)
        finally:
            turn.end()
        if path is None:
            _own.keep((place, key, suffix), content, why)
        return path, content


class _Own:
    """What the disk doesn't keep, in the memory of this process, and the turns of its threads. A
    file is identified by its folder, its key and its suffix."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Path, str, str], bytes] = {}
        self._told: set[Path] = set()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.restart()

    def restart(self) -> None:
        """In a forked child, which lacks the threads that hold the locks."""
        self._lock = threading.Lock()
        self._turns: dict[tuple[Path, str, str], threading.Lock] = {}

    def folder(self) -> Path:
        """For files; deleted when the process ends."""
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="sley-")
            return Path(self._folder.name)

    @contextlib.contextmanager
    def turn(self, file: tuple[Path, str, str]) -> Iterator[bytes | None]:
        """This thread's turn to make a file, and the content if the process keeps it."""
        with self._turns.setdefault(file, threading.Lock()):
            try:
                yield self.kept.get(file)
            finally:
                # Those that wait have this lock; who comes later finds what was made.
                self._turns.pop(file, None)

    def keep(self, file: tuple[Path, str, str], content: bytes, why: str) -> None:
        """Keeps the latest, and tells why the cache doesn't, once."""
        root = file[0].parent
        with self._lock:
            is_told = root in self._told
            self._told.add(root)
            self.kept[file] = content
            while sum(map(len, self.kept.values())) > _MOST_BYTES:  # ends: an empty one has 0
                del self.kept[next(iter(self.kept))]
        if not is_told:
            problem = N655.diagnostic(
                at=Place(str(root)), expected="a folder that this user can write to", found=why
            )
            logging.getLogger("sley").warning(
                "what is compiled is kept in this process only\n%s", problem
            )


_own = _Own()
os.register_at_fork(after_in_child=_own.restart)


class _Turn:
    """This process' turn to make the file of a key, by a lock. Without the lock several processes
    may make the file, which is harmless.

    All that asks the file system runs aside. Once an answer is late, nothing is asked any more.
    """

    def __init__(self, place: Path, key: str, suffix: str) -> None:
        shelf = _shelf(place, key)
        self._find = partial(_find, shelf, key, suffix)
        self._path = shelf / f"{key}.lock"
        self._file: int | None = None
        self._is_locked = False
        self._is_late = False

    def ask(self, function: Callable[..., T | None], *arguments: Any) -> T | None:
        """The function's result; None if it is late."""
        if self._is_late:
            return None
        try:
            return within(PATIENCE_S, function, *arguments)
        except (LateError, RuntimeError):  # or no further thread
            self._is_late = True
            return None

    def found(self) -> tuple[Path, bytes] | None:
        """What a process has made; None without."""
        return self.ask(self._find)

    def wait(self) -> tuple[Path, bytes] | None:
        """What another process has made; None if it is this one's turn to make it."""
        found = self.found()
        if found is not None:
            return found
        self._file = self.ask(_open_lock, self._path)
        sign, seen = -1, time.monotonic()
        while self._file is not None and not self._is_locked:
            looked = self.ask(self._look, self._file)
            if looked is None:
                break
            self._is_locked, found, latest = looked
            if found is not None:
                return found
            now = time.monotonic()
            if latest != sign:
                sign, seen = latest, now
            if now - seen > PATIENCE_S:
                break
            if not self._is_locked:
                time.sleep(_LOOK_S)
        return None

    def _look(self, file: int) -> tuple[bool, tuple[Path, bytes] | None, int]:
        """Whether this process has the lock now; then, what is found; the latest sign of life."""
        is_locked = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_locked = False
        except OSError:  # a file system without locks, so there is nothing to wait for
            pass
        return is_locked, self._find(), os.fstat(file).st_mtime_ns

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Gives signs of life, if this process has the lock."""
        ended = threading.Event()

        def sign() -> None:
            while not ended.wait(_SIGN_S):
                with contextlib.suppress(OSError):
                    os.utime(self._path)

        if self._is_locked:
            with contextlib.suppress(RuntimeError):  # no further thread
                threading.Thread(target=sign, name="sley-cache", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def end(self) -> None:
        if self._file is not None:
            self.ask(_close_lock, self._path, self._file, self._is_locked)


def _key(parts: Sequence[str | bytes]) -> str:
    """A digest of the parts, each with its length, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _name(key: str, suffix: str, content: bytes) -> str:
    return f"{key}.{hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]}{suffix}"


def _shelf(place: Path, key: str) -> Path:
    """The folder of a key's files. To find them it is listed, so it shares `place` with others:
    listing all files of a year's versions would take longer than to compile a plan."""
    return place / key[:2]


def _find(shelf: Path, key: str, suffix: str) -> tuple[Path, bytes] | None:
    """A file of the key whose content matches its name, and the content; deletes other files of the
    key."""
    with contextlib.suppress(OSError):
        for path in sorted(shelf.glob(f"{key}.*{suffix}")):
            content = _content(path)
            if content is not None and path.name == _name(key, suffix, content):
                return path, content
            _remove(path)
    return None


def _content(path: Path) -> bytes | None:
    """The content of a file; None for anything but a regular file, such as a device or a link."""
    try:
        # O_NONBLOCK, because opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except OSError:
        return None


def _keep(place: Path, key: str, suffix: str, content: bytes) -> Path:
    """Puts a file into the cache; OSError if the cache can't be written."""
    shelf = _shelf(place, key)
    _make_folder(shelf)  # again, so that the error has the reason
    path = shelf / _name(key, suffix, content)
    _write(path, content)
    return path


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(".new", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        _remove(Path(name))
        raise


def _make_folder(place: Path) -> None:
    # Only for this user, because the files are executed.
    for folder in (place.parent.parent, place.parent, place):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open_lock(path: Path) -> int | None:
    """The file of a lock, in a new folder if there is none; None if it can't be made."""
    with contextlib.suppress(OSError):
        _make_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(path, flags, 0o600)
    return None


def _close_lock(path: Path, file: int, is_locked: bool) -> None:
    """The lock's file is removed while the lock is held. A process that waits for it then holds a
    file without a name, and a later process makes another lock: both find the built file."""
    if is_locked:
        _remove(path)
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file open
    os.close(file)


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
