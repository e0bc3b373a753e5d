"""Plans as kernels on devices: GPUs, or threads of this machine."""

from sley.codegen import Engine
from sley.devices.device import Device
from sley.devices.execute import execute
from sley.devices.executor import Executor
from sley.devices.measure import compare, run
from sley.devices.names import open_devices
from sley.devices.settings import THREADS, Launching, Settings
from sley.devices.threads import ThreadsDevice

__all__ = [
    "THREADS",
    "Device",
    "Engine",
    "Executor",
    "Launching",
    "Settings",
    "ThreadsDevice",
    "compare",
    "execute",
    "open_devices",
    "run",
]
