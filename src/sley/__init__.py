"""sley compiles collective communication: write an algorithm, have it proven, simulate and run it.

    import sley

    @sley.program(sley.AllGather(4))
    def ring(p: sley.ChunkProgram):
        for rank in range(4):
            chunk = p.chunk(rank, "in", 0).copy(rank, "out", rank)
            for step in range(1, 4):
                chunk = chunk.copy((rank + step) % 4, "out", rank)

    plan = sley.compile(ring, topology="1x4")
    print(sley.verify(plan))
    print(sley.simulate(plan, "64M"))
    for measured in sley.run(plan, ["64K", "1M"]):
        print(measured)
    sley.save(plan, "ring.xml")

Write programs: program, of a function of a ChunkProgram, rescclang, or take those of
    `sley.algorithms`, by name with sley.load("ring-allreduce", ranks=8), or synthesize one for a
    cluster; for AllReduce, AllGather, ... or Custom. plan_groups plans a GroupCall of each of
    several groups at once.
Plans: compile, choose, verify, simulate, run, execute, load, save, verify_file, lift; `show` and
    `draw` are texts and pictures of programs, plans, topologies and simulations.
Clusters: `sley.topologies`; every function takes names such as "ndv4:2" or "torus:4x4", too.
Calls between processes: Communicator, on GPUs DeviceCommunicator, empty, stats; with PyTorch, the
    backend "sley".
Errors: SleyError, whose codes `sley explain CODE` explains.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sley import algorithms as algorithms
    from sley import topologies as topologies
    from sley.communicator import Communicator as Communicator
    from sley.communicator import DeviceCommunicator as DeviceCommunicator
    from sley.communicator.heap import empty as empty
    from sley.communicator.running import execute as execute
    from sley.communicator.running import run as run
    from sley.communicator.stats import stats as stats
    from sley.compiler import Choices as Choices
    from sley.compiler import Options as Options
    from sley.compiler import choose as choose
    from sley.compiler import compile as compile
    from sley.compiler.group_plans import GroupCall as GroupCall
    from sley.compiler.group_plans import plan_groups as plan_groups
    from sley.compiler.opening import load as load
    from sley.compiler.passes.lift import lift as lift
    from sley.compiler.synthesis import synthesize as synthesize
    from sley.errors import SleyError as SleyError
    from sley.formats.files import save as save
    from sley.formats.files import verify_file as verify_file
    from sley.ir.collective import Collective as Collective
    from sley.ir.collectives import AllGather as AllGather
    from sley.ir.collectives import AllGatherV as AllGatherV
    from sley.ir.collectives import AllReduce as AllReduce
    from sley.ir.collectives import AllToAll as AllToAll
    from sley.ir.collectives import AllToAllV as AllToAllV
    from sley.ir.collectives import AllToNext as AllToNext
    from sley.ir.collectives import Broadcast as Broadcast
    from sley.ir.collectives import Custom as Custom
    from sley.ir.collectives import Gather as Gather
    from sley.ir.collectives import Reduce as Reduce
    from sley.ir.collectives import ReduceScatter as ReduceScatter
    from sley.ir.collectives import Scatter as Scatter
    from sley.ir.collectives import SendRecv as SendRecv
    from sley.ir.cost_model import CostModel as CostModel
    from sley.ir.plan import Plan as Plan
    from sley.ir.program import Program as Program
    from sley.ir.topology import Topology as Topology
    from sley.ir.words import Protocol as Protocol
    from sley.ir.words import ReduceOp as ReduceOp
    from sley.lang import ChunkProgram as ChunkProgram
    from sley.lang import program as program
    from sley.lang import rescclang as rescclang
    from sley.lang import trace as trace
    from sley.model.simulation import Simulation as Simulation
    from sley.model.simulation import simulate as simulate
    from sley.report.views import draw as draw
    from sley.report.views import show as show
    from sley.verification import Proof as Proof
    from sley.verification import verify as verify

_HOMES = {
    "sley": "algorithms topologies",
    "sley.communicator": "Communicator DeviceCommunicator",
    "sley.communicator.heap": "empty",
    "sley.communicator.running": "execute run",
    "sley.communicator.stats": "stats",
    "sley.compiler": "Choices Options choose compile",
    "sley.compiler.group_plans": "GroupCall plan_groups",
    "sley.compiler.passes.lift": "lift",
    "sley.compiler.opening": "load",
    "sley.compiler.synthesis": "synthesize",
    "sley.errors": "SleyError",
    "sley.formats.files": "save verify_file",
    "sley.ir.collective": "Collective",
    "sley.ir.collectives": "AllGather AllGatherV AllReduce AllToAll AllToAllV AllToNext Broadcast "
    "Custom Gather Reduce ReduceScatter Scatter SendRecv",
    "sley.ir.cost_model": "CostModel",
    "sley.ir.plan": "Plan",
    "sley.ir.program": "Program",
    "sley.ir.topology": "Topology",
    "sley.ir.words": "Protocol ReduceOp",
    "sley.lang": "ChunkProgram program rescclang trace",
    "sley.model.simulation": "Simulation simulate",
    "sley.report.views": "draw show",
    "sley.verification": "Proof verify",
}
"""The names that `sley` offers, by their module, which the first use of a name imports: all modules
together take most of a second, five times what a worker needs. Type checkers read the imports."""

_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sley")
    if "IPython" in sys.modules and name in _HOME:
        importlib.import_module("sley.report.views").register()
    if name in _HOME and _HOME[name] != "sley":
        value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        return value
    spec = find_spec(f"sley.{name}") if name.isidentifier() and not name.startswith("_") else None
    if spec and spec.origin:  # a folder without modules, which an older version left, has none
        return importlib.import_module(f"sley.{name}")
    went = importlib.import_module("sley.errors.successors").gone("name", name)
    raise AttributeError(went or f"module 'sley' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def autoload() -> None:
    """Makes the backend "sley" known to PyTorch in programs that don't import `sley.torch`, which
    the first group loads; with SLEY_REPLACE_GLOO, loads it now.

    It is sley's entry point of the group `torch.backends`: PyTorch calls it at the end of every
    `import torch`.
    """
    dist = importlib.import_module("torch.distributed")
    if dist.is_available():
        dist.Backend.register_backend("sley", _make_group, extended_api=True, devices=["cpu"])
    if os.environ.get("SLEY_REPLACE_GLOO"):
        importlib.import_module("sley.torch")


def _make_group(options: Any, settings: Any) -> Any:
    """Makes the first group: `sley.torch` registers its own function for all others."""
    importlib.import_module("sley.torch")
    return importlib.import_module("sley.torch.group").create(options, settings)
