"""Jobs: plans on worker processes of this machine, which have a communicator.

job.py, group.py         the launcher: persistent workers, deaths, errors; jobs of one plan
worker.py, commands.py   the worker processes, and the commands that they execute
"""

from sley.communicator.jobs.job import Job, JobPlan, execute, run

__all__ = ["Job", "JobPlan", "execute", "run"]
