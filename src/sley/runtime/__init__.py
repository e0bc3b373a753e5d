"""The CPU runtime: runs plans on processes (or threads) of this machine, over shared memory.

execute.py, measure.py   the two ways in: once on given arrays; over sizes, timed and checked
job.py, group.py         the launcher: persistent workers, deaths, errors
worker.py, commands.py   what runs in the workers, and what they are told
program.py, buffers.py   a plan and a call's arrays, as the engine takes them
heap.py                  memory that the other ranks of the host may read where it lies
settings.py, memory.py   what may be asked for, and what the system has no room for
pattern.py, check.py     test data, and what a collective makes of it
native/                  the engine, in C++
"""

from sley.runtime.execute import execute
from sley.runtime.job import Job
from sley.runtime.measure import Measurement, run
from sley.runtime.settings import SLOT_BYTES, TIMEOUT_S
from sley.runtime.types import DATA_TYPES

__all__ = [
    "DATA_TYPES",
    "SLOT_BYTES",
    "TIMEOUT_S",
    "Job",
    "Measurement",
    "execute",
    "run",
]
