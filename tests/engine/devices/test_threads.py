"""Threads as a device: arrays of a part of its memory."""

from __future__ import annotations

import numpy as np

from sley.engine.devices import ThreadsDevice
from sley.engine.devices.device import Memory


def test_a_piece_of_memory_is_written_read_and_shared() -> None:
    device = ThreadsDevice()
    memory = device.allocate(64)
    device.write(memory, 0, np.arange(64, dtype=np.uint8))
    piece = Memory(memory.address + 8, 16, memory.owner)
    array = device.array(piece, "int32", 3)
    assert array.ctypes.data == piece.address
    assert array.view(np.uint8).tolist() == list(range(8, 20))
    found = np.empty(4, np.uint8)
    device.read(piece, 2, found)
    assert found.tolist() == [10, 11, 12, 13]
    device.write(piece, 15, np.array([99], np.uint8))
    array[0] = -1
    attached = device.attach(*device.export(piece))
    assert attached.size_bytes == 16
    assert attached.address != piece.address
    shared = device.array(attached, "uint8", 16)
    assert shared.tolist() == [255] * 4 + list(range(12, 23)) + [99]
    shared[:] = 0
    every = device.array(memory, "uint8", 64)
    assert every.tolist() == [*range(8), *[0] * 16, *range(24, 64)]
