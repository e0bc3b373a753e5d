"""PyTorch over sley's library on a GPU that all ranks share: what it trains beside one process, and
the results of calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sley.engine.kernels.prebuilt import prebuilt_folder
from support.devices.gpu_needed import needs_gpu

torch = pytest.importorskip("torch")
pytestmark = needs_gpu()
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("backend", ["nccl", "cpu:sley,cuda:sley", "cuda:sley"])
@pytest.mark.usefixtures("gpu")
def test_pytorch_gives_what_one_process_gives(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if prebuilt_folder() is None or not torch.distributed.is_nccl_available():
        pytest.skip("the package sley-kernels, or PyTorch with NCCL, isn't installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("PYTHONPATH", f"{BENCHMARKS}:{os.environ.get('PYTHONPATH', '')}")
    from first_contact import programs

    for name, value in programs.SETTINGS.items():
        monkeypatch.setenv(name, value)
    ways = ["ddp", "exchange", "batch", *(["operators"] if "sley" in backend else [])]
    under = (sys.executable, "-m", "sley", "exec", "--ranks", "2", "--")
    alone = programs.trained(1, "", "ddp")[0]["ddp"]
    found = programs.compared(alone, backend, ways, under, ranks=2)
    assert not found["wrong"], found
