"""Disk cache: compiled files on disk, named by their inputs.

The cache is $SLEY_CACHE_DIR, or $XDG_CACHE_HOME/sley, or ~/.cache/sley; kernels are in its folder
`kernels`, other files in other folders. A name contains a digest of the file's inputs and one of
its content, so a truncated or changed file does not match its name, and is made again. Files are
never visible in part. If several processes need the same file, one makes it and the others wait.
A folder that can't be written is not an error; it keeps nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

KERNELS = "kernels"
"""The folder of compiled kernels, within the cache."""

_DIGEST_CHARACTERS = 32


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
    key, place = _key(key_parts), folder()
    with _locked(place, key):
        found = _find(place, key, suffix)
        if found is not None:
            return found[0]
        handle, name = tempfile.mkstemp(suffix, f"{key}.", _folder_of_this_process().name)
        os.close(handle)
        path = Path(name)
        try:
            build(path)
            kept = _keep(place, key, suffix, path.read_bytes())
        except BaseException:
            _remove(path)
            raise
        if kept is None:
            return path
        _remove(path)
        return kept


def cached_bytes(
    key_parts: Sequence[str | bytes],
    suffix: str,
    build: Callable[[], bytes],
    *,
    section: str = KERNELS,
) -> bytes:
    """The bytes made of `key_parts`, from the cache if they are there, else from `build`; otherwise
    as `cached`. section: the folder of the cache."""
    key, place = _key(key_parts), folder(section)
    with _locked(place, key):
        found = _find(place, key, suffix)
        if found is not None:
            return found[1]
        content = build()
        _keep(place, key, suffix, content)
        return content


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


@contextlib.contextmanager
def _locked(place: Path, key: str) -> Iterator[None]:
    """Lets only one process build the key. Without locks, several may, which is harmless.

    The lock's file is removed while the lock is held. A process that waits for it then holds a file
    without a name, and a later process makes another lock: both find the built file.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            # Only for this user, because the files are executed.
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o700, exist_ok=True)
            path = place / f"{key}.lock"
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = stack.enter_context(os.fdopen(os.open(path, flags, 0o600), "wb"))
            stack.callback(_remove, path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _folder_of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sley-")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
