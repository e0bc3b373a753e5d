"""Plots: simulations as a PNG or SVG picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sley.formats import write_file
from sley.ir.sizes import size_text
from sley.ir.tables import FloatArray, IntArray
from sley.ir.words import Op
from sley.model.simulation.result import Simulation, TileExecutions
from sley.report.analysis import MOST_EXECUTIONS, block_bins, op_name
from sley.report.pictures.canvas import METADATA, check_suffix, drawing_settings
from sley.report.simulation import PART_WORDS, bytes_text, require_simulations, simulation_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 120
_OPS = {
    Op.NOP: "#b0b5bc",
    Op.SEND: "#2f7fb8",
    Op.RECV: "#2a9d73",
    Op.COPY: "#7d8590",
    Op.REDUCE: "#596270",
    Op.RECV_REDUCE_COPY: "#8460c4",
    Op.RECV_COPY_SEND: "#56b3d4",
    Op.RECV_REDUCE_SEND: "#5566d6",
    Op.RECV_REDUCE_COPY_SEND: "#8aa83a",
    Op.COPY_SEND: "#4f6fa3",
}
_PARTS = {
    "moving_us": "#2f7fb8",
    "overhead_us": "#6b7280",
    "waiting_us": "#e0a000",
    "message_us": "#d4669b",
    "slot_us": "#c94f0a",
}
_ROWS = 128
"""The most thread blocks that are drawn one by one, each with a label."""

_LEGEND_INCHES = 0.5

_BINS = 600
"""Number of bins of time in pictures of more thread blocks."""


def plot(
    simulations: Sequence[Simulation], path: str | Path, *, names: Sequence[str] | None = None
) -> None:
    """Writes a picture. For several simulations it has curves of the algorithm bandwidth over the
    size, one for each name, with the bound. If all have one name, it has the thread blocks of the
    largest simulation over time, or sums of their time if it has no executions. The same input
    gives the same bytes.

    path: the file; its suffix, .svg, .png or .pdf, selects the format.
    names: one for each simulation, by default the plans' names.
    Errors: R512, P810, F460 for another suffix, F461.
    """
    require_simulations(simulations)
    labels = simulation_names(simulations, names)
    has_curve, has_blocks = len(simulations) > 1, len(set(labels)) == 1
    largest = max(range(len(simulations)), key=lambda n: simulations[n].size_bytes)
    heights = [4.2] * has_curve + [_height(simulations[largest])] * has_blocks
    with charts(path, heights) as axes:
        if has_curve:
            _draw_curve(axes[0], simulations, labels)
        if has_blocks:
            _draw_blocks(axes[-1], simulations[largest], labels[largest])


@contextmanager
def charts(
    path: str | Path, heights: Sequence[float], *, font: float = 9.0
) -> Iterator[Sequence[Axes]]:
    """Axes below one another, which are written to a file at the end. The caller's settings of
    matplotlib are neither used nor changed, so that the same input gives the same bytes.

    heights: of each, in inches. font: the size in points. Errors: R512, F460, F461.
    """
    suffix = check_suffix(path)
    own = {
        "font.size": font,
        "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    }
    with drawing_settings(own):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
        yield list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        content = BytesIO()
        figure.savefig(content, dpi=_DPI, metadata=METADATA[suffix], format=suffix[1:])
    write_file(path, content.getvalue())


def _draw_curve(axes: Axes, simulations: Sequence[Simulation], names: list[str]) -> None:
    bounds: set[tuple[tuple[float, float], ...]] = set()
    for name in dict.fromkeys(names):
        rows = [s for s, n in zip(simulations, names, strict=True) if n == name]
        rows.sort(key=lambda s: s.size_bytes)
        sizes = [s.size_bytes for s in rows]
        # matplotlib's legend omits labels that start with an underscore.
        label = f" {name}" if name.startswith("_") else name
        axes.plot(sizes, [s.algbw_GBps for s in rows], marker="o", markersize=4, label=label)
        bounds.add(tuple((s.size_bytes, s.bound.algbw_GBps) for s in rows))
    for number, bound in enumerate(sorted(bounds)):
        label = "_" if number else "bound"
        axes.plot(*zip(*bound, strict=True), color="#666666", linestyle="--", label=label)
    sizes = sorted({s.size_bytes for s in simulations})
    axes.set_xscale("log", base=2)
    shown = sizes[:: -(-len(sizes) // 12)]
    axes.set_xticks(shown, [size_text(size) for size in shown])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size, bytes")
    axes.set_ylabel("algbw, GB/s")
    axes.grid(color="#e8ebf0")
    axes.legend(edgecolor="none")
    topologies = sorted({s.topology.name for s in simulations})
    where = topologies[0] if len(topologies) == 1 else f"{len(topologies)} topologies"
    axes.set_title(f"{simulations[0].plan.collective.name} on {where}", loc="left")


def _draw_blocks(axes: Axes, s: Simulation, name: str) -> None:
    if s.executions is None:
        _draw_parts(axes, s)
    elif len(s.blocks) > _ROWS or len(s.executions) > MOST_EXECUTIONS:
        _draw_bins(axes, s, s.executions)
    else:
        _draw_executions(axes, s, s.executions)
    blocks = len(s.blocks)
    every = 1 if blocks <= _ROWS else -(-2 * blocks // _ROWS)
    rows = np.arange(0, blocks, every)
    numbers = zip(s.plan.block_rank[rows], s.plan.block_number[rows], strict=True)
    axes.set_yticks(rows, [f"{rank} . {number}" for rank, number in numbers], fontsize=6.5)
    axes.set_ylim(blocks - 0.4, -0.6)
    axes.set_xlim(0, s.time_us)
    axes.set_xlabel("time, us")
    axes.set_ylabel("rank . thread block")
    axes.set_title(
        f"{name}, {bytes_text(s.size_bytes)}: {s.time_us:.1f} us, {s.of_bound:.1%} of the bound",
        loc="left",
    )


def _height(s: Simulation) -> float:
    """The height of the picture of thread blocks in inches, with room for a label on each row."""
    rows = len(s.blocks) if len(s.blocks) <= _ROWS else _ROWS // 2
    return 2.0 + 0.105 * max(rows, 12)


def _draw_parts(axes: Axes, s: Simulation) -> None:
    rows, left = np.arange(len(s.blocks), dtype=np.int32), np.full(len(s.blocks), s.launch_us)
    for column, colour in _PARTS.items():
        width = getattr(s.blocks, column)
        _draw_boxes(axes, rows, left, left + width, colour, PART_WORDS[column])
        left = left + width
    _draw_legend(axes, s)


def _draw_legend(axes: Axes, s: Simulation) -> None:
    axes.legend(
        frameon=False,
        ncols=6,
        loc="upper center",
        bbox_to_anchor=(0.5, -_LEGEND_INCHES / _height(s)),
    )


def _draw_bins(axes: Axes, s: Simulation, e: TileExecutions) -> None:
    blocks = len(s.blocks)
    moving, _, _ = block_bins(s, e, np.arange(blocks), _BINS)
    extent = (0.0, s.time_us, blocks - 0.5, -0.5)
    image = axes.imshow(
        moving, aspect="auto", extent=extent, cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
    )
    label = "share of the time in which data moves"
    axes.figure.colorbar(image, ax=axes, label=label, pad=0.01, aspect=50)


def _draw_boxes(
    axes: Axes, row: IntArray, left: FloatArray, right: FloatArray, colour: str, word: str
) -> None:
    """Draws a box in each row from `left` to `right`, all as one collection, which is many times
    faster than single boxes."""
    from matplotlib.collections import PolyCollection

    x = np.stack((left, right, right, left), axis=1)
    half = 0.4 if int(row.max(initial=0)) < _ROWS else 0.5
    y = row[:, None] + half * np.array([-1.0, -1.0, 1.0, 1.0])
    boxes = PolyCollection(
        np.stack((x, y), axis=2).tolist(),
        facecolor=colour,
        edgecolor="white",
        lw=0.2 if half < 0.5 else 0,
    )
    boxes.set_label(word)
    axes.add_collection(boxes)


def _draw_executions(axes: Axes, s: Simulation, e: TileExecutions) -> None:
    block, op = s.plan.block[e.instruction], s.plan.instructions.op[e.instruction]
    waits = e.start_us > e.turn_us
    axes.hlines(
        block[waits], e.turn_us[waits], e.start_us[waits], color="#c9b37a", lw=0.8, label="waiting"
    )
    for code in np.unique(op).tolist():
        of = op == code
        word = op_name(code)
        _draw_boxes(axes, block[of], e.start_us[of], e.end_us[of], _OPS[Op(code)], word)
    _draw_legend(axes, s)
