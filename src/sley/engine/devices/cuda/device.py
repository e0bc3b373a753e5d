"""CudaDevice: one GPU as a device, with its memory, kernels and launches."""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from sley.engine import native
from sley.engine.devices.cuda import arrays, compiler, driver
from sley.engine.devices.cuda.arrays import CudaArray
from sley.engine.devices.cuda.streams import CudaStream, stream_address
from sley.engine.devices.device import (
    Device,
    HostMemory,
    Memory,
    Program,
    View,
    Window,
)
from sley.engine.devices.shared_files import map_bytes
from sley.engine.kernels.prebuilt import has_prebuilt, prebuilt
from sley.errors import counted
from sley.errors.devices import K509, K510, K514
from sley.errors.disk_cache import cached_bytes

_LEGACY_STREAM = 1  # cuda.h: CU_STREAM_LEGACY

_MULTICAST = (12, 1)
"""The CUDA whose drivers have multicast objects."""

_HANDLE = struct.Struct("<64sQQ16s")
"""A handle of `export`: the driver's handle of the allocation, the memory's offset in it, the
memory's size, in bytes, and the device's UUID."""

_EXPORTED_BYTES = 2 << 20
"""Exported memory is a multiple of this: the driver carves smaller allocations from blocks of 2
MiB, and exports the whole block with whatever else lies in it."""


class CudaDevice(Device):
    """A GPU of this process, in its primary context, which PyTorch and CuPy use too.

    uuid: identifies the hardware, equal in every process. native: the device in C++
    (`native/devices`). Made by `CudaDevice.open`.
    """

    platform = "cuda"
    keeps_launched = False
    """cuMemFree, in all drivers, waits for the work that the device has started, so a running
    kernel doesn't lose its memory. It doesn't wait for a captured graph: the caller must keep alive
    what the graph's kernels use."""

    def __init__(self, ordinal: int) -> None:
        count = CudaDevice.count()
        if not 0 <= ordinal < count:
            raise K510.error(
                expected=f"a device from 0 to {count - 1}" if count else "a device",
                found=f"device {ordinal}, of {counted(count, 'device')}",
            )
        self.ordinal = ordinal
        self.queues = driver.queues()
        self.native: native.CudaDevice = native.CudaDevice(ordinal)
        self.name = self.native.name
        self.uuid = uuid.UUID(bytes=self.native.uuid)
        self.multiprocessors = self.native.multiprocessors
        self._has_prebuilt = has_prebuilt(driver.driver_version(), self.native.capability)
        if not self._has_prebuilt:
            _ = self.arch  # raises what the first call would
        self._modules: dict[bytes, int] = {}

    @cached_property
    def arch(self) -> str:
        """The architecture to compile for. K501 without NVRTC, K502 if the driver is too old for
        its code, or if it doesn't know the GPU."""
        driver.check_versions(compiler.version())
        return compiler.architecture(*self.native.capability)

    @staticmethod
    @cache
    def open(ordinal: int) -> CudaDevice:
        """Device number `ordinal`, counted from 0, of those that the process sees; the same object
        each time. K501, K502 if CUDA can't be used, K510 if there is no such device."""
        return CudaDevice(ordinal)

    @staticmethod
    def count() -> int:
        """The number of devices that the process sees. K501 if CUDA can't be used."""
        driver.start()
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

    def allocate(self, size_bytes: int, *, exported: bool = False) -> Memory:
        """See `Device.allocate`. K507 if memory runs out."""
        unit = _EXPORTED_BYTES if exported else 1
        made = self.native.allocate(-(-max(size_bytes, 1) // unit) * unit)
        return Memory(made.address, size_bytes, made)

    def map_host(self, path: str, size_bytes: int) -> HostMemory:
        """See `Device.map_host`. Its address on the devices is that of the host, as everywhere with
        unified addressing on Linux."""
        array = map_bytes(path, size_bytes)
        made = self.native.register_host(array)
        return HostMemory(made.address, array, made)

    def reach(self, other: Device) -> None:
        """See `Device.reach`. Applies to all memory of cuMemAlloc, whichever library called it."""
        if self == other:
            return
        if not isinstance(other, CudaDevice):
            raise K509.error(expected=f"a GPU that {self.name} can reach", found=other.name)
        self.native.reach(other.native)

    def carries_lines(self, other: Device | bytes) -> bool:
        """See `Device.carries_lines`. The links that do are those with native atomics: NVLink. K510
        for memory of a device that this process doesn't see."""
        if isinstance(other, bytes):
            return self.native.has_atomics_to(self._exporter(other))
        return isinstance(other, CudaDevice) and self.native.has_atomics_to(other.native.device)

    def lends(self, address: int, other: Device) -> bool:
        """See `Device.lends`."""
        return isinstance(other, CudaDevice) and self.native.lends(address, other.native)

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

    def export(self, memory: Memory) -> bytes:
        """See `Device.export`. Works also for the caller's arrays that are memory of cuMemAlloc.
        K514 if the driver has no handle for the memory."""
        handle, offset = self.native.share(memory.address)
        return _HANDLE.pack(handle, offset, memory.size_bytes, self.uuid.bytes)

    def attach(self, handle: bytes) -> Memory:
        """See `Device.attach`. K514 if the exporting process has ended or is this one, K509 if this
        device can't reach the memory's device, K510 if this process doesn't see that device."""
        self._exporter(handle)
        of_driver, offset, size_bytes, _ = _HANDLE.unpack(handle)
        made = self.native.attach(of_driver)
        return Memory(made.address + offset, size_bytes, made)

    def view(self, array: Any, *, what: str) -> View:
        """See `Device.view`. K519 for an object that isn't an array."""
        return arrays.view(array, self.native, self.ordinal, what=what)

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

    def _exporter(self, handle: bytes) -> int:
        """The device of memory that a process exported, as this process sees it."""
        if len(handle) != _HANDLE.size:
            raise K514.error(
                expected=f"a handle of {_HANDLE.size} bytes, as `export` makes them",
                found=f"{len(handle)} bytes",
            )
        *_, wanted = _HANDLE.unpack(handle)
        device = self.native.device_with(wanted)
        if device is None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            variable = f", with CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
            raise K510.error(
                expected=f"the device of another process's rank, GPU-{uuid.UUID(bytes=wanted)}",
                found=f"{counted(self.count(), 'device')} that this process sees{variable}",
                remedy="Let each process see all GPUs of the host, and open its own by its "
                "number: `CudaDevice.open(local_rank)`.",
            )
        return device

    def _module(self, text: str) -> int:
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._modules:
            code = prebuilt(text) if self._has_prebuilt else None
            self._modules[key] = self.native.load(code or self._compiled(text))
        return self._modules[key]

    def _compiled(self, text: str) -> bytes:
        major, minor = compiler.version()
        return cached_bytes(
            ("cuda", self.arch, f"{major}.{minor}", *compiler.OPTIONS, text),
            ".cubin",
            lambda: compiler.compile_text(text, self.arch).cubin,
        )
