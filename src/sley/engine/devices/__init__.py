"""Plans as kernels on devices: GPUs, or threads of this machine.

executor.py               a plan on devices, ready for repeated calls
programs.py               the kernels that plans' calls need, loaded at their first use
links.py                  what several plans of a communicator share, and keep between calls
link_layout.py            what is derived from their plans
mailboxes.py              the ranks' counters and slots, in the devices' memory
execute.py, measure.py    entry points for host arrays: one run; runs over sizes, timed and checked
settings.py, names.py     how a plan runs; devices by name
device.py                 the interface of a device; threads.py and cuda/ implement it
windows.py                slots of groups' messages, in memory that a switch reads and writes
device_ranks.py           the ranks on the devices of all processes, and the processes' exchanges
tables.py                 a plan as kernels read it
memory.py                 what peers read; scratch, and arrays that other processes read
arguments.py, calls.py    a call's validated arrays; prepared calls
stamps.py                 when the blocks of a call did what
failures.py, counters.py  what the blocks of a failed call were waiting for; counters as numbers
"""

from sley.engine.devices.device import Device
from sley.engine.devices.execute import execute
from sley.engine.devices.executor import Executor
from sley.engine.devices.links import LinkSet
from sley.engine.devices.measure import compare, run
from sley.engine.devices.names import open_devices
from sley.engine.devices.settings import Launching, Settings
from sley.engine.devices.threads import ThreadsDevice
from sley.engine.kernels import THREADS, Engine

__all__ = [
    "THREADS",
    "Device",
    "Engine",
    "Executor",
    "Launching",
    "LinkSet",
    "Settings",
    "ThreadsDevice",
    "compare",
    "execute",
    "open_devices",
    "run",
]
