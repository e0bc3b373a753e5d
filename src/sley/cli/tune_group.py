"""sley tune: trains tuners, and shows and exports what they have learned."""

from __future__ import annotations

import click

from sley.cli.output import CommandGroup
from sley.cli.policy import export_command, show_command
from sley.cli.sweep import sweep_command
from sley.cli.tune import train_command


@click.group("tune", cls=CommandGroup)
def tune_command() -> None:
    """Train a tuner to choose plans, and show and export its policy."""


for _command in (train_command, sweep_command, show_command, export_command):
    tune_command.add_command(_command)
