"""sley tune: trains tuners, and simulates all of their choices; `policy` shows what they have
learned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from sley.cli.options import (
    FILE,
    POSITIVE,
    Whole,
    common_options,
    executor_of,
    gather_options,
    jobs_option,
    option,
    size_options,
    sizes_between,
)
from sley.cli.output import (
    Command,
    CommandGroup,
    Phases,
    echo,
    print_json,
    print_note,
    print_written,
)
from sley.cli.policy import export_command, show_command
from sley.cli.sources import topology_of
from sley.formats import check_folder, make_folder
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.report.tables import table_lines
from sley.tuning.arms import ACTIONS, COLLECTIVES, LIVE, Arms
from sley.tuning.sweeps import ArmTimes, sweep

if TYPE_CHECKING:
    from sley.tuning.policy import Policy
    from sley.tuning.training import Training

_RECURRENT = "recurrent"
_STEPS = 300_000

_SIMULATED = {"topology", "actions", "jobs", "sweeps", "checkpoints"}
_LIVE = {"ranks", "plans"}
"""The parameters that have a meaning only without --live, or only with it."""

_END, _FACTOR, _SAMPLES = 64 << 20, 4, 200
"""The defaults of --end, --factor and --samples with --live."""

_SAVED_S = 1.0
"""The time between two writings of a checkpoint: little is measured anew after an interruption, and
writing takes milliseconds."""

_FOLDER = click.Path(file_okay=False, path_type=Path)
_TOPOLOGY = "NAME[:NODES], NODESxGPUS[:NICS] or a file."

_collectives_argument = click.argument(
    "collectives", nargs=-1, type=click.Choice(COLLECTIVES), metavar="[COLLECTIVE]..."
)
_actions_option = click.option(
    "--actions",
    type=click.Choice(ACTIONS),
    default=ACTIONS[0],
    help="Choose among all algorithms of the library, or only among those that NCCL has.",
)


@dataclass
class _TrainOptions:
    """The options that `sley tune train` alone has."""

    topology: str | None = option("--topology", help=_TOPOLOGY)
    live: bool = option(
        "--live",
        is_flag=True,
        help=f"Measure this machine instead: {', '.join(LIVE)}. By default with -e 64M "
        "-f 4 --samples 200. Not with --actions, --checkpoints, --jobs, --network, --sweeps.",
    )
    ranks: int | None = option(
        "--ranks", type=Whole(2, 256), help="With --live: processes that make the calls."
    )
    plans: Path | None = option(
        "--plans",
        type=_FOLDER,
        metavar="FOLDER",
        help="With --live: write the plans into this new folder, for SLEY_PLAN_DIR.",
    )
    agent: str = option(
        "--agent",
        type=click.Choice(["thompson", _RECURRENT]),
        default="thompson",
        help="The agent that learns.",
    )
    network: Path | None = option(
        "--network",
        type=FILE,
        help=f"With --agent {_RECURRENT}: the network. If the file doesn't exist, the network is "
        "trained on --sweeps.",
    )
    steps: int | None = option(
        "--steps",
        type=POSITIVE,
        help=f"Steps of the network's training, three for each call. [{_STEPS}]",
    )
    samples: int = option("--samples", type=POSITIVE, default=50, help="Measurements of each size.")
    seed: int = option("--seed", type=Whole(0), default=0)
    sweeps: Path | None = option(
        "--sweeps",
        type=_FOLDER,
        help="Measure the sweeps in this folder, as sley tune sweep -o writes them, and show the "
        "regret. A missing sweep is simulated first, and kept.",
    )
    checkpoints: Path | None = option(
        "--checkpoints",
        type=_FOLDER,
        help="Keep the state of each training in this folder, and resume from a state found there.",
    )
    output: Path | None = option("-o", "--output", type=FILE, help="Write the policy.")


@click.group("tune", cls=CommandGroup)
def tune_command() -> None:
    """Train a tuner to choose plans, and show and export its policy."""


@click.command("train", cls=Command)
@_collectives_argument
@gather_options(_TrainOptions, "options")
@size_options("1K", "1G")
@_actions_option
@jobs_option
@common_options
def train_command(options: _TrainOptions, **shared: Any) -> None:
    """Train an agent to choose plans for COLLECTIVES (by default all), and write its policy.

    The agent measures a cluster in the simulator, or with --live this machine. A policy of this
    machine is for communicators with the same number of ranks (SLEY_TUNER).
    """
    run = _Trainings(**vars(options), **shared)
    run.check()
    with executor_of(run.jobs) as run.executor:
        names = dict.fromkeys(run.collectives) or (LIVE if run.live else COLLECTIVES)
        run.train_network(map(run.swept, names))
        results = [run.train(name) for name in names]
    paths, remarks = run.write()
    for remark in remarks:
        print_note(remark)
    if run.phases.quiet:
        place = run.trained[0].backend.machine.topology
        print_json({"ok": True, "topology": place, "results": results})
    else:
        for path in paths:
            print_written(path)
    run.phases.report()


@dataclass(kw_only=True)
class _Trainings(_TrainOptions):
    """All options of `sley tune train`, and what its trainings have learned so far."""

    collectives: tuple[str, ...]
    sizes: list[int]
    actions: str
    jobs: int
    phases: Phases
    executor: Executor | None = None
    trained: list[Training] = field(default_factory=list)
    _swept: dict[str, ArmTimes] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Topology:
        """The cluster, without --live."""
        return _cluster(str(self.topology))

    def check(self) -> None:
        """Refuses options that don't fit one another, and outputs that can't be written; completes
        those of --live. Raises click.UsageError. Errors: F461."""
        self._check_agent()
        given = [name for name in (_SIMULATED if self.live else _LIVE) if _is_given(name)]
        if given:
            without = "is not for" if self.live else "is for"
            raise click.UsageError(f"--{min(given)} {without} --live")
        if self.live:
            self._complete_live()
        elif self.topology is None:
            raise click.UsageError("Give --topology for a cluster, or --live for this machine")
        if self.output is not None:
            check_folder(self.output)
            if self.network is not None and self.output.resolve() == self.network.resolve():
                raise click.UsageError(f"-o {self.output} is the network")
        if self.checkpoints is not None:
            make_folder(self.checkpoints)
        if _is_given("jobs") and self.sweeps is None:
            raise click.UsageError("--jobs is for --sweeps, which simulates every choice")

    def _check_agent(self) -> None:
        if (self.network is not None) != (self.agent == _RECURRENT):
            message = f"--agent {_RECURRENT} needs --network, and --network that agent"
            raise click.UsageError(message)
        if self.network is not None and self.live:
            raise click.UsageError("--network is not for --live")
        is_new = self.network is not None and not self.network.exists()
        if is_new and self.sweeps is None:
            raise click.UsageError(f"{self.network} is not there, and to train it needs --sweeps")
        if self.steps is not None and not is_new:
            raise click.UsageError("--steps is for a --network that is not there yet")

    def _complete_live(self) -> None:
        if self.ranks is None:
            raise click.UsageError("--live needs --ranks")
        unknown = [one for one in self.collectives if one not in LIVE]
        if unknown:
            raise click.UsageError(f"--live measures {', '.join(LIVE)}, not {unknown[0]}")
        if self.plans is not None and self.plans.exists() and any(self.plans.iterdir()):
            raise click.UsageError(f"--plans {self.plans} is not empty")
        values = click.get_current_context().params
        begin, step = values["begin"], values["step"]
        end = values["end"] if _is_given("end") else max(_END, begin)
        self.sizes = sizes_between(begin, end, values["factor"] or _FACTOR, step)
        self.samples = self.samples if _is_given("samples") else _SAMPLES

    def swept(self, collective: str) -> ArmTimes:
        """The sweep of a collective on the cluster, made or read once."""
        if collective not in self._swept:
            arms = _arms(collective, self.cluster, self.actions, self.phases)
            found, is_new = _swept(arms, self.sizes, self.executor, self.sweeps, self.phases)
            if is_new:
                remark = f"had no such sweep of {collective}; it has been simulated"
                print_note(f"{self.sweeps} {remark}")
            self._swept[collective] = found
        return self._swept[collective]

    def train_network(self, found: Iterable[ArmTimes]) -> None:
        """Trains the network on these sweeps of a cluster, unless it is there. Until it is whole it
        is kept in another file, from which an interrupted training goes on. Errors: D92x."""
        if self.network is None or self.network.exists():
            return
        from sley.tuning import Checkpoint, Hyperparameters, Simulated, Site, train

        part = self.network.with_name(f"{self.network.name}.part")
        resume = Checkpoint.load(part) if part.exists() else None
        sites = [Site.of(Simulated(one), one.arms.topology) for one in found]
        settings, steps = Hyperparameters(seed=self.seed), self.steps or _STEPS
        with self.phases.progress("training the network") as progress:
            train(sites, steps, settings, resume=resume, path=part, progress=progress)
        part.replace(self.network)
        print_note(f"the network is trained, {self.network}")

    def train(self, collective: str) -> dict[str, Any]:
        """Trains the agent; prints what it has learned, and returns it as JSON."""
        from sley.tuning import Simulated, Thompson, Training

        recorded, knows = None, False
        make: Callable[[Any, int], Any] = Thompson
        with ExitStack() as opened:
            if self.live:
                from sley.tuning import Live

                assert self.ranks is not None  # check
                with self.phases(f"compiling {collective}"):
                    backend: Any = Live(collective, self.ranks, self.sizes)
                opened.enter_context(backend)
            elif self.sweeps is not None:
                recorded = self.swept(collective)
                backend = Simulated(recorded, seed=self.seed)
            else:
                arms = _arms(collective, self.cluster, self.actions, self.phases)
                backend = Simulated(ArmTimes.of(arms, self.sizes), seed=self.seed)
            if self.network is not None:
                make, knows = self._recurrent(backend)
            training = Training(backend, make, seed=self.seed)
            self._measure(training)
        self.trained.append(training)
        learned = _learned(training, recorded)
        if not self.phases.quiet:
            echo("\n".join(_training_lines(training, learned)))
        undecided = [size_text(o["size_bytes"]) for o in learned["sizes"] if o["is_undecided"]]
        if undecided:
            print_note(
                f"{training.rounds} samples are too few to tell whether the agent's own choice is "
                f"faster at {', '.join(undecided)}: more --samples may find more"
            )
        if knows and recorded is not None:
            print_note("the network was trained on this sweep, so its regret elsewhere is higher")
        return learned

    def _recurrent(self, backend: Any) -> tuple[Callable[[Any, int], Any], bool]:
        """What makes the recurrent agent of a back end, and whether its network was trained on this
        collective and cluster. Errors: D922."""
        from sley.tuning import Recurrent, Site
        from sley.tuning.agents.recurrent import site_name

        network, site = self._trained_network, Site.of(backend, self.cluster)
        knows = site_name(backend.collective, backend.machine) in network.sites
        return lambda _, seed: Recurrent(site, network, seed), knows

    @cached_property
    def _trained_network(self) -> Any:
        """The network's checkpoint. Errors: D922."""
        from sley.tuning import Checkpoint

        assert self.network is not None  # its caller asks
        return Checkpoint.load(self.network)

    def _measure(self, training: Training) -> None:
        """Trains, from the checkpoint if there is one, which it renews now and then, and at the
        end, also if it is interrupted."""
        path, collective = None, training.backend.collective
        if self.checkpoints is not None:
            name = f"{training.backend.machine.topology}-{collective}"
            name = f"{name}-{training.name}-{training.seed}.npz"
            path = self.checkpoints / name.replace("/", "_")
            if path.exists():
                with self.phases("resuming"):
                    training.resume(path)
                print_note(f"{path} has {training.rounds} samples of each size, which count")
        saved = time.monotonic()
        with self.phases.progress(f"training {collective}") as report:

            def progress(done: int, total: int) -> None:
                nonlocal saved
                report(done, total)
                if path is not None and time.monotonic() - saved > _SAVED_S:
                    training.save(path)
                    saved = time.monotonic()

            try:
                training.run(self.samples, progress)
            finally:
                if path is not None:
                    training.save(path)
                    if training.rounds < self.samples:
                        remark = f"has {training.rounds} samples of each size to go on from"
                        print_note(f"{path} {remark}")

    def policy(self) -> Policy:
        """What all trainings have learned."""
        from sley.tuning.policy import Policy

        first = self.trained[0]
        notes = {"samples": str(first.rounds), "seed": str(self.seed), "sley": version("sley")}
        changes = [change for one in self.trained for change in one.changes]
        facts = {"agent": first.name, "notes": notes, **({"changes": changes} if changes else {})}
        rows = tuple(row for one in self.trained for row in one.rows())
        return Policy(rows, machine=first.backend.machine, facts=facts)

    def write(self) -> tuple[list[Path], list[str]]:
        """Writes the files that are wanted. Returns their paths, and remarks."""
        from sley.tuning import policy as policies

        policy = self.policy()
        paths: list[Path] = []
        remarks: list[str] = []
        nothing = "no size is faster than the default, so"
        if self.output is not None:
            policies.write(policy, self.output)
            paths.append(self.output)
            remarks += [] if policy.rows else [f"{nothing} {self.output} chooses nothing"]
        if self.plans is not None and policy.rows:
            remarks += policies.exports.write_plan_folder(policy, self.plans)[1]
            paths.append(self.plans)
        elif self.plans is not None:
            remarks.append(f"{nothing} {self.plans} is not written")
        return paths, remarks


@click.command("sweep", cls=Command)
@_collectives_argument
@click.option("--topology", required=True, help=_TOPOLOGY)
@size_options("1K", "1G")
@_actions_option
@jobs_option
@click.option(
    "-o",
    "--output",
    type=_FOLDER,
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
    phases: Phases,
) -> None:
    """Simulate every choice of a tuner for COLLECTIVES (by default all five) on a cluster.

    Print NCCL's choice for each size, the fastest choice (the oracle), and its speedup.
    """
    cluster = _cluster(topology)
    found: list[dict[str, Any]] = []
    with executor_of(jobs) as executor:
        for collective in dict.fromkeys(collectives) or COLLECTIVES:
            arms = _arms(collective, cluster, actions, phases)
            times, is_new = _swept(arms, sizes, executor, output, phases)
            if output is not None:
                done = "written to" if is_new else "read from"
                print_note(f"the sweep of {collective} was {done} {output}")
            found.append(_sweep_json(times))
            if not phases.quiet:
                echo("\n".join(_sweep_lines(cluster.name, found[-1])))
    if phases.quiet:
        print_json({"ok": True, "topology": cluster.name, "sweeps": found})
    phases.report()


def _is_given(name: str) -> bool:
    """Whether a parameter is on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT


def _cluster(name: str) -> Topology:
    """The cluster to tune."""
    cluster = topology_of(name)
    assert cluster is not None  # it is None only for no name
    return cluster


def _arms(collective: str, cluster: Topology, actions: str, phases: Phases) -> Arms:
    """The choices for a collective on a cluster. Errors: D921, D931."""
    with phases.progress(f"compiling {collective}") as progress:
        return Arms.of(collective, cluster, actions=actions, progress=progress)


def _swept(
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
        with phases.progress(f"sweeping {arms.collective}") as progress:
            found = sweep(arms, missing, executor=executor, progress=progress)
        known = found if known is None else known.join(found.columns)
        if path is not None:
            known.save(path)
    assert known is not None  # there is at least one size
    return known.at(sizes), bool(missing)


def _sweep_json(found: ArmTimes) -> dict[str, Any]:
    """A sweep."""
    words = [str(recipe) for recipe in found.arms.recipes]
    return {
        "collective": found.arms.collective,
        "choices": len(found.arms),
        "sizes": [
            {
                "size_bytes": size,
                "default": words[found.default[place]],
                "default_us": float(found.default_us[place]),
                "best": words[found.best[place]],
                "best_us": float(found.best_us[place]),
            }
            for place, size in enumerate(found.sizes.tolist())
        ],
    }


def _sweep_lines(cluster: str, found: dict[str, Any]) -> list[str]:
    """The table of a sweep."""
    rows: list[tuple[str, ...]] = [("size", "default", "us", "fastest", "us", "faster")]
    for one in found["sizes"]:
        default_us, best_us = one["default_us"], one["best_us"]
        times = (f"{default_us:.1f}", one["best"], f"{best_us:.1f}", f"{default_us / best_us:.2f}x")
        rows.append((size_text(one["size_bytes"]), one["default"], *times))
    title = f"# {found['collective']} on {cluster}, {found['choices']} choices"
    return [title, *table_lines(rows, (1, 3)), ""]


def _learned(training: Training, recorded: ArmTimes | None) -> dict[str, Any]:
    """What an agent has learned; times are its own measurements."""
    backend, rows = training.backend, []
    for cell, size in enumerate(backend.sizes.tolist()):
        arm, default = training.agent.best(cell), int(backend.default[cell])
        mean = training.agent.tally.mean(cell)
        time_us, default_us = np.exp(mean[[arm, default]]).tolist()
        row: dict[str, Any] = {
            "size_bytes": size,
            "choice": str(backend.recipes[arm]),
            "default": str(backend.recipes[default]),
            "is_default": arm == default,
            "time_us": time_us,
            "default_us": default_us,
            "is_undecided": training.agent.undecided(cell) is not None,
        }
        if recorded:
            row["regret"] = float(recorded.true_us(cell, arm) / recorded.best_us[cell] - 1)
        rows.append(row)
    return {
        "collective": backend.collective,
        "agent": training.name,
        "samples": training.rounds,
        "sizes": rows,
    }


def _training_lines(training: Training, learned: dict[str, Any]) -> list[str]:
    """The table of what an agent has learned."""
    rows: list[tuple[str, ...]] = [("size", "choice", "", "us", "default us", "faster")]
    if "regret" in learned["sizes"][0]:
        rows = [(*rows[0], "regret")]
    for one in learned["sizes"]:
        time_us, default_us = one["time_us"], one["default_us"]
        mark = "(default)" if one["is_default"] else ""
        times = (f"{time_us:.1f}", f"{default_us:.1f}", f"{default_us / time_us:.2f}x")
        regret = (f"{one['regret']:.1%}",) if "regret" in one else ()
        rows.append((size_text(one["size_bytes"]), one["choice"], mark, *times, *regret))
    backend = training.backend
    title = (
        f"# {backend.collective} on {backend.machine}, {len(backend.recipes)} choices, "
        f"{training.name}, {training.rounds} samples of each size"
    )
    return [title, *table_lines(rows, (1, 2)), ""]


for _command in (train_command, sweep_command, show_command, export_command):
    tune_command.add_command(_command)
