"""Jobs: one plan on worker processes (or threads) of this machine, over shared memory.

execute.py               the two ways in: once on given arrays; over sizes, timed and checked
job.py, group.py         the launcher: persistent workers, deaths, errors
worker.py, commands.py   what runs in the workers, and what they are told
"""

from sley.jobs.execute import execute, run
from sley.jobs.job import Job, Settings

__all__ = ["Job", "Settings", "execute", "run"]
