"""NVIDIA's driver: its version, and the compilers of which it runs code."""

from __future__ import annotations

from sley.engine import native
from sley.errors.devices import K502

NEEDED = {12: "525.60", 13: "580.65"}
"""The oldest driver for each major version of CUDA, from NVIDIA's compatibility tables."""


def driver_version() -> tuple[int, int]:
    """The newest CUDA that the driver supports: (13, 0)."""
    number = native.CudaDevice.driver_version()
    return number // 1000, number % 1000 // 10


def version_text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def check_versions(compiler: tuple[int, int]) -> None:
    """K502 if the driver is too old for code of that version of the compiler."""
    found = driver_version()
    if found[0] < compiler[0]:
        oldest = NEEDED.get(compiler[0])
        raise K502.error(
            expected=f"a driver for CUDA {compiler[0]}"
            + (f", {oldest} or newer" if oldest else "")
            + f", since NVRTC is {version_text(compiler)}",
            found=f"a driver for CUDA {version_text(found)}",
            remedy="Install a newer driver, or the packages for the driver's CUDA: "
            f'`pip install "cuda-bindings[all]=={found[0]}.*"`.',
        )
