"""sley simulate: predicts the time of a plan on a cluster, and explains it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from sley.cli.nccl import by_name, is_nccl, simulate_nccl
from sley.cli.options import (
    FILE,
    PlanCommand,
    RuntimeName,
    Selection,
    common_options,
    plan_options,
    same_bits_option,
    size_options,
)
from sley.cli.output import (
    Phases,
    attributes,
    echo,
    print_note,
    print_written,
    progress_bar,
)
from sley.cli.simulating import Reports, Simulating, report_options, simulation_options
from sley.cli.sources import (
    MESSAGE_TARGETS,
    check_same_bits,
    choosing_for,
    in_order,
    is_compiled,
    is_compiled_for_runtime,
    plan_and_file,
    plan_of_target,
    prefer_in_place,
)
from sley.compiler import Options
from sley.errors import SleyError, shortened
from sley.formats import check_folder, write_file
from sley.ir.orders import SameBits
from sley.ir.plan import Plan
from sley.ir.sizes import SizeRange, size_text
from sley.model.simulation import Simulation, Simulator
from sley.model.simulation.result import error_text
from sley.report.analysis import critical_steps
from sley.report.limit import WhatIf, limit_of, threads_of, what_if, what_if_lines
from sley.report.simulation import parameter_lines, simulation_lines, size_table
from sley.report.trace import MOST_EXECUTIONS, trace, trace_bytes


@click.command("simulate", cls=PlanCommand)
@plan_options
@size_options("64M")
@simulation_options
@same_bits_option
@click.option(
    "--target",
    type=RuntimeName(MESSAGE_TARGETS),
    help="Simulate the file written for this runtime, as its interpreter executes it.",
)
@click.option(
    "--what-if",
    "what_if_",
    is_flag=True,
    help="For one size: simulate again with twice the slots, faster links and so on, one by one.",
)
@report_options
@click.option(
    "--trace",
    "trace_file",
    type=FILE,
    help="For one size: write a trace for Perfetto, compressed if the name ends in .gz.",
)
@common_options
def simulate_command(  # as many parameters as options; click passes each by name
    selection: Selection,
    sizes: list[int],
    simulating: Simulating,
    same_bits: SameBits,
    target: str | None,
    what_if_: bool,
    reports: Reports,
    trace_file: Path | None,
    phases: Phases,
) -> None:
    """Simulate WHAT on --topology: one size in full, or several as a table.

    nccl-allreduce (nccl-allgather, ...) stands for NCCL's choice at each size.
    """
    of_one = (("--trace", trace_file), ("--what-if", what_if_))
    for option, given in of_one:
        if given and len(sizes) > 1:
            raise click.UsageError(f"{option} is for one size; leave --end out")
    if trace_file is not None:
        check_folder(trace_file)
    selection = choosing_for(selection, sizes)
    if not is_nccl(selection):
        selection = in_order(selection, same_bits)
    executions = bool(reports or trace_file)
    named = _simulate(selection, sizes, simulating, phases, target=target, executions=executions)
    names, simulations = [name for name, _ in named], [one for _, one in named]
    for one in {id(s.plan): s for s in simulations}.values() if same_bits else ():
        check_same_bits(one.plan, one.topology.node, same_bits)
    changes: list[WhatIf] = []
    if what_if_:
        with phases("simulating changes"):
            changes = what_if(simulations[0], _twice(selection, simulations[0], target, phases))
    with phases("writing"):
        title = f"{names[0]} on {simulations[0].topology.name}"
        reports.write(simulations, title=title, names=names, changes=[changes] * len(simulations))
        if trace_file is not None:
            _write_trace(trace_file, simulations[0])
    if phases.quiet:
        more = {"what_if": [asdict(change) for change in changes]} if what_if_ else {}
        phases.print_json(simulations=[simulation_json(s) for s in simulations], **more)
        return
    lines = simulation_lines(simulations[0]) if len(sizes) == 1 else size_table(simulations)
    lines += what_if_lines(changes) if what_if_ else []
    lines += parameter_lines(simulations[0]) if phases.verbose else []
    if is_nccl(selection):
        for name, of in by_name(named):
            first, last = of[0].size_bytes, of[-1].size_bytes
            sizes_of = size_text(first) if first == last else SizeRange(first, last)
            echo(f"{sizes_of!s:<23}{name}")
    echo("\n".join(lines))
    if target is not None:
        echo(f"# the file for {target}, as it executes it")
    elif not is_nccl(selection) and not simulating.interpreter:
        echo(f"# {_simulated(selection)}")
    print_written(reports.html, reports.plot, trace_file)
    phases.report()


def _simulated(selection: Selection) -> str:
    """The plan to simulate: the program's or the file's, and what --target adds."""
    names = ", ".join(MESSAGE_TARGETS[:-1]) + f" or {MESSAGE_TARGETS[-1]}"
    what = selection.what if is_compiled_for_runtime(selection) else "the plan"
    return f"{what} as generated kernels; as a file for a runtime: --target {names}"


def _twice(
    selection: Selection, simulation: Simulation, target: str | None, phases: Phases
) -> Plan | None:
    """The plan with twice the instances that is simulated otherwise in the same way; None for a
    plan in a file, which has its instances, and if there can be no such plan."""
    if is_nccl(selection) or is_compiled(selection):
        return None
    options = selection.options
    instances = {"instances": 2 * (options.instances or 1)}
    more = replace(prefer_in_place(selection), options=Options.of(options, instances))
    try:
        if target is None:
            return plan_and_file(more, phases, verify=False)[0]
        return plan_of_target(more, target, phases)[0]
    except SleyError:
        return None


def _simulate(
    selection: Selection,
    sizes: list[int],
    simulating: Simulating,
    phases: Phases,
    *,
    target: str | None,
    executions: bool,
) -> list[tuple[str, Simulation]]:
    """The simulations of all sizes, each with the name of its plan."""
    if is_nccl(selection):
        if target is not None:
            raise click.UsageError(f"--target is not for {selection.what}")
        with phases("simulating"):
            return simulate_nccl(selection, simulating, sizes, executions=executions)
    if target is None:
        plan, file = plan_and_file(prefer_in_place(selection), phases, verify=True)
        if file is not None:
            own = SizeRange(file.min_bytes or 0, file.max_bytes or None)
            _note_other_sizes(sizes, own, "the file")
    else:
        plan, chosen = plan_of_target(prefer_in_place(selection), target, phases)
        _note_other_sizes(sizes, chosen, f"the file for {target}")
        if simulating.interpreter is None:
            simulating = replace(simulating, interpreter=True)
    simulator = simulating.simulator(plan, executions=executions)
    with phases("simulating"):
        return [(plan.name, s) for s in run_sizes(simulator, sizes, quiet=phases.quiet)]


def _note_other_sizes(sizes: list[int], own: SizeRange, file: str) -> None:
    """Notes sizes for which no runtime would choose a file that is for its own sizes alone."""
    others = [size for size in sizes if not own.covers(size)]
    if others:
        shown = ", ".join(shortened([size_text(size) for size in others]))
        print_note(f"{file} is for calls of {own}: no runtime chooses it for {shown}")


def _write_trace(file: Path, simulation: Simulation) -> None:
    """Writes a trace; says so if it is a part of the simulation."""
    made = trace(simulation, MOST_EXECUTIONS)
    about = made["otherData"]
    write_file(file, trace_bytes(made, packed=file.suffix == ".gz"))
    if about["left_out"]:
        print_note(
            f"the trace has {about['executions'] - about['left_out']} of {about['executions']} "
            f"executions: {about['complete_ranks']} of {simulation.plan.ranks} ranks and the "
            "critical path"
        )


def run_sizes(simulator: Simulator, sizes: list[int], *, quiet: bool) -> list[Simulation]:
    """Simulates each size, with a progress bar on a terminal."""
    with progress_bar(quiet=quiet) as bar:
        return [simulator(size) for size in bar.track(sizes, description="simulating")]


def simulation_json(s: Simulation) -> dict[str, Any]:
    """The JSON of a simulation."""
    idle = {place: s.idle(to_exit=place == "to_exit") for place in ("to_exit", "to_end")}
    used = s.utilisation[s.links.moved_bytes > 0]
    return {
        "plan": s.plan.name,
        "topology": s.topology.name,
        "model_error": None if s.measured else error_text(s.topology, s.size_bytes),
        **attributes(s, "size_bytes", "time_us", "algbw_GBps", "busbw_GBps"),
        "bound_us": s.bound.time_us,
        "bound_reason": s.bound.reason,
        "of_bound": s.of_bound,
        "limit": asdict(limit_of(s)),
        **attributes(s, "tiles", "interpreter"),
        "blocks": len(s.blocks),
        "threads": threads_of(s.plan, s.topology, s.size_bytes),
        "idle": {
            place: {"average": float(values.mean()), "most": float(values.max())}
            for place, values in idle.items()
            if len(values)
        },
        "utilisation": {"average": float(used.mean()), "most": float(used.max())}
        if len(used)
        else {},
        "links": [
            {"link": s.topology.link_label(i), "bytes": s.links.moved_bytes[i], "used": used}
            for i, used in enumerate(s.utilisation.tolist())
            if s.links.moved_bytes[i]
        ],
        "critical": [
            asdict(step) | {"causes": [c.name.lower() for c in step.causes]}
            for step in critical_steps(s)
        ],
        "model": asdict(s.model),
    }
