"""One-sided plans: what must hold of their tables, and of an abstract run of their calls.

docs/machine.md, "The one-sided machine", defines the machine.

checks.py         the checks, in order: tables, ranges, packets, counters, the run
machine.py        the run: consecutive calls, every operation once
clocks.py         what agents (blocks, ports, callers) know of one another's operations
memory.py         the cells, and the ranges of them that moves access
history.py        the exact contents of cells, for the report of a wrong result
"""

from sley.verification.one_sided.checks import check_one_sided

__all__ = ["check_one_sided"]
