"""The communicator: ranks in processes, on one host or several, that run collectives together.

communicator.py   collectives and messages on NumPy arrays
arrays.py         validates a call's arrays and derives its type, count and placement
endpoint.py       a rank's end: calls on memory, the plans loaded for them, closing
loading.py        plans on this rank, as the engine loads them, alone or watched
tuner.py          the policy that all ranks use, or none
watch.py          equal calls under a policy: their trials, and their return to the default
calls.py          a call, its record for the other ranks, and the call in progress
messages.py       messages from one rank to another
failures.py       a failed call's outcome as an error
memory.py         the file that the ranks of a host share, the fabric over it, slots and tiles
heap.py           memory that the other ranks of the host can read in place
sharing.py        what processes of a host share once: heaps, and signs of life
network.py        transports between hosts
settings.py       settings of a communicator
stats.py          statistics of calls, and the log
opening.py        the engine's objects of a communicator, at its start and when its network changes
turns.py          calls one after another, and which of them ranks repeat when they meet again
ready.py          equal calls again, which the engine runs without Python
rendezvous/       how ranks find one another
selection/        which plan runs for a call
jobs/             plans on worker processes of this machine
running.py        `sley.run` and `sley.execute`
calibrating.py    a topology of this machine, measured
on_devices.py     the communicator on GPUs, and on threads as a device
device_opening.py what its ranks choose and make together: plans, links, kernels
call_table.py     the plans of all its calls
link_tables.py    what it needs to open without Python, made ahead
"""

import importlib
from typing import TYPE_CHECKING, Any

from sley.communicator.calls import Call as Call
from sley.communicator.calls import Parts as Parts
from sley.communicator.calls import Work as Work
from sley.communicator.communicator import Communicator as Communicator
from sley.communicator.network import Network as Network
from sley.communicator.rendezvous.environment import Started as Started
from sley.communicator.rendezvous.environment import from_environment as from_environment
from sley.communicator.rendezvous.stores import FolderStore as FolderStore
from sley.communicator.rendezvous.stores import LocalStore as LocalStore
from sley.communicator.rendezvous.stores import MpiStore as MpiStore
from sley.communicator.rendezvous.stores import Store as Store
from sley.communicator.rendezvous.stores import TorchStore as TorchStore
from sley.communicator.selection.plans import PlanChange as PlanChange
from sley.communicator.settings import Copies as Copies
from sley.communicator.settings import Settings as Settings

if TYPE_CHECKING:
    from sley.communicator.on_devices import DeviceCommunicator as DeviceCommunicator


def __getattr__(name: str) -> Any:
    # What it needs takes a third of the time of all else, which no CPU's communicator needs.
    if name == "DeviceCommunicator":
        return importlib.import_module("sley.communicator.on_devices").DeviceCommunicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
