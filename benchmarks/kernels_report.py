"""The results of the benchmark of kernels as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from common.tables import MISSING, ratio_text, table

from sley.ir.sizes import size_text

Row = dict[str, Any]

FORMER = {"peers": "cells", "levels": "engines"}
"""Names of parts in results before 28 November 2026. Peers compared AllReduces, and nothing that a
communicator chose."""


def pages(results: dict[str, Any]) -> str:
    """All tables."""
    rows: list[Row] = [
        {"kind": "all_reduce", **row, "part": FORMER.get(row["part"], row["part"])}
        for row in results["rows"]
    ]
    every = [row for row in rows if row["part"] == "cells"]
    parts = [
        ("Machine", _pairs(results)),
        ("The worst of each collective", _worst(every)),
        ("NCCL beside sley", _cells(every)),
        ("Generated and interpreted", _engines(_of(rows, "engines"))),
        ("Thread blocks and threads", _sweep(_of(rows, "sweep"))),
        ("Left out", _failures(rows, results["left_out"])),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; nan without values."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _of(rows: Iterable[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part and "median_us" in row]


def _pairs(results: dict[str, Any]) -> str:
    options = {f"--{k.replace('_', '-')}": v for k, v in results["options"].items()}
    found = {**results["machine"], **options, "seconds": results["seconds"]}
    return table(("what", "value"), [(f"`{k}`", v) for k, v in found.items()])


def _sizes(rows: Iterable[Row]) -> list[int]:
    return sorted({row["size_bytes"] for row in rows})


def _us(rows: Iterable[Row], **label: Any) -> float:
    """The best median of the rows with this label; nan if there is none."""
    return min((r["median_us"] for r in rows if _has(r, label)), default=math.nan)


def _has(row: Row, label: Row) -> bool:
    return all(row.get(key) == value for key, value in label.items())


def _number(value: float, digits: int = 2, unit: str = "") -> str:
    return MISSING if math.isnan(value) else f"{value:.{digits}f}{unit}"


def _time(us: float) -> str:
    return _number(us, 1 if us >= 10 else 2)


class Cell:
    """A collective of so many ranks at one size: what sley and NCCL take."""

    def __init__(self, kind: str, ranks: int, size_bytes: int, rows: Sequence[Row]) -> None:
        self.kind, self.ranks, self.size_bytes = kind, ranks, size_bytes
        self._rows = [row for row in rows if "median_us" in row]
        ours = {"by": "sley", "algorithm": "its choice"}
        self.chosen_us = _us(self._rows, **ours, launching="by-rank")
        self.together_us = _us(self._rows, **ours, launching="together")
        self.copy_us = _us(self._rows, by="copy")
        self.nccl, self.best = self._best("NCCL"), self._best("sley")
        self.best_us = self.best["median_us"] if self.best else math.nan
        found = [us for us in (self.chosen_us, self.best_us) if not math.isnan(us)]
        self.ratio = self.nccl["median_us"] / found[0] if self.nccl and found else math.nan
        failed = {_named(row) for row in rows if row["by"] == "NCCL" and "failure" in row}
        self.impossible = ", ".join(sorted(failed))

    @property
    def name(self) -> str:
        return f"{self.ranks} ranks, {size_text(self.size_bytes)}"

    def line(self) -> Sequence[str]:
        chosen = next((row for row in self._rows if "plan" in row), None)
        plan = _named({**chosen, "algorithm": chosen["plan"]}) if chosen else MISSING
        return (
            self.name,
            _time(self.chosen_us),
            plan,
            _time(self.together_us),
            f"{_time(self.best_us)} {_named(self.best)}" if self.best else MISSING,
            f"{_time(self.nccl['median_us'])} {_named(self.nccl)}" if self.nccl else MISSING,
            self.impossible or MISSING,
            _time(self.copy_us),
            ratio_text(None if math.isnan(self.ratio) else self.ratio),
        )

    def _best(self, by: str) -> Row | None:
        """The fastest row of the list of plans, or of NCCL's settings."""
        found = [r for r in self._rows if r["by"] == by and (by == "NCCL" or "plan" not in r)]
        return min(found, key=lambda row: row["median_us"], default=None)


def _named(row: Row) -> str:
    """A plan of sley's or a setting of NCCL's, in few words."""
    protocol = row.get("protocol", "its choice")
    words = [row["algorithm"], *([] if protocol == "its choice" else [protocol])]
    if row["by"] == "sley" and "blocks" in row:
        threads = f"x{row['threads']}" if row.get("threads") else ""
        words.append(f"{row['blocks']}{threads}{', graph' * ('graph' in row['launching'])}")
    elif row.get("buffer_bytes", 4 << 20) != 4 << 20:
        words.append(size_text(row["buffer_bytes"]))
    return " ".join(words)


def _grid(rows: Iterable[Row]) -> list[Cell]:
    """The cells, by collective, and the worst ratio first."""
    key = lambda row: (row["kind"], row["ranks"], row.get("size_bytes", -1))  # noqa: E731
    every = {at: list(these) for at, these in groupby(sorted(rows, key=key), key)}
    never = {at[:2]: these for at, these in every.items() if at[2] < 0}
    cells = [
        Cell(*at, [*these, *never.get(at[:2], [])]) for at, these in every.items() if at[2] >= 0
    ]
    return sorted(cells, key=lambda c: (c.kind, math.isnan(c.ratio), c.ratio, c.ranks))


def _worst(rows: list[Row]) -> str:
    lines = []
    for kind, group in groupby(_grid(rows), lambda cell: cell.kind):
        cells = list(group)
        known = [cell.ratio for cell in cells if not math.isnan(cell.ratio)]
        first = cells[0] if known else None
        odd = _odd(kind, rows)
        lines.append(
            (
                kind,
                ratio_text(first.ratio) if first else MISSING,
                first.name if first else MISSING,
                f"{sum(ratio < 1 for ratio in known)} of {len(known)}",
                _number(geometric_mean(known)),
                f"{odd[0]:.2f} ({odd[1]})" if odd else MISSING,
            )
        )
    if not lines:
        return ""
    head = ("collective", "worst", "at", "below 1", "geometric mean", "odd / even, worst")
    return (
        "NCCL's best time over that of the communicator's choice (of the list's best without one), "
        "and what a few elements more cost the choice.\n\n" + table(head, lines)
    )


def _odd(kind: str, rows: Iterable[Row]) -> tuple[float, str] | None:
    """The worst ratio of an odd call's time to that of the even one below, and where."""
    found = {
        (row["ranks"], row["count"]): row
        for row in rows
        if _has(row, {"by": "sley", "kind": kind, "algorithm": "its choice"})
        and row["launching"] == "by-rank"
        and "median_us" in row
    }
    ratios = [
        (row["median_us"] / even["median_us"], f"{ranks} ranks, {size_text(even['size_bytes'])}")
        for (ranks, count), row in found.items()
        for even in [found.get((ranks, count - ODD))]
        if even
    ]
    return max(ratios, default=None)


ODD = 3
"""Elements of a block that an odd call has beyond a multiple."""


def _cells(rows: list[Row]) -> str:
    head = ("ranks, size", "sley us", "with", "in one launch", "best of a list")
    head += ("NCCL us", "NCCL can't", "copy us", "NCCL / sley")
    return "\n\n".join(
        f"### {kind}\n\n" + table(head, [cell.line() for cell in group])
        for kind, group in groupby(_grid(rows), lambda cell: cell.kind)
    )


def _engines(rows: list[Row]) -> str:
    """The interpreter's time over generated code's, at equal settings."""
    if not rows:
        return ""
    sizes, ratios, lines = _sizes(rows), [], []
    for algorithm, protocol in dict.fromkeys((r["algorithm"], r["protocol"]) for r in rows):
        one = [r for r in rows if (r["algorithm"], r["protocol"]) == (algorithm, protocol)]
        cells, known = [], []
        for size in sizes:
            generated, interpreted = (
                _us(one, size_bytes=size, engine=engine) for engine in ("generated", "interpreted")
            )
            ratio = interpreted / generated
            known += [] if math.isnan(ratio) else [ratio]
            cells.append(f"{_number(ratio)} ({_time(generated)})")
        ratios += known
        head = (algorithm, protocol, one[0]["ranks"], one[0]["blocks"])
        lines.append((*head, *cells, _number(geometric_mean(known), 3)))
    columns = ("plan", "protocol", "ranks", "blocks a rank", *map(size_text, sizes))
    mean = geometric_mean(ratios)
    return (
        "Time of the interpreter over that of generated code, and in brackets the latter in us. "
        "ResCCL runs HM's level `task` generated, MSCCL `stage` and `algorithm` interpreted.\n\n"
        + table((*columns, "geometric mean"), lines)
        + f"\n\nGeometric mean over all {len(ratios)} pairs: **{_number(mean, 3)}**: "
        f"interpretation costs {_number((mean - 1) * 100, 1)} % here. ResCCL's figure, between "
        "GPUs, is 17.1 %."
    )


def _sweep(rows: list[Row]) -> str:
    if not rows:
        return ""
    sizes = _sizes(rows)
    keys = ("ranks", "protocol", "blocks", "threads")
    settings = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    lines = []
    for setting in settings:
        label = dict(zip(keys, setting, strict=True))
        lines.append((*setting, *(_time(_us(rows, size_bytes=s, **label)) for s in sizes)))
    return f"{rows[0]['algorithm']}, us.\n\n" + table((*keys, *map(size_text, sizes)), lines)


def _failures(rows: Iterable[Row], left_out: Iterable[str]) -> str:
    lines = [f"- {text}" for text in left_out]
    for row in rows:
        if "failure" in row:
            keys = ("by", "kind", "algorithm", "protocol", "engine", "launching", "ranks", "blocks")
            what = ", ".join(str(row[key]) for key in keys if key in row)
            size = size_text(row["size_bytes"]) if "size_bytes" in row else "any size"
            lines.append(f"- {row['part']}: {what}, {size}: {row['failure']}")
    return "\n".join(lines)
