"""Plans as kernels on devices: GPUs, or threads of this machine."""

from sley.codegen import Engine
from sley.devices.device import Device
from sley.devices.device_names import devices_named
from sley.devices.executor import Executor
from sley.devices.settings import THREADS
from sley.devices.sites import Launching
from sley.devices.threads import ThreadsDevice

__all__ = [
    "THREADS",
    "Device",
    "Engine",
    "Executor",
    "Launching",
    "ThreadsDevice",
    "devices_named",
]
