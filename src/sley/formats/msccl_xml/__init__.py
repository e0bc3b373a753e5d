"""MSCCL XML (the MSCCL-IR): reads a file into a Plan, and writes a Plan for a target.

`raw` is the model of a file, for both ways, and makes one of a text.
`reader`: `checks` refuse a `raw` file; remarks say what is odd in it.
`runtime`: what a target executes when it reads a file; `lexical` is its lexer.
`writer` makes a `raw` file of a plan, and refuses what a target can't run. All use `targets`.
"""

from sley.formats.format import RuntimeFormat
from sley.formats.msccl_xml.reader import read
from sley.formats.msccl_xml.runtime import executions
from sley.formats.msccl_xml.targets import SUFFIX, TARGETS
from sley.formats.msccl_xml.writer import check, write
from sley.ir.words import Allocation, LoopOrder

__all__ = ["FORMAT", "TARGETS", "check", "executions", "read", "write"]

FORMAT = RuntimeFormat(
    name="MSCCL XML",
    suffix=SUFFIX,
    make=write,
    read=read,
    check=check,
    executions=executions,
    targets=tuple(TARGETS.values()),
    # The runtimes run all steps of a block for one tile before the next tile, and a block has one
    # send peer and one receive peer.
    needs={
        "per_chunk": True,
        "loop_order": LoopOrder.TILE,
        "allocate": Allocation.CONNECTION,
        "switches": False,
    },
    runs_with_own_slots=True,
)
