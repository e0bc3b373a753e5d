"""Waiting: how calls of sley and of its peers wait for other ranks, and what that costs.

    python benchmarks/waiting.py [--quick] [--engines ...] [--situations 2,2+1,8]
    python benchmarks/waiting.py --report benchmarks/results/FILE.json

AllReduce of float32 in place. A situation is a number of ranks, and of neighbours: processes that
spin beside them. `2+1` on two cores are two ranks and one neighbour, `8` are eight ranks alone. The
engines take turns as in cpu_peers, whose launch.py describes their start; --cores confines ranks
and neighbours to some of the machine's cores.

Two things are measured, for each engine, situation and size:

- Calls back to back, one by one. Their times give p50, p99 and p99.9, over all ranks and rounds; a
  quantile has at least ten slower calls, or it is missing. The CPU time of a call is that of a
  rank's whole process, on average; more than the call's time, if an engine has threads that work.
- Calls for which rank 0 is late: it sleeps before each call, while the others wait in theirs. The
  time is from the beginning of the last rank to the end on all ranks (p50), which is what waiting
  adds. The CPU time is that which the other ranks use in a call, on average.

A call of sley's engine is timed by the engine, one of an MPI in C++, one through PyTorch in Python.
The results go to benchmarks/results as JSON, the tables to the output. `rows` has one entry for
each engine, situation, size and lateness:

    engine, ranks, neighbours, size_bytes, late_s   late_s is 0 for calls back to back
    calls                                           of all rounds
    p50_us, p99_us, p999_us                         of a call back to back; null: too few calls
    after_us                                        of a late call: p50 from the last beginning
    cpu_us                                          CPU time of a call on a rank that isn't late
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common.machine import cores
from common.results import RESULTS, save
from common.sizes import read_sizes
from common.tables import MISSING, table
from cpu_peers import machine
from cpu_peers.cells import Collective, Engine
from cpu_peers.command import some_of
from cpu_peers.group import Group, GroupError, Samples
from cpu_peers.launch import commands
from cpu_peers.measuring import calibrated, in_turn, iterations_for
from cpu_peers.wheels import UnavailableError, default_cache

from sley.ir.sizes import size_text

ENGINES = "sley,sley-torch,sley-operators,gloo,vllm,deepspeed,intelmpi,mpich"
SITUATIONS = "2,2+1,2+2,8,16,32"
LATE_S = "0.0001,0.001,0.01,5"
SLOWER_CALLS = 10
"""The least number of calls that are slower than a quantile."""

QUANTILES = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"

Row = dict[str, Any]


@dataclass(frozen=True)
class Situation:
    """Ranks, and processes that spin beside them."""

    ranks: int
    neighbours: int

    def __str__(self) -> str:
        return f"{self.ranks}+{self.neighbours}" if self.neighbours else str(self.ranks)


@dataclass
class Waiting:
    """A run: its options, the running ranks, and the results."""

    options: argparse.Namespace
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def run(self) -> None:
        """Measures all situations; those with equally many ranks with the same processes."""
        situations: list[Situation] = self.options.situations
        for ranks in dict.fromkeys(situation.ranks for situation in situations):
            groups = self._groups(ranks)
            try:
                for situation in (found for found in situations if found.ranks == ranks):
                    for size_bytes in self.options.sizes:
                        self._measure(groups, situation, size_bytes)
            finally:
                for group in groups.values():
                    group.close()

    def _groups(self, ranks: int) -> dict[Engine, Group]:
        found: dict[Engine, Group] = {}
        for engine in self.options.engines:
            try:
                start = partial(commands, engine, ranks, cache=self.options.cache, huge_pages=False)
                found[engine] = Group(ranks, start)
                self.versions[engine.title] = found[engine].version
            except (GroupError, UnavailableError) as error:
                self.left_out.append(f"{engine.title}, {ranks} ranks: {error}")
                print(self.left_out[-1], file=sys.stderr)
        return found

    def _measure(self, groups: dict[Engine, Group], situation: Situation, size_bytes: int) -> None:
        """The rows of one situation and size, without engines that fail in it."""
        with neighbours(situation.neighbours):
            found, failures = sampled(groups, size_bytes, self.options)
        place = {"ranks": situation.ranks, "neighbours": situation.neighbours}
        for engine, failure in failures.items():
            groups.pop(engine).close()
            self.left_out.append(f"{engine.title}, {situation}, {size_text(size_bytes)}: {failure}")
        for (engine, late_s), samples in found.items():
            if engine in groups:
                name = {"engine": engine.value, **place, "size_bytes": size_bytes}
                self.rows.append(name | {"late_s": late_s} | numbers(samples, late_s))
        medians = ", ".join(
            f"{row['engine']} {us_text(row['p50_us'])}"
            for row in self.rows
            if row["late_s"] == 0
            and (row["ranks"], row["neighbours"]) == tuple(place.values())
            and row["size_bytes"] == size_bytes
        )
        print(
            f"{self.seconds:6.1f} s  {situation}, {size_text(size_bytes)}: {medians} us",
            file=sys.stderr,
        )


@contextmanager
def neighbours(number: int) -> Iterator[None]:
    """Processes that spin until the end, or that of this process."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(number)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def sampled(
    groups: Mapping[Engine, Group], size_bytes: int, options: argparse.Namespace
) -> tuple[dict[tuple[Engine, float], list[Samples]], dict[Engine, str]]:
    """The samples of all rounds by engine and lateness, and why engines failed."""
    found: dict[tuple[Engine, float], list[Samples]] = {}
    failures: dict[Engine, str] = {}
    call_s: dict[Engine, float] = {}
    for engine, group in groups.items():
        try:
            group.ask(f"prepare {Collective.ALL_REDUCE.value} {size_bytes}")
            call_s[engine] = options.seconds / calibrated(group, options.seconds)
        except GroupError as error:
            failures[engine] = str(error)
    for late_s in (0.0, *options.late):
        for engine in in_turn(list(groups), options.repeat if late_s < 1 else 1):
            if engine in failures:
                continue
            number = iterations_for(late_s + call_s[engine], options.seconds)
            try:
                samples = groups[engine].sample(number, late_s)
                found.setdefault((engine, late_s), []).append(samples)
            except GroupError as error:
                failures[engine] = str(error)
    return found, failures


def numbers(rounds: Iterable[Samples], late_s: float) -> Row:
    """The figures of a row of results."""
    rounds = list(rounds)
    calls = sum(samples.call_s.shape[1] for samples in rounds)
    waiting = slice(1, None) if late_s else slice(None)
    cpu_s = sum(float(samples.cpu_s[waiting].mean()) for samples in rounds)
    found: Row = {"calls": calls, "cpu_us": 1e6 * cpu_s / calls}
    if late_s:
        after_s = np.concatenate([samples.after_last_s() for samples in rounds])
        return found | {"after_us": 1e6 * float(np.median(after_s))}
    call_s = np.concatenate([samples.call_s.ravel() for samples in rounds])
    for name, share in QUANTILES.items():
        enough = len(call_s) * (1 - share) >= SLOWER_CALLS
        found[name] = 1e6 * float(np.quantile(call_s, share)) if enough else None
    return found


def us_text(us: float | None) -> str:
    """Microseconds, with three digits at least."""
    if us is None:
        return MISSING
    return f"{us:.{2 if us < 10 else 1 if us < 100 else 0}f}"


def pages(results: Mapping[str, Any]) -> str:
    """All tables of a run's results."""
    rows: list[Row] = results["rows"]
    facts = {**results["machine"], **results["options"], "seconds": results["seconds"]}
    parts = [("Machine", table(("what", "value"), facts.items()))]
    for size_bytes in sorted({row["size_bytes"] for row in rows}):
        found = [row for row in rows if row["size_bytes"] == size_bytes]
        text = size_text(size_bytes)
        parts.append((f"Back to back, {text}, us", _back_to_back(found)))
        parts.append((f"A late rank, {text}, us", _late(found)))
    parts.append(("Left out", "\n".join(f"- {text}" for text in results["left_out"])))
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts if text) + "\n"


def _place(row: Row) -> tuple[str, str]:
    return str(Situation(row["ranks"], row["neighbours"])), Engine(row["engine"]).title


def _back_to_back(rows: Iterable[Row]) -> str:
    """A line for each situation and engine; the last column is the median's ratio to that of the
    same ranks alone."""
    rows = [row for row in rows if not row["late_s"]]
    alone = {(row["engine"], row["ranks"]): row["p50_us"] for row in rows if not row["neighbours"]}
    lines = []
    for row in rows:
        base = alone.get((row["engine"], row["ranks"]))
        ratio = row["p50_us"] / base if base and row["p50_us"] else None
        line = [*_place(row), *(us_text(row[name]) for name in QUANTILES), us_text(row["cpu_us"])]
        lines.append([*line, MISSING if ratio is None else f"{ratio:.1f}"])
    head = ("ranks+neighbours", "engine", "p50", "p99", "p99.9", "CPU", "p50 / p50 alone")
    return table(head, lines)


def _late(rows: Iterable[Row]) -> str:
    """A line for each situation and engine, with the time after the last rank's beginning and the
    CPU time for each lateness."""
    rows = [row for row in rows if row["late_s"]]
    lates = sorted({row["late_s"] for row in rows})
    head = ["ranks+neighbours", "engine"]
    for late_s in lates:
        head += [f"{1e3 * late_s:g} ms late: after", "CPU"]
    lines = []
    for place in dict.fromkeys(map(_place, rows)):
        line = list(place)
        by_late = {row["late_s"]: row for row in rows if _place(row) == place}
        for late_s in lates:
            row = by_late.get(late_s, {})
            line += [us_text(row.get("after_us")), us_text(row.get("cpu_us"))]
        lines.append(line)
    return table(head, lines) if lines else ""


def situations(text: str) -> list[Situation]:
    """Situations from a text such as "2,2+1"."""
    found = []
    for part in text.split(","):
        ranks, _, beside = part.partition("+")
        if not (ranks.isdecimal() and int(ranks) >= 2 and (beside or "0").isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is no situation such as 2 or 2+1")
        found.append(Situation(int(ranks), int(beside or 0)))
    return list(dict.fromkeys(found))


def lates(text: str) -> list[float]:
    """Seconds above 0 from a text such as "0.001,5"."""
    with suppress(ValueError):
        found = [float(part) for part in text.split(",")]
        if all(0 < late_s <= 60 for late_s in found):
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no list of seconds above 0 and up to 60")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="waiting", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    engines = partial(some_of, Engine)
    made.add_argument("--engines", type=engines, default=engines(ENGINES), help=ENGINES)
    made.add_argument(
        "--situations", type=situations, default=situations(SITUATIONS), help=SITUATIONS
    )
    made.add_argument("--sizes", type=read_sizes, default=read_sizes("1K"), help="1K")
    made.add_argument("--late", type=lates, default=lates(LATE_S), help=f"seconds, {LATE_S}")
    made.add_argument("--repeat", type=int, default=5, help="rounds; of seconds late: one")
    made.add_argument(
        "--seconds", type=float, default=0.5, help="of an engine's calls in one round"
    )
    made.add_argument("--quick", action="store_true", help="2 rounds of 0.2 s; 2, 2+1 and 8 ranks")
    made.add_argument("--cores", type=int, help="how many of the machine's cores all use")
    made.add_argument("--note", default="", help="kept with the results")
    made.add_argument("--cache", type=Path, default=default_cache(), help="of peers' wheels")
    made.add_argument("--output", type=Path, default=RESULTS, help="the folder of the results")
    made.add_argument("--report", type=Path, help="print the tables of these results, no more")
    return made


def checked(made: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """The options, after a check that they make sense."""
    if options.quick:
        options.repeat, options.seconds = 2, 0.2
        options.situations = situations("2,2+1,8")
    if options.repeat < 1 or not options.seconds > 0:
        made.error("--repeat is 1 or more, and --seconds above 0")
    if options.cores is not None and not 1 <= options.cores <= cores():
        made.error(f"--cores is 1 to {cores()} here")
    return options


def results_of(waiting: Waiting, facts: dict[str, Any], others: float) -> dict[str, Any]:
    """The results of a run as plain values."""
    options = waiting.options
    taken = {"part of the cores' time taken by others": f"{others:.0%}"}
    return {
        "machine": {**facts, **waiting.versions, **taken},
        "options": {
            "engines": ",".join(engine.value for engine in options.engines),
            "situations": ",".join(map(str, options.situations)),
            "sizes": ",".join(map(size_text, options.sizes)),
            "late, s": ",".join(f"{late_s:g}" for late_s in options.late),
            "rounds": options.repeat,
            "seconds a round": options.seconds,
            "note": options.note,
        },
        "rows": waiting.rows,
        "left_out": waiting.left_out,
        "seconds": round(waiting.seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = checked(made, made.parse_args(arguments))
    if options.report is not None:
        print(pages(json.loads(options.report.read_text())))
        return 0
    if options.cores is not None:  # the ranks and neighbours inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    facts, quietness, waiting = machine.facts(), machine.Quietness(), Waiting(options)
    try:
        waiting.run()
    except KeyboardInterrupt:
        waiting.left_out.append("the rest: interrupted")
    results = results_of(waiting, facts, quietness.others())
    path = save(results, options.output, f"waiting-{facts['cores']}-cores")
    print(pages(results))
    print(f"written: {path}", file=sys.stderr)
    return 1 if waiting.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
