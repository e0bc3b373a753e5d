"""The results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common.tables import MISSING, ms_text, ratio_text, table

from cpu_peers.aims import AIMS, Verdict, verdict
from cpu_peers.cells import Cell, Collective, Engine, Row, Times, cell_of
from sley.ir.sizes import size_text


def pages(results: dict[str, Any]) -> str:
    """All tables of a run's results."""
    rows: list[Row] = results["rows"]
    times = Times(rows)
    parts = [("Machine", _facts(results))]
    for collective in Collective:
        cells = [cell for cell in times.cells if cell.collective is collective]
        if cells:
            parts.append((f"{collective.value}, ms", _times(times, collective, cells)))
    parts.append(("Slower than the best peer", _slower(times)))
    verdicts = [verdict(aim, times) for aim in AIMS]
    parts.append(("Aims", _summary(verdicts)))
    parts += [(found.aim.text, _aim(found)) for found in verdicts]
    parts.append(("Left out", _left_out(rows, results["left_out"])))
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n"


def spreads(runs: Sequence[dict[str, Any]]) -> str:
    """A table of several runs: each ratio as the smallest and the largest of the runs' medians, and
    the peers that were the best of a cell."""
    times = [Times(results["rows"]) for results in runs]
    cells = _in_order({cell for one in times for cell in one.cells})
    sizes = sorted({cell.size_bytes for cell in cells})
    lines: list[list[str]] = []
    for collective, ranks in dict.fromkeys((cell.collective, cell.ranks) for cell in cells):
        row = [Cell(collective, ranks, size) for size in sizes]
        named = {
            **{
                f"best peer / {engine.title}": [
                    [one.over_best_peer(cell, engine) for one in times] for cell in row
                ]
                for engine in OWN
            },
            "gloo / sley through PyTorch": [
                [one.over(cell, Engine.GLOO, Engine.SLEY_TORCH) for one in times] for cell in row
            ],
        }
        head = [collective.value, str(ranks)]
        lines += [[*head, name, *map(_spread, found)] for name, found in named.items()]
        best = [{peer[0].title: 0 for one in times if (peer := one.best_peer(c))} for c in row]
        lines.append([*head, "best peer", *(", ".join(found) or MISSING for found in best)])
    return table(("collective", "ranks", "ratio", *map(size_text, sizes)), lines)


def _spread(ratios: Iterable[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio is not None]
    return f"{ratio_text(min(found))} to {ratio_text(max(found))}" if found else MISSING


def _facts(results: dict[str, Any]) -> str:
    found = {**results["machine"], **results["options"], "seconds": results["seconds"]}
    return table(("what", "value"), found.items())


OWN = (Engine.SLEY, Engine.SLEY_SYMMETRIC, Engine.SLEY_OPERATORS)
"""The engines that are compared with every peer; through PyTorch the other is gloo."""


def _times(times: Times, collective: Collective, cells: Iterable[Cell]) -> str:
    """A line for each cell: times, and the ratios of the best peer, and of gloo in PyTorch."""
    engines = [engine for engine in times.engines if engine.has(collective)]
    own = [engine for engine in OWN if engine in engines]
    in_torch = Engine.SLEY_TORCH in engines
    head = ["ranks", "size", *(engine.title for engine in engines), "best peer"]
    head += [f"best peer / {engine.title}" for engine in own]
    head += ["gloo / sley through PyTorch"] if in_torch else []
    lines = []
    for cell in cells:
        peer = times.best_peer(cell)
        line = [str(cell.ranks), size_text(cell.size_bytes)]
        line += [ms_text(times.ms(cell, engine)) for engine in engines]
        line += [peer[0].title if peer else MISSING]
        line += [ratio_text(times.over_best_peer(cell, engine)) for engine in own]
        if in_torch:
            line.append(ratio_text(times.over(cell, Engine.GLOO, Engine.SLEY_TORCH)))
        lines.append(line)
    return table(head, lines)


def _slower(times: Times) -> str:
    """The cells in which sley is slower than the best peer, the slowest first; empty if it's
    nowhere slower."""
    found = []
    for cell in times.cells:
        peer = times.best_peer(cell)
        for engine in OWN:
            ratio = times.over_best_peer(cell, engine)
            if peer is not None and ratio is not None and ratio < 1:
                own_ms = times.ms(cell, engine)
                texts = (peer[0].title, ms_text(peer[1]), ms_text(own_ms), ratio_text(ratio))
                found.append((ratio, (engine.title, str(cell), *texts)))
    head = ("engine", "cell", "best peer", "its ms", "sley's ms", "best peer / sley")
    found.sort(key=lambda pair: pair[0])
    return table(head, (line for _, line in found)) if found else ""


def _summary(verdicts: Iterable[Verdict]) -> str:
    lines = [
        (found.aim.text, _word(found), len(found.met), len(found.missed), len(found.unknown))
        for found in verdicts
    ]
    return table(("aim", "", "cells that meet it", "miss it", "not measured"), lines)


def _word(found: Verdict) -> str:
    if found.missed:
        return "**missed**"
    return "met" if found.met else "not measured"


def _aim(found: Verdict) -> str:
    """The ratio of each cell, and whether it meets the aim; empty if no ratio was measured."""
    measured = {**found.met, **found.missed}
    if not measured:
        return ""
    sizes = sorted({cell.size_bytes for cell in measured})
    lines = []
    for group in dict.fromkeys((cell.collective, cell.ranks) for cell in _in_order(measured)):
        line = [group[0].value, str(group[1])]
        for size in sizes:
            cell = Cell(*group, size)
            word = "met" if cell in found.met else "**missed**"
            line.append(f"{ratio_text(measured[cell])} {word}" if cell in measured else MISSING)
        lines.append(line)
    return table(("collective", "ranks", *map(size_text, sizes)), lines)


def _in_order(cells: Iterable[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: cell.place)


def _left_out(rows: Iterable[Row], left_out: Iterable[str]) -> str:
    lines = [f"- {text}" for text in left_out]
    for row in rows:
        if "failure" in row:
            cell, engine = cell_of(row), Engine(row["engine"])
            lines.append(f"- {engine.title}, {cell}: {row['failure']}")
    return "\n".join(lines)
