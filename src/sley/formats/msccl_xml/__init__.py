"""MSCCL XML (the MSCCL-IR): reading it into a Plan, and writing a Plan for a named target."""

from sley.formats.format import Format
from sley.formats.msccl_xml.reader import read
from sley.formats.msccl_xml.targets import EXECUTOR, MSCCL, RCCL, SUFFIX
from sley.formats.msccl_xml.writer import check, write
from sley.ir.words import Allocation, LoopOrder

__all__ = ["FORMAT", "check", "read", "write"]

FORMAT = Format(
    name="MSCCL XML",
    suffix=SUFFIX,
    write=write,
    read=read,
    check=check,
    targets=(EXECUTOR, RCCL, MSCCL),
    # The runtimes run all steps of a block for a tile before the next one, and a block has one
    # peer to send to and one to receive from.
    needs={
        "per_chunk": True,
        "loop_order": LoopOrder.TILE,
        "allocate": Allocation.CONNECTION,
    },
    runs_with_own_slots=True,
)
