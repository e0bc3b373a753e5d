"""Option slots of the command line: an option counts once for each command that has it.

python benchmarks/option_slots.py
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from sley.cli import main


def commands(command: click.Command = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, by their words after sley."""
    if isinstance(command, click.Group):
        for name, own in sorted(command.commands.items()):
            yield from commands(own, f"{path} {name}".strip())
    else:
        yield path, command


def option_slots() -> dict[str, int]:
    """The number of options of each command."""
    return {
        path: sum(isinstance(parameter, click.Option) for parameter in command.params)
        for path, command in commands()
    }


if __name__ == "__main__":
    slots = option_slots()
    for path, number in slots.items():
        print(f"{path:<20}{number:>4}")
    print(f"{'all ' + str(len(slots)) + ' commands':<20}{sum(slots.values()):>4}")
