"""sley list: the algorithms of the library."""

from __future__ import annotations

import click

from sley.algorithms import CATALOG
from sley.cli.output import Command, print_json


@click.command("list", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List the algorithms of the library."""
    if as_json:
        print_json(
            [
                {
                    "name": a.name,
                    "collective": a.collective,
                    "summary": a.summary,
                    "source": a.source,
                    "parameters": list(a.parameters),
                }
                for a in CATALOG.values()
            ]
        )
        return
    width = max(map(len, CATALOG))
    for a in CATALOG.values():
        options = " ".join(f"--{p}" for p in a.parameters)
        click.echo(f"{a.name:<{width}}  {a.summary}  [{options}]")
