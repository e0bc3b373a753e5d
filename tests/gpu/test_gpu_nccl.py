"""NCCL's interface on a GPU that all ranks share: the client in C that also runs over the stand-in
for NVIDIA's driver, started by `sley exec`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sley.engine.kernels.prebuilt import prebuilt_folder
from support.devices.gpu_needed import needs_gpu
from support.devices.nccl_calls import FEW, SIZES, TYPES, calls, client, run

pytestmark = needs_gpu()


@pytest.mark.parametrize(("ranks", "way"), [(2, "group"), (4, "threads"), (2, "processes")])
@pytest.mark.usefixtures("gpu")
def test_every_function_gives_what_numpy_gives(ranks: int, way: str, tmp_path: Path) -> None:
    if prebuilt_folder() is None:
        pytest.skip("the package sley-kernels isn't installed")
    under = [sys.executable, "-m", "sley", "exec", "--ranks", str(ranks), "--"]
    made = calls(TYPES, [17], ranks) + calls(FEW, SIZES, ranks)
    # Processes take turns on the GPU, a few for each call.
    made = made[::20] if way == "processes" else made
    settings = {"SLEY_TIMEOUT_S": "30", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    run(client(), made, ranks, way, tmp_path, settings, under=under)
