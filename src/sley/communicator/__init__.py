"""The communicator: ranks in processes, on one host or several, that run collectives together.

communicator.py           the front: collectives and messages on NumPy arrays
arrays.py                 what is checked of arrays, and what they say of a call
endpoint.py               a rank's end of it: calls on memory, their plans, closing
records.py, work.py       a call, its record for other ranks, and a call under way
failures.py               what ended a call, in words
settings.py               what may be asked for
stores.py, mpi.py         what ranks find one another over: torch's stores, a folder, MPI
environment.py            which rank this process is, as launchers say it
gather.py                 all-gather over a store, and how everybody learns of a failure
hosts.py, nics.py         what a rank says of itself; which ranks share a host; network interfaces
local.py                  descriptors handed around among the ranks of a host
bootstrap.py              all of it in order: the rendezvous
memory.py, prepared.py    the memory of the ranks of a host; a plan's engine over it
tiles.py                  the size of the pieces that messages are cut into
calls.py, rules.py        kinds of calls; which algorithm for which sizes
selection.py, plans.py    what runs for a call; plans made ready, once
own_plans.py              plans of the user's
plan_bytes.py, cache.py   plans kept on disk
"""

from sley.communicator.communicator import Communicator
from sley.communicator.environment import Started, from_environment
from sley.communicator.mpi import MpiStore
from sley.communicator.records import Call
from sley.communicator.settings import Copies, Network, Settings
from sley.communicator.stores import FolderStore, LocalStore, Store, TorchStore
from sley.communicator.work import Work

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
