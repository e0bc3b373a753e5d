"""The front door: the names that `sley` offers. The package loads this module when one of them is
used for the first time (docs/decisions/0029-methods-of-values.md)."""

from importlib.metadata import version

from sley import algorithms, methods, topologies
from sley.communicator import Communicator
from sley.communicator.heap import empty
from sley.communicator.running import execute, run
from sley.communicator.stats import stats
from sley.compiler import Choice, Choices, Options, Prediction, RunnerUp, choose, compile
from sley.compiler.passes.lift import lift
from sley.compiler.scripts import load_msccl
from sley.errors import Diagnostic, SleyError
from sley.formats.files import FileProof, load, save, verify_file
from sley.ir import collectives
from sley.ir.collective import Collective
from sley.ir.collectives import *
from sley.ir.conditions import Condition
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.plan import Estimate, Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Allocation, LoopOrder, Op, Protocol, ReduceOp, Schedule
from sley.lang import program, rescclang, trace
from sley.lang.msccl import ScriptProgram
from sley.model.simulation import Simulation, Simulator, simulate
from sley.verification import Proof, verify

methods.attach()

__version__ = version("sley")

__all__ = [
    "Allocation",
    "ByProtocol",
    "Choice",
    "Choices",
    "Collective",
    "Communicator",
    "Condition",
    "CostModel",
    "Diagnostic",
    "Estimate",
    "FileProof",
    "LoopOrder",
    "Op",
    "Options",
    "Plan",
    "Prediction",
    "Program",
    "Proof",
    "Protocol",
    "ReduceOp",
    "RunnerUp",
    "Schedule",
    "ScriptProgram",
    "Simulation",
    "Simulator",
    "SleyError",
    "Topology",
    "__version__",
    "algorithms",
    "choose",
    "compile",
    "empty",
    "execute",
    "lift",
    "load",
    "load_msccl",
    "program",
    "rescclang",
    "run",
    "save",
    "simulate",
    "stats",
    "topologies",
    "trace",
    "verify",
    "verify_file",
]
__all__ += collectives.__all__
