"""sley import: turns a synthesiser's schedule into a program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from sley.cli.options import FILE, common_options, output_option, place_option
from sley.cli.output import Command, Phases, print_rows, print_written
from sley.cli.sources import program_facts, topology_of
from sley.compiler import compile
from sley.compiler.passes.links import check_links
from sley.errors import Place
from sley.errors.schedules import F560
from sley.formats import by_suffix, program_source, write_file
from sley.ir.topology import Topology
from sley.lang import schedules
from sley.model.bounds.loads import busiest_link
from sley.topologies.graph import graph_text


@click.command("import", cls=Command)
@click.argument("file", type=click.Path())
@output_option("Write the program here, as Python.")
@click.option(
    "--collective",
    type=click.Choice(schedules.COLLECTIVES),
    help="For ForestColl's trees: the collective to make of them (any but alltoall). Other "
    "schedules have their own. [allgather, or the schedule's]",
)
@place_option(default=False)
@click.option(
    "--topology",
    help="NAME[:NODES], NODESxGPUS[:NICS] or a file: print the rate that its busiest link allows.",
)
@click.option(
    "--machine",
    type=FILE,
    help="For TE-CCL: write the machine that the schedule was solved for as a topology, with the "
    "solver's rates and latencies (.toml).",
)
@click.option(
    "--allow",
    type=click.Choice(schedules.ALLOWED),
    multiple=True,
    help="For TE-CCL: accept a schedule in which switches copy (multicast: each copy becomes a "
    "message) or that leaves out GPUs (incomplete: the program has fewer ranks). Repeatable.",
)
@common_options
def import_command(
    file: str,
    output: Path | None,
    collective: str | None,
    in_place: bool,
    allow: tuple[str, ...],
    topology: str | None,
    machine: Path | None,
    phases: Phases,
) -> None:
    """Import FILE, a synthesiser's schedule, as a program.

    FILE is a schedule of TE-CCL or TACCL, or trees of ForestColl. sley follows it send by send,
    compares it with its own claims, and proves the program by compiling it.
    """
    for path, suffix in ((output, ".py"), (machine, ".toml")):
        if path is not None:
            by_suffix(str(path), {suffix: None})
    cluster = topology_of(topology)
    with phases("reading"):
        schedule = schedules.read(file)
    facts = [("file", schedule.kind.text), *schedule.facts()]
    if not phases.quiet:
        print_rows(facts)
    with phases("replay"):
        found = schedule.check()
    if not phases.quiet:
        print_rows(found)
    with phases("proof of the program"):
        program = schedule.program(collective, in_place=in_place, allow=allow)
        compile(program)
    changed = schedule.changes(allow)
    busiest = None
    if cluster is not None:
        check_links(program, cluster)
        busiest = busiest_link(program, cluster)
    with phases("writing"):
        if machine is not None:
            write_file(machine, graph_text(_machine_of(schedule)))
        if output is not None:
            write_file(output, program_source.write(program))
    summary = program_facts(program)
    if phases.quiet:
        files = {"output": output, "machine": machine}
        where = {word: None if path is None else str(path) for word, path in files.items()}
        links = None if busiest is None else asdict(busiest)
        said = {"schedule": dict(facts), "replay": dict(found), "changes": dict(changed)}
        phases.print_json(**said, program=summary, busiest_link=links, **where)
        return
    rows = [*changed, ("program", f"{program.name}: {program.collective}")]
    rows += [("transfers", str(summary["transfers"]))]
    if cluster is not None and busiest is not None:
        limit = f"at most {busiest.algbw_GBps:.6g} GB/s, the rate of {busiest.name}"
        rows += [(f"on {cluster.name}", limit)]
    print_rows([*rows, ("proven", "compiled: right values, no races, no hangs")])
    print_written(output, machine)
    if output is not None and machine is not None:
        # A synthesiser's GPU stores without limit what arrives, and sends it when it likes.
        free = f"-b {schedule.size_bytes} --slots 64 --no-fusion"
        print_rows([("to simulate", f"sley simulate {output} --topology {machine} {free}")])
    phases.report()


def _machine_of(schedule: schedules.ImportedSchedule) -> Topology:
    """The topology of a schedule's machine. Errors: F560."""
    if schedule.topology is None:
        raise F560.error(
            at=Place(schedule.file),
            expected="a schedule whose machine is known: TE-CCL's for NDv2 or DGX-2",
            found=f"a schedule of {schedule.name} for an unknown machine",
            remedy="Omit the option, and describe the machine in TOML.",
        )
    return schedule.topology
