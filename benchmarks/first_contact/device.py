"""Whether the first GPU answers: it is opened, and memory is written and read back."""

from __future__ import annotations

import sys

import numpy as np

from sley.engine.devices.cuda import CudaDevice
from sley.errors import SleyError


def main() -> int:
    try:
        device = CudaDevice.open(0)
        memory = device.allocate(256)
        written, found = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
        device.write(memory, 0, written)
        device.read(memory, 0, found)
        device.synchronize(None)
    except SleyError as error:
        print(error)
        return 1
    print(f"{device.name} answers" if (found == written).all() else "memory holds wrong values")
    return int((found != written).any())


if __name__ == "__main__":
    sys.exit(main())
