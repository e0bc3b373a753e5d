"""C++ programs that tests build from the compiled sources, cached by content.

Many sources are compiled as one text, because most of the time would go to the headers, once for
each source: so all tests under a sanitizer are one program, over what all programs under it share.
The key of a text is made of the sources, the headers that they include, its flags and the compiler:
tests, processes, runs and clones share unchanged ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from sley.errors.disk_cache import cached

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "native"
NATIVE = ROOT / "native"
PRIMITIVES = ROOT / "src" / "sley" / "engine" / "kernels" / "primitives"  # half.hpp
INCLUDES = (NATIVE, PRIMITIVES)
SANITIZERS = ("thread", "address")
"""The sanitizers of `make test`; addresses come with the cheap checks of undefined behaviour.
ALL_SANITIZERS, of `make slow`: with all of these, which take twice as long to compile."""
ALL_SANITIZERS = "address,undefined"
EVERY_SANITIZER = (*SANITIZERS, pytest.param(ALL_SANITIZERS, marks=pytest.mark.slow))
FEWER_SANITIZERS = ("thread", EVERY_SANITIZER[-1])
"""Where other tests check addresses: they are left to `make slow`."""

SOURCES = {
    name: tuple(NATIVE / path for path in paths.split())
    for name, paths in re.findall(
        r"set\((\w+)([^)]*)\)", re.sub(r"#.*", "", (NATIVE / "sources.cmake").read_text())
    )
}
"""The sources of each part, as native/sources.cmake lists them."""

_BASE = ("FABRIC", "ENGINE", "MEETING", "DEVICES", "CUDA")
RANK = NATIVE / "devices" / "device_rank.cpp"
"""Ranks on GPUs, for which some tests have stand-ins."""

BASE = tuple(path for part in _BASE for path in SOURCES[part] if path != RANK)
"""What programs under a sanitizer share."""

SKIPPED = 77
"""The exit status of a test that this machine cannot run."""
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_FLAGS = ("-std=c++17", "-pthread", "-include", "string", "--param", "ggc-min-heapsize=400000")
"""GCC collects garbage first at 400 MB: a tenth of its time."""
_OPTIONS = {  # higher levels of optimisation take longer to compile than they save in runs
    # GCC warns that the sanitizer of threads ignores fences.
    "thread": ("-Og", "-DSLEY_RELEASE_MAY_BREAK", "-Wno-tsan"),
    "address": (
        "-O0",
        *("--param", "asan-instrumentation-with-call-threshold=0"),  # calls are compiled faster
        "-fsanitize=bool,bounds,enum,integer-divide-by-zero,shift,signed-integer-overflow",
    ),
    ALL_SANITIZERS: ("-Og",),
}
_ADDRESSES = (
    "crowd",
    "devices",
    "engine",
    "fifo",
    "meeting",
    "network",
    "processes",
    "reduce",
    "simulator",
    "ways",
)
_TESTS = {
    "thread": ("devices", "engine", "meeting", "messages", "network", "processes", "ways"),
    "address": _ADDRESSES,
    ALL_SANITIZERS: (*_ADDRESSES, "messages"),
}
"""The tests that run with each sanitizer."""


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
def _check_sanitizers(sanitizers: str) -> None:
    """Skips the test if the run-time library of `sanitizers` is missing or does not work."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text("int main() {}\n")
        command = [compiler(), f"-fsanitize={sanitizers}", source, "-o", program]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip(f"no run-time library for -fsanitize={sanitizers}")
        if subprocess.run([program], capture_output=True).returncode:
            pytest.skip(f"programs with -fsanitize={sanitizers} do not start here")


def link(
    tests: Sequence[str],
    sources: Sequence[Path],
    *flags: str,
    over: Sequence[Path] = (),
) -> Path:
    """The program of some sources and of tests, of which its first argument names one.

    over: further sources, compiled as one text for all programs with these flags.
    """
    sources = [*sources, *(path for test in tests for path in sorted(TESTS.glob(f"{test}_*.cpp")))]
    text = ""
    if tests:
        calls = (
            f'if (std::string("{test}") == arguments[1]) '
            f"return sley::{test}_test::test(count - 1, arguments + 1);\n"
            for test in tests
        )
        text = f"int main(int count, char** arguments) {{\n{''.join(calls)}return 2;\n}}\n"
    # Beside one another: a test that needs the same program waits for both.
    parts = [(sources, text), *([(over, "")] if over else [])]
    with ThreadPoolExecutor() as pool:
        objects = pool.map(lambda part: _built(part[0], ".o", *flags, "-c", text=part[1]), parts)
    program = _built([], ".program", *flags, with_=(*map(str, objects), "-ldl"))
    program.chmod(0o700)
    return program


def _built(
    sources: Sequence[Path], suffix: str, *flags: str, text: str = "", with_: Sequence[str] = ()
) -> Path:
    """What the compiler makes of sources, and a text behind them, with other arguments."""
    options = [*_FLAGS, *flags, *(f"-I{os.path.relpath(folder, ROOT)}" for folder in INCLUDES)]
    text = "".join(f'#include "{os.path.relpath(one, ROOT)}"\n' for one in sources) + text

    def build(path: Path) -> None:
        command = [compiler(), *options, "-x", "c++", "-", "-x", "none", *with_, "-o", str(path)]
        _call(command, text)

    files = dict.fromkeys(file for source in sources for file in (source, *_headers(source)))
    texts = [path.read_bytes() for path in files]
    return cached([_version(), *options, *with_, text, *texts], suffix, build)


def sanitized(
    sanitizers: str, *sources: Path, tests: Sequence[str] = (), over: Sequence[Path] = ()
) -> Path:
    """The program of `sources` and `tests`, or of all tests, with `sanitizers`; skips the test if
    these don't work. over: as in `link`.

    With the variable SLEY_BREAK_RELEASE a program for threads publishes without release.
    """
    _check_sanitizers(sanitizers)
    if not sources:
        tests, over = _TESTS[sanitizers], BASE
        parts = [test.upper() for test in tests if test.upper() not in _BASE]
        sources = tuple(path for part in parts for path in SOURCES.get(part, ()))
    options = ("-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    options = (*options, "-D_GLIBCXX_ASSERTIONS", *_OPTIONS[sanitizers])
    return link(tests, sources, *options, over=over)


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program; the first data race ends it."""
    everything = os.environ | {"TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=100"} | environment
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=everything)


def check_test(sanitizers: str, *arguments: str, **environment: str) -> None:
    """A test with its further arguments passes under `sanitizers`."""
    done = run(sanitized(sanitizers), *arguments, **environment)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr[-4000:]


def check_lost_release(*arguments: str) -> None:
    """The thread sanitizer must object where a test publishes without release."""
    done = run(sanitized("thread"), *arguments, SLEY_BREAK_RELEASE="1")
    assert done.returncode != 0
    assert "data race" in done.stderr


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


def _call(command: Sequence[str], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
