"""sley compiles collective communication: write an algorithm, have it proven, simulate and run it.

    import sley

    @sley.program(sley.AllGather(4))
    def ring(p):
        for rank in range(4):
            chunk = p.chunk(rank, "in", 0).copy(rank, "out", rank)
            for step in range(1, 4):
                chunk = chunk.copy((rank + step) % 4, "out", rank)

    plan = ring.compile(topology="1x4")
    print(plan.verify())
    print(plan.simulate("64M"))
    for measured in plan.run(["64K", "1M"]):
        print(measured)
    plan.save("ring.xml")

Write programs: program, rescclang, load_msccl, or take those of `sley.algorithms`, by name with
    sley.algorithms.build("ring-allreduce", ranks=8); for AllReduce, AllGather, ... or Custom.
Plans: compile, choose, verify, simulate, run, execute, load, save, verify_file, lift. Most are also
    methods of programs and plans; `show` and `draw` are texts and pictures of them.
Clusters: `sley.topologies`; every function takes names such as "ndv4:2" or "torus:4x4", too.
Calls between processes: Communicator, empty, stats; with PyTorch, the backend "sley".
Errors: SleyError, whose codes `sley explain CODE` explains.
"""

from importlib.metadata import version

import sley.methods
from sley import algorithms, topologies
from sley.communicator import Communicator
from sley.communicator.heap import empty
from sley.communicator.stats import stats
from sley.compiler import Choice, Choices, Options, Prediction, RunnerUp, choose, compile
from sley.errors import Diagnostic, SleyError
from sley.files import FileProof, load, save, verify_file
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
from sley.passes.lift import lift
from sley.passes.timeline import Costs
from sley.running import execute, run
from sley.scripts import load_msccl
from sley.simulate import Simulation, Simulator, simulate
from sley.verify import Proof, verify

sley.methods.attach()

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
    "Costs",
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
