"""Multicast: memory of several GPUs that a switch reads and writes at once (NVLink SHARP).

Source: CUDA driver API, "Multicast Object Management" and "Virtual Memory Management".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sley.engine.devices.cuda.driver import call, current
from sley.errors import SleyError

NEEDED = (12, 1)
"""The CUDA whose drivers have multicast objects."""


class Multicast:
    """Memory of several devices, bound to a multicast object.

    parts: the address of each device's memory, in kernels on all of the devices. switched: the
    address of all of them for `multimem` instructions.
    """

    def __init__(
        self, cu: Any, devices: Sequence[Any], contexts: Sequence[Any], size_bytes: int, name: str
    ) -> None:
        """devices, contexts: the driver's. size_bytes: at least so much on each; the driver takes
        multiples of its granularities. name: of the devices, in messages."""
        self._cu, self._devices, self._contexts = cu, devices, contexts
        self._doing = f"letting a switch use memory of {name}"
        self._undo: list[Callable[[], object]] = []
        try:
            self._make(size_bytes)
        except SleyError:
            self._take_apart()
            raise

    def free(self) -> None:
        """Frees the memory, after the work of the devices: as cuMemFree, which waits by itself."""
        for context in self._contexts:
            with suppress(SleyError), current(context):
                self._cu.cuCtxSynchronize()
        self._take_apart()

    def _take_apart(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _make(self, size_bytes: int) -> None:
        cu = self._cu
        properties = cu.CUmulticastObjectProp()
        properties.numDevices, properties.size = len(self._devices), size_bytes
        least = cu.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM
        self._granularity = int(self._call(cu.cuMulticastGetGranularity, properties, least))
        kinds = [self._memory_of(device) for device in self._devices]
        whole = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        for kind in kinds:
            other = int(self._call(cu.cuMemGetAllocationGranularity, kind, whole))
            self._granularity = math.lcm(self._granularity, other)
        self._size = -(-size_bytes // self._granularity) * self._granularity
        properties.size = self._size
        team = self._call(cu.cuMulticastCreate, properties)
        self._undo.append(lambda: cu.cuMemRelease(team))
        for device in self._devices:  # all of them, before memory is bound or mapped
            self._call(cu.cuMulticastAddDevice, team, device)
        self.parts = [
            self._part(team, device, kind)
            for device, kind in zip(self._devices, kinds, strict=True)
        ]
        self.switched = self._map(team)

    def _memory_of(self, device: Any) -> Any:
        """The properties of memory on a device."""
        cu, kind = self._cu, self._cu.CUmemAllocationProp()
        kind.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = int(device)
        return kind

    def _part(self, team: Any, device: Any, kind: Any) -> int:
        """Memory of a device, bound to the multicast object: its address."""
        cu, size = self._cu, self._size
        memory = self._call(cu.cuMemCreate, size, kind, 0)
        self._undo.append(lambda: cu.cuMemRelease(memory))
        self._call(cu.cuMulticastBindMem, team, 0, memory, 0, size, 0)
        self._undo.append(lambda: cu.cuMulticastUnbind(team, device, 0, size))
        return self._map(memory)

    def _map(self, memory: Any) -> int:
        """An address of memory, or of a multicast object, for kernels on all of the devices."""
        cu, size = self._cu, self._size
        address = self._call(cu.cuMemAddressReserve, size, self._granularity, 0, 0)
        self._undo.append(lambda: cu.cuMemAddressFree(address, size))
        self._call(cu.cuMemMap, address, size, 0, memory, 0)
        self._undo.append(lambda: cu.cuMemUnmap(address, size))
        access = [self._access(device) for device in self._devices]
        self._call(cu.cuMemSetAccess, address, size, access, len(access))
        return int(address)

    def _access(self, device: Any) -> Any:
        cu, access = self._cu, self._cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = int(device)
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        return call(function, *arguments, doing=self._doing)
