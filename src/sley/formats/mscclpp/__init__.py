"""MSCCL++ execution plans: reads a JSON file into a OneSidedPlan, by all rules of the executor, and
writes one for a Plan.

`reader`: `document` reads the text, `parse` makes a `raw` plan of it, `checks` refuse it, `cutting`
finds the parts of its chunks, `lowering` makes the machine's rows; `conditions` say when it is
executed so.
`accesses`: the memory of each operation. `header`: what a call is compared with, for many files.
`writer`: `switching` finds what switches do, `conflicts` the accesses that need an order, and
`analysis` has both. `direct` finds what needs no scratch, `placing` the place of each message,
`threadblocks` the blocks, `emission` their operations, and `fitting` those that fit into the
executor's tables.
All use `words` and `targets`.
"""

from sley.formats.format import RuntimeFormat
from sley.formats.mscclpp.reader import executions, read
from sley.formats.mscclpp.targets import SUFFIX, TARGETS
from sley.formats.mscclpp.writer import check, write

__all__ = ["FORMAT", "TARGETS", "check", "executions", "read", "write"]

FORMAT = RuntimeFormat(
    name="MSCCL++ execution plan",
    suffix=SUFFIX,
    write=write,
    read=read,
    check=check,
    executions=executions,
    targets=tuple(dict.fromkeys(TARGETS.values())),
    one_sided=True,
)
