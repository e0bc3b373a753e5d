"""The results of the benchmark of kernels as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from common.tables import MISSING, table
from kernels_plans import ALGORITHMS, LEVELS

from sley.ir.sizes import size_text

Row = dict[str, Any]

PROTOCOLS = ("Simple", "LL", "LL128", "Direct")


def pages(results: dict[str, Any]) -> str:
    """All tables."""
    rows: list[Row] = results["rows"]
    parts = [
        ("Machine", _pairs(results)),
        ("Generated and interpreted", _engines(_of(rows, "engines"))),
        ("Peers", _peers(_of(rows, "peers"))),
        ("The floor", _floor(_of(rows, "peers"))),
        ("Levels of execution", _levels(_of(rows, "levels"))),
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


def _us(rows: Iterable[Row], size: int, **label: Any) -> float:
    """The median of the row with this label and size; nan if there is no such row."""
    wanted = {**label, "size_bytes": size}
    for row in rows:
        if all(row.get(key) == value for key, value in wanted.items()):
            return float(row["median_us"])
    return math.nan


def _best(rows: Iterable[Row], size: int, **label: Any) -> Row | None:
    wanted = {**label, "size_bytes": size}
    found = [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]
    return min(found, key=lambda r: r["median_us"], default=None)


def _number(value: float, digits: int = 2, unit: str = "") -> str:
    return MISSING if math.isnan(value) else f"{value:.{digits}f}{unit}"


def _time(us: float) -> str:
    return _number(us, 1 if us >= 10 else 2)


def _rate(size: int, us: float) -> str:
    """The algorithm bandwidth, as in nccl-tests, in GB/s."""
    return _number(size / us / 1e3, 1)


def _engines(rows: list[Row]) -> str:
    """The interpreter's time over generated code's, at equal settings."""
    if not rows:
        return ""
    sizes, ratios, lines = _sizes(rows), [], []
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            one = [r for r in rows if (r["algorithm"], r["protocol"]) == (algorithm, protocol)]
            if not one:
                continue
            ratio = [
                _us(one, size, engine="interpreted") / _us(one, size, engine="generated")
                for size in sizes
            ]
            known = [value for value in ratio if not math.isnan(value)]
            ratios += known
            generated = [_us(one, size, engine="generated") for size in sizes]
            head = (algorithm, protocol, str(one[0]["blocks"]))
            cells = [
                MISSING if math.isnan(r) else f"{r:.2f} ({_time(us)})"
                for r, us in zip(ratio, generated, strict=True)
            ]
            lines.append((*head, *cells, _number(geometric_mean(known), 3)))
    columns = ("plan", "protocol", "blocks a rank", *map(size_text, sizes), "geometric mean")
    mean = geometric_mean(ratios)
    return (
        "Time of the interpreter over that of generated code, and in brackets the latter in us.\n\n"
        + table(columns, lines)
        + f"\n\nGeometric mean over all {len(ratios)} pairs: **{_number(mean, 3)}**: "
        f"interpretation costs {_number((mean - 1) * 100, 1)} % here. ResCCL's figure, between "
        "GPUs, is 17.1 %."
    )


def _peers(rows: list[Row]) -> str:
    found = []
    for ranks in sorted({row["ranks"] for row in rows}):
        these = [row for row in rows if row["ranks"] == ranks]
        found.append(f"### {ranks} ranks\n\n{_best_of(these)}\n\n{_alike(these)}\n\n{_all(these)}")
    return "\n\n".join(found)


def _best_of(rows: list[Row]) -> str:
    lines: list[Sequence[str]] = []
    for size in _sizes(rows):
        ours, theirs = _best(rows, size, by="sley"), _best(rows, size, by="NCCL")
        our_us = ours["median_us"] if ours else math.nan
        their_us = theirs["median_us"] if theirs else math.nan
        lines.append(
            (
                size_text(size),
                _time(our_us),
                _rate(size, our_us),
                _named(ours),
                _time(their_us),
                _rate(size, their_us),
                _named(theirs),
                _number(their_us / our_us),
            )
        )
    head = ("size", "sley us", "GB/s", "with", "NCCL us", "GB/s", "with", "NCCL / sley")
    return "The best setting of each.\n\n" + table(head, lines)


def _named(row: Row | None) -> str:
    if row is None:
        return MISSING
    name = f"{row['algorithm']}, {row['protocol']}, {row['launching']}"
    if row["by"] == "NCCL":
        return f"{name}, {size_text(row['buffer_bytes'])}"
    return name


def _alike(rows: list[Row]) -> str:
    """The rings of both by protocol, with a launch for each rank; ours also with one launch."""
    head = ["size"]
    for protocol in PROTOCOLS[:3]:
        head += [f"{protocol}: sley, one launch", "sley, a launch a rank", "NCCL"]
    lines = []
    for size in _sizes(rows):
        line = [size_text(size)]
        for protocol in PROTOCOLS[:3]:
            ours = [
                _us(rows, size, by="sley", algorithm="ring", protocol=protocol, launching=how)
                for how in ("together", "by-rank")
            ]
            theirs = _best(rows, size, by="NCCL", algorithm="Ring", protocol=protocol)
            their_us = theirs["median_us"] if theirs else math.nan
            line += [_time(us) for us in (*ours, their_us)]
        lines.append(line)
    return "Rings, us; of NCCL the best FIFO size.\n\n" + table(head, lines)


def _all(rows: list[Row]) -> str:
    """Every timed setting."""
    sizes = _sizes(rows)
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        name = f"{row['by']}: {_named(row)}" if row["by"] != "copy" else "plain copy"
        found.setdefault(name, {})[row["size_bytes"]] = _time(row["median_us"])
    lines = [(name, *(us.get(size, MISSING) for size in sizes)) for name, us in found.items()]
    return "All settings, us.\n\n" + table(("setting", *map(size_text, sizes)), lines)


def _floor(rows: list[Row]) -> str:
    found = []
    for ranks in sorted({row["ranks"] for row in rows}):
        these = [row for row in rows if row["ranks"] == ranks]
        copies = [row for row in these if row["by"] == "copy"]
        if not copies:
            continue
        ceiling = max(2 * ranks * r["size_bytes"] / r["median_us"] / 1e3 for r in copies)
        lines = [_floor_line(these, size, ranks, ceiling) for size in _sizes(these)]
        head = ("size", "copy us", "floor us", "best", "ring, Simple", "ring, Direct")
        found.append(
            f"### {ranks} ranks\n\nThe fastest plain copy moved {ceiling:.1f} GB/s, read and "
            f"written. `floor`: the {2 * ranks} b bytes that an AllReduce of b bytes a rank must "
            "move, at that speed; `best`: the part of it that our fastest plan reaches. The rings' "
            "columns: the part of that speed which the bytes of their own plan are moved at. "
            "`copy`: a plain copy of the same bytes. Below the size of the caches more than 100 % "
            "can happen.\n\n" + table(head, lines)
        )
    return "\n\n".join(found)


def _floor_line(rows: list[Row], size: int, ranks: int, ceiling: float) -> Sequence[str]:
    floor = 2 * ranks * size / ceiling / 1e3
    best = _best(rows, size, by="sley")
    reached = floor / best["median_us"] if best else math.nan
    rings = []
    for protocol in ("Simple", "Direct"):
        ring = _best(rows, size, by="sley", algorithm="ring", protocol=protocol)
        part = math.nan
        if ring:
            part = ring["traffic"] * size / ring["median_us"] / 1e3 / ceiling
        rings.append(_number(part * 100, 1, " %"))
    copy = _us(rows, size, by="copy")
    return (
        size_text(size),
        _time(copy),
        _time(floor),
        _number(reached * 100, 1, " %"),
        *rings,
    )


def _levels(rows: list[Row]) -> str:
    if not rows:
        return ""
    sizes, lines = _sizes(rows), []
    for level in LEVELS:
        for engine in ("generated", "interpreted"):
            us = [_us(rows, size, algorithm=f"HM {level}", engine=engine) for size in sizes]
            if all(map(math.isnan, us)):
                continue
            blocks = next(r["blocks"] for r in rows if r["algorithm"] == f"HM {level}")
            lines.append((level, engine, blocks, *map(_time, us)))
    head = ("level", "engine", "blocks a rank", *map(size_text, sizes))
    return (
        "HM AllReduce, 2 x 4 ranks, us. ResCCL runs `task` generated, MSCCL `stage` and "
        "`algorithm` interpreted.\n\n" + table(head, lines)
    )


def _sweep(rows: list[Row]) -> str:
    if not rows:
        return ""
    sizes, lines = _sizes(rows), []
    for blocks in sorted({row["blocks"] for row in rows}):
        for threads in sorted({row["threads"] for row in rows}):
            us = [_us(rows, size, blocks=blocks, threads=threads) for size in sizes]
            if not all(map(math.isnan, us)):
                lines.append((blocks, threads, *map(_time, us)))
    head = ("blocks a rank", "threads a block", *map(size_text, sizes))
    what = f"{rows[0]['algorithm']}, {rows[0]['protocol']}, {rows[0]['ranks']} ranks, us."
    return f"{what}\n\n" + table(head, lines)


def _failures(rows: Iterable[Row], left_out: Iterable[str]) -> str:
    lines = [f"- {text}" for text in left_out]
    for row in rows:
        if "failure" in row:
            keys = ("by", "algorithm", "protocol", "engine", "launching", "blocks", "threads")
            what = ", ".join(str(row[key]) for key in keys if key in row)
            size = size_text(row["size_bytes"]) if "size_bytes" in row else "any size"
            lines.append(f"- {row['part']}: {what}, {size}: {row['failure']}")
    return "\n".join(lines)
