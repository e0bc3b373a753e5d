"""The page: template, style, scripts and data in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from sley.report.html.data import simulation_data
from sley.report.simulation import named, require_simulations
from sley.simulate.result import Simulation

_SCRIPTS = ("base", "lanes", "timeline", "links", "curve", "tables", "main")


def html_report(
    simulations: Sequence[Simulation], *, title: str, names: Sequence[str] | None = None
) -> str:
    """Simulations as one HTML page: sizes or plans to choose from, a timeline of thread blocks
    and of links, a link heat map, idle time, the curve over sizes against the bound, the critical
    path with source lines, and all parameters.

    names: of the plans, one for each simulation; simulations of one name are one curve. The
        plans' own names by default.
    A simulation without executions has no timeline of thread blocks; the page says so.
    Errors: P810 without simulations, P813 where the names don't fit.
    """
    require_simulations(simulations)
    data = {
        "title": title,
        "simulations": [
            simulation_data(s, name, len(simulations))
            for s, name in zip(simulations, named(simulations, names), strict=True)
        ],
    }
    folder = files(__package__)
    parts = {
        "title": escape(title),
        "style": folder.joinpath("page.css").read_text("utf-8"),
        "script": "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in _SCRIPTS),
        "data": embedded(data),
    }
    page = folder.joinpath("page.html").read_text("utf-8")
    pieces = page.split("@@")  # text, name, text, name, ..., text
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def embedded(data: object) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
