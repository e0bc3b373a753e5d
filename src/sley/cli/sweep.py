"""sley tune sweep: simulates all choices of a tuner; and sweeps that are kept in a folder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import click

from sley.cli.options import common_options, executor_of, jobs_option, size_options
from sley.cli.output import Command, Phases, echo, print_json, print_note
from sley.cli.sources import topology_of
from sley.cli.tune_tables import sweep_json, sweep_lines
from sley.formats import make_folder
from sley.ir.topology import Topology
from sley.tuning.arms import ACTIONS, COLLECTIVES, Arms
from sley.tuning.sweeps import ArmTimes, sweep

collectives_argument = click.argument(
    "collectives", nargs=-1, type=click.Choice(COLLECTIVES), metavar="[COLLECTIVE]..."
)
actions_option = click.option(
    "--actions",
    type=click.Choice(ACTIONS),
    default=ACTIONS[0],
    show_default=True,
    help="Choose among all algorithms of the library, or only among those that NCCL has.",
)


@click.command("sweep", cls=Command)
@collectives_argument
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@size_options("1K", "1G")
@actions_option
@jobs_option
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each sweep into this folder; existing sweeps are not repeated.",
)
@common_options
def sweep_command(
    collectives: tuple[str, ...],
    topology: str,
    sizes: list[int],
    actions: str,
    jobs: int,
    output: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Simulate every choice of a tuner for COLLECTIVES (by default all five) on a cluster.

    Print NCCL's choice for each size, the fastest choice (the oracle), and its speedup.
    """
    cluster = cluster_of(topology)
    phases = Phases(verbose, quiet=as_json)
    rows: list[dict[str, Any]] = []
    with executor_of(jobs) as executor:
        for collective in dict.fromkeys(collectives) or COLLECTIVES:
            arms = arms_of(collective, cluster, actions, phases)
            found, is_new = swept(arms, sizes, executor, output, phases)
            if output is not None:
                done = "written to" if is_new else "read from"
                print_note(f"the sweep of {collective} was {done} {output}")
            rows.append(sweep_json(found))
            if not as_json:
                echo("\n".join(sweep_lines(found)))
    if as_json:
        print_json({"ok": True, "topology": cluster.name, "sweeps": rows})
    phases.report()


def cluster_of(name: str) -> Topology:
    """The cluster to tune."""
    cluster = topology_of(name)
    assert cluster is not None  # it is None only for no name
    return cluster


def arms_of(collective: str, cluster: Topology, actions: str, phases: Phases) -> Arms:
    """The choices for a collective on a cluster. Errors: D921, D931."""
    with phases.bar() as bar, phases(f"compiling {collective}"):
        task = bar.add_task(f"compiling {collective}", total=None)
        return Arms.of(collective, cluster, actions=actions, progress=reporter(bar, task))


def swept(
    arms: Arms, sizes: list[int], executor: Executor | None, folder: Path | None, phases: Phases
) -> tuple[ArmTimes, bool]:
    """The sweep of the arms, and whether it was simulated. A file of the folder has it, or gets it:
    with the sizes that it has, and these. Errors: D922, F461."""
    path, known = None, None
    if folder is not None:
        make_folder(folder)
        words = (arms.topology.name, arms.collective, arms.actions)
        path = folder / f"{'-'.join(words).replace('/', '_')}.npz"
        known = ArmTimes.load(path, arms) if path.exists() else None
    missing = sizes if known is None else sorted({*sizes} - {*known.sizes.tolist()})
    if missing:
        with phases.bar() as bar, phases(f"sweeping {arms.collective}"):
            task = bar.add_task(f"sweeping {arms.collective}", total=len(missing))
            found = sweep(arms, missing, executor=executor, progress=reporter(bar, task))
        known = found if known is None else known.join(found.columns)
        if path is not None:
            known.save(path)
    assert known is not None  # there is at least one size
    return known.at(sizes), bool(missing)


def reporter(bar: Any, task: Any) -> Callable[[int, int], None]:
    """A function that shows what is done, and all."""
    return lambda done, total: bar.update(task, completed=done, total=total)
