"""Disk cache: compiled files on disk, named by their inputs.

The cache is $SLEY_CACHE_DIR, or $XDG_CACHE_HOME/sley, or ~/.cache/sley; kernels are in its folder
`kernels`, other files in other folders. A name contains a digest of the file's inputs and one of
its content, so a truncated or changed file does not match its name, and is made again. Files are
never visible in part. If several processes need the same file, one makes it, and the others wait
as long as that one is seen to be at work: a stopped process, or a file system that doesn't answer,
holds no other up for longer than `PATIENCE_S`. A folder that can't be written is not an error; it
keeps nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from sley.errors.aside import LateError, within

T = TypeVar("T")

KERNELS = "kernels"
"""The folder of compiled kernels, within the cache."""

_DIGEST_CHARACTERS = 32

PATIENCE_S = 2.0
"""How long a process waits for the file system, and for a sign of life of a lock's owner."""

_SIGN_S, _LOOK_S = 0.25, 0.01
"""How often a lock's owner gives a sign of life, and how often others look for it."""


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
    built: list[Path] = []

    def content() -> bytes:
        handle, name = tempfile.mkstemp(suffix, prefix="", dir=_folder_of_this_process().name)
        os.close(handle)
        built.append(Path(name))
        build(built[0])
        return built[0].read_bytes()

    try:
        path, _ = _make(folder(), _key(key_parts), suffix, content)
    except BaseException:
        _remove(*built)
        raise
    if path is None:
        return built[0]
    _remove(*built)
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


def is_cached(key_parts: Sequence[str | bytes], suffix: str) -> bool:
    """Whether the cache has the bytes made of `key_parts` by `cached_bytes`."""
    return _Turn(folder(), _key(key_parts), suffix).found() is not None


def _make(
    place: Path, key: str, suffix: str, build: Callable[[], bytes]
) -> tuple[Path | None, bytes]:
    """The file of a key, built if it isn't there, and its content; None for a file that could not
    be kept."""
    turn = _Turn(place, key, suffix)
    try:
        found = turn.wait()
        if found is not None:
            return found
        with turn.at_work():
            content = build()
        return turn.ask(_keep, place, key, suffix, content), content
    finally:
        turn.end()


class _Turn:
    """This process' turn to make the file of a key, by a lock. Without the lock several processes
    may make the file, which is harmless.

    All that asks the file system runs aside. Once an answer is late, nothing is asked any more.
    """

    def __init__(self, place: Path, key: str, suffix: str) -> None:
        self._find = partial(_find, place, key, suffix)
        self._path = place / f"{key}.lock"
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


def _find(place: Path, key: str, suffix: str) -> tuple[Path, bytes] | None:
    """A file of the key whose content matches its name, and the content; deletes other files of the
    key."""
    with contextlib.suppress(OSError):
        for path in sorted(place.glob(f"{key}.*{suffix}")):
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


def _keep(place: Path, key: str, suffix: str, content: bytes) -> Path | None:
    """Puts a file into the cache; None if the cache can't be written."""
    path = place / _name(key, suffix, content)
    try:
        handle, name = tempfile.mkstemp(".new", dir=path.parent)
    except OSError:
        return None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        _remove(Path(name))
        return None
    return path


def _open_lock(path: Path) -> int | None:
    """The file of a lock, in a new folder if there is none; None if it can't be made."""
    with contextlib.suppress(OSError):
        # Only for this user, because the files are executed.
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
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


@cache
def _folder_of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sley-")


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
