"""NCCL: `nccl-allreduce` and others as WHAT, which stand for what NCCL chooses at each size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import click

from sley.cli.options import PARAMETERS, Selection, flag
from sley.cli.output import print_note
from sley.cli.simulating import Simulating
from sley.cli.sources import NCCL, refuse_arguments, topology_of
from sley.compiler import Choices, nccl_plan
from sley.ir.collective import Collective
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.model.nccl.runs import NcclRuns
from sley.model.simulation import Simulation
from sley.report.tables import table_lines
from sley.topologies import machine_names

APART = 1.5
"""How many times the simulation and NCCL's estimate may differ. Of 54 published times from 1M up
where they did by more, 44 were more than 1.5 times off the simulation; of 150 others, 20."""


def is_nccl(selection: Selection) -> bool:
    """Whether WHAT stands for NCCL's choices."""
    return selection.what.startswith(NCCL) and "." not in selection.what


def simulate_nccl(
    selection: Selection, simulating: Simulating, sizes: Iterable[int], *, executions: bool
) -> list[tuple[str, Simulation]]:
    """The simulations of sizes, each with a name that tells NCCL's choice. Errors: D931,
    those of topologies, click's usage error for options that NCCL chooses itself."""
    what, collective = selection.what, selection.what.removeprefix(NCCL)
    if collective not in NcclRuns.COLLECTIVES:
        names = ", ".join(NCCL + name for name in NcclRuns.COLLECTIVES)
        raise click.UsageError(f"there is no {what}; there are {names}")
    given = [word for word in (*PARAMETERS, "root") if getattr(selection, word) is not None]
    given += selection.options.given()
    if given:
        raise click.UsageError(f"{flag(given[0])} is not for {what}: NCCL chooses by itself")
    if selection.collective is not None:
        raise click.UsageError("--collective is for XML files")
    refuse_arguments(selection)
    if simulating.interpreter is not None or selection.in_place is False:
        raise click.UsageError(f"{what} is code of NCCL's own, and in place")
    topology = topology_of(selection.topology)
    if topology is None:
        raise click.UsageError(f"{what} needs --topology, such as --topology ndv4:2")
    note_better_switches(selection.topology or "")
    cluster = replace(topology, model=simulating.model(topology) or topology.model)
    runs = NcclRuns(cluster, nccl_plan, executions=executions)
    found = [
        (f"{what} ({choice_words(runs, collective, size)})", runs(collective, size))
        for size in sizes
    ]
    note_other_opinions(runs, collective, [(s.size_bytes, s.time_us) for _, s in found])
    return found


def note_other_opinions(
    runs: NcclRuns, collective: str, simulated: Iterable[tuple[int, float]]
) -> None:
    """Says where NCCL's tuner estimates another time than the simulation of its choice, by more
    than APART. simulated: sizes in bytes, and times in us."""
    parts = []
    for size, time_us in simulated:
        estimate_us = runs.choice(collective, size).predicted_us
        if estimate_us and max(estimate_us / time_us, time_us / estimate_us) > APART:
            parts.append(f"{size_text(size)} {estimate_us:.0f} us, not {time_us:.0f}")
    if parts:
        differ = f"NCCL's own estimates differ more than {APART:g} times: {'; '.join(parts)}"
        print_note(f"{differ}; most published times with such estimates are nearer the simulation")


def note_better_switches(topology: str) -> None:
    """Says so if the same machine is also known with NVLS, which NCCL would use."""
    stem = topology.partition(":")[0]
    if f"{stem}-nvls" in machine_names():
        print_note(f"{stem} is without NVLS, which NCCL uses where it can: {stem}-nvls has it")


def choice_words(runs: NcclRuns, collective: str, size_bytes: int) -> str:
    """NCCL's choice for a size: algorithm, protocol and channels."""
    choice = runs.choice(collective, size_bytes)
    return f"{choice.algorithm.value}, {choice.protocol.value}, {choice.channels}"


def by_name(found: Iterable[tuple[str, Simulation]]) -> list[tuple[str, list[Simulation]]]:
    """Simulations of consecutive sizes with the same choice."""
    return [(name, [s for _, s in some]) for name, some in groupby(found, key=lambda one: one[0])]


@dataclass(frozen=True)
class Beside:
    """A choice's time at a size, and NCCL's with what it chooses."""

    size_bytes: int
    time_us: float
    nccl_us: float
    nccl_choice: str


def check_nccl(collective: Collective, cluster: Topology) -> None:
    """Refuses what NCCL's times can't be put beside. Errors: click's usage error."""
    if collective.name not in NcclRuns.COLLECTIVES:
        known = ", ".join(NcclRuns.COLLECTIVES)
        raise click.UsageError(f"--nccl is for {known}, not for {collective.name}")
    if collective.ranks != cluster.ranks:
        raise click.UsageError(
            f"--nccl is for all {cluster.ranks} GPUs of {cluster.name}; the programs have "
            f"{collective.ranks} ranks"
        )


def nccl_beside(choices: Choices) -> list[Beside]:
    """NCCL's times where the ranges begin, and at the last size. Errors: D931, D931."""
    name, runs = choices.ranges[0].plan.collective.name, NcclRuns(choices.topology, nccl_plan)
    ours = {p.size_bytes: p for p in (*(c.begin for c in choices.ranges), choices.ranges[-1].end)}
    found = [
        Beside(size, own.time_us, runs(name, size).time_us, choice_words(runs, name, size))
        for size, own in ours.items()
    ]
    note_other_opinions(runs, name, [(one.size_bytes, one.nccl_us) for one in found])
    return found


def beside_lines(theirs: Sequence[Beside]) -> list[str]:
    """A table of both times."""
    head = ("at", "us", "NCCL us", "ratio", "NCCL's choice")
    rows = [
        (
            size_text(one.size_bytes),
            f"{one.time_us:.1f}",
            f"{one.nccl_us:.1f}",
            f"{one.nccl_us / one.time_us:.2f}",
            one.nccl_choice,
        )
        for one in theirs
    ]
    return [
        "# NCCL by its tuner's choices; ratio above 1: faster than NCCL",
        *table_lines([head, *rows], (4,)),
    ]
