"""Clients of NCCL for tests, and the stand-in for NVIDIA's NCCL."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sley.compiler.deployment import nccl_programs
from sley.errors.disk_cache import cached
from support.devices.native_programs import NATIVE, TESTS, compiler


def compiled(source: Path, suffix: str, *flags: str) -> Path:
    """A program or a library that is made of a file, cached by content."""
    texts = [path.read_bytes() for path in (source, *sorted((NATIVE / "nccl").iterdir()))]

    def build(path: Path) -> None:
        kind = "c" if source.suffix == ".c" else "c++"
        sources = ("-x", kind, str(source), "-x", "none")
        command = [compiler(), *sources, *flags, f"-I{NATIVE}", "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    made = cached([compiler(), *flags, *texts], suffix, build)
    made.chmod(0o700)
    return made


def stand_in(*flags: str, version: int = 22907) -> Path:
    common = ("-std=c++17", "-shared", "-fPIC", "-pthread", f"-DVERSION={version}")
    source = TESTS / "nccl_stand_in.cpp"
    return compiled(source, ".so", *common, "-Wl,-soname,libnccl.so.2", *flags)


def variables(real: Path | str | None, **more: str) -> dict[str, str]:
    """The environment of a program whose NCCL is sley's, which passes calls on to `real`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLEY_NCCL", "LD_"))}
    given = {} if real is None else {"SLEY_NCCL_LIBRARY": str(real)}
    return {**kept, **given, "LD_PRELOAD": str(nccl_programs.library()), **more}


def output(command: list[str | Path], environment: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def needs_nm() -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
