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
from sley.ir.topology import Topology
from sley.tuning.arms import Arms
from sley.tuning.sweeps import ArmTimes

RECURRENT = "recurrent"
_STEPS = 300_000

AGENT_OPTIONS = (
    click.option(
        "--agent",
        type=click.Choice(["thompson", RECURRENT]),
        default="thompson",
        show_default=True,
        help="The agent that learns.",
    ),
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

    agent: str
    network: Path | None
    steps: int | None

    def check(self, sweeps: Path | None, *, live: bool) -> None:
        """Refuses options that don't fit one another. Raises click.UsageError."""
        if (self.network is not None) != (self.agent == RECURRENT):
            message = f"--agent {RECURRENT} needs --network, and --network that agent"
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
        from sley.tuning import Checkpoint

        assert self.network is not None  # its callers ask
        return Checkpoint.load(self.network)

    def maker(self, cluster: Topology | None) -> Callable[[Any, int], Any]:
        """What makes the agent, from a back end and a seed. cluster: of a recurrent one. Errors:
        D922, D922."""
        if self.network is None or cluster is None:
            from sley.tuning import Thompson

            return Thompson
        from sley.tuning import Recurrent, Site

        trained = self._trained
        return lambda backend, seed: Recurrent(Site.of(backend, cluster), trained, seed)

    def knows(self, arms: Arms) -> bool:
        """Whether the network was trained on this collective and cluster. Errors: D922."""
        if self.network is None:
            return False
        from sley.tuning.agents.recurrent import site_name
        from sley.tuning.backends import machine_of

        return site_name(arms.collective, machine_of(arms)) in self._trained.sites

    def train_network(self, found: Iterable[ArmTimes], seed: int, phases: Phases) -> None:
        """Trains the network on these sweeps of a cluster, unless it is there. Until it is whole it
        is kept in another file, from which an interrupted training goes on. Errors: D92x."""
        if self.network is None or self.network.exists():
            return
        from sley.tuning import Checkpoint, Hyperparameters, Simulated, Site, train

        part = self.network.with_name(f"{self.network.name}.part")
        resume = Checkpoint.load(part) if part.exists() else None
        sites = [Site.of(Simulated(one), one.arms.topology) for one in found]
        with phases.bar() as bar, phases("training the network"):
            progress = reporter(bar, bar.add_task("training the network", total=None))
            settings, steps = Hyperparameters(seed=seed), self.steps or _STEPS
            train(sites, steps, settings, resume=resume, path=part, progress=progress)
        part.replace(self.network)
        print_note(f"the network is trained, {self.network}")
