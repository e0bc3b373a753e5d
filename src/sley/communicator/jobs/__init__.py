"""Jobs: one plan on worker processes of this machine, over shared memory.

execute.py               entry points: one run on given arrays; runs over sizes, timed and checked
job.py, group.py         the launcher: persistent workers, deaths, errors
worker.py, commands.py   the worker processes, and the commands that they execute
"""

from sley.communicator.jobs.execute import execute, run
from sley.communicator.jobs.job import Job, Settings

__all__ = ["Job", "Settings", "execute", "run"]
