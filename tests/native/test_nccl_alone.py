"""sley's library with NCCL's interface where there is no NCCL, or none may be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_nccl_calls import driver, folder, tables

from support.devices.native_programs import TESTS
from support.devices.nccl_clients import output, stand_in, variables

__all__ = ["driver", "folder"]


@pytest.mark.parametrize("setting", [{"SLEY_NCCL": "only"}, {}], ids=["only", "none"])
def test_programs_without_nccl(
    setting: dict[str, str], folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    for ranks in (1, 2):
        tables(ranks, ("float32",), folder)
    settings = {
        **setting,
        "SLEY_NCCL_TABLES": str(folder),
        "SLEY_NCCL_KERNELS": str(folder),
        "SLEY_TIMEOUT_S": "60",
        "LD_LIBRARY_PATH": driver["LD_LIBRARY_PATH"],
    }
    command: list[str | Path] = [sys.executable, TESTS / "nccl_alone.py", stand_in()]
    output(command, variables(tmp_path / "libnccl.so", **settings))
