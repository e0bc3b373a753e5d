"""Imported by each Python process of a rehearsal (tests/project/test_first_contact.py), before its
program: over the stand-in for NVIDIA's driver, where sley builds kernels for GPUs, it builds the
same kernels for CPUs, as a module that the stand-in runs.

REHEARSAL_FAULTS: {words of a command line: {setting of the stand-in: value}} as JSON; a process
whose command line has the words gets the settings. The setting "asleep" stops the process itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from dataclasses import replace


def _faults() -> dict[str, int]:
    every = json.loads(os.environ.get("REHEARSAL_FAULTS", "{}"))
    command = " ".join(sys.orig_argv)
    found: dict[str, int] = {}
    for words, settings in every.items():
        found |= settings if words in command else {}
    return found


def _stop() -> None:
    while True:
        time.sleep(1)


def _build_for_cpus() -> None:
    from sley.engine.devices import Engine
    from sley.engine.devices.cuda import CudaDevice, compiler
    from sley.engine.kernels import Kernels, Platform
    from sley.engine.kernels.source import Variant
    from support.devices.device_calls import module_of

    of_device = Kernels.source

    def source(kernels: Kernels, engine: Engine, variant: Variant) -> str:
        return of_device(kernels, engine, replace(variant, platform=Platform.CPU))

    def compile_text(text: str, arch: str) -> compiler.Compiled:
        return compiler.Compiled(module_of(text), b"", {})

    Kernels.source = source  # type: ignore[method-assign]
    CudaDevice.compile_later = _ignored  # type: ignore[method-assign]
    compiler.compile_text = compile_text


def _ignored(device: object, text: str) -> None:
    """Nothing is compiled in the background: later processes would run other code."""


def _set(settings: dict[str, int]) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
    for name, value in settings.items():
        library.fake_set(name.encode(), value)


found = _faults()
if found.pop("asleep", 0):
    _stop()
_build_for_cpus()
_set(found)
