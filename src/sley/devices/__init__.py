"""Plans as kernels on devices: GPUs, or threads of this machine.

executor.py               a plan on devices, ready to be called again and again
execute.py, measure.py    the two ways in without arrays there: once; over sizes, timed and checked
settings.py, names.py     how a plan runs; which devices, by name
device.py                 what a device can do; threads.py and cuda/ are those that there are
world.py                  the ranks on the devices of all processes, and what these exchange
tables.py, sites.py       a plan as kernels read it; what lies on a device from call to call
memory.py                 scratch, and arrays that other processes read
arguments.py, calls.py    a call's arrays, checked; its launches, and their order among calls
failures.py               what the blocks of a call that gave up were waiting for
"""

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
