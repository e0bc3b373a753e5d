"""The cache of what was compiled: files on disk, named by what they were made of.

Kernels lie in the folder `kernels` of $SLEY_CACHE_DIR, or of $XDG_CACHE_HOME/sley, or of
~/.cache/sley; other things in folders beside it. A name holds a digest of what the file was made of
and one of the file itself, so a file that was cut short or changed doesn't fit its name, and is
made anew. Files appear whole or not at all. Of several processes that want the same file one makes
it, and the others wait. A folder that can't be written is no error: nothing is kept then.
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
    except RuntimeError:  # a user without a home: a place where nothing can be kept
        return Path(os.devnull) / section


def cached(key_parts: Sequence[str | bytes], suffix: str, build: Callable[[Path], None]) -> Path:
    """The file made of `key_parts`, from the cache if it is there.

    key_parts: all that the file depends on: text, options, the compiler's version, the platform.
    suffix: the end of its name, ".so". build: writes the file to the path that it is given; what
    it raises is passed on, and nothing is kept. Where the cache can't be written, the file lies
    in a folder that goes when this process ends.
    """
    key, place = _key(key_parts), folder()
    with _locked(place, key):
        found = _found(place, key, suffix)
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
    """The bytes made of `key_parts`, from the cache if they are there, else those of `build`;
    see `cached`. section: the folder of the cache."""
    key, place = _key(key_parts), folder(section)
    with _locked(place, key):
        found = _found(place, key, suffix)
        if found is not None:
            return found[1]
        content = build()
        _keep(place, key, suffix, content)
        return content


def _key(parts: Sequence[str | bytes]) -> str:
    """A digest of the parts, each with its length, so that ("ab", "c") isn't ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _name(key: str, suffix: str, content: bytes) -> str:
    return f"{key}.{hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]}{suffix}"


def _found(place: Path, key: str, suffix: str) -> tuple[Path, bytes] | None:
    """A file of the key that fits its name, and what is in it; files that don't fit go."""
    with contextlib.suppress(OSError):
        for path in sorted(place.glob(f"{key}.*{suffix}")):
            content = _content(path)
            if content is not None and path.name == _name(key, suffix, content):
                return path, content
            _remove(path)
    return None


def _content(path: Path) -> bytes | None:
    """What is in a file; None for what is none, such as a link to a device that never ends."""
    try:
        # A pipe is not waited for: without a writer it is empty at once.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except OSError:
        return None


def _keep(place: Path, key: str, suffix: str, content: bytes) -> Path | None:
    """Put a file into the cache; None where that can't be done."""
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
    """Nobody else builds the key; where files can't be locked, somebody may, and does no harm.

    The lock's file is removed while it is held. Who waits for it then holds a file without a name,
    and who comes later makes another: both find what was built.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            # For nobody else: what lies here is run.
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
