"""sley tune: options of the agent that learns, and the network of a recurrent one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from sley.cli.options import POSITIVE
from sley.cli.output import Phases, print_note
from sley.cli.sweep import reporter
from sley.errors import did_you_mean
from sley.ir.topology import Topology
from sley.tuning.arms import Arms
from sley.tuning.noise import Noise
from sley.tuning.sweep import Sweep

RECURRENT = "recurrent"
_STEPS = 300_000

AGENT_OPTIONS = (
    click.option("--agent", help=f"The agent that learns, such as {RECURRENT}. [thompson]"),
    click.option(
        "--network",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"With --agent {RECURRENT}: the network. If the file doesn't exist, the network is "
        "trained on --sweeps.",
    ),
    click.option(
        "--steps",
        type=POSITIVE,
        help=f"Steps of the network's training, three for each call. [{_STEPS}]",
    ),
)


@dataclass(frozen=True)
class AgentOptions:
    """The options of `AGENT_OPTIONS`."""

    agent: str | None
    network: Path | None
    steps: int | None

    @property
    def name(self) -> str:
        """The name of the agent."""
        from sley.tuning.training import DEFAULT_AGENT

        return self.agent or DEFAULT_AGENT

    def check(self, sweeps: Path | None, *, compare: bool, live: bool) -> None:
        """Refuses options that don't fit one another. Raises click.UsageError."""
        from sley.tuning.training import AGENTS

        if self.agent is not None and self.agent not in (*AGENTS, RECURRENT):
            known = (*AGENTS, RECURRENT)
            guess = did_you_mean(self.agent, known)
            message = f"--agent is one of {', '.join(known)}, not {self.agent!r}. {guess}"
            raise click.UsageError(message.rstrip())
        if compare and self.agent is not None:
            raise click.UsageError("--compare trains every agent, so it has no --agent")
        if (self.network is not None) != (self.agent == RECURRENT) and not compare:
            message = f"--agent {RECURRENT} needs --network, and --network that agent or --compare"
            raise click.UsageError(message)
        if self.network is not None and live:
            raise click.UsageError("--network is not for --live")
        is_new = self.network is not None and not self.network.exists()
        if is_new and sweeps is None:
            raise click.UsageError(f"{self.network} is not there, and to train it needs --sweeps")
        if self.steps is not None and not is_new:
            raise click.UsageError("--steps is for a --network that is not there yet")

    @cached_property
    def _trained(self) -> Any:
        """The network's checkpoint. Errors: D922."""
        from sley.tuning.agents.checkpoint import Checkpoint

        assert self.network is not None  # its callers ask
        return Checkpoint.load(self.network)

    def maker(self, cluster: Topology) -> Callable[[Any, int], Any] | None:
        """What makes a recurrent agent, from a back end and a seed; None without a network. Errors:
        D922."""
        if self.network is None:
            return None
        from sley.tuning.agents.recurrent import Recurrent
        from sley.tuning.state import Site

        trained = self._trained
        return lambda backend, seed: Recurrent(Site.of(backend, cluster), trained, seed)

    def knows(self, arms: Arms) -> bool:
        """Whether the network was trained on this collective and cluster. Errors: D922."""
        if self.network is None:
            return False
        from sley.tuning.agents.recurrent import site_name
        from sley.tuning.backends import machine_of

        return site_name(arms.collective, machine_of(arms)) in self._trained.sites

    def train_network(
        self, found: Iterable[Sweep], noise: Noise, seed: int, phases: Phases
    ) -> None:
        """Trains the network on these sweeps of a cluster, unless it is there. Until it is whole it
        is kept in another file, from which an interrupted training goes on. Errors: D92x."""
        if self.network is None or self.network.exists():
            return
        from sley.tuning.agents.checkpoint import Checkpoint, Settings
        from sley.tuning.agents.recurrent import train
        from sley.tuning.backends import Recorded
        from sley.tuning.state import Site

        part = self.network.with_name(f"{self.network.name}.part")
        resume = Checkpoint.load(part) if part.exists() else None
        sites = [Site.of(Recorded(one, noise), one.arms.topology) for one in found]
        with phases.bar() as bar, phases("training the network"):
            progress = reporter(bar, bar.add_task("training the network", total=None))
            settings, steps = Settings(seed=seed), self.steps or _STEPS
            train(sites, steps, settings, resume=resume, path=part, progress=progress)
        part.replace(self.network)
        print_note(f"the network is trained, {self.network}")
