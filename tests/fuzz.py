"""Fuzzing: damages files of every format, and proves what is read.

    python tests/fuzz.py [--minutes M] [--seed N] [--only READER]

Every reader gets its share of the time. Anything but a proof or a coded diagnostic is printed with
its seed, and makes the exit code 1; so does more than 1 GB of memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import sley
from sley.errors import SleyError
from sley.formats import msccl_xml, mscclpp
from sley.formats.msccl_xml.targets import TARGETS
from sley.formats.mscclpp.targets import MSCCLPP
from sley.model.nccl import tables as nccl_tests
from support.inputs import printed_topologies, topology_texts
from support.mutants import file_mutants, mscclpp_mutants, nccl_tests_mutants, schedule_mutants

MOST_KB = 1 << 20


def prove_plan(rng: random.Random) -> None:
    """Proves a damaged execution plan of MSCCL++."""
    damage = rng.choice([mscclpp_mutants.mutated, mscclpp_mutants.text_of_rearranged])
    for way in mscclpp.executions(damage(rng), MSCCLPP).executions:
        sley.verify(way.plan)


NOISE = ("", '"', "<", "/", "0", "-1", "9" * 20, " ", "\0", "\u00e9")


def prove_xml(rng: random.Random) -> None:
    """Proves a damaged file of MSCCL XML as a runtime reads it."""
    text, target = file_mutants.mutant(rng)
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(NOISE) + text[at + rng.randrange(3) :]
    for way in msccl_xml.executions(text, TARGETS[target]).executions:
        sley.verify(way.plan, way.slots, per_chunk=way.per_chunk)


def prove_schedule(rng: random.Random) -> None:
    """Proves the program of a synthesiser's damaged schedule."""
    damage = rng.choice([schedule_mutants.changed_words, schedule_mutants.changed_values])
    read, text = damage(rng)
    sley.compile(read(text).program())


def read_measurements(rng: random.Random) -> None:
    """Reads a damaged output of nccl-tests."""
    nccl_tests.tables_of(nccl_tests_mutants.mutated(rng))


def read_topology(rng: random.Random) -> None:
    """Reads a damaged topology of another tool."""
    with tempfile.TemporaryDirectory() as folder:
        topology_texts.read_damaged(rng, Path(folder))


def read_printed_topology(rng: random.Random) -> None:
    """Reads a damaged topology as a tool prints it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(printed_topologies.mutated(rng))
        file.flush()
        sley.topologies.load(file.name)


READERS: dict[str, Callable[[random.Random], None]] = {
    "mscclpp": prove_plan,
    "xml": prove_xml,
    "schedules": prove_schedule,
    "nccl-tests": read_measurements,
    "topologies": read_topology,
    "printed": read_printed_topology,
}


def run(name: str, seconds: float, seed: int) -> int:
    """Damages files for one reader, and prints what became of them; returns the number of
    crashes."""
    outcomes: Counter[str] = Counter()
    slowest, end = 0.0, time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        try:
            READERS[name](random.Random(seed))
            outcomes["proven"] += 1
        except SleyError as error:
            assert str(error)
            outcomes["refused"] += 1
        except Exception:
            outcomes["crashed"] += 1
            print(f"{name}, seed {seed}:", traceback.format_exc(), sep="\n")
        slowest = max(slowest, time.monotonic() - begin)
        seed += 1
    counts = ", ".join(f"{number} {word}" for word, number in sorted(outcomes.items()))
    print(f"{name:10} {counts}; slowest {slowest:.2f} s", flush=True)
    return outcomes["crashed"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="of all readers [1]")
    parser.add_argument("--seed", type=int, default=0, help="of the first file [0]")
    parser.add_argument("--only", choices=READERS, action="append", help="may be repeated [all]")
    options = parser.parse_args(arguments)
    names = options.only or list(READERS)
    seconds = 60 * options.minutes / len(names)
    crashed = sum(run(name, seconds, options.seed) for name in names)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory     {most >> 10} MB")
    return int(bool(crashed) or most > MOST_KB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
