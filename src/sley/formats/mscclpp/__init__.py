"""MSCCL++ execution plans: reads a JSON file into a OneSidedPlan, by all rules of the executor, and
writes one for a Plan.

`raw` is the model of a file, for both ways, with its text. `parse` makes it of a `document`, which
is an object of JSON, or reads only what a call is compared with, of many files.
`reader`: `checks` refuse a `raw` plan, `lowering` cuts its chunks and makes the machine's rows;
`conditions` say when it is executed so.
`writer`: `analysis` finds what switches do and which accesses need an order, `placing` the place of
each message, `emission` the blocks and their operations, and the writer cuts blocks until a `raw`
plan fits into the executor's tables.
All use `words` and `targets`.
"""

from sley.formats.format import RuntimeFormat
from sley.formats.mscclpp.raw import serialise
from sley.formats.mscclpp.reader import executions, read
from sley.formats.mscclpp.targets import SUFFIX, TARGETS
from sley.formats.mscclpp.writer import check, raw_plan

__all__ = ["FORMAT", "TARGETS", "check", "executions", "raw_plan", "read", "write"]

FORMAT = RuntimeFormat(
    name="MSCCL++ execution plan",
    suffix=SUFFIX,
    make=raw_plan,
    text=serialise,
    read=read,
    check=check,
    executions=executions,
    targets=tuple(dict.fromkeys(TARGETS.values())),
    one_sided=True,
)

write = FORMAT.write
"""The text of an execution plan; it takes what `raw_plan` takes."""
