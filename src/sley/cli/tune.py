"""sley tune train: trains an agent to choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sley.cli.options import (
    POSITIVE,
    Whole,
    common_options,
    executor_of,
    gather_options,
    jobs_option,
    size_options,
)
from sley.cli.output import Command, Phases, print_json, print_note, print_written
from sley.cli.sweep import actions_option, cluster_of, collectives_argument
from sley.cli.tune_agent import AGENT_OPTIONS, AgentOptions
from sley.cli.tune_live import OPTIONS, LiveOptions, is_given
from sley.formats import check_folder, make_folder
from sley.tuning.arms import COLLECTIVES, LIVE

if TYPE_CHECKING:
    from sley.tuning.policy import Policy


@click.command("train", cls=Command)
@collectives_argument
@click.option("--topology", help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@gather_options(LiveOptions, "live", OPTIONS)
@size_options("1K", "1G")
@actions_option
@jobs_option
@gather_options(AgentOptions, "agents", AGENT_OPTIONS)
@click.option(
    "--samples", type=POSITIVE, default=50, show_default=True, help="Measurements of each size."
)
@click.option("--seed", type=Whole(0), default=0, show_default=True)
@click.option(
    "--sweeps",
    type=click.Path(file_okay=False, path_type=Path),
    help="Measure the sweeps in this folder, as sley tune sweep -o writes them, and show the "
    "regret. A missing sweep is simulated first, and kept.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the state of each training in this folder, and resume from a state found there.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the policy."
)
@common_options
def train_command(  # as many parameters as options; click passes each by name
    collectives: tuple[str, ...],
    topology: str | None,
    live: LiveOptions,
    sizes: list[int],
    actions: str,
    jobs: int,
    agents: AgentOptions,
    samples: int,
    seed: int,
    sweeps: Path | None,
    checkpoints: Path | None,
    output: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Train an agent to choose plans for COLLECTIVES (by default all), and write its policy.

    The agent measures a cluster in the simulator, or with --live this machine. A policy of this
    machine is for communicators with the same number of ranks (SLEY_TUNER).
    """
    from sley.cli.tune_trainings import Trainings

    agents.check(sweeps, live=live.live)
    live.check(collectives)
    _check_outputs(checkpoints, output, agents.network)
    if is_given("jobs") and sweeps is None:
        raise click.UsageError("--jobs is for --sweeps, which simulates every choice")
    phases = Phases(verbose, quiet=as_json)
    with executor_of(jobs) as executor:
        trainings = Trainings(
            cluster=None if topology is None else cluster_of(topology),
            live=live,
            sizes=live.sizes(sizes),
            actions=actions,
            agent=agents,
            samples=live.samples(samples),
            seed=seed,
            sweeps=sweeps,
            checkpoints=checkpoints,
            executor=executor,
            phases=phases,
        )
        names = dict.fromkeys(collectives) or (LIVE if topology is None else COLLECTIVES)
        agents.train_network(map(trainings.swept, names), seed, phases)
        results = [trainings.train(name) for name in names]
    paths, remarks = _write(output, live, trainings.policy())
    for remark in remarks:
        print_note(remark)
    if as_json:
        print_json({"ok": True, "topology": trainings.place, "results": results})
    else:
        for path in paths:
            print_written(path)
    phases.report()


def _check_outputs(checkpoints: Path | None, output: Path | None, network: Path | None) -> None:
    """Refuses outputs that don't fit one another, or can't be written. Raises click.UsageError.
    Errors: F461."""
    if output is not None:
        check_folder(output)
    if output is not None and network is not None and output.resolve() == network.resolve():
        raise click.UsageError(f"-o {output} is the network")
    if checkpoints is not None:
        make_folder(checkpoints)


def _write(
    output: Path | None, live: LiveOptions, policy: Policy
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the files that are wanted. Returns their paths, and remarks."""
    from sley.tuning.policy import write

    if output is None:
        return live.write_plans(policy)
    write(policy, output)
    folders, remarks = live.write_plans(policy)
    if not policy.rows:
        remarks = (f"no size is faster than the default, so {output} chooses nothing", *remarks)
    return [output, *folders], remarks
