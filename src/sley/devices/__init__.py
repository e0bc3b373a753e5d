"""Plans as kernels on devices: GPUs, or threads of this machine."""

from sley.codegen import Engine
from sley.devices.communicator import Communicator
from sley.devices.device import Device
from sley.devices.named import devices_named
from sley.devices.settings import THREADS
from sley.devices.sites import Launching
from sley.devices.threads import ThreadsDevice

__all__ = [
    "THREADS",
    "Communicator",
    "Device",
    "Engine",
    "Launching",
    "ThreadsDevice",
    "devices_named",
]
