"""The cache of compiled files: hits, no partial files, and no failures of callers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.errors import disk_cache
from sley.errors.aside import LateError, within
from sley.errors.disk_cache import cached, cached_bytes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "_own", disk_cache._Own())
    return tmp_path / "cache" / "kernels"


def files(folder: Path) -> list[Path]:
    """What is in the cache, but for its folders of keys."""
    return list(folder.glob("*/*"))


class Builder:
    """Builds the same content again and again, and counts."""

    def __init__(self, content: bytes = b"machine code") -> None:
        self.content, self.built = content, 0

    def bytes(self) -> bytes:
        self.built += 1
        return self.content

    def file(self, path: Path) -> None:
        path.write_bytes(self.bytes())


def by_bytes(builder: Builder, *parts: str | bytes) -> bytes:
    return cached_bytes(parts or ("text",), ".cubin", builder.bytes)


def by_file(builder: Builder, *parts: str | bytes) -> bytes:
    path = cached(parts or ("text",), ".cubin", builder.file)
    assert path.suffix == ".cubin"
    return path.read_bytes()


Way = Callable[..., bytes]
WAYS = pytest.mark.parametrize("way", [by_bytes, by_file])


@WAYS
def test_the_second_time_nothing_is_built(way: Way, folder: Path) -> None:
    builder = Builder()
    assert way(builder) == way(builder) == b"machine code"
    assert by_bytes(builder) == by_file(builder) == b"machine code"
    assert builder.built == 1
    assert len(files(folder)) == 1, "nothing else is left"


def test_building_leaves_no_folder_in_a_process_that_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if not child:  # as a process of multiprocessing, it ends without its interpreter's end
        os._exit(by_file(Builder()) != b"machine code")
    assert os.waitpid(child, 0)[1] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@WAYS
@pytest.mark.parametrize("other", [("other",), ("te", "xt"), ("text", ""), (b"text", b"sm_90")])
def test_every_part_of_a_key_counts(way: Way, other: tuple[str, ...]) -> None:
    builder = Builder()
    way(builder)
    way(builder, *other)
    assert builder.built == 2


@given(*[st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4)] * 2)
def test_keys_are_equal_where_the_parts_are(one: list[str | bytes], two: list[str | bytes]) -> None:
    def plain(parts: list[str | bytes]) -> list[bytes]:
        return [p.encode() if isinstance(p, str) else p for p in parts]

    assert (disk_cache._key(one) == disk_cache._key(two)) == (plain(one) == plain(two))


def test_files_of_other_suffixes_are_other_files() -> None:
    builder = Builder()
    assert cached(("text",), ".so", builder.file) != cached(("text",), ".cubin", builder.file)
    assert builder.built == 2


@WAYS
@pytest.mark.parametrize("content", [b"", b"machine", b"machine code, changed"])
def test_a_file_that_was_changed_is_made_anew(way: Way, folder: Path, content: bytes) -> None:
    builder = Builder()
    way(builder)
    (file,) = files(folder)
    file.write_bytes(content)
    assert way(builder) == b"machine code"
    assert builder.built == 2
    assert way(builder) == b"machine code"
    assert builder.built == 2


@WAYS
@pytest.mark.parametrize("is_link", [False, True])
def test_an_entry_that_never_ends_is_made_anew(
    way: Way, is_link: bool, folder: Path, tmp_path: Path
) -> None:
    """A pipe, or a link to one: where somebody reads it, he waits for ever."""
    builder = Builder()
    way(builder)
    (kept,) = files(folder)
    kept.unlink()
    os.mkfifo(tmp_path / "pipe")
    if is_link:
        kept.symlink_to(tmp_path / "pipe")
    else:
        (tmp_path / "pipe").rename(kept)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(way(builder)), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [b"machine code"]
    assert builder.built == 2


@WAYS
def test_an_unreadable_file_is_replaced(way: Way, folder: Path) -> None:
    builder = Builder()
    way(builder)
    (file,) = files(folder)
    file.unlink()
    file.mkdir()
    assert way(builder) == b"machine code"
    assert builder.built == 2


@WAYS
@pytest.mark.parametrize("obstacle", ["file", "folder", "nowhere"])
def test_what_a_folder_cannot_keep_the_process_keeps(
    way: Way,
    obstacle: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if obstacle == "file":
        (tmp_path / "cache").write_text("in the way")
    elif obstacle == "folder":  # root writes everywhere, so the name is what can't be made
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "kernels").write_text("in the way")
    else:
        monkeypatch.setenv("SLEY_CACHE_DIR", os.devnull)
    builder = Builder()
    assert way(builder) == way(builder) == by_bytes(builder) == by_file(builder) == b"machine code"
    assert disk_cache.is_cached(("text",), ".cubin")
    assert builder.built == 1
    assert way(builder, "another text") == b"machine code"
    (log,) = caplog.messages
    assert "N655" in log


@WAYS
def test_a_full_disk_keeps_nothing(way: Way, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(disk_cache, "_keep", full)
    builder = Builder()
    assert way(builder) == way(builder) == b"machine code"
    assert builder.built == 1
    assert files(folder) == []


def test_a_process_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", os.devnull)
    monkeypatch.setattr(disk_cache, "_MOST_BYTES", 24)
    builder = Builder()
    for text in ("one", "two", "three", "two", "one"):
        by_bytes(builder, text)
    assert builder.built == 4


@WAYS
def test_an_error_of_building_reaches_the_caller_and_leaves_no_file(way: Way, folder: Path) -> None:
    class Failing(Builder):
        def bytes(self) -> bytes:
            raise ValueError("it does not compile")

    with pytest.raises(ValueError, match="does not compile"):
        way(Failing())
    assert files(folder) == []
    assert way(Builder()) == b"machine code"


def test_the_folder_is_the_first_of_those_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", "/named")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("HOME", "/home/of/someone")
    assert disk_cache.folder() == Path("/named/kernels")
    monkeypatch.delenv("SLEY_CACHE_DIR")
    assert disk_cache.folder() == Path("/caches/sley/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk_cache.folder() == Path("/home/of/someone/.cache/sley/kernels")


@WAYS
def test_a_user_without_a_home_has_no_cache(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.delenv("SLEY_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert way(Builder()) == b"machine code"


@pytest.mark.parametrize("is_kept", [True, False])
def test_threads_that_want_the_same_kernel_wait_for_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    if not is_kept:
        monkeypatch.setenv("SLEY_CACHE_DIR", os.devnull)
    entered, leave = threading.Event(), threading.Event()

    class Slow(Builder):
        def bytes(self) -> bytes:
            entered.set()
            assert leave.wait(30)
            return super().bytes()

    first, others = Slow(), Builder()
    threads = [threading.Thread(target=by_bytes, args=(first,))]
    threads[0].start()
    assert entered.wait(30)
    threads += [threading.Thread(target=by_file, args=(others,)) for _ in range(4)]
    for thread in threads[1:]:
        thread.start()
    assert by_bytes(Builder(), "another text") == b"machine code", "other kernels don't wait"
    leave.set()
    for thread in threads:
        thread.join(30)
    assert (first.built, others.built) == (1, 0)
    assert not is_kept or len(files(folder)) == 2


PROCESS = """
import sys
from pathlib import Path
from sley.errors.disk_cache import cached

def build(path):
    with open(sys.argv[1], "a") as log:
        log.write("built ")
    path.write_bytes(bytes(1 << 20))

for number in range(20):
    path = cached((str(number),), ".so", build)
    assert path.read_bytes() == bytes(1 << 20)
"""


def test_processes_build_each_kernel_once(tmp_path: Path, folder: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROCESS, str(log)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert log.read_text().split() == ["built"] * 20
    assert len(files(folder)) == 20


def test_files_outside_the_cache_are_removed_with_the_process(tmp_path: Path) -> None:
    code = (
        "from sley.errors.disk_cache import cached\n"
        "path = cached(('text',), '.so', lambda path: path.write_bytes(b'code') and None)\n"
        "assert path.read_bytes() == b'code'\n"
        "print(path)"
    )
    environment = {**os.environ, "SLEY_CACHE_DIR": os.devnull, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def hold_lock(folder: Path) -> int:
    """The lock of the key ("text",), as another process has it."""
    file = disk_cache._open_lock(disk_cache._Turn(folder, disk_cache._key(["text"]), "")._path)
    assert file is not None
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


@WAYS
def test_a_lock_whose_owner_shows_no_life_is_not_waited_for(
    way: Way, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "PATIENCE_S", 0.05)
    file, builder = hold_lock(folder), Builder()
    assert way(builder) == way(builder) == b"machine code"
    assert builder.built == 1
    os.close(file)


def test_a_lock_whose_owner_is_at_work_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(1, 100))
    found = folder / "found", b"of another"

    def look(_: Any, file: int) -> tuple[bool, tuple[Path, bytes] | None, int]:
        sign = next(looks)
        return False, found if sign == 50 else None, sign

    file, builder = hold_lock(folder), Builder()
    monkeypatch.setattr(disk_cache._Turn, "_look", look)
    monkeypatch.setattr(disk_cache, "_LOOK_S", 0.0)
    assert by_bytes(builder) == b"of another"
    assert builder.built == 0
    os.close(file)


def test_the_owner_of_a_lock_shows_life_and_leaves_it_to_no_child(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_SIGN_S", 0.001)
    copies: list[int] = []

    def build() -> bytes:
        (lock,) = folder.glob("*/*.lock")
        os.utime(lock, (0, 0))
        end = time.monotonic() + 30
        while not lock.stat().st_mtime:
            assert time.monotonic() < end
        descriptors = (int(path.name) for path in Path("/proc/self/fd").iterdir())
        (own,) = (fd for fd in descriptors if is_file(fd, lock))
        copies.append(os.dup(own))  # as a forked child has it
        return b"machine code"

    assert cached_bytes(("text",), ".cubin", build) == b"machine code"
    file = os.open(f"/proc/self/fd/{copies[0]}", os.O_WRONLY)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)
    os.close(copies[0])


def is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


@WAYS
def test_a_file_system_that_does_not_answer_is_not_waited_for(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(disk_cache, "PATIENCE_S", 0.05)
    monkeypatch.setattr(disk_cache, "_find", lambda *_: stuck.wait())
    assert way(Builder()) == b"machine code"
    stuck.set()


def test_functions_that_end_late_are_left_to_their_thread() -> None:
    """Their results don't come to the next caller."""
    go = threading.Event()
    assert within(30, int, "7") == 7
    with pytest.raises(ValueError, match="invalid"):
        within(30, int, "seven")
    with pytest.raises(LateError):
        within(0.01, go.wait)
    go.set()
    assert within(30, str, 7) == "7"
    assert {thread.name for thread in threading.enumerate()} >= {"sley-aside"}
