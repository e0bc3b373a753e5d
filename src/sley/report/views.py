"""Views: the text and the picture of a value, as `sley.show` and `sley.draw` make them, and its
HTML, which Jupyter shows in place of the text."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable
from html import escape
from typing import Literal

from sley.errors import SleyError, without_inner_frames
from sley.errors.report import P815
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.model.simulation.result import Simulation
from sley.report.html import Page, html_report
from sley.report.pictures import (
    Picture,
    block_picture,
    chunk_picture,
    instruction_picture,
    topology_picture,
    tree_picture,
)
from sley.report.simulation import simulation_lines
from sley.report.tables import Text, pipeline_table, plan_summary, plan_table, stage_table
from sley.topologies.forests import Forest
from sley.topologies.structure import link_classes


@without_inner_frames
def show(
    value: Plan | Program | Simulation,
    rank: int | None = None,
    *,
    of: Literal["blocks", "pipelines"] = "blocks",
) -> Text:
    """A value as a text.

    Plan: its thread blocks, a line for each instruction, of a rank or by default of all ranks; with
        of="pipelines" its sub-pipelines (ResCCL 4.3), a line for each transfer, if it has any.
    Program: its transfers, a line for each. Simulation: as `sley simulate` prints it: time,
        bandwidth and bound, what limits it, links, thread blocks, the critical path, parameters.
    Errors: L101 for a rank that the plan lacks; P815.
    """
    if isinstance(value, Program):
        lines = stage_table(value)
    elif isinstance(value, Simulation):
        lines = simulation_lines(value)
    elif isinstance(value, Plan) and of == "pipelines":
        lines = pipeline_table(value)
    elif isinstance(value, Plan) and of == "blocks":
        ranks = range(value.ranks) if rank is None else [rank]
        lines = [line for one in ranks for line in plan_table(value, one)]
    elif isinstance(value, Plan):
        raise P815.error(expected="blocks or pipelines", found=repr(of)[:60])
    else:
        raise P815.error(expected="a program, plan or simulation", found=repr(value)[:60])
    return Text("\n".join(lines))


@without_inner_frames
def draw(
    value: Plan | Program | Topology | Forest | Simulation,
    rank: int | None = None,
    *,
    of: Literal["blocks", "instructions"] = "blocks",
) -> Picture | Page:
    """A value as a picture, with a method `save`; notebooks show it.

    Plan: its thread blocks, or with of="instructions" the graph of its instructions; of one rank or
        of all. Program: its transfers between chunks, of one rank or of all. Topology: its GPUs,
        switches, cards and links. Forest: the trees of a rank, by default 0. Simulation: the page
        of `sley simulate --html`, which loads nothing from a network.
    Errors: P801 for values that are too large to draw, V201, L101, P815.
    """
    ranks = None if rank is None else [rank]
    if isinstance(value, Program):
        return chunk_picture(value, ranks)
    if isinstance(value, Topology):
        return topology_picture(value)
    if isinstance(value, Forest):
        return tree_picture(value, rank or 0)
    if isinstance(value, Simulation):
        return Page(html_report([value], title=value.plan.name))
    if not isinstance(value, Plan):
        found = repr(value)[:60]
        raise P815.error(expected="a program, plan, topology, forest or simulation", found=found)
    pictures = {"blocks": block_picture, "instructions": instruction_picture}
    if of not in pictures:
        raise P815.error(expected=" or ".join(pictures), found=repr(of)[:60])
    return pictures[of](value, ranks)


MOST_BYTES = 2**22
"""The largest page of a simulation inside a notebook, which is saved with it."""


def value_html(value: Plan | Program | Topology) -> str:
    """A plan's properties or a topology's classes of links, and the picture if it is small
    enough."""
    rows: list[tuple[str, ...]] = []
    if isinstance(value, Plan):
        summary = plan_summary(value)
        rows = [(name.replace("_", " "), _words(one)) for name, one in summary.items()]
    elif isinstance(value, Topology):
        rows = [("links, each direction", "number", "nominal GB/s", "reached GB/s")]
        rows += [
            (f"{LinkKind(kind).name.lower()}: {ends}", str(count), f"{nominal:g}", f"{reached:g}")
            for kind, ends, nominal, reached, _, count in link_classes(value)
        ]
    return _head(value) + (_table(rows) if rows else "") + _drawing(value)


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
    for kind in (Plan, Program, Topology):
        html.for_type(kind, value_html)
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
