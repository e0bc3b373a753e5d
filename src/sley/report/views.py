"""Views: the text and the picture of a value, as `sley.show` and `sley.draw` make them, and its
HTML, which Jupyter shows in place of the text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from html import escape
from typing import Any, Literal

from sley.errors import SleyError, without_inner_frames
from sley.errors.report import P815
from sley.formats.files import FileProof
from sley.ir.fabric import LinkKind
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import size_text
from sley.ir.tables import Table, Value, brief
from sley.ir.topology import Topology
from sley.model.simulation import Simulation, Simulator
from sley.report.analysis import MOST_EXECUTIONS
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
from sley.verification import Proof
from sley.verification.order import SumOrder


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
        return Page(html_report([_with_executions(value)], title=value.plan.name))
    if not isinstance(value, Plan):
        found = repr(value)[:60]
        raise P815.error(expected="a program, plan, topology, forest or simulation", found=found)
    pictures = {"blocks": block_picture, "instructions": instruction_picture}
    if of not in pictures:
        raise P815.error(expected=" or ".join(pictures), found=repr(of)[:60])
    return pictures[of](value, ranks)


MOST_BYTES = 2**22
"""The largest page of a simulation inside a notebook, which is saved with it."""

_ROWS = 10
"""The rows that notebooks show of a table."""

_MOST_LISTED = 500
"""The rows that they show of a list of values: its HTML is saved with the notebook."""


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
    for shown in (_with_executions(simulation), simulation):
        page = html_report([shown], title=shown.plan.name)
        if len(page) <= MOST_BYTES:
            return _head(shown) + Page(page)._repr_html_()
    return text_html("\n".join(simulation_lines(simulation)))


def _with_executions(s: Simulation) -> Simulation:
    """The simulation with the executions that the timeline shows, if they are few; as it is, if it
    ran beside others, whose load can't be simulated again."""
    if s.executions is not None or s.measured or s.stretch != 1.0:
        return s
    if s.tiles * len(s.plan.instructions) > MOST_EXECUTIONS:
        return s
    again = Simulator(s.plan, s.topology, interpreter=s.interpreter, executions=True)(s.size_bytes)
    return replace(s, executions=again.executions) if again.time_us == s.time_us else s


def table_html(table: Table) -> str:
    """The first rows of a table."""
    rows = table.first(_ROWS)
    return _head(f"{type(table).__name__}({len(table)} rows)") + _table(
        rows + [["..."]] * (len(table) > _ROWS), has_names=True
    )


def fields_html(value: Any) -> str:
    """A value's fields."""
    return _head(value) + _table(_cells(value).items())


def proof_html(proof: Proof) -> str:
    """What is proven, and for which calls."""
    return _head(proof) + text_html(proof.holds)


def text_html(value: object) -> str:
    """A value's text as it is printed."""
    return f"<pre>{escape(str(value))}</pre>"


def choices_html(choices: Any) -> str:
    """The table of ranges."""
    return _head(choices) + _rows_html(choices.rows)


def list_html(values: list[Any] | tuple[Any, ...]) -> str | None:
    """A table with a row for each simulation, measurement or other value of one kind that sley
    returned; nothing for another list or tuple."""
    if type(values) not in (list, tuple):  # whose own HTML this function hides
        own = getattr(values, "_repr_html_", None)
        return own() if own else None
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or not _has_fields(kinds.pop()):
        return None
    rows = [_cells(value) for value in values[:_MOST_LISTED]]
    more = [dict.fromkeys(rows[0], "...")] * (len(values) > _MOST_LISTED)
    return _rows_html(rows + more)


def register() -> None:
    """Tells IPython to show these values so; does nothing outside of it."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return
    html = shell.display_formatter.formatters["text/html"]
    for kind, function in {
        Plan: value_html,
        Program: value_html,
        Topology: value_html,
        Simulation: simulation_html,
        Table: table_html,
        Value: fields_html,
        Proof: proof_html,
        SumOrder: text_html,
        FileProof: text_html,
        Text: text_html,
        list: list_html,
        tuple: list_html,
    }.items():
        html.for_type(kind, function)
    for module, names in _FURTHER.items():  # of rooms above, or not always imported
        for name in names.split():
            function = choices_html if name == "Choices" else fields_html
            html.for_type_by_name(module, name, function)


_FURTHER = {
    "sley.communicator.stats": "CallStats",
    "sley.compiler.choices": "Choices Choice Prediction RunnerUp",
    "sley.compiler.group_plans": "GroupCall GroupPlans",
    "sley.compiler.options": "Options",
    "sley.engine.measure": "Measurement",
    "sley.ir.cost_model": "CostModel",
    "sley.model.bounds.bounds": "Bound",
}


def _has_fields(kind: type) -> bool:
    """Whether it is a class of sley with fields."""
    own = kind.__module__.startswith("sley.")
    return own and (is_dataclass(kind) or hasattr(kind, "_fields"))


def _cells(value: Any) -> dict[str, str]:
    """The fields of a value in words, by name; of a simulation what tells it from others."""
    if isinstance(value, Simulation):
        return {
            "plan": value.plan.name,
            "topology": value.topology.name,
            "size": size_text(value.size_bytes),
            "time us": f"{value.time_us:.1f}",
            "algbw GB/s": f"{value.algbw_GBps:.2f}",
            "busbw GB/s": f"{value.busbw_GBps:.2f}",
            "of bound": f"{value.of_bound:.1%}",
        }
    if isinstance(value, (Plan, Program, Topology, Proof)):  # whose fields are tables
        return {type(value).__name__.lower(): repr(value)}
    names = getattr(value, "_fields", None) or [f.name for f in fields(value)]
    return {name.replace("_", " "): brief(getattr(value, name)) for name in names}


def _head(value: object) -> str:
    return f"<div><b>{escape(value if isinstance(value, str) else repr(value))}</b></div>"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in value.items())
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _rows_html(rows: Sequence[Mapping[str, str]]) -> str:
    """A table with the names of its columns."""
    return _table([list(rows[0]), *(list(row.values()) for row in rows)], has_names=True)


def _table(rows: Iterable[Iterable[str]], has_names: bool = False) -> str:
    """has_names: whether the first row has the columns' names."""
    lines = []
    for number, row in enumerate(rows):
        tag = "th" if has_names and not number else "td"
        lines.append("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _drawing(value: Plan | Program | Topology) -> str:
    """Its picture; "" if it can't be drawn."""
    try:
        return draw(value)._repr_html_()
    except (SleyError, ImportError):  # too large to be read, or there is no matplotlib
        return ""
