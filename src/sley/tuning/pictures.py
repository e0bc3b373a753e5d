"""Pictures: the decision map of policies, as PNG or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sley.compiler import Options
from sley.errors.tuning import D923
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.sizes import size_text
from sley.ir.words import Protocol
from sley.report.plots import charts
from sley.tuning.policy import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DEFAULT = "#e4e6ea"
_SHADES = {"LL": 0.45, "LL128": 0.7, "Simple": 1.0, "Direct": 0.85}
"""How strong an algorithm's colour is with each protocol."""

_FIRST, _LAST = 10, 30
"""Powers of two of the sizes that a map shows."""

_LEAST_WIDTH = 0.25
"""That of a range of a single size, in powers of two."""


def draw_map(policies: Sequence[Policy], path: str | Path) -> None:
    """Writes the decision map: size against ranks, coloured by algorithm and protocol, with the
    number of parallel parts; grey where the default runs. A part for each collective.

    policies: a row for each that has the collective. Errors: D923 without any, F460 for another
    suffix than .svg, .png and .pdf.
    """
    collectives = list(dict.fromkeys(name for policy in policies for name in policy.collectives))
    if not collectives:
        raise D923.error(expected="policies with decisions", found="none")
    ordered = sorted(policies, key=lambda p: (p.machine.ranks, p.machine.topology))
    rows = [[p for p in ordered if collective in p.collectives] for collective in collectives]
    with charts(path, [1.3 + 0.42 * len(own) for own in rows], font=8.0) as axes:
        for axis, collective, own in zip(axes, collectives, rows, strict=True):
            _draw_collective(axis, collective, own)


def _draw_collective(axes: Axes, collective: str, policies: Sequence[Policy]) -> None:
    from matplotlib.patches import Patch, Rectangle

    rows = [row for policy in policies for row in policy.of(collective)]
    algorithms = list(dict.fromkeys(row.recipe.name for row in rows))
    legend: dict[str, str] = {}
    for place, policy in enumerate(policies):
        axes.add_patch(Rectangle((_FIRST, place - 0.4), _LAST - _FIRST, 0.8, color=_DEFAULT, lw=0))
        for one in policy.of(collective):
            left, right = _ends(one)
            if right <= left:
                continue
            right = max(right, left + _LEAST_WIDTH)
            colour, word = _colour(one.recipe, algorithms)
            legend[word] = colour
            axes.add_patch(
                Rectangle((left, place - 0.4), right - left, 0.8, fc=colour, ec="white", lw=0.8)
            )
            parts = str(one.recipe.options.get("instances", 1))
            axes.text((left + right) / 2, place, parts, ha="center", va="center", fontsize=7)
    patches = [Patch(color=colour, label=word) for word, colour in legend.items()]
    patches.append(Patch(color=_DEFAULT, label="default"))
    axes.legend(
        handles=patches, frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    ticks = np.arange(_FIRST, _LAST + 1, 4)
    axes.set_xticks(ticks, [size_text(1 << int(tick)) for tick in ticks])
    labels = [f"{p.machine.topology}, {p.machine.ranks} ranks, {p.agent}" for p in policies]
    axes.set_yticks(range(len(policies)), labels)
    axes.set_xlim(_FIRST, _LAST)
    axes.set_ylim(-0.6, len(policies) - 0.4)
    title = f"{collective}: algorithm and protocol by colour, parallel parts by number"
    axes.set_title(title, fontsize=9, loc="left")


def _ends(one: PlanRow) -> tuple[float, float]:
    """The first and the last size of a range as powers of two, within the map."""
    left = np.log2(max(one.sizes.begin_bytes, 1))
    right = _LAST if one.sizes.end_bytes is None else np.log2(one.sizes.end_bytes + 1)
    return max(float(left), _FIRST), min(float(right), _LAST)


def _colour(recipe: Recipe, algorithms: Sequence[str]) -> tuple[str, str]:
    """The colour of a recipe, and its line in the legend."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    protocol = (Options.of(None, recipe.options).protocol or Protocol.SIMPLE).value
    pure = np.array(colormaps["tab10"](algorithms.index(recipe.name) % 10)[:3])
    shade = _SHADES[protocol]
    return to_hex(tuple(1 - shade * (1 - pure))), f"{recipe.name}, {protocol}"
