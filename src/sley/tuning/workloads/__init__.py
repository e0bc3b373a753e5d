"""Workloads: the calls of a program with the computation between them.

Files: workload (the value, and `Steps`, which makes one step by step), files (reads and writes
workloads as TOML), models (inference and mixture-of-experts training, as in MSCCLang's end-to-end
results).
"""

from sley.tuning.workloads.files import read, write
from sley.tuning.workloads.workload import COLLECTIVES, Group, Steps, Workload

__all__ = ["COLLECTIVES", "Group", "Steps", "Workload", "read", "write"]
