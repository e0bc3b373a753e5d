"""Command: compares sley on CPUs with its peers (cells.py), on one machine, in one run.

    python benchmarks/cpu_peers [--quick] [--engines ...] [--collectives ...] [--ranks 2,4,8]
    python benchmarks/cpu_peers --report benchmarks/results/FILE.json ...

Of several runs --report prints the smallest and the largest ratio of each cell.

Float32, sums; AllReduce, Broadcast and Reduce in place, the others out of place; the root is rank
0. SendRecv is a message from each even rank to the next one, and one back. A size is that of the
largest buffer of a rank, as in nccl-tests; a collective leaves out sizes that don't have an equal
part for each rank.

The ranks of all engines run at the same time and take turns, cell by cell; the others sleep. A time
is that of a loop of back-to-back calls, averaged over the ranks; a cell has the median over the
rounds. The MPIs, oneCCL and sley's engine repeat calls in C++, the others in Python. PyTorch's
backend `fake`, which does nothing, shows what a call of PyTorch costs at least.
After its last round an engine's result is checked; a wrong result has no time. Peers' wheels are
installed and their workers compiled on first use, in a cache folder; a peer that can't be had is
left out, with the reason. launch.py describes the start of engines.

The results go to benchmarks/results as JSON, the tables to the output. `rows` has one entry for
each engine and cell:

    engine, collective, ranks, size_bytes   the engine and the cell
    iterations                              calls of one round
    ms, median_ms                           time of a call in each round, and the median
    failure                                 instead of times: the reason why there are none

A ratio is the other's time over sley's in each round, and the median of these: above 1 sley is
faster. Private buffers are ordinary memory, as malloc and torch.empty return it; with --huge-pages
all engines request huge pages for buffers from 4 MB up, as NumPy does. The exit code is 1 if an
engine failed, else 0, whether or not aims are met.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from common.results import RESULTS, save
from common.sizes import read_sizes
from common.tables import ms_text

from cpu_peers import machine
from cpu_peers.cells import FLOAT32_BYTES, Cell, Collective, Engine, Row, cells
from cpu_peers.group import Group, GroupError
from cpu_peers.launch import commands
from cpu_peers.measuring import measure
from cpu_peers.tables import pages, spreads
from cpu_peers.wheels import UnavailableError, default_cache
from sley.ir.sizes import size_text

SIZES, QUICK_SIZES = "8,1K,32K,1M,16M,128M", "1K,32K,1M"
RANKS = "2,4,8"
SPARE = 1.3
"""Memory that a cell needs, over the size of the callers' buffers: engines have their own
buffers."""

E = TypeVar("E", bound=Enum)


@dataclass
class Comparison:
    """A run: its options, the running ranks, and the results."""

    options: argparse.Namespace
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    groups: dict[Engine, Group] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    held_bytes: int = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def run(self) -> None:
        """Measures all cells, one number of ranks after another."""
        for ranks in self.options.ranks:
            engines = list(self.options.engines)
            try:
                for cell in cells(self.options.collectives, ranks, self.options.sizes):
                    self._cell(cell, engines)
            finally:
                for group in self.groups.values():
                    group.close()
                self.groups, self.held_bytes = {}, 0

    def _cell(self, cell: Cell, engines: list[Engine]) -> None:
        if self.seconds > self.options.time_limit:
            self.left_out.append(f"{cell}: {self.options.time_limit:g} s were over")
            return
        self._start(engines, cell.ranks)
        groups = {e: group for e, group in self.groups.items() if e.has(cell.collective)}
        needed = int(SPARE * cell.buffers_bytes * len(groups))
        free = machine.free_bytes() + self.held_bytes
        if needed > free:
            self.left_out.append(f"{cell}: {size_text(needed)} bytes needed, {free} are free")
            return
        self.held_bytes = cell.buffers_bytes * len(groups)
        rows = measure(cell, groups, self.options.repeat, self.options.seconds)
        for row in rows:
            if "failure" in row:  # what state it is in is unknown: the next cell has a new one
                self.groups.pop(Engine(row["engine"])).close()
        self.rows += rows
        print(f"{self.seconds:6.1f} s  {cell}: {_in_words(rows)}", file=sys.stderr)

    def _start(self, engines: list[Engine], ranks: int) -> None:
        """Starts the engines that aren't running; removes those that can't start from the list."""
        for engine in [engine for engine in engines if engine not in self.groups]:
            try:
                start = partial(
                    commands,
                    engine,
                    ranks,
                    cache=self.options.cache,
                    huge_pages=self.options.huge_pages,
                )
                self.groups[engine] = Group(ranks, start)
                self.versions[engine.title] = self.groups[engine].version
            except (GroupError, UnavailableError) as error:
                engines.remove(engine)
                self.left_out.append(f"{engine.title}, {ranks} ranks: {error}")
                print(self.left_out[-1], file=sys.stderr)
        self.groups = {engine: self.groups[engine] for engine in engines}

    def is_whole(self) -> bool:
        """Whether every requested engine has times in every requested cell."""
        return not self.left_out and not any("failure" in row for row in self.rows)


def _in_words(rows: Iterable[Row]) -> str:
    return ", ".join(
        f"{row['engine']} {ms_text(row['median_ms']) if 'median_ms' in row else 'failed'}"
        for row in rows
    )


def some_of(kinds: type[E], text: str) -> list[E]:
    """Members of an enumeration from their values, "gloo,mpich"."""
    by_name = {str(kind.value).lower(): kind for kind in kinds}
    names = text.lower().split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        known = ", ".join(str(kind.value) for kind in kinds)
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {known}")
    return [by_name[name] for name in dict.fromkeys(names)]


def ranks(text: str) -> list[int]:
    """Numbers of ranks from a text such as "2,4"."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 2 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 2 up")
    return [int(part) for part in parts]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="cpu_peers", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    names = ",".join(engine.value for engine in Engine)
    made.add_argument(
        "--engines", type=partial(some_of, Engine), default=list(Engine), help=f"of {names}"
    )
    made.add_argument(
        "--collectives",
        type=partial(some_of, Collective),
        default=list(Collective),
        help="of " + ",".join(kind.value for kind in Collective),
    )
    made.add_argument("--ranks", type=ranks, default=ranks(RANKS), help=RANKS)
    made.add_argument("--sizes", type=read_sizes, help=f"{SIZES}, or quick {QUICK_SIZES}")
    made.add_argument("--repeat", type=int, default=7, help="rounds whose median is taken")
    made.add_argument("--seconds", type=float, default=0.08, help="of an engine in one round")
    made.add_argument("--time-limit", type=float, default=1800.0, help="seconds of the whole run")
    made.add_argument("--quick", action="store_true", help="3 rounds of 0.02 s, fewer sizes")
    made.add_argument("--huge-pages", action="store_true", help="for large private buffers")
    made.add_argument("--note", default="", help="kept with the results")
    made.add_argument("--cache", type=Path, default=default_cache(), help="of peers' wheels")
    made.add_argument("--output", type=Path, default=RESULTS, help="the folder of the results")
    made.add_argument("--report", type=Path, nargs="+", help="print the tables of these results")
    return made


def checked(made: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """The options, after a check that they fit together."""
    if options.quick:
        options.repeat, options.seconds = 3, 0.02
    if options.sizes is None:
        options.sizes = read_sizes(QUICK_SIZES if options.quick else SIZES)
    if options.repeat < 1 or not options.seconds > 0:
        made.error("--repeat is 1 or more, and --seconds above 0")
    for size in options.sizes:
        if size % FLOAT32_BYTES:
            made.error(f"--sizes: {size_text(size)} is no size of a float32 array")
    return options


def results_of(comparison: Comparison, facts: dict[str, Any], others: float) -> dict[str, Any]:
    """The results of a run as plain values."""
    options = comparison.options
    return {
        "machine": {
            **facts,
            **comparison.versions,
            "part of the cores' time taken by others": f"{others:.0%}",
        },
        "options": {
            "engines": ",".join(engine.value for engine in options.engines),
            "collectives": ",".join(kind.value for kind in options.collectives),
            "ranks": ",".join(map(str, options.ranks)),
            "sizes": ",".join(map(size_text, options.sizes)),
            "rounds": options.repeat,
            "seconds a round": options.seconds,
            "huge pages asked for": options.huge_pages,
            "note": options.note,
        },
        "rows": comparison.rows,
        "left_out": comparison.left_out,
        "seconds": round(comparison.seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = checked(made, made.parse_args(arguments))
    if options.report is not None:
        runs = [json.loads(file.read_text()) for file in options.report]
        print(spreads(runs) if len(runs) > 1 else pages(runs[0]))
        return 0
    facts, quietness, comparison = machine.facts(), machine.Quietness(), Comparison(options)
    try:
        comparison.run()
    except KeyboardInterrupt:
        comparison.left_out.append("the rest: interrupted")
    results = results_of(comparison, facts, quietness.others())
    path = save(results, options.output, f"cpu-peers-{facts['cores']}-cores")
    print(pages(results))
    print(f"written: {path}", file=sys.stderr)
    return 0 if comparison.is_whole() else 1
