"""Reports as files, on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from sley.cli.options import standing_for
from sley.formats import check_folder, write_file
from sley.report.html import html_report
from sley.report.plots import plot
from sley.simulate import Simulation

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Reports:
    """Where a page and a plot are written; None where they aren't asked for."""

    html: Path | None
    plot: Path | None

    def __bool__(self) -> bool:
        return bool(self.html or self.plot)

    def write(
        self, simulations: Sequence[Simulation], *, title: str, names: Sequence[str] | None = None
    ) -> None:
        """Writes them. names: of the plans, one for each simulation. Errors: F461, P8xx."""
        if self.html is not None:
            write_file(self.html, html_report(simulations, title=title, names=names))
        if self.plot is not None:
            plot(simulations, self.plot, names=names)


def report_options(command: F) -> F:
    """Adds --html and --plot; the command gets them as `reports`, in folders that are there."""

    @click.option("--html", type=FILE, help="Write a page with pictures and tables.")
    @click.option("--plot", "plot_file", type=FILE, help="Write a picture, .png or .svg.")
    def wrapper(*args: Any, html: Path | None, plot_file: Path | None, **values: Any) -> object:
        for file in filter(None, (html, plot_file)):
            check_folder(file)
        return command(*args, reports=Reports(html, plot_file), **values)

    return standing_for(command, wrapper)
