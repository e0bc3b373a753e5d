"""Notebooks: values as HTML, which Jupyter shows in place of their text."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from html import escape

from sley.errors import SleyError
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.model.simulation.result import Simulation
from sley.report.html import Page, html_report
from sley.report.pictures import Picture
from sley.report.simulation import simulation_lines
from sley.report.tables import plan_summary
from sley.report.views import draw
from sley.topologies.summary import Summary

MOST_BYTES = 2**22
"""The largest page of a simulation inside a notebook, which is saved with it."""


def plan_html(plan: Plan) -> str:
    """A plan's properties, and its thread blocks if the picture is small enough."""
    rows = [(name.replace("_", " "), _words(value)) for name, value in plan_summary(plan).items()]
    return _head(plan) + _table(rows) + _drawing(plan)


def program_html(program: Program) -> str:
    """A program's graph of transfers, if the picture is small enough."""
    return _head(program) + _drawing(program)


def topology_html(topology: Topology) -> str:
    """A topology's classes of links, and its graph if the picture is small enough."""
    rows = [("links, each direction", "number", "nominal GB/s", "reached GB/s")]
    rows += [
        (f"{LinkKind(kind).name.lower()}: {ends}", str(count), f"{nominal:g}", f"{reached:g}")
        for kind, ends, nominal, reached, _, count in Summary.of(topology).links
    ]
    return _head(topology) + _table(rows) + _drawing(topology)


def simulation_html(simulation: Simulation) -> str:
    """The report of a simulation in a frame of its own; its text if the page would be too large."""
    page = html_report([simulation], title=simulation.plan.name)
    if len(page) > MOST_BYTES:
        return f"<pre>{escape(chr(10).join(simulation_lines(simulation)))}</pre>"
    return _head(simulation) + Page(page)._repr_html_()


def register() -> None:
    """Tells IPython to show these values so; does nothing outside of it."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    html.for_type(Plan, plan_html)
    html.for_type(Program, program_html)
    html.for_type(Topology, topology_html)
    html.for_type(Simulation, simulation_html)


def _head(value: object) -> str:
    return f"<div><b>{escape(repr(value))}</b></div>"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _drawing(value: Plan | Program | Topology) -> str:
    """A picture as an image that shares no names with its page; "" if it can't be drawn."""
    try:
        picture = draw(value)
        assert isinstance(picture, Picture)  # only a simulation is a page
        image = base64.b64encode(picture.svg()).decode()
    except (SleyError, ImportError):  # too large to be read, or there is no matplotlib
        return ""
    source = f'src="data:image/svg+xml;base64,{image}"'
    return f'<img alt="{escape(picture.title)}" style="max-width:100%" {source}>'
