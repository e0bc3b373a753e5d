"""Jobs: plans on worker processes of this machine, which have a communicator.

execute.py               entry points: one run on given arrays; runs over sizes, timed and checked
job.py, group.py         the launcher: persistent workers, deaths, errors
worker.py, commands.py   the worker processes, and the commands that they execute
"""

from sley.communicator.jobs.execute import execute, run
from sley.communicator.jobs.job import Job, JobPlan

__all__ = ["Job", "JobPlan", "execute", "run"]
