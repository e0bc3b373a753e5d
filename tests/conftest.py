"""Options, fixtures and profiles that all tests share."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from sley.ir.tables import Value
from support.checks.golden import Golden
from support.generators.examples import SLOW, USUAL

ROOT = Path(__file__).resolve().parent.parent
_MAKERS = [
    "src/sley/errors/disk_cache.py",
    "src/sley/engine/devices/threads.py",
    "src/sley/engine/devices/cuda/compiler.py",
    "src/sley/engine/devices/cuda/machine_code.py",
    "tests/support/devices/device_calls.py",
]
_STATE = sha256(b"".join((ROOT / name).read_bytes() for name in _MAKERS))
_USERS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
CACHES = (_USERS if os.access(_USERS, os.W_OK) else ROOT / "build") / "sley-tests"
CACHE = CACHES / _STATE.hexdigest()[:16]
"""The cache of compiled files, by their content: processes, later runs and other clones share
unchanged files, unless what makes them differs, which may be wrong."""

MOST_CACHE_BYTES = 2 << 30

LONG = {"native", "test_cuda", "test_code_blocks"}
"""Folders and modules with the longest tests, of up to half a minute."""

os.environ.setdefault("SLEY_CACHE_DIR", str(CACHE))

settings.register_profile(
    "ci", max_examples=USUAL, deadline=None, derandomize=True, print_blob=True
)
settings.register_profile("slow", max_examples=SLOW, deadline=None, print_blob=True)
settings.load_profile("ci")  # --hypothesis-profile=slow overrides it


def difference(one: Value, other: Value) -> str:
    """The first difference between two values of one type: the field, and in an array the row with
    both values."""
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(other, f.name)
        name = f"{type(one).__name__}.{f.name}"
        if isinstance(a, Value) and isinstance(b, Value) and a != b:
            return f"{name}: {difference(a, b)}"
        if np.ndim(a) and np.shape(a) == np.shape(b) and not np.array_equal(a, b):
            row = int(np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1))[0])
            return f"{name}, row {row}: {a[row]} != {b[row]}"
        if not np.array_equal(a, b):
            return f"{name}: {a!r} != {b!r}"
    return ""


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """The explanation of a failed comparison of two values: the first difference."""
    if op == "==" and isinstance(left, Value) and type(left) is type(right):
        return [f"two values of {type(left).__name__} differ", difference(left, right)]
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Deletes the oldest files when many changes have filled the caches: what is still needed of
    them is made again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    with suppress(FileNotFoundError):  # another run deletes them
        files = [(path.stat(), path) for path in CACHES.rglob("*.*")]
        left = MOST_CACHE_BYTES
        for state, path in sorted(files, key=lambda file: -file[0].st_mtime):
            left -= state.st_size
            if left < 0:
                path.unlink(missing_ok=True)


def pytest_collection() -> None:
    """Collects tests, not garbage."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the longest tests: at the end, the other processes would wait for them."""
    items.sort(key=lambda item: LONG.isdisjoint([item.path.stem, item.path.parent.name]))


def pytest_collection_finish() -> None:
    """Excludes what collection has made from garbage collections: with thousands of tests each
    would take most of a second. Others are rare: a twentieth of the tests' time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text or bytes with a file in the folder `golden` beside the test."""
    return Golden(request.path.parent / "golden", request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real inputs, which are not part of the project: SLEY_DATA, or
    ../shared/data."""
    named = os.environ.get("SLEY_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            pytest.fail(f"SLEY_DATA is not a folder: {named}")
        pytest.skip("no folder of real inputs; set SLEY_DATA")
    return folder
