"""sley sweep: simulates all choices of a tuner; sley tune: trains an agent to choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
from sley.cli.tune_agent import AGENT_OPTIONS, AgentOptions
from sley.cli.tune_live import LIVE_COLLECTIVES, OPTIONS, LiveOptions
from sley.cli.tune_tables import (
    curve_json,
    curve_lines,
    sweep_json,
    sweep_lines,
    training_json,
    training_lines,
)
from sley.errors.tuning import D929
from sley.formats import check_folder
from sley.ir.topology import Topology
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
            rows.append(sweep_json(found))
            if not as_json:
                click.echo("\n".join(sweep_lines(found)))
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
@gather_options(AgentOptions, "agents", AGENT_OPTIONS)
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
@click.option("--compare", is_flag=True, help="Train every agent; compare them up to --samples.")
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
    agents: AgentOptions,
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
    _check_installed()
    agents.check(sweeps)
    for path in filter(None, (output, curves)):
        check_folder(path)
    if curves is not None and (not compare or len(collectives) != 1):
        raise click.UsageError("--curves needs --compare and one collective")
    if compare and output is not None:
        raise click.UsageError("--compare writes no policy")
    phases = Phases(verbose, quiet=as_json)
    with executor_of(jobs) as executor:
        tuning = _Tuning(
            cluster=None if topology is None else _cluster(topology),
            live=live,
            sizes=live.sizes(sizes),
            actions=actions,
            agent=agents,
            samples=live.samples(samples),
            seed=seed,
            noise=Noise(noise, congestion),
            sweeps=sweeps,
            checkpoints=checkpoints,
            executor=executor,
            phases=phases,
        )
        names = collectives or (LIVE_COLLECTIVES if tuning.cluster is None else COLLECTIVES)
        if compare:
            results = [tuning.compare(name, curves) for name in names]
        else:
            agents.train_network(map(tuning.swept, names), tuning.noise, seed, phases)
            results = [tuning.train(name) for name in names]
    if curves is not None and not as_json:
        click.echo(f"{'written':<23}{curves}")
    if not compare:
        paths, remarks = _write(output, live, tuning.policy())
        for remark in remarks:
            click.echo(f"note: {remark}", err=True)
        for path in () if as_json else paths:
            click.echo(f"{'written':<23}{path}")
    if as_json:
        print_json({"ok": True, "topology": tuning.place, "results": results})
    phases.report()


@dataclass
class _Tuning:
    """The settings of a command, and what its trainings have learned so far.

    cluster: None to measure this machine.
    """

    cluster: Topology | None
    live: LiveOptions
    sizes: list[int]
    actions: str
    agent: AgentOptions
    samples: int
    seed: int
    noise: Noise
    sweeps: Path | None
    checkpoints: Path | None
    executor: Executor | None
    phases: Phases
    trained: list[Training] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The name of the cluster or machine."""
        return self.cluster.name if self.cluster else self.trained[0].backend.machine.topology

    def swept(self, collective: str) -> Sweep:
        """The sweep of a collective on the cluster."""
        assert self.cluster is not None
        arms = _arms(collective, self.cluster, self.actions, self.phases)
        return _swept(arms, self.sizes, self.executor, self.sweeps, self.phases)

    def compare(self, collective: str, curves: Path | None) -> dict[str, Any]:
        """Trains all agents; prints their curves, draws them, and returns them as JSON."""
        recorded = self.swept(collective)
        found = _compared(recorded, self.noise, self.seed, self.samples, self.phases)
        if curves is not None:
            _draw_curves(found, curves, f"{collective} on {self.place}")
        self._print(curve_lines(collective, found))
        return {"collective": collective, "agents": [curve_json(one) for one in found]}

    def train(self, collective: str) -> dict[str, Any]:
        """Trains the agent; prints what it has learned, and returns it as JSON."""
        from sley.tuning.training import Training

        with ExitStack() as opened:
            recorded = None
            if self.cluster is None:
                backend: Any = self.live.backend(collective, self.sizes, self.phases)
                opened.enter_context(backend)
            elif self.sweeps is not None:
                recorded = self.swept(collective)
                backend = _recorded(recorded, self.noise, self.seed)
            else:
                arms = _arms(collective, self.cluster, self.actions, self.phases)
                backend = _simulated(arms, self.sizes, self.noise, self.seed)
            training = Training(
                backend, self.agent.name, seed=self.seed, make=self.agent.maker(self.cluster)
            )
            _train(training, self.samples, self.checkpoints, self.phases)
        self.trained.append(training)
        self._print(training_lines(training, recorded))
        return training_json(training, recorded)

    def policy(self) -> Policy:
        """What all trainings have learned."""
        from importlib.metadata import version

        from sley.policy import Policy

        first = self.trained[0]
        notes = {
            "samples": str(first.rounds),
            "seed": str(self.seed),
            "sley": version("sley"),
        }
        return Policy(
            first.backend.machine,
            {one.backend.collective: one.ranges() for one in self.trained},
            first.name,
            notes,
            tuple(change for one in self.trained for change in one.changes),
        )

    def _print(self, lines: list[str]) -> None:
        if not self.phases.quiet:
            click.echo("\n".join(lines))


def _cluster(name: str) -> Topology:
    """The cluster to tune."""
    cluster = topology_of(name)
    assert cluster is not None  # the option is required
    return cluster


def _check_installed() -> None:
    """Refuses to go on without the extra `tune`. Errors: D929."""
    try:
        import sley.tuning.training  # noqa: F401
    except ImportError as error:
        expected = "the packages of sley[tune]"
        raise D929.error(expected=expected, found=str(error)) from error


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
        words = (arms.topology.name, arms.collective, arms.actions)
        path = folder / f"{'-'.join(words).replace('/', '_')}.npz"
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


def _recorded(recorded: Sweep, noise: Noise, seed: int) -> Any:
    from sley.tuning.backends import Recorded

    return Recorded(recorded, noise, seed=seed)


def _simulated(arms: Arms, sizes: list[int], noise: Noise, seed: int) -> Any:
    from sley.tuning.backends import Simulated

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
    """The curves of all agents, with that of the default."""
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


def _write(
    output: Path | None, live: LiveOptions, policy: Policy
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the files that are wanted. Returns their paths, and remarks."""
    from sley.policy import write

    if output is not None:
        write(policy, output)
    folders, remarks = live.write_plans(policy)
    return [*([] if output is None else [output]), *folders], remarks
