"""Workloads: the calls of a program with the computation between them.

workload.py   the value, and `Steps`, which makes one step by step
files.py      reads and writes them as TOML
models.py     those of MSCCLang's end-to-end results: inference and mixture-of-experts training
"""

from sley.workloads.files import read, write
from sley.workloads.workload import COLLECTIVES, Group, Steps, Workload

__all__ = ["COLLECTIVES", "Group", "Steps", "Workload", "read", "write"]
