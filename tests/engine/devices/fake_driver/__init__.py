"""A stand-in for NVIDIA's driver (libcuda.cpp describes it), and tests that use it.

The tests of a file of cases run in a separate process, whose libcuda.so.1 is the stand-in: a
process can load only one driver.
"""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from sley.engine.devices.device import Memory
from sley.errors import SleyError, disk_cache
from sley.errors.disk_cache import cached

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
TEXT = 'extern "C" __global__ void twice(unsigned long long address) {}'
"""A text with one kernel."""

UNKNOWN = -1
"""For `FakeDriver.fail`: the driver has no such entry point."""

_FLAGS = ("-std=c++17", "-O0", "-shared", "-fPIC", "-pthread")


def compile_library(source: Path, library: Path, *flags: str) -> None:
    """Make a shared object of a C++ file; skips the test where there is no compiler."""
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, *_FLAGS, *flags, str(source), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process over the stand-in, which is put into `folder`."""
    source, flags = HERE / "libcuda.cpp", ("-Wl,-soname,libcuda.so.1",)
    key = [source.read_text(), *_FLAGS, *flags]
    library = cached(key, ".so", lambda path: compile_library(source, path, *flags))
    shutil.copy(library, folder / "libcuda.so.1")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "CUDA"))}
    return {
        **kept,
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PYTHONPATH": f"{TESTS}:{HERE.parent}:{os.environ.get('PYTHONPATH', '')}",
    }


def own_cache(folder: Path) -> Path:
    """A cache in a folder, empty but for the plans of all tests: to find those takes seconds."""
    made, plans = folder / "cache", disk_cache.folder("plans")
    if not made.exists():
        made.mkdir()
        plans.mkdir(parents=True, exist_ok=True)
        (made / "plans").symlink_to(plans)
    return made


def cases(path: Path) -> list[str]:
    """The names of the tests in a file, which isn't imported: that may need the stand-in."""
    tree = ast.parse(path.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]


def outcomes(paths: Sequence[Path], folder: Path) -> dict[str, str]:
    """What became of each test in files, run over the stand-in: empty, or why it failed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    names = " ".join(path.name for path in paths)
    done = subprocess.run(
        [*command, f"--junitxml={report}", "-o", f"python_files={names}", *map(str, paths)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert report.exists(), f"ended with {done.returncode}: {done.stdout}{done.stderr}"
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = (case.get("name") or "").partition("[")[0]
        problems = [e.text or e.get("message") or "" for e in case if e.tag != "system-out"]
        found[name] = found.get(name, "") + "\n".join(problems)
    return found


def refused(code: str, call: Any, *arguments: Any, **options: Any) -> SleyError:
    """The error of a call, which must have that code."""
    with pytest.raises(SleyError) as caught:
        call(*arguments, **options)
    assert caught.value.code == code, str(caught.value)
    return caught.value


def array_on(memory: Memory, shape: tuple[int, ...] = (8,), **changed: Any) -> Any:
    """An array of another library's, in a device's memory."""
    interface = {
        "shape": shape,
        "typestr": "<f4",
        "data": (memory.address, False),
        "version": 3,
        "strides": None,
    }
    return SimpleNamespace(__cuda_array_interface__=interface | changed, memory=memory)


class FakeDriver:
    """The stand-in as a test steers it, from within its process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.fake_journal.restype = self._library.fake_hangs.restype = ctypes.c_char_p
        self._library.fake_used.restype = ctypes.c_longlong
        self._library.fake_set.restype = ctypes.c_longlong
        self._library.fake_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
        self._library.fake_kernel.argtypes = [ctypes.c_char_p] + [ctypes.c_size_t] * 2
        self._before: dict[str, int] = {}
        self._failing: set[str] = set()
        self._kernels: set[str] = set()

    def set(self, **settings: int) -> None:
        """Change what the stand-in says of its devices, until `reset`."""
        for name, value in settings.items():
            before = self._library.fake_set(name.encode(), value)
            self._before.setdefault(name, before)

    def fail(self, entry: str, error: int) -> None:
        """Make an entry point return an error of cuda.h, by its number, until `reset`."""
        self._failing.add(entry)
        self._library.fake_fail(entry.encode(), error)

    def reset(self) -> None:
        """Undo `set`, `fail`, `kernel` and `at_launch`, and forget the journal. No call may have
        waited for kernels that didn't end."""
        self.at_launch(None)
        for name, value in self._before.items():
            self._library.fake_set(name.encode(), value)
        for entry in self._failing:
            self._library.fake_fail(entry.encode(), 0)
        for name in tuple(self._kernels):
            self.kernel(name, 0)
        self._before, self._failing, self._kernels = {}, set(), set()
        self.journal()
        assert self._library.fake_hangs() == b""

    def kernel(self, name: str, call_bytes: int, address: int = 0) -> None:
        """What a launch of the kernel `name` does: calls `void kernel(const void* call, int
        blocks)` at an address on the stream's thread; without one, nothing. call_bytes: the size of
        its argument."""
        self._kernels.add(name)
        self._library.fake_kernel(name.encode(), address, call_bytes)

    def at_launch(self, call: Callable[[], None] | None) -> None:
        """Call a function before each launch, until `reset`."""
        self._at_launch = ctypes.CFUNCTYPE(None)(*([call] if call else []))
        self._library.fake_at_launch(self._at_launch)

    def journal(self) -> list[str]:
        """The calls since the last time, a line each; a launch has a second one."""
        return self._library.fake_journal().decode().splitlines()

    def used(self, device: int) -> int:
        """The bytes that a device has given away; -1 is the host."""
        return int(self._library.fake_used(device))
