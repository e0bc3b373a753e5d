"""The machine, the driver and the versions, and what the device can do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common.machine import commit_of, facts
from kernels_timing import CudaTimer

import sley
from first_contact.lines import Lines, run_step, step_parser
from sley.engine.devices.cuda import CudaDevice, compiler, driver

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sley", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "cupy")
QUERY = (
    "name,driver_version,compute_mode,mig.mode.current,memory.total,clocks.sm,clocks.mem,"
    "clocks.max.sm,power.limit,utilization.gpu"
)
ATTRIBUTES = (
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
    "MULTIPROCESSOR_COUNT",
    "COOPERATIVE_LAUNCH",
    "L2_CACHE_SIZE",
    "COMPUTE_MODE",
    "UNIFIED_ADDRESSING",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
)
_PATIENCE_S = 10.0


def _smi() -> Mapping[str, Any]:
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    return {QUERY: done.stdout.strip() or done.stderr.strip()}


def _sley() -> Mapping[str, Any]:
    """The sley that is measured: its folder, and the commit of this tree."""
    return {"imported": str(Path(sley.__file__).parent), **commit_of(ROOT)}


def _device() -> Mapping[str, Any]:
    from cuda.bindings import driver as cu

    device = CudaDevice.open(0)
    found: dict[str, Any] = {
        "device": device.name,
        "count": CudaDevice.count(),
        "architecture": device.arch,
        "driver_cuda": driver.version_text(driver.driver_version()),
        "nvrtc": driver.version_text(compiler.version()),
    }
    for name in ATTRIBUTES:
        attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        result, value = cu.cuDeviceGetAttribute(attribute, device.native.device)
        found[name.lower()] = value if result == cu.CUresult.CUDA_SUCCESS else result.name
    return found


def _torch() -> Mapping[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"torch": str(error)}
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    return {"torch_cuda": torch.version.cuda, "torch_sees_cuda": torch.cuda.is_available()} | {
        "nccl": nccl
    }


def _shared() -> Mapping[str, Any]:
    """Whether another process reads this one's memory, by a file descriptor."""
    device = CudaDevice.open(0).native
    memory = device.allocate_shared(64)
    device.write(memory.address, np.full(64, 7, np.uint8))
    descriptor = device.export_memory(memory)
    command = [sys.executable, "-m", "first_contact.facts", "--attach", str(descriptor)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE_S, pass_fds=[descriptor]
    )
    words = done.stdout.strip() or done.stderr.strip()[-500:]
    return {"sum": words, "wrong": int(words != "448")}


def _gate() -> Mapping[str, Any]:
    return {"timing": CudaTimer(CudaDevice.open(0)).how}


def attach(descriptor: str) -> int:
    """Prints the sum of the 64 bytes of another process's memory."""
    device, found = CudaDevice.open(0).native, np.zeros(64, np.uint8)
    memory = device.attach(int(descriptor), found.size)
    device.read(found, memory.address)
    print(int(found.sum()))
    return 0


def step(lines: Lines) -> bool:
    lines.attempt({"what": "sley"}, _sley)
    lines.attempt({"what": "nvidia-smi"}, _smi)
    good = lines.attempt({"what": "device"}, _device)
    lines.attempt({"what": "machine"}, lambda: facts(PACKAGES))
    lines.attempt({"what": "memory of another process"}, _shared)
    lines.attempt({"what": "work that waits on a stream"}, _gate)
    lines.attempt({"what": "torch"}, _torch)
    return good


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attach"]:
        sys.exit(attach(sys.argv[2]))
    options = step_parser(__doc__).parse_args()
    run_step("facts", options.lines, step)
