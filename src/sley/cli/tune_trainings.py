"""sley tune: the trainings of a command. It needs the extra `tune`."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sley.cli.output import Phases, echo, print_note
from sley.cli.sweep import arms_of, reporter, swept
from sley.cli.tune_agent import AgentOptions
from sley.cli.tune_live import LiveOptions
from sley.cli.tune_tables import training_json, training_lines
from sley.ir.topology import Topology
from sley.tuning import ArmTimes, Simulated, Training
from sley.tuning.policy import Policy

_SAVED_S = 1.0
"""The time between two writings of a checkpoint."""


@dataclass
class Trainings:
    """The settings of a command, and what its trainings have learned so far.

    cluster: None to measure this machine. sweeps, checkpoints: folders in which these are kept, or
    None.
    """

    cluster: Topology | None
    live: LiveOptions
    sizes: list[int]
    actions: str
    agent: AgentOptions
    samples: int
    seed: int
    sweeps: Path | None
    checkpoints: Path | None
    executor: Executor | None
    phases: Phases
    trained: list[Training] = field(default_factory=list)
    _swept: dict[str, ArmTimes] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The name of the cluster or machine."""
        return self.cluster.name if self.cluster else self.trained[0].backend.machine.topology

    def swept(self, collective: str) -> ArmTimes:
        """The sweep of a collective on the cluster, made or read once."""
        assert self.cluster is not None
        if collective in self._swept:
            return self._swept[collective]
        arms = arms_of(collective, self.cluster, self.actions, self.phases)
        found, is_new = swept(arms, self.sizes, self.executor, self.sweeps, self.phases)
        if is_new and self.sweeps is not None:
            remark = f"{self.sweeps} had no such sweep of {collective}; it has been simulated"
            print_note(remark)
        self._swept[collective] = found
        return found

    def train(self, collective: str) -> dict[str, Any]:
        """Trains the agent; prints what it has learned, and returns it as JSON."""
        with ExitStack() as opened:
            recorded = None
            if self.cluster is None:
                backend: Any = self.live.backend(collective, self.sizes, self.phases)
                opened.enter_context(backend)
            elif self.sweeps is not None:
                recorded = self.swept(collective)
                backend = Simulated(recorded, seed=self.seed)
            else:
                arms = arms_of(collective, self.cluster, self.actions, self.phases)
                backend = Simulated(ArmTimes.of(arms, self.sizes), seed=self.seed)
            training = Training(backend, self.agent.maker(self.cluster), seed=self.seed)
            _train(training, self.samples, self.checkpoints, self.phases)
        self.trained.append(training)
        self._print(training_lines(training, recorded))
        if recorded is not None:
            self._warn_of_network(recorded)
        return training_json(training, recorded)

    def _warn_of_network(self, recorded: ArmTimes) -> None:
        if self.agent.knows(recorded.arms):
            remark = "the network was trained on this sweep, so its regret elsewhere is higher"
            print_note(remark)

    def policy(self) -> Policy:
        """What all trainings have learned."""
        first = self.trained[0]
        notes = {
            "samples": str(first.rounds),
            "seed": str(self.seed),
            "sley": version("sley"),
        }
        changes = [change for one in self.trained for change in one.changes]
        facts = {"agent": first.name, "notes": notes, **({"changes": changes} if changes else {})}
        rows = tuple(row for one in self.trained for row in one.rows())
        return Policy(rows, machine=first.backend.machine, facts=facts)

    def _print(self, lines: list[str]) -> None:
        if not self.phases.quiet:
            echo("\n".join(lines))


def _train(training: Training, samples: int, folder: Path | None, phases: Phases) -> None:
    """Trains, from the checkpoint if there is one, which it renews now and then, and at the end,
    also if it is interrupted."""
    path = None
    if folder is not None:
        name = f"{training.backend.machine.topology}-{training.backend.collective}"
        path = folder / f"{name}-{training.name}-{training.seed}.npz".replace("/", "_")
        if path.exists():
            with phases("resuming"):
                training.resume(path)
            remark = f"{path} has {training.rounds} samples of each size, which count"
            print_note(remark)
    saved = time.monotonic()
    with phases.bar() as bar, phases(f"training {training.name}"):
        report = reporter(
            bar, bar.add_task(f"training {training.backend.collective}", total=samples)
        )

        def progress(done: int, total: int) -> None:
            nonlocal saved
            report(done, total)
            if path is not None and time.monotonic() - saved > _SAVED_S:
                training.save(path)
                saved = time.monotonic()

        try:
            training.run(samples, progress)
        finally:
            if path is not None:
                training.save(path)
                if training.rounds < samples:
                    remark = f"{path} has {training.rounds} samples of each size to go on from"
                    print_note(remark)
