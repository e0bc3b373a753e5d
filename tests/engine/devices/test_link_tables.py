"""Link tables: what a communicator needs to open without Python, made ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import fake_driver
import pytest

from sley.communicator import link_tables
from sley.communicator.calls import ready_kind
from sley.compiler.deployment.nccl_programs import KERNELS, TABLES
from sley.engine import native
from sley.engine.devices import link_layout
from sley.engine.kernels import Platform
from sley.engine.kernels.prebuilt import PACKAGE, file_of
from sley.errors import SleyError

KEYS = [
    native.LinkKey(2, True, False, 4),
    pytest.param(native.LinkKey(3, True, True, 32), marks=pytest.mark.slow),
]
SHOWS = f"import os; print(os.environ.get({TABLES!r}), os.environ.get({KERNELS!r}))"


@pytest.mark.parametrize("key", KEYS)
def test_tables_are_made_again_with_the_same_bytes(key: native.LinkKey) -> None:
    written = link_tables.link_tables(key).to_bytes()
    link_layout.layout_of.cache_clear()
    assert link_tables.link_tables(key).to_bytes() == written
    read = native.LinkTables.from_bytes(written)
    assert (read.to_bytes(), len(read.digest)) == (written, 16)
    assert read.scratch < 1 << 20, "a plan for calls of any size needs scratch"
    assert link_tables.link_tables(key, platform=Platform.CPU).to_bytes() != written


@pytest.mark.parametrize("key", KEYS)
def test_kernels_of_the_tables_are_prebuilt(
    key: native.LinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings")
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / ".ci")
    files = set(map(file_of, import_module("prebuild").texts()))
    assert link_tables.link_tables(key).files <= files


def test_parts_that_dont_fit_are_refused() -> None:
    with pytest.raises(SleyError) as caught:
        native.LinkTables(
            KEYS[0],
            "1",
            512,
            [],
            [0, 0],
            0,
            [("all_reduce", ready_kind("all_reduce"), 0, [], [0])],
            [],
            "messages",
        )
    assert caught.value.code == "F425"


def exec_shows(folder: Path, *options: str, **more: str) -> tuple[str, str]:
    """The variables that a program gets, and the notes of `sley exec`, over the stand-in for the
    driver of two devices."""
    program = ["--", sys.executable, "-c", SHOWS]
    done = subprocess.run(
        [sys.executable, "-m", "sley", "exec", *options, *program],
        env=fake_driver.environment(folder)
        | {"SLEY_CACHE_DIR": str(fake_driver.own_cache(folder))}
        | more,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_exec_makes_the_tables_of_this_machine_once(tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    shown, told = exec_shows(tmp_path, "--ranks", "2,3", **path)
    tables, kernels = shown.split()
    assert "plans for 2, 3 ranks are made" in told
    assert f"{kernels} lacks" in told
    assert Path(kernels) == package
    written = [native.LinkKey(2, True, False, 4), native.LinkKey(3, True, False, 2)]
    assert {path.name for path in Path(tables).iterdir()} == {key.file_name() for key in written}
    (Path(tables) / written[1].file_name()).write_bytes(b"")
    again = exec_shows(tmp_path, "--ranks", "2,3", **path)
    assert (again[0], "plans for 3 ranks are made" in again[1]) == (shown, True)


def test_exec_says_why_sley_runs_nothing(tmp_path: Path) -> None:
    found, told = exec_shows(tmp_path)
    assert (found, "its extra `kernels` isn't installed" in told) == ("None None\n", True)
    asked = ["exec", "--ranks", "99", "--", sys.executable, "-c", SHOWS]
    refused = subprocess.run(
        [sys.executable, "-m", "sley", *asked],
        env=fake_driver.environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no plans for --ranks: its extra `kernels` isn't installed" in refused.stderr
    assert exec_shows(tmp_path, SLEY_NCCL="off") == ("None None\n", "")
    found, told = exec_shows(tmp_path, **{KERNELS: str(tmp_path)}, LD_LIBRARY_PATH="")
    assert (found, "expected NVIDIA's driver" in told) == (f"None {tmp_path}\n", True)
    (tmp_path / "cache").chmod(0o777)
    found, told = exec_shows(tmp_path, **{KERNELS: str(tmp_path)})
    assert (found, "all users can write to it" in told) == (f"None {tmp_path}\n", True)
