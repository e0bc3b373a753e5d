"""CudaDevice: one GPU as a device, with its memory, kernels and launches."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import uuid
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from sley.engine.devices.cuda import arrays, compiler, driver, multicast, streams
from sley.engine.devices.cuda.arrays import CudaArray
from sley.engine.devices.cuda.driver import apart_from_captures, call, current
from sley.engine.devices.cuda.multicast import Multicast
from sley.engine.devices.cuda.streams import STREAM_ERRORS, CudaEvent, CudaStream, release
from sley.engine.devices.device import Bytes, Device, HostMemory, Launch, Memory, View, Window
from sley.engine.devices.shared_files import map_bytes
from sley.engine.memory import HostBytes
from sley.errors.devices import K503, K509, K510, K514
from sley.errors.diagnostic import counted
from sley.errors.disk_cache import cached_bytes

_SHARING_ERRORS = {
    f"CUDA_ERROR_{name}": K514
    for name in (
        "INVALID_VALUE",
        "INVALID_CONTEXT",
        "INVALID_HANDLE",
        "MAP_FAILED",
        "NOT_SUPPORTED",
        "OPERATING_SYSTEM",
    )
}

_LEGACY_STREAM = 1  # cuda.h: CU_STREAM_LEGACY

_HANDLE = struct.Struct("<64sQQ16s")
"""A handle of `export`: the driver's handle of the allocation, the memory's offset in it, the
memory's size, in bytes, and the device's UUID."""

_EXPORTED_BYTES = 2 << 20
"""Exported memory is a multiple of this: the driver carves smaller allocations from blocks of 2
MiB, and exports the whole block with whatever else lies in it."""


class _Owner:
    """An object whose collection frees memory of a device."""


class CudaDevice(Device):
    """A GPU of this process, in its primary context, which PyTorch and CuPy use too.

    uuid: identifies the hardware, equal in every process. Made by `CudaDevice.open`.
    """

    platform = "cuda"
    keeps_launched = False

    def __init__(self, ordinal: int) -> None:
        cu = driver.bindings()
        count = call(cu.cuDeviceGetCount, doing="counting the devices")
        if not 0 <= ordinal < count:
            raise K510.error(
                expected=f"a device from 0 to {count - 1}" if count else "a device",
                found=f"device {ordinal}, of {counted(count, 'device')}",
            )
        driver.check_versions(compiler.version())
        self.ordinal = ordinal
        self.queues = driver.queues()
        self._cu = cu
        self._device = call(cu.cuDeviceGet, ordinal, doing=f"opening device {ordinal}")
        name = call(cu.cuDeviceGetName, 256, self._device, doing="asking for its name")
        self.name = f"{name.split(bytes(1))[0].decode()} (device {ordinal})"
        identity = call(cu.cuDeviceGetUuid, self._device, doing="asking for its identity")
        self.uuid = uuid.UUID(bytes=bytes(identity.bytes))
        attribute = cu.CUdevice_attribute
        self.multiprocessors = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.arch = compiler.architecture(
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self._context = call(
            cu.cuDevicePrimaryCtxRetain, self._device, doing=f"opening device {ordinal}"
        )
        self._modules: dict[bytes, Any] = {}
        self._copies = self.stream()
        self._cooperative = cu.CUlaunchAttribute()
        self._cooperative.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        self._cooperative.value.cooperative = 1

    @staticmethod
    @cache
    def open(ordinal: int) -> CudaDevice:
        """Device number `ordinal`, counted from 0, of those that the process sees; the same object
        each time. K501, K502 if CUDA can't be used, K510 if there is no such device."""
        return CudaDevice(ordinal)

    @staticmethod
    def count() -> int:
        """The number of devices that the process sees. K501 if CUDA can't be used."""
        cu = driver.bindings()
        return int(call(cu.cuDeviceGetCount, doing="counting the devices"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CudaDevice) and self.uuid == other.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)

    def build(self, text: str, functions: Sequence[str]) -> dict[str, Any]:
        """See `Device.build`: kernels by name. Their code stays loaded until the process ends,
        since a CUDA graph may hold them and its lifetime is unknown. K503 if `text` doesn't
        compile or lacks a function."""
        with apart_from_captures(self._context):
            module = self._module(text)
            return {name: self._function(module, name) for name in functions}

    def allocate(self, size_bytes: int, *, exported: bool = False) -> Memory:
        """See `Device.allocate`. Uses cuMemAlloc, since CUDA IPC has no handles for pools and
        virtual memory; it aligns to 256 bytes or more. K507 if memory runs out."""
        cu = self._cu
        unit = _EXPORTED_BYTES if exported else 1
        taken_bytes = -(-max(size_bytes, 1) // unit) * unit
        doing = f"allocating {taken_bytes} bytes on {self.name}"
        with apart_from_captures(self._context):
            address = int(call(cu.cuMemAlloc, taken_bytes, doing=doing))
            owner = _Owner()
            self._at_end_of(owner, cu.cuMemFree, address)
            if size_bytes:
                self._zero(address, size_bytes, doing)
        return Memory(address, size_bytes, owner)

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """See `Device.allocate_host`. Pinned memory at the same address on the host and all
        devices, which unified addressing guarantees for cuMemHostAlloc. K507 if memory runs out."""
        cu = self._cu
        flags = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP
        doing = f"allocating {size_bytes} bytes of the host's memory"
        with apart_from_captures(self._context):
            address = int(call(cu.cuMemHostAlloc, max(size_bytes, 1), flags, doing=doing))
        owner = HostBytes(address, size_bytes)
        self._at_end_of(owner, cu.cuMemFreeHost, address)
        array = np.asarray(owner)
        array[:] = 0
        return HostMemory(address, array, owner)

    def map_host(self, path: str, size_bytes: int) -> HostMemory:
        """See `Device.map_host`. Its address on the devices is that of the host, as everywhere with
        unified addressing on Linux."""
        cu, array, owner = self._cu, map_bytes(path, size_bytes), _Owner()
        flags = cu.CU_MEMHOSTREGISTER_PORTABLE | cu.CU_MEMHOSTREGISTER_DEVICEMAP
        doing = f"letting {self.name} use memory that processes share"
        with apart_from_captures(self._context):
            call(
                cu.cuMemHostRegister,
                array.ctypes.data,
                size_bytes,
                flags,
                doing=doing,
                meaning=_SHARING_ERRORS,
            )
            # The function holds the array: the memory is mapped until the driver has let it go.
            unregister = lambda address, array=array: cu.cuMemHostUnregister(address)  # noqa: E731
            self._at_end_of(owner, unregister, array.ctypes.data)
            address = int(call(cu.cuMemHostGetDevicePointer, array.ctypes.data, 0, doing=doing))
        return HostMemory(address, array, owner)

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        """See `Device.write`."""
        data = np.ascontiguousarray(data)
        with apart_from_captures(self._context):
            call(
                self._cu.cuMemcpyHtoDAsync,
                memory.address + offset,
                data.ctypes.data,
                data.nbytes,
                self._stream_of(self._copies),
                doing=f"writing {data.nbytes} bytes to {self.name}",
            )
            self._wait(self._copies)

    def read(self, memory: Memory, offset: int, data: Bytes) -> None:
        """See `Device.read`."""
        with apart_from_captures(self._context):
            call(
                self._cu.cuMemcpyDtoHAsync,
                data.ctypes.data,
                memory.address + offset,
                data.nbytes,
                self._stream_of(self._copies),
                doing=f"reading {data.nbytes} bytes from {self.name}",
            )
            self._wait(self._copies)

    def reach(self, other: Device) -> None:
        """See `Device.reach`. Applies to all memory of cuMemAlloc, whichever library called it."""
        if self == other:
            return
        if not isinstance(other, CudaDevice):
            raise K509.error(expected=f"a GPU that {self.name} can reach", found=other.name)
        cu = self._cu
        doing = f"letting {self.name} reach {other.name}"
        with apart_from_captures(self._context):
            (result,) = cu.cuCtxEnablePeerAccess(other._context, 0)
        done = (cu.CUresult.CUDA_SUCCESS, cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        if result not in done:
            raise driver.failure(cu, result, "cuCtxEnablePeerAccess", doing, {})

    def carries_lines(self, other: Device | bytes) -> bool:
        """See `Device.carries_lines`. The links that do are those with native atomics: NVLink. K510
        for memory of a device that this process doesn't see."""
        if isinstance(other, bytes):
            peer = self._exporter(other)
        elif isinstance(other, CudaDevice):
            peer = other._device
        else:
            return False
        if int(peer) == int(self._device):
            return True
        atomics = self._cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        doing = f"asking for the link from {self.name} to another device"
        value = call(self._cu.cuDeviceGetP2PAttribute, atomics, self._device, peer, doing=doing)
        return bool(value)

    def lends(self, address: int, other: Device) -> bool:
        """See `Device.lends`. Peer access covers memory that has a handle of CUDA IPC, that of
        cuMemAlloc; for other memory the driver tells what `other` may do."""
        if not isinstance(other, CudaDevice):
            return False
        attribute = self._cu.CUpointer_attribute
        plain = attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        flags = attribute.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
        doing = f"asking for memory of {self.name}"
        with current(other._context):
            if call(self._cu.cuPointerGetAttribute, plain, address, doing=doing):
                return True
            return bool(call(self._cu.cuPointerGetAttribute, flags, address, doing=doing))

    def lacks_switch(self, devices: Sequence[Device]) -> str:
        """See `Device.lacks_switch`. Switches serve multicast objects, of which a device is a part
        only once."""
        if len(set(devices)) < len(devices):
            return "several ranks of a group are on one device"
        if driver.driver_version() < multicast.NEEDED:
            found = driver.version_text(driver.driver_version())
            return f"a driver for CUDA {found} has no multicast"
        supported = self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
        for device in devices:
            if not isinstance(device, CudaDevice) or not device._attribute(supported):
                return f"{device.name} has no multicast"
        return ""

    def window(self, devices: Sequence[Device], size_bytes: int) -> Window:
        """See `Device.window`."""
        gpus = [device for device in devices if isinstance(device, CudaDevice)]
        name, owner = " and ".join(gpu.name for gpu in gpus), _Owner()
        with apart_from_captures(self._context):
            made = Multicast(
                self._cu,
                [gpu._device for gpu in gpus],
                [gpu._context for gpu in gpus],
                size_bytes,
                name,
            )
        self._at_end_of(owner, Multicast.free, made)
        for gpu, address in zip(gpus, made.parts, strict=True):
            with apart_from_captures(gpu._context):
                gpu._zero(address, size_bytes, f"clearing memory of {gpu.name}")
        parts = tuple(Memory(address, size_bytes, owner) for address in made.parts)
        return Window(parts, lambda offset: made.switched + offset)

    def export(self, memory: Memory) -> bytes:
        """See `Device.export`. Works also for the caller's arrays that are memory of cuMemAlloc.
        K514 if the driver has no handle for the memory."""
        cu = self._cu
        doing = f"exporting memory of {self.name}"
        with apart_from_captures(self._context):
            base, _ = call(
                cu.cuMemGetAddressRange, memory.address, doing=doing, meaning=_SHARING_ERRORS
            )
            handle = call(cu.cuIpcGetMemHandle, base, doing=doing, meaning=_SHARING_ERRORS)
        return _HANDLE.pack(
            ctypes.string_at(handle.getPtr(), 64),
            memory.address - int(base),
            memory.size_bytes,
            self.uuid.bytes,
        )

    def attach(self, handle: bytes) -> Memory:
        """See `Device.attach`. K514 if the exporting process has ended or is this one, K509 if this
        device can't reach the memory's device, K510 if this process doesn't see that device."""
        self._exporter(handle)
        of_driver, offset, size_bytes, _ = _HANDLE.unpack(handle)
        cu = self._cu
        opened = cu.CUipcMemHandle()
        ctypes.memmove(opened.getPtr(), of_driver, len(of_driver))
        flags = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.value
        with apart_from_captures(self._context):
            base = int(
                call(
                    cu.cuIpcOpenMemHandle,
                    opened,
                    flags,
                    doing=f"attaching another process's memory to {self.name}",
                    meaning=_SHARING_ERRORS,
                )
            )
        owner = _Owner()
        self._at_end_of(owner, cu.cuIpcCloseMemHandle, base)
        return Memory(base + offset, size_bytes, owner)

    def view(self, array: Any, *, what: str) -> View:
        """See `Device.view`. K519 for an object that isn't an array."""
        with apart_from_captures(self._context):
            return arrays.view(array, self.ordinal, what=what)

    def capacity(self, program: dict[str, Any], function: str, threads: int) -> int:
        """See `Device.capacity`."""
        with current(self._context):
            blocks = call(
                self._cu.cuOccupancyMaxActiveBlocksPerMultiprocessor,
                program[function],
                threads,
                0,
                doing=f"counting the blocks that {self.name} holds",
            )
        return int(blocks) * self.multiprocessors

    def array(self, memory: Memory, dtype: str, elements: int) -> CudaArray:
        """See `Device.array`."""
        return CudaArray(memory, dtype, elements)

    def default_stream(self) -> CudaStream:
        """See `Device.default_stream`. CUDA's legacy default stream, which PyTorch and CuPy use by
        default. It can't be captured."""
        return CudaStream(_LEGACY_STREAM)

    def stream(self) -> CudaStream:
        """See `Device.stream`. It is independent of the default stream, too."""
        flags = self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        with apart_from_captures(self._context):
            made = int(
                call(self._cu.cuStreamCreate, flags, doing=f"making a stream on {self.name}")
            )
        stream = CudaStream(made)
        self._at_end_of(stream, self._cu.cuStreamDestroy, made)
        return stream

    def is_captured(self, stream: Any) -> bool:
        """See `Device.is_captured`."""
        with current(self._context):
            return streams.is_captured(stream, self._context, self._device, self.name)

    def event(self) -> CudaEvent:
        """See `Device.event`."""
        return CudaEvent(self._context)

    def launch(self, program: dict[str, Any], launch: Launch, stream: Any) -> None:
        """See `Device.launch`. Can be captured into a CUDA graph. stream: as for
        `streams.stream_address`; K517 for a stream of another device.

        Holds no reference to `launch.keeps`: cuMemFree, in all drivers, waits for the work that the
        device has started, so a running kernel doesn't lose its memory. It doesn't wait for a
        captured graph: the caller must keep alive what the graph's kernels use.
        """
        cu = self._cu
        argument = ctypes.create_string_buffer(launch.call, len(launch.call))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.hStream = self._stream_of(stream)
        if launch.together:
            config.attrs, config.numAttrs = [self._cooperative], 1
        with current(self._context):
            call(
                cu.cuLaunchKernelEx,
                config,
                program[launch.function],
                ctypes.addressof(arguments),
                0,
                doing=f"starting {launch.function} with {counted(launch.blocks, 'block')} of "
                f"{counted(launch.threads, 'thread')} on {self.name}",
                meaning=STREAM_ERRORS,
            )

    def synchronize(self, stream: Any) -> None:
        """See `Device.synchronize`; None waits for the work of other libraries, too. K518 during a
        capture. Raises the errors of kernels that failed."""
        with current(self._context):
            if stream is None:
                call(self._cu.cuCtxSynchronize, doing=f"waiting for {self.name}")
            else:
                self._wait(stream)

    def _exporter(self, handle: bytes) -> Any:
        """The device of memory that a process exported, as this process sees it."""
        if len(handle) != _HANDLE.size:
            raise K514.error(
                expected=f"a handle of {_HANDLE.size} bytes, as `export` makes them",
                found=f"{len(handle)} bytes",
            )
        *_, wanted = _HANDLE.unpack(handle)
        if wanted == self.uuid.bytes:
            return self._device
        cu, number = self._cu, CudaDevice.count()
        for ordinal in range(number):
            device = call(cu.cuDeviceGet, ordinal, doing=f"looking at device {ordinal}")
            identity = call(cu.cuDeviceGetUuid, device, doing=f"looking at device {ordinal}")
            if bytes(identity.bytes) == wanted:
                return device
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        variable = f", with CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
        raise K510.error(
            expected=f"the device of another process's rank, GPU-{uuid.UUID(bytes=wanted)}",
            found=f"{counted(number, 'device')} that this process sees{variable}",
            remedy="Let each process see all GPUs of the host, and open its own by its "
            "number: `CudaDevice.open(local_rank)`.",
        )

    def _attribute(self, attribute: Any) -> int:
        doing = f"asking device {self.ordinal} for its attributes"
        return int(call(self._cu.cuDeviceGetAttribute, attribute, self._device, doing=doing))

    def _stream_of(self, stream: Any) -> Any:
        return self._cu.CUstream(streams.stream_address(stream))

    def _wait(self, stream: Any) -> None:
        call(
            self._cu.cuStreamSynchronize,
            self._stream_of(stream),
            doing=f"waiting for {self.name}",
            meaning=STREAM_ERRORS,
        )

    def _zero(self, address: int, size_bytes: int, doing: str) -> None:
        """Fills memory of the device with zeros; its context is current."""
        stream = self._stream_of(self._copies)
        call(self._cu.cuMemsetD8Async, address, 0, size_bytes, stream, doing=doing)
        self._wait(self._copies)

    def _at_end_of(self, owner: object, free: Callable[[Any], Any], what: Any) -> None:
        """Frees `what`, such as an address, when `owner` is collected; at exit the driver
        does."""
        weakref.finalize(owner, release, self._context, free, what).atexit = False

    def _module(self, text: str) -> Any:
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._modules:
            major, minor = compiler.version()
            cubin = cached_bytes(
                ("cuda", self.arch, f"{major}.{minor}", *compiler.OPTIONS, text),
                ".cubin",
                lambda: compiler.compile_text(text, self.arch).cubin,
            )
            self._modules[key] = call(
                self._cu.cuModuleLoadData,
                cubin,
                doing=f"loading kernels for {self.arch} on {self.name}",
            )
        return self._modules[key]

    def _function(self, module: Any, name: str) -> Any:
        """A kernel, already loaded: cuModuleGetFunction loads its code (CUDA programming guide,
        lazy loading). Loading at the first launch would wait for running kernels, which may wait
        for this one."""
        return call(
            self._cu.cuModuleGetFunction,
            module,
            name.encode(),
            doing=f"looking for the kernel {name}",
            meaning={"CUDA_ERROR_NOT_FOUND": K503},
        )
