"""MSCCL++ execution plans: reads a JSON file into a OneSidedPlan, by all rules of the executor.

`reader`: `parse` makes a `raw` plan of the text, `checks` refuse it, `cutting` finds the parts of
its chunks, `lowering` makes the machine's rows; `conditions` say when it is executed so.
`accesses`: the memory of each operation. `header`: what a call is compared with, for many files.
All use `words` and `targets`.
"""

from sley.formats.format import Format
from sley.formats.mscclpp.reader import executions, read
from sley.formats.mscclpp.targets import SUFFIX, TARGETS

__all__ = ["FORMAT", "executions", "read"]

FORMAT = Format(
    name="MSCCL++ execution plan",
    suffix=SUFFIX,
    read=read,
    executions=executions,
    targets=tuple(TARGETS.values()),
    one_sided=True,
)
