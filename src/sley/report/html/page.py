"""Page: template, style, scripts and data in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from sley.errors import counted
from sley.errors.report import P810
from sley.formats import write_file
from sley.model.simulation.result import Simulation
from sley.report.html.data import change_data, simulation_data
from sley.report.limit import WhatIf
from sley.report.simulation import require_simulations, simulation_names

_SCRIPTS = ("base", "lanes", "timeline", "links", "curve", "tables", "beside", "main")


class Page(str):
    """A page of HTML, which `save` writes and notebooks show in a frame."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page. Errors: F461."""
        write_file(path, str(self))

    def _repr_html_(self) -> str:
        frame = 'style="width:100%;height:42em;border:0" sandbox="allow-scripts"'
        return f'<iframe srcdoc="{escape(self)}" {frame}></iframe>'


def html_report(
    simulations: Sequence[Simulation],
    *,
    title: str,
    names: Sequence[str] | None = None,
    changes: Sequence[Sequence[WhatIf]] = (),
) -> str:
    """Simulations as one HTML page: a choice of sizes and plans, what takes the time, timelines of
    thread blocks and links, classes of links, a heat map of links, idle time, curves over the size
    with the bound, the critical path with source lines, and all parameters.

    names: the plan's name for each simulation, by default the plan's own; simulations with the same
        name form one curve.
    changes: the changes of `what_if` for each simulation, which the page then shows.
    A simulation without executions has no timeline of thread blocks; the page states this.
    Errors: P810 without simulations, and for a wrong number of names or lists of changes.
    """
    require_simulations(simulations)
    if changes and len(changes) != len(simulations):
        raise P810.error(
            expected=f"{counted(len(simulations), 'list')} of changes, one for each simulation",
            found=counted(len(changes), "list"),
        )
    data = {
        "title": title,
        "simulations": [
            simulation_data(s, name, len(simulations)) | {"changes": change_data(own)}
            for s, name, own in zip(
                simulations,
                simulation_names(simulations, names),
                changes or [()] * len(simulations),
                strict=True,
            )
        ],
    }
    folder = files(__package__)
    parts = {
        "title": escape(title),
        "style": folder.joinpath("page.css").read_text("utf-8"),
        "script": "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in _SCRIPTS),
        "data": embed(data),
    }
    page = folder.joinpath("page.html").read_text("utf-8")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def embed(data: object) -> str:
    """JSON for a script element, in which no text can end the element or start a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
