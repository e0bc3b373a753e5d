"""NVIDIA's driver: calls of its entry points, whose errors become diagnostics with remedies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from sley.errors.devices import (
    K501,
    K502,
    K506,
    K507,
    K508,
    K509,
    K510,
    K516,
    K518,
)
from sley.errors.diagnostic import Rule, SleyError

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


def module(name: str) -> Any:
    """A module of the packages of the extra `cuda`; K501 if it isn't installed."""
    package, _, _ = name.rpartition(".")
    try:
        import_module(package)  # the module may be cached although its package is missing
        return import_module(name)
    except ImportError as error:
        raise K501.error(
            expected="the packages cuda-core, cuda-bindings and nvidia-cuda-nvrtc",
            found=str(error),
            remedy='Install the extra: pip install "sley[cuda]".',
        ) from None


@cache
def bindings() -> Any:
    """The module cuda.bindings.driver, with the driver initialised. K501 if a package or the driver
    is missing or the driver doesn't start, K510 if it has no device."""
    driver = module("cuda.bindings.driver")
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:
        raise K501.error(
            expected="NVIDIA's driver (libcuda.so.1)",
            found=str(error),
            remedy="Use a machine with an NVIDIA GPU and its driver, on which `nvidia-smi` works; "
            "containers get the driver from the host (docker: --gpus all).",
        ) from None
    if result != driver.CUresult.CUDA_SUCCESS:
        raise failure(driver, result, "cuInit", "starting the driver", {})
    return driver


def call(
    function: Callable[..., Any],
    *arguments: object,
    doing: str,
    meaning: Mapping[str, Rule] = MappingProxyType({}),
) -> Any:
    """Calls an entry point of the driver and returns None, its value, or a tuple of its values.

    doing: the purpose of the call, for messages. meaning: rules that override those of `_RULES` in
    this call. K502 if the driver is too old to have the entry point; the rule of the driver's error
    if the call fails.
    """
    driver = bindings()
    try:
        result, *values = function(*arguments)
    except RuntimeError as error:
        raise K502.error(
            expected=f"a driver for CUDA 12 or newer ({NEEDED[12]}), for {doing}",
            found=f"{error}, in a driver for CUDA {version_text(driver_version())}",
        ) from None
    if result != driver.CUresult.CUDA_SUCCESS:
        raise failure(driver, result, function.__name__, doing, meaning)
    return values[0] if len(values) == 1 else tuple(values)


def failure(
    driver: Any, result: Any, name: str, doing: str, meaning: Mapping[str, Rule]
) -> SleyError:
    """The diagnostic for an error of the driver."""
    (_, words) = driver.cuGetErrorString(result)
    rule = meaning.get(result.name) or _RULE_OF.get(result.name, K516)
    notes = []
    if result.name in _FATAL:
        notes = ["the process can no longer use the device; start a new one"]
    if result.name == "CUDA_ERROR_NOT_INITIALIZED":
        notes = ["a process forked after its parent used CUDA gets this error: use `spawn`"]
    return rule.error(
        expected=f"{name} to succeed, {doing}",
        found=f"{result.name}: {words.decode() if words else 'an error without a name'}",
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
    driver = bindings()
    (_, number) = driver.cuDriverGetVersion()
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
            f'`pip install "cuda-core[cu{found[0]}]"`.',
        )


@contextmanager
def current(context: Any) -> Iterator[None]:
    """Makes a device's context current in the calling thread; restores the caller's afterwards."""
    driver = bindings()
    call(driver.cuCtxPushCurrent, context, doing="turning to the device")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()


@contextmanager
def apart_from_captures(context: Any) -> Iterator[None]:
    """As `current`, and allows calls that can't be captured (allocations) during the caller's
    capture: they run at once, outside the graph."""
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    with current(context):
        mode = call(
            driver.cuThreadExchangeStreamCaptureMode, relaxed, doing="leaving the capture's rules"
        )
        try:
            yield
        finally:
            driver.cuThreadExchangeStreamCaptureMode(mode)
