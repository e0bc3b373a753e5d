"""sley compiles collective communication.

Write an algorithm with `program`, `compile` it into a `Plan` of thread blocks, `verify` it,
`run` it on processes of this machine, `save` it as MSCCL XML.
"""

from sley import algorithms, topologies
from sley.compiler import compile
from sley.errors import Diagnostic, SleyError
from sley.files import load, save
from sley.ir.collective import Collective
from sley.ir.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Custom,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    SendRecv,
)
from sley.ir.plan import Estimate, Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Allocation, LoopOrder, Op, Protocol, ReduceOp, Schedule
from sley.lang import program, rescclang, trace
from sley.passes.lift import lift
from sley.passes.timeline import Costs
from sley.report.tables import pipeline_table, plan_table
from sley.running import execute, run
from sley.verify import Proof, verify

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AllToNext",
    "Allocation",
    "Broadcast",
    "Collective",
    "Costs",
    "Custom",
    "Diagnostic",
    "Estimate",
    "Gather",
    "LoopOrder",
    "Op",
    "Plan",
    "Program",
    "Proof",
    "Protocol",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
    "Scatter",
    "Schedule",
    "SendRecv",
    "SleyError",
    "Topology",
    "algorithms",
    "compile",
    "execute",
    "lift",
    "load",
    "pipeline_table",
    "plan_table",
    "program",
    "rescclang",
    "run",
    "save",
    "topologies",
    "trace",
    "verify",
]
