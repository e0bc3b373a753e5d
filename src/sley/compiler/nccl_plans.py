"""NCCL's plans: the library's plans that move the data as NCCL's choices do."""

from __future__ import annotations

from sley.algorithms import build
from sley.compiler.entry import compile
from sley.compiler.options import Options
from sley.errors import SleyError
from sley.errors.tuning import D931
from sley.ir.plan import Plan
from sley.ir.topology import Topology
from sley.model.nccl.choice import CollectiveChoice


def nccl_plan(collective: str, choice: CollectiveChoice, topology: Topology) -> Plan:
    """The plan for NCCL's choice on a machine; in place, unless NCCL sends and receives. Errors:
    D931 for a machine that it can't run on."""
    try:
        program = build(
            choice.program,
            nodes=topology.nodes,
            gpus=topology.ranks // topology.nodes,
            rings=choice.rings,
            orders=choice.orders or None,
            heads=choice.heads,
            in_place=collective != "alltoall",
        )
        options = Options(protocol=choice.protocol, channels=1, instances=choice.instances)
        return compile(program, options, topology=topology, verify=False)
    except SleyError as error:
        raise D931.error(
            expected=f"a machine that runs {choice.program}, NCCL's choice",
            found=f"{topology.name}: {error.diagnostics[0].found}",
        ) from error
