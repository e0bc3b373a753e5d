"""The communicator: ranks in processes, on one host or several, that run collectives together.

communicator.py          the front: collectives and messages on NumPy arrays
arrays.py                what is checked of arrays, and what they say of a call
endpoint.py              a rank's end of it: calls on memory, their plans, closing
records.py, work.py      a call, its record for other ranks, and a call under way
messages.py              messages from one rank to another
failures.py              what ended a call, in words
settings.py, log.py      what may be asked for; what a communicator says of itself
memory.py, heap.py       the memory of the ranks of a host; memory that they read where it lies
network.py               what carries messages between hosts
prepared.py, tiles.py    a plan's engine over that memory; the size of pieces of messages
"""

from sley.communicator.communicator import Communicator
from sley.communicator.records import Call
from sley.communicator.settings import Copies, Network, Settings
from sley.communicator.work import Work
from sley.rendezvous.environment import Started, from_environment
from sley.rendezvous.mpi import MpiStore
from sley.rendezvous.stores import FolderStore, LocalStore, Store, TorchStore

__all__ = [
    "Call",
    "Communicator",
    "Copies",
    "FolderStore",
    "LocalStore",
    "MpiStore",
    "Network",
    "Settings",
    "Started",
    "Store",
    "TorchStore",
    "Work",
    "from_environment",
]
