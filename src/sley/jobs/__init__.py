"""Jobs: one plan on worker processes (or threads) of this machine, over shared memory.

execute.py, measure.py   the two ways in: once on given arrays; over sizes, timed and checked
job.py, group.py         the launcher: persistent workers, deaths, errors
worker.py, commands.py   what runs in the workers, and what they are told
transport.py             messages between the launcher and its workers
"""

from sley.jobs.execute import execute
from sley.jobs.job import Job
from sley.jobs.measure import Measurement, run

__all__ = ["Job", "Measurement", "execute", "run"]
