"""sley sweep: simulates all choices of a tuner; sley tune: trains an agent to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from sley.cli.options import (
    POSITIVE,
    common_options,
    executor_of,
    gather_options,
    jobs_option,
    size_options,
)
from sley.cli.output import Command, Phases, print_json, progress_bar
from sley.cli.sources import topology_of
from sley.cli.tune_live import LIVE_COLLECTIVES, OPTIONS, LiveOptions
from sley.errors.tuning import D929
from sley.formats import check_folder
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.policy import Change
from sley.report.tables import table_lines
from sley.tuning.arms import ACTIONS, COLLECTIVES, Arms
from sley.tuning.noise import Noise
from sley.tuning.sweep import Sweep, sweep

if TYPE_CHECKING:
    from sley.policy import Policy
    from sley.tuning.evaluate import Curve
    from sley.tuning.training import Training

_LOOKS = (20, 40, 80)
"""The numbers of samples at which `--compare` looks at each agent."""

_topology = click.option(
    "--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file."
)
_collectives = click.argument("collectives", nargs=-1, type=click.Choice(COLLECTIVES))
_actions = click.option(
    "--actions",
    type=click.Choice(ACTIONS),
    default=ACTIONS[0],
    show_default=True,
    help="Choose among all algorithms of the library, or only among those that NCCL has.",
)


@click.command("sweep", cls=Command)
@_collectives
@_topology
@size_options("1K", "1G")
@_actions
@jobs_option
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each sweep into this folder; sweeps that are there are not repeated.",
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

    Prints for each size NCCL's own choice, the fastest one (the oracle), and how much faster it is.
    """
    cluster = _cluster(topology)
    phases = Phases(verbose, quiet=as_json)
    rows: list[dict[str, Any]] = []
    with executor_of(jobs) as executor:
        for collective in collectives or COLLECTIVES:
            found = _swept(
                _arms(collective, cluster, actions, phases), sizes, executor, output, phases
            )
            rows.append(_sweep_json(found))
            if not as_json:
                click.echo("\n".join(_sweep_lines(found)))
    if as_json:
        print_json({"ok": True, "topology": cluster.name, "sweeps": rows})
    phases.report()


@click.command("tune", cls=Command)
@_collectives
@click.option("--topology", help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@gather_options(LiveOptions, "live", OPTIONS)
@size_options("1K", "1G")
@_actions
@jobs_option
@click.option("--agent", help="The agent that learns. [thompson]")
@click.option(
    "--samples", type=POSITIVE, default=50, show_default=True, help="Measurements of each size."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    default=0.03,
    show_default=True,
    help="Standard deviation of measured times, as a share.",
)
@click.option(
    "--congestion",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    help="Share by which a shared network makes calls of 2 to 64 MB longer.",
)
@click.option(
    "--sweeps",
    type=click.Path(file_okay=False, path_type=Path),
    help="Measure recorded sweeps in this folder, which sley sweep -o wrote, and show the regret.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the state of each training in this folder, and go on from what is there.",
)
@click.option("--compare", is_flag=True, help="Train every agent, and compare them at 20, 40, 80.")
@click.option(
    "--curves",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --compare: draw the learning curves, as .png or .svg.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the policy."
)
@common_options
def tune_command(  # as many parameters as options; click passes each by name
    collectives: tuple[str, ...],
    topology: str | None,
    live: LiveOptions,
    sizes: list[int],
    actions: str,
    jobs: int,
    agent: str | None,
    samples: int,
    seed: int,
    noise: float,
    congestion: float,
    sweeps: Path | None,
    checkpoints: Path | None,
    compare: bool,
    curves: Path | None,
    output: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Train an agent to choose for COLLECTIVES (by default all that there are), and write what it
    has learned as a policy: on a cluster in the simulator, or with --live on this machine.

    A policy of this machine is for communicators of as many ranks (SLEY_TUNER).
    """
    live.check(collectives)
    training = _training_module()
    for path in filter(None, (output, curves)):
        check_folder(path)
    if curves is not None and (not compare or len(collectives) != 1):
        raise click.UsageError("--curves needs --compare and one collective")
    if compare and output is not None:
        raise click.UsageError("--compare writes no policy")
    sizes, samples = live.sizes(sizes), live.samples(samples)
    cluster = None if topology is None else topology_of(topology)
    phases = Phases(verbose, quiet=as_json)
    disturbed = Noise(noise, congestion)
    results: list[dict[str, Any]] = []
    ranges: dict[str, Any] = {}
    changes: list[Change] = []
    trained: Any = None
    with executor_of(jobs) as executor:
        for collective in collectives or (COLLECTIVES if cluster else LIVE_COLLECTIVES):
            with ExitStack() as opened:
                recorded = None
                if cluster is None:
                    backend: Any = opened.enter_context(live.backend(collective, sizes, phases))
                else:
                    arms = _arms(collective, cluster, actions, phases)
                    if sweeps is not None or compare:
                        recorded = _swept(arms, sizes, executor, sweeps, phases)
                    backend = _backend(arms, sizes, disturbed, seed, recorded)
                if compare and recorded is not None:
                    found = _compared(recorded, disturbed, seed, samples, phases)
                    if curves is not None:
                        _draw_curves(
                            found, curves, f"{collective} on {recorded.arms.topology.name}"
                        )
                    agents = [_curve_json(one) for one in found]
                    results.append({"collective": collective, "agents": agents})
                    lines = _curve_lines(collective, found)
                else:
                    chosen = agent or training.DEFAULT_AGENT
                    trained = training.Training(backend, chosen, seed=seed)
                    _train(trained, samples, checkpoints, phases)
                    ranges[collective] = trained.ranges()
                    changes += trained.changes
                    results.append(_training_json(trained, recorded))
                    lines = _training_lines(trained, recorded)
            if not as_json:
                click.echo("\n".join(lines))
    if trained is not None:
        paths, remarks = _write(output, live, _policy_of(trained, ranges, changes))
        for remark in remarks:
            click.echo(f"note: {remark}", err=True)
        for path in () if as_json else paths:
            click.echo(f"{'written':<23}{path}")
    if as_json:
        name = trained.backend.machine.topology if cluster is None else cluster.name
        print_json({"ok": True, "topology": name, "results": results})
    phases.report()


def _cluster(name: str) -> Topology:
    """The cluster to tune."""
    cluster = topology_of(name)
    assert cluster is not None  # the option is required
    return cluster


def _training_module() -> Any:
    """The module `sley.tuning.training`, which needs the extra `tune`. Errors: D929."""
    try:
        from sley.tuning import training
    except ImportError as error:
        expected = "the packages of sley[tune]"
        raise D929.error(expected=expected, found=str(error)) from error
    return training


def _arms(collective: str, cluster: Topology, actions: str, phases: Phases) -> Arms:
    with phases(f"compiling {collective}"):
        return Arms.of(collective, cluster, actions=actions)


def _swept(
    arms: Arms, sizes: list[int], executor: Executor | None, folder: Path | None, phases: Phases
) -> Sweep:
    """The sweep of the arms: from a file of the folder, or simulated and written there."""
    path = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        words = (arms.topology.name, arms.collective, *(v for _, v in arms.settings))
        path = folder / f"{'-'.join(map(str, words)).replace('/', '_')}.npz"
        if path.exists():
            found = Sweep.load(path, arms)
            if found.sizes.tolist() == sorted(sizes):
                return found
    with progress_bar(quiet=phases.quiet) as bar, phases(f"sweeping {arms.collective}"):
        task = bar.add_task(f"sweeping {arms.collective}", total=len(sizes))
        found = sweep(arms, sizes, executor=executor, progress=_reporter(bar, task))
    if path is not None:
        found.save(path)
    return found


def _reporter(bar: Any, task: Any) -> Callable[[int, int], None]:
    return lambda done, total: bar.update(task, completed=done, total=total)


def _backend(arms: Arms, sizes: list[int], noise: Noise, seed: int, recorded: Sweep | None) -> Any:
    from sley.tuning.backends import Recorded, Simulated

    if recorded is not None:
        return Recorded(recorded, noise, seed=seed)
    return Simulated(arms, sizes, noise, seed=seed)


def _train(training: Training, samples: int, folder: Path | None, phases: Phases) -> None:
    """Trains, from the checkpoint if there is one, which it renews."""
    path = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{training.backend.machine.topology}-{training.backend.collective}"
        path = folder / f"{name}-{training.name}-{training.seed}.npz".replace("/", "_")
        if path.exists():
            with phases("resuming"):
                training.resume(path)
    with progress_bar(quiet=phases.quiet) as bar, phases(f"training {training.name}"):
        task = bar.add_task(f"training {training.backend.collective}", total=samples)
        report = _reporter(bar, task)

        def progress(done: int, total: int) -> None:
            report(done, total)
            if path is not None:
                training.save(path)

        training.run(samples, progress)


def _compared(
    recorded: Sweep, noise: Noise, seed: int, samples: int, phases: Phases
) -> list[Curve]:
    """The curves of all agents, the default and the static table of `sley choose`."""
    from sley.tuning.evaluate import curve
    from sley.tuning.training import AGENTS

    looks = sorted({*(look for look in _LOOKS if look <= samples), samples})
    curves = []
    for name in AGENTS:
        with phases(f"training {name}"):
            curves.append(curve(recorded, name, looks, noise=noise, seed=seed))
    return curves


def _draw_curves(found: Sequence[Curve], path: Path, title: str) -> None:
    from sley.tuning.pictures import draw_curves

    draw_curves(found, path, title=title)


def _policy_of(training: Training, ranges: Mapping[str, Any], changes: Sequence[Change]) -> Policy:
    """The policy of a training, with the ranges and changes of all collectives."""
    from importlib.metadata import version

    from sley.policy import Policy

    notes = {
        "samples": str(training.rounds),
        "seed": str(training.seed),
        "sley": version("sley"),
    }
    return Policy(training.backend.machine, ranges, training.name, notes, tuple(changes))


def _write(
    output: Path | None, live: LiveOptions, policy: Policy
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the files that are wanted. Returns their paths, and remarks."""
    from sley.policy import write

    if output is not None:
        write(policy, output)
    folders, remarks = live.write_plans(policy)
    return [*([] if output is None else [output]), *folders], remarks


def _sweep_lines(found: Sweep) -> list[str]:
    """The table of a sweep."""
    rows: list[tuple[str, ...]] = [("size", "default", "us", "fastest", "us", "faster")]
    for place, size in enumerate(found.sizes.tolist()):
        default, best = int(found.default[place]), int(found.best[place])
        rows.append(
            (
                size_text(size),
                str(found.arms.decisions[default]),
                f"{found.default_us[place]:.1f}",
                str(found.arms.decisions[best]),
                f"{found.best_us[place]:.1f}",
                f"{found.default_us[place] / found.best_us[place]:.2f}x",
            )
        )
    title = f"# {found.arms.collective} on {found.arms.topology.name}, {len(found.arms)} choices"
    return [title, *table_lines(rows, (1, 3)), ""]


def _training_lines(training: Training, recorded: Sweep | None) -> list[str]:
    """The table of what an agent has learned; times are its own measurements."""
    backend, tally = training.backend, training.agent.tally
    head = ["size", "choice", "us", "default us", "faster"]
    rows: list[tuple[str, ...]] = [(*head, *(["regret"] if recorded else []))]
    for cell, size in enumerate(backend.sizes.tolist()):
        arm, mean = training.agent.best(cell), tally.mean(cell)
        own, default = (exp(float(mean[a])) for a in (arm, backend.default[cell]))
        row = [size_text(size), str(backend.decisions[arm]), f"{own:.1f}", f"{default:.1f}"]
        row.append(f"{default / own:.2f}x")
        if recorded:
            regret = recorded.time_us[cell, arm] / recorded.best_us[cell] - 1
            row.append(f"{regret:.1%}")
        rows.append(tuple(row))
    title = (
        f"# {backend.collective} on {backend.machine}, {len(backend.decisions)} choices, "
        f"{training.name}, {training.rounds} samples of each size"
    )
    return [title, *table_lines(rows, (1,)), ""]


def _curve_lines(collective: str, curves: list[Curve]) -> list[str]:
    """The table of a comparison."""
    rows: list[tuple[str, ...]] = [("agent", "samples", "mean regret", "worst", "regressions")]
    for one in curves:
        for place, count in enumerate(one.samples.tolist()):
            rows.append(
                (
                    one.agent if place == 0 else "",
                    str(count),
                    f"{one.regret[place].mean():.1%}",
                    f"{one.regret[place].max():.1%}",
                    str(int(one.regressions[place])),
                )
            )
    return [f"# {collective}, regret against the oracle", *table_lines(rows, (0,)), ""]


def _sweep_json(found: Sweep) -> dict[str, Any]:
    return {
        "collective": found.arms.collective,
        "choices": len(found.arms),
        "sizes": [
            {
                "size_bytes": size,
                "default": str(found.arms.decisions[int(found.default[place])]),
                "default_us": float(found.default_us[place]),
                "best": str(found.arms.decisions[int(found.best[place])]),
                "best_us": float(found.best_us[place]),
            }
            for place, size in enumerate(found.sizes.tolist())
        ],
    }


def _training_json(training: Training, recorded: Sweep | None) -> dict[str, Any]:
    rows, tally = [], training.agent.tally
    for cell, size in enumerate(training.backend.sizes.tolist()):
        arm, default = training.agent.best(cell), int(training.backend.default[cell])
        row: dict[str, Any] = {
            "size_bytes": size,
            "choice": str(training.backend.decisions[arm]),
            "default": str(training.backend.decisions[default]),
        }
        mean = tally.mean(cell)
        if np.isfinite(mean[[arm, default]]).all():
            row["time_us"], row["default_us"] = np.exp(mean[[arm, default]]).tolist()
        if recorded:
            row["regret"] = float(recorded.time_us[cell, arm] / recorded.best_us[cell] - 1)
        rows.append(row)
    return {
        "collective": training.backend.collective,
        "agent": training.name,
        "samples": training.rounds,
        "sizes": rows,
    }


def _curve_json(one: Curve) -> dict[str, Any]:
    return {
        "agent": one.agent,
        "samples": one.samples.tolist(),
        "regret": one.regret.tolist(),
        "slower": one.slower.tolist(),
        "regressions": one.regressions.tolist(),
    }
