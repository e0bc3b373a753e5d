"""CudaDevice: one GPU as a device, with its memory, kernels and launches."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sley.engine import native
from sley.engine.devices.cuda import compiler, driver
from sley.engine.devices.cuda.arrays import CudaArray
from sley.engine.devices.cuda.machine_code import compile_later, compiled, is_compiled
from sley.engine.devices.cuda.streams import CudaStream, stream_address
from sley.engine.devices.device import (
    Device,
    Memory,
    Program,
    Window,
)
from sley.engine.kernels.prebuilt import code_in, file_of, has_prebuilt, prebuilt
from sley.errors import Diagnostic, SleyError, counted
from sley.errors.devices import K509, K510

_LEGACY_STREAM = 1  # cuda.h: CU_STREAM_LEGACY

_MULTICAST = (12, 1)
"""The CUDA whose drivers have multicast objects."""


class CudaDevice(Device):
    """A GPU of this process, in its primary context, which PyTorch and CuPy use too.

    uuid: identifies the hardware, equal in every process. capability: its compute capability.
    has_prebuilt: whether the installed package has kernels for it. native: the device in C++
    (`native/devices`). Made by `CudaDevice.open`.
    """

    platform = "cuda"

    def __init__(self, ordinal: int) -> None:
        count = CudaDevice.count()
        if not 0 <= ordinal < count:
            raise K510.error(
                expected=f"a device from 0 to {count - 1}" if count else "a device",
                found=f"device {ordinal}, of {counted(count, 'device')}",
            )
        self.ordinal = ordinal
        self.queues = native.CudaDevice.queues()
        self.native: native.CudaDevice = native.CudaDevice(ordinal)
        self.name = self.native.name
        self.identity = self.native.identity
        self.uuid = uuid.UUID(bytes=self.identity)
        self.blocks = self.multiprocessors = self.native.multiprocessors
        self.capability = self.native.capability
        self.has_prebuilt = has_prebuilt(driver.driver_version(), self.capability)
        if not self.has_prebuilt:
            _ = self.arch  # raises what the first call would
        self._modules: dict[str, int] = {}
        self._code: dict[str, bytes] = {}

    @cached_property
    def arch(self) -> str:
        """The architecture to compile for. K501 without NVRTC, K502 if the driver is too old for
        its code, or if it doesn't know the GPU."""
        driver.check_versions(compiler.version())
        return compiler.architecture(*self.capability)

    @staticmethod
    @cache
    def open(ordinal: int) -> CudaDevice:
        """Device number `ordinal`, counted from 0, of those that the process sees; the same object
        each time. K501, K502 if CUDA can't be used, K510 if there is no such device."""
        return CudaDevice(ordinal)

    @staticmethod
    def count() -> int:
        """The number of devices that the process sees. K501 if CUDA can't be used."""
        native.start_cuda()
        return native.CudaDevice.count()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaDevice) and self.uuid == other.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)

    def build(self, text: str, functions: Sequence[str]) -> dict[str, int]:
        """See `Device.build`: kernels by name. Their code stays loaded until the process ends,
        since a CUDA graph may hold them and its lifetime is unknown. K503 if `text` doesn't
        compile or lacks a function."""
        module = self._module(text)
        return {name: self.native.function(module, name) for name in functions}

    def has(self, text: str) -> bool:
        """See `Device.has`: without NVRTC only what is prebuilt."""
        with suppress(SleyError):
            return self._prebuilt(text) is not None or is_compiled(text, self.arch)
        return False

    def compile_later(self, text: str) -> None:
        """See `Device.compile_later`. Nothing without NVRTC."""
        with suppress(SleyError):
            compile_later(text, self.arch)

    def reach(self, other: Device) -> None:
        """See `Device.reach`. Applies to all memory of cuMemAlloc, whichever library called it."""
        if self == other:
            return
        if not isinstance(other, CudaDevice):
            raise K509.error(expected=f"a GPU that {self.name} can reach", found=other.name)
        self.native.reach(other.native)

    def lacks_switch(self, devices: Sequence[Device]) -> str:
        """See `Device.lacks_switch`. Switches serve multicast objects, of which a device is a part
        only once."""
        if len(set(devices)) < len(devices):
            return "several ranks of a group are on one device"
        if driver.driver_version() < _MULTICAST:
            found = driver.version_text(driver.driver_version())
            return f"a driver for CUDA {found} has no multicast"
        for device in devices:
            if not isinstance(device, CudaDevice) or not device.native.has_multicast():
                return f"{device.name} has no multicast"
        return ""

    def window(self, devices: Sequence[Device], size_bytes: int) -> Window:
        """See `Device.window`."""
        gpus = [device.native for device in devices if isinstance(device, CudaDevice)]
        addresses, switched, owner = native.CudaDevice.window(gpus, size_bytes)
        parts = tuple(Memory(address, size_bytes, owner) for address in addresses)
        return Window(parts, lambda offset: switched + offset)

    def capacity(self, program: Program, function: str, threads: int) -> int:
        """See `Device.capacity`."""
        return self.native.blocks_at_once(program[function], threads)

    def array(self, memory: Memory, dtype: str, elements: int) -> CudaArray:
        """See `Device.array`."""
        return CudaArray(memory, dtype, elements)

    def default_stream(self) -> CudaStream:
        """See `Device.default_stream`. CUDA's legacy default stream, which PyTorch and CuPy use by
        default. It can't be captured."""
        return CudaStream(_LEGACY_STREAM)

    def stream(self) -> CudaStream:
        """See `Device.stream`. It is independent of the default stream, too."""
        made = self.native.stream()
        return CudaStream(made.address, made)

    stream_address = staticmethod(stream_address)

    def is_captured(self, stream: Any) -> bool:
        """See `Device.is_captured`."""
        return self.native.is_captured(stream_address(stream))

    def _module(self, text: str) -> int:
        module = self._prebuilt(text)
        if module is None:
            module = self._modules[_key(text)] = self.native.load(compiled(text, self.arch))
        return module

    def read_code(self, folder: Path) -> Diagnostic | None:
        """See `Device.read_code`."""
        try:
            code = code_in(folder, driver.driver_version(), self.capability)
        except SleyError as error:
            return error.diagnostics[0]
        self._code |= {name: code for name, code in code.items() if name not in self._modules}
        return None

    def _prebuilt(self, text: str) -> int | None:
        """The module of a text's kernels that were compiled ahead, or loaded before. Kernels for
        other GPUs are as none; any other error of loading them compiled ones have, too."""
        key = _key(text)
        if key not in self._modules:
            code = self._code.pop(key, None) or (prebuilt(text) if self.has_prebuilt else None)
            with suppress(SleyError):
                if code is not None:
                    self._modules[key] = self.native.load(code)
        return self._modules.get(key)


def _key(text: str) -> str:
    return file_of(text, ".cubin")
