"""sley tune train --live: options, defaults and the back end of a training on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sley.cli.options import Whole, sizes_between
from sley.cli.output import Phases
from sley.tuning.arms import LIVE

if TYPE_CHECKING:
    from sley.tuning.live import Live
    from sley.tuning.policy import Policy

_SIMULATED = {"topology", "actions", "jobs", "sweeps", "checkpoints"}
_LIVE = {"ranks", "plans"}
"""The parameters that have a meaning only without --live, or only with it."""

_END, _FACTOR, _SAMPLES = 64 << 20, 4, 200
"""The defaults of --end, --factor and --samples with --live."""

OPTIONS = (
    click.option(
        "--live",
        is_flag=True,
        help=f"Measure this machine instead: {', '.join(LIVE)}. By default with -e 64M "
        "-f 4 --samples 200. Not with --actions, --checkpoints, --jobs, --network, --sweeps.",
    ),
    click.option("--ranks", type=Whole(2, 256), help="With --live: processes that make the calls."),
    click.option(
        "--plans",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="With --live: write the plans into this new folder, for SLEY_PLAN_DIR.",
    ),
)


@dataclass(frozen=True)
class LiveOptions:
    """The options of `OPTIONS`. live: whether to measure this machine; then there are ranks."""

    live: bool
    ranks: int | None
    plans: Path | None

    def check(self, collectives: Sequence[str]) -> None:
        """Refuses options and collectives that don't fit --live, or its absence. Raises
        click.UsageError."""
        given = [name for name in (_SIMULATED if self.live else _LIVE) if is_given(name)]
        if given:
            without = "is not for" if self.live else "is for"
            raise click.UsageError(f"--{min(given)} {without} --live")
        if not self.live:
            if not is_given("topology"):
                raise click.UsageError("Give --topology for a cluster, or --live for this machine")
            return
        if self.ranks is None:
            raise click.UsageError("--live needs --ranks")
        unknown = [one for one in collectives if one not in LIVE]
        if unknown:
            expected = ", ".join(LIVE)
            raise click.UsageError(f"--live measures {expected}, not {unknown[0]}")
        if self.plans is not None and self.plans.exists() and any(self.plans.iterdir()):
            raise click.UsageError(f"--plans {self.plans} is not empty")

    def sizes(self, given: list[int]) -> list[int]:
        """The sizes to measure. given: those with the defaults of a simulation."""
        if not self.live:
            return given
        values = click.get_current_context().params
        begin, step = values["begin"], values["step"]
        end = values["end"] if is_given("end") else max(_END, begin)
        factor = values["factor"] if is_given("factor") else _FACTOR
        return sizes_between(begin, end, factor, step)

    def samples(self, given: int) -> int:
        """The number of measurements of each size."""
        return given if is_given("samples") or not self.live else _SAMPLES

    def backend(self, collective: str, sizes: list[int], phases: Phases) -> Live:
        """The back end of a collective, to be closed. Errors: D923, and those of its ranks."""
        from sley.tuning.live import Live

        assert self.ranks is not None  # check
        with phases(f"compiling {collective}"):
            return Live(collective, self.ranks, sizes)

    def write_plans(self, policy: Policy) -> tuple[list[Path], tuple[str, ...]]:
        """Writes the folder of plans if one is wanted. Returns its path, if it is written, and
        remarks."""
        from sley.tuning.policy.exports import write_plan_folder

        if self.plans is None:
            return [], ()
        if not policy.rows:
            return [], (f"no size is faster than the default, so {self.plans} is not written",)
        return [self.plans], write_plan_folder(policy, self.plans)[1]


def is_given(name: str) -> bool:
    """Whether a parameter is on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT
