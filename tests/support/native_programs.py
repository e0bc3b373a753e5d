"""C++ programs that tests build from the compiled sources, with objects cached by content.

The key of an object is its text, the headers that it includes, its flags and the compiler:
programs, processes and runs share unchanged objects.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from sley.disk_cache import cached

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "native"
NATIVE = ROOT / "native"
PRIMITIVES = ROOT / "src" / "sley" / "codegen" / "primitives"  # half.hpp
INCLUDES = (NATIVE, PRIMITIVES)
SANITIZERS = ("thread", "address,undefined")

SOURCES = {
    name: tuple(NATIVE / path for path in paths.split())
    for name, paths in re.findall(
        r"set\((\w+)([^)]*)\)", re.sub(r"#.*", "", (NATIVE / "sources.cmake").read_text())
    )
}
"""The sources of each part, as native/sources.cmake lists them."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_FLAGS = ("-std=c++17", "-pthread")
_BREAKABLE = "-DSLEY_RELEASE_MAY_BREAK"
_LEVELS = {"thread": "-O1", "address,undefined": "-Og"}
"""The level of optimisation for each sanitizer; higher levels take longer to compile than they save
in runs."""


@cache
def compiler() -> str:
    """The system's C++ compiler; skips the test if there is none."""
    found = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@cache
def _version() -> str:
    return subprocess.check_output([compiler(), "--version"], text=True)


@cache
def _check_sanitizers(sanitizers: str, folder: Path) -> None:
    """Skips the test if the run-time library of `sanitizers` is missing or does not work."""
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text("int main() {}\n")
    command = [compiler(), f"-fsanitize={sanitizers}", source, "-o", program]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"no run-time library for -fsanitize={sanitizers}")
    if subprocess.run([program], capture_output=True).returncode:
        pytest.skip(f"programs with -fsanitize={sanitizers} do not start here")


def link(folder: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Builds the program of some sources in `folder`."""
    program = folder / "program"
    objects = [_compiled(source, flags) for source in sources]
    _call([compiler(), *_FLAGS, *flags, *map(str, objects), "-ldl", "-o", str(program)])
    return program


def sanitized(folder: Path, sanitizers: str, test: str, of: Sequence[Path], *flags: str) -> Path:
    """Builds a test's program with `sanitizers`; skips the test if these don't work.

    With the variable SLEY_BREAK_RELEASE a program for threads publishes without release.
    """
    _check_sanitizers(sanitizers, folder)
    options = (_LEVELS[sanitizers], "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    if sanitizers == "thread":
        options += (_BREAKABLE, "-Wno-tsan")  # GCC warns that this sanitizer ignores fences
    return link(folder, [TESTS / test, *of], *options, *flags)


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program; the first data race ends it."""
    everything = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"} | environment
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=everything)


def check_lost_release(program: Path, *arguments: str) -> None:
    """The thread sanitizer must object where `program` publishes without release."""
    done = run(program, *arguments, SLEY_BREAK_RELEASE="1")
    assert done.returncode != 0
    assert "data race" in done.stderr


def _compiled(source: Path, flags: Sequence[str]) -> Path:
    options = [*_FLAGS, *flags, *(f"-I{folder}" for folder in INCLUDES)]

    def build(path: Path) -> None:
        _call([compiler(), *options, "-c", str(source), "-o", str(path)])

    texts = [path.read_bytes() for path in (source, *_headers(source))]
    return cached([_version(), *options, str(source), *texts], ".o", build)


def _headers(source: Path) -> list[Path]:
    """The files that a source includes by name, directly or indirectly."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        for header in _included(waiting.pop()):
            if header not in found:
                found[header] = None
                waiting.append(header)
    return sorted(found)


@cache
def _included(path: Path) -> tuple[Path, ...]:
    def files() -> Iterator[Path]:
        for name in _INCLUDE.findall(path.read_text()):
            places = [folder / name for folder in (path.parent, *INCLUDES)]
            found = next((place for place in places if place.is_file()), None)
            if found is not None:
                yield found.resolve()

    return tuple(files())


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
