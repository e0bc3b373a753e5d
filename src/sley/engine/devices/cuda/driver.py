"""NVIDIA's driver: its start, its version, and its errors as diagnostics with remedies."""

from __future__ import annotations

import os
from functools import cache

from sley.engine import native
from sley.errors import Rule, SleyError
from sley.errors.devices import (
    K501,
    K502,
    K503,
    K506,
    K507,
    K508,
    K509,
    K510,
    K514,
    K516,
    K517,
    K518,
)

NEEDED = {12: "525.60", 13: "580.65"}
"""The oldest driver for each major version of CUDA, from NVIDIA's compatibility tables."""

_QUEUES, _MOST_QUEUES = 8, 32
"""CUDA programming guide, environment variables: CUDA_DEVICE_MAX_CONNECTIONS."""

_RULES: dict[Rule, tuple[str, ...]] = {
    K501: (
        "NOT_INITIALIZED",
        "STUB_LIBRARY",
        "DEVICE_UNAVAILABLE",
        "SYSTEM_NOT_READY",
        "SYSTEM_DRIVER_MISMATCH",
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
    ),
    K502: (
        "INVALID_IMAGE",
        "NO_BINARY_FOR_GPU",
        "INVALID_PTX",
        "UNSUPPORTED_PTX_VERSION",
    ),
    K506: ("COOPERATIVE_LAUNCH_TOO_LARGE", "LAUNCH_OUT_OF_RESOURCES"),
    K507: ("OUT_OF_MEMORY",),
    K508: ("LAUNCH_TIMEOUT",),
    K509: ("PEER_ACCESS_UNSUPPORTED", "TOO_MANY_PEERS"),
    K510: ("NO_DEVICE", "INVALID_DEVICE"),
    K518: (
        "STREAM_CAPTURE_UNSUPPORTED",
        "STREAM_CAPTURE_INVALIDATED",
        "STREAM_CAPTURE_IMPLICIT",
        "STREAM_CAPTURE_WRONG_THREAD",
    ),
}
_RULE_OF = {f"CUDA_ERROR_{name}": rule for rule, names in _RULES.items() for name in names}

_NOT_SHARED = ("INVALID_VALUE", "INVALID_CONTEXT", "INVALID_HANDLE", "MAP_FAILED", "NOT_SUPPORTED")
_RULE_ABOUT: dict[str, dict[str, Rule]] = {
    "": {},
    "stream": {f"CUDA_ERROR_{name}": K517 for name in ("INVALID_HANDLE", "INVALID_CONTEXT")},
    "sharing": {f"CUDA_ERROR_{name}": K514 for name in (*_NOT_SHARED, "OPERATING_SYSTEM")},
    "kernel": {"CUDA_ERROR_NOT_FOUND": K503},
    "access": {
        f"CUDA_ERROR_{n}": K509 for n in ("INVALID_VALUE", "INVALID_DEVICE", "NOT_SUPPORTED")
    },
}
"""Rules that override those of `_RULES`, by what an invalid argument of the call would be."""

_FATAL = {
    f"CUDA_ERROR_{name}"
    for name in (
        "ECC_UNCORRECTABLE",
        "ILLEGAL_ADDRESS",
        "LAUNCH_TIMEOUT",
        "ASSERT",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
    )
}
"""Errors after which the process can no longer use the device."""


@cache
def start() -> None:
    """Starts the driver. K501 if it is missing or doesn't start, K510 if it has no device."""
    try:
        native.start_cuda()
    except RuntimeError as error:
        raise K501.error(
            expected="NVIDIA's driver (libcuda.so.1)",
            found=str(error),
            remedy="Use a machine with an NVIDIA GPU and its driver, on which `nvidia-smi` works; "
            "containers get the driver from the host (docker: --gpus all).",
        ) from None


def failure(function: str, name: str, words: str, doing: str, subject: str) -> SleyError:
    """The diagnostic for an error of the driver (`native/devices/cuda_driver.hpp`): K502 if the
    driver is too old to have the function."""
    if name == "missing":
        return K502.error(
            expected=f"a driver for CUDA 12 or newer ({NEEDED[12]}), for {doing}",
            found=f'Function "{function}" not found, in a driver for CUDA '
            f"{version_text(driver_version())}",
        )
    if name == "elsewhere":
        return K517.error(expected=f"a stream of {doing}", found="one of another device")
    rule = _RULE_ABOUT[subject].get(name) or _RULE_OF.get(name, K516)
    notes = []
    if name in _FATAL:
        notes = ["the process can no longer use the device; start a new one"]
    if name == "CUDA_ERROR_NOT_INITIALIZED":
        notes = ["a process forked after its parent used CUDA gets this error: use `spawn`"]
    return rule.error(
        expected=f"{function} to succeed, {doing}",
        found=f"{name}: {words or 'an error without a name'}",
        notes=notes,
    )


@cache
def queues() -> int:
    """The number of queues onto which the driver maps a device's streams, as the environment says:
    first asked when the first device is opened. A value that is set after CUDA has started has no
    effect, which this can't see."""
    try:
        number = int(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", ""))
    except ValueError:
        return _QUEUES
    return min(number, _MOST_QUEUES) if number > 0 else _QUEUES


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
