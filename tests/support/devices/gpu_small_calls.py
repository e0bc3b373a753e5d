"""Small calls for compute-sanitizer, which makes kernels some hundred times slower.

    compute-sanitizer --tool memcheck python tests/support/devices/gpu_small_calls.py [threads]

Two ranks have one block each, with all protocols and both engines; exits with 1 if a result is
wrong.
"""

from __future__ import annotations

import sys

import sley
from sley.engine.devices import Device, Engine
from support.devices.device_calls import threads
from support.devices.gpu_checks import executor, wrong
from support.devices.gpu_plans import ring

COUNTS = (403, 1)
TIMEOUT_S = 300.0


def main() -> int:
    device: Device
    if sys.argv[1:] == ["threads"]:
        device = threads()
    else:
        from sley.engine.devices.cuda import CudaDevice

        device = CudaDevice.open(0)
    total = 0
    for protocol in sley.Protocol:
        for engine in Engine:
            on = executor(ring(2, protocol), device, engine=engine, threads=64, timeout_s=TIMEOUT_S)
            found = [wrong(on, device, count, dtype="float16") for count in COUNTS]
            print(protocol.name, engine.value, "wrong:", found)
            total += sum(found)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
