"""Successors: what replaces the commands, options, runtimes and names that went. To take one away,
add a row here: who still uses it is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sley.errors import SleyError
from sley.errors.compiler import C316

_COMPILER = (
    *("protocol", "schedule", "allocate", "channels", "instances", "fusion", "no-fusion"),
    *("loop-order", "max-blocks", "switches", "no-switches", "size"),
)

_COMMANDS = {
    "bench": "sley run WHAT --device cuda --engine both",
    "msccl": "sley compile SCRIPT -o NAME.xml -- ARGUMENTS, or sley verify SCRIPT -- ARGUMENTS",
    "policy": "sley tune show POLICY, or sley tune export POLICY",
    "sweep": "sley tune sweep [COLLECTIVE ...] --topology NAME",
    **{
        f"tune {collective}": f"sley tune train {collective}"
        for collective in ("allreduce", "allgather", "reducescatter", "alltoall", "alltonext")
    },
}

_OPTIONS = {
    "--node-instances": "--arg node_instances=2",
    "--nics": "--arg nics=4",
    "--orders": "--arg orders='[[0,1,2],[2,1,0]]'",
    "--rings": "--arg rings=2",
    "--stage-channels": "--arg stage_channels='[0,1,2]'",
    **{
        f"{command} --{word}": f"sley compile WHAT --{word} ... -o NAME.plan, and then "
        f"sley {command} NAME.plan"
        for command in ("draw", "lift", "verify")
        for word in (*_COMPILER, *["slots"] * (command != "verify"))
    },
    "verify --show-rank": "sley compile WHAT --show-rank 0",
    "run --size": "-b SIZE",
    "simulate --size": "-b SIZE",
    "simulate --equations": "benchmarks/papers.py, which prints ResCCL's equations",
    "simulate --trace-most": "--trace: it has at most 100,000 executions",
    "doctor --runtime": "--target",
    "doctor --version": "--target NAME@VERSION",
    "package --runtime": "--target",
    "package --version": "--target NAME@VERSION",
    "tune export --to": "--target nccl, ncclx or rccl, where -o NAME.csv is a table, and for nccl "
    "-o NAME.c a plug-in; without --target the plans for sley's communicators",
    "tune export --build": "-o NAME.so",
    **{f"tune train --{word}": "benchmarks/tuner.py" for word in ("compare", "curves")},
    **{
        f"tune train --{word}": "sley.tuning.Noise in Python; the command has noise of 3 %"
        for word in ("noise", "congestion")
    },
    "tune": "sley tune train",
}

_RUNTIMES = {"msccl-executor-nccl": "executor"}

_NAMES = {
    "ScriptProgram": "sley.Program, which sley.load(SCRIPT) returns",
    "load_msccl": "sley.load(SCRIPT, script=ARGUMENTS)",
    "Costs": "sley.CostModel, which each topology has: topology.model",
    **{
        name: f"a word, such as {words}"
        for name, words in {
            "Allocation": 'allocate="state"',
            "LoopOrder": 'loop_order="tile"',
            "Schedule": 'schedule="hpds"',
        }.items()
    },
    **{
        name: f"{home}.{name}"
        for home, names in {
            "sley.ir.words": "Op",
            "sley.ir.cost_model": "ByProtocol",
            "sley.ir.conditions": "Condition",
            "sley.ir.plan": "Estimate",
            "sley.lang": "schedules",
            "sley.verification": "direct",
            "sley.model": "bounds simulation",
            "sley.model.simulation": "Simulator",
            "sley.engine": "devices",
            "sley.formats": "files",
            "sley.formats.files": "FileProof",
            "sley.compiler": "Choice Prediction RunnerUp passes deployment",
            "sley.communicator": "jobs rendezvous selection running calibrating",
            "sley.tuning": "policy",
            "sley.errors": "Diagnostic recognition text_files disk_cache",
        }.items()
        for name in names.split()
    },
    "codegen": "sley.engine.kernels",
}

_METHODS = {
    **{
        f"{kind}.{name}": f"sley.{name}({kind.lower()})"
        for kind, names in {
            "Program": "compile choose show draw",
            "Plan": "verify simulate run execute save lift show draw",
            "OneSidedPlan": "verify",
            "Topology": "draw",
            "Simulation": "show",
        }.items()
        for name in names.split()
    },
    "Plan.blocks": "sley.show(plan), or the columns plan.block_rank and plan.instructions",
    "Plan.show_pipelines": 'sley.show(plan, of="pipelines")',
    "Topology.save": "sley.topologies.save(topology, path)",
    "Simulation.save": "sley.draw(simulation).save(path)",
}

SUCCESSORS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "command": _COMMANDS,
        "option": _OPTIONS,
        "runtime": _RUNTIMES,
        "name": _NAMES,
        "method": _METHODS,
    }
)
"""By kind: what went, and what replaces it. An option of one command follows its name, as in
"verify --size"; the name of a group alone stands for all options that the group had."""


def gone(kind: str, name: str, command: str = "") -> SleyError | None:
    """The error for something that went; None for what never was. command: of an option, without
    `sley`. Errors returned: C316."""
    rows = SUCCESSORS[kind]
    whole = f"{command} {name}".strip()
    found = rows.get(whole) or rows.get(name) or (rows.get(command) if kind == "option" else None)
    if found is None:
        return None
    remedy = f"Use {found}."
    return C316.error(expected=found, found=f"the earlier {kind} {whole}", remedy=remedy)
