"""Kernels on one GPU: NCCL's times beside sley's, engines, thread blocks and threads.

    python benchmarks/kernels.py [--nccl libnccl.so.2] [--quick]
    python benchmarks/kernels.py --report benchmarks/results/FILE.json
    python benchmarks/kernels.py --device threads --sizes 1K,16K --blocks 2 --ranks 4

All ranks are on one GPU, so the benchmark shows the cost of an engine and its use of the memory's
bandwidth, but nothing about links. Calls are of float32, and their results are checked before they
are timed. Compared settings take turns within one run, and times are medians.

The part `cells` compares each collective, number of ranks and size, also odd ones: what sley's
communicator chooses, with a launch for each rank as NCCL's and with one for all, the best of a list
of plans, a plain copy, and NCCL's best of all settings. The results go to benchmarks/results as
JSON, the tables to the output, the worst ratios first. With --device threads the script runs on
CPUs, and shows nothing about GPUs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import kernels_nccl
import kernels_plans as plans
from common.machine import facts
from common.results import RESULTS
from common.results import save as save_results
from common.sizes import read_sizes
from first_contact.lines import Lines
from kernels_report import ODD, pages
from kernels_runs import Call, Chosen, Copy, Data, Together, close, opened
from kernels_timing import Runnable, Timer, in_turn, timer_of, words

from sley.communicator.selection.kinds import CALLS, size_of
from sley.engine.devices import Device, Engine
from sley.engine.limits import TIMEOUT_S
from sley.errors import SleyError
from sley.ir.sizes import size_text
from sley.ir.words import Protocol

PACKAGES = ("sley", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "torch")

SWEPT_BLOCKS = (1, 2, 4, 8, 16, 32)
SWEPT_THREADS = (128, 256, 512)
MOST_BLOCKS = 128
"""Total number of thread blocks of NCCL's ranks: an H100 has 132 multiprocessors."""

ITEM = 4
"""Bytes of a float32."""

ODD_SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)

Making = Callable[[], Runnable]


def sizes(text: str) -> list[int]:
    """Sizes of arrays of float32, in bytes, as `read_sizes` reads them."""
    found = read_sizes(text)
    if any(size % 4 for size in found):
        raise argparse.ArgumentTypeError(f"{text} is not a number of float32 elements")
    return found


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def protocols(text: str) -> list[Protocol]:
    """Protocols from "LL,DIRECT"."""
    names = text.upper().split(",")
    unknown = set(names) - set(Protocol.__members__)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: no protocol")
    return [Protocol[name] for name in names]


@dataclass
class Benchmark:
    """A run of the benchmark: its device, its options, and its results."""

    options: argparse.Namespace
    device: Device
    timer: Timer
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    lines: Lines | None = None

    def measure(self, part: str, made: Iterable[Making], kind: str, counts: Sequence[int]) -> None:
        """Times the given runs in turn, over counts of elements of a block."""
        every = []
        for make in made:
            if self.is_over(part):
                return
            try:
                every.append(make())
            except SleyError as error:
                self.left_out.append(f"{part}: {words(error)}")
        for count in counts:
            ranks = max((run.label["ranks"] for run in every), default=1)
            size_bytes = size_of(kind, ranks, count, ITEM)
            what = f"{part}: {kind} of {ranks}, {size_text(size_bytes)}"
            if self.is_over(what):
                return
            runs = [run for run in every if size_bytes <= run.label.get("most_bytes", size_bytes)]
            label = {"part": part, "count": count, "size_bytes": size_bytes}
            rows = [m.row() for m in in_turn(runs, count, self.options.rounds, label, self._tell)]
            self.rows += rows
            for row in rows if self.lines else ():
                self.lines.write(**row)
            print(f"{self.seconds:6.1f} s  {what}", file=sys.stderr)
        del runs
        gc.collect()  # frees memory now, not while something is timed

    def _tell(self, label: dict[str, Any]) -> None:
        if self.lines:
            self.lines.write(begins=label)

    def is_over(self, what: str) -> bool:
        """Whether there is no time left; records this."""
        if self.seconds < self.options.limit_s:
            return False
        self.left_out.append(f"{what}: {self.options.limit_s:g} s were over")
        return True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def is_cuda(self) -> bool:
        return self.device.platform == "cuda"

    def call(self, case: plans.Case, data: Data, **how: Any) -> Call:
        return Call(case, data, self.timer, timeout_s=self.options.timeout_s, **how)

    def data(self, ranks: int) -> Data:
        return Data(self.device, ranks, max(self.options.sizes))

    @property
    def counts(self) -> list[int]:
        """Elements of AllReduces."""
        return [size // ITEM for size in self.options.sizes]


def cells(b: Benchmark) -> None:
    """Compares sley's calls with NCCL's and a plain copy: every collective, ranks and size."""
    for ranks in b.options.ranks:
        theirs = _nccl(b, ranks)
        comms = opened(b.device, ranks, f"cells-{ranks}", b.options.timeout_s)
        try:
            data = b.data(ranks)
            for kind in b.options.kinds:
                made = [*_ours(b, comms, kind, data), partial(Copy, kind, data, b.timer)]
                for peer in theirs:
                    ways = peer.setting.ways(kind)
                    made += [partial(kernels_nccl.Way, peer, kind, way) for way in ways]
                b.measure("cells", made, kind, _counts(b, kind, ranks))
        finally:
            for peer in theirs:
                peer.close()
            close(comms)


def _counts(b: Benchmark, kind: str, ranks: int) -> list[int]:
    """Elements of a block: for each size, and beyond some of them a few elements more."""
    parts, most = ranks if CALLS[kind].has_parts else 1, max(b.options.sizes)
    even = [max(1, size // parts // ITEM) for size in b.options.sizes]
    odd = [size // parts // ITEM for size in ODD_SIZES if size <= most]
    return sorted({*even, *odd, *(count + ODD for count in odd)})


def _ours(b: Benchmark, comms: Sequence[Any], kind: str, data: Data) -> list[Making]:
    """What the communicator chooses, with a launch a rank and with one; and the plans of a list,
    which the interpreter runs, too."""
    how = {"kind": kind, "engine": Engine.INTERPRETED}
    make = partial(b.call, data=data, **how)
    chosen: list[Making] = [
        partial(Chosen, comms, kind, data, b.timer),
        partial(Together, comms, kind, data, make),
    ]
    return chosen + [
        partial(make, case, most_bytes=most_bytes)
        for case, most_bytes in plans.tried(kind, data.ranks)
        if case.plan.protocol in b.options.protocols
    ]


def _nccl(b: Benchmark, ranks: int) -> list[kernels_nccl.Peer]:
    """The processes with NCCL that are ready; none without NCCL."""
    if b.options.nccl is None:
        b.left_out.append("NCCL: no --nccl names its library (libnccl.so.2, 2.30 or newer)")
        return []
    device = ["--device", b.options.device, "--ordinal", str(b.options.ordinal)]
    wanted = kernels_nccl.settings(ranks, MOST_BLOCKS // ranks, quick=b.options.quick)
    most = max(b.options.sizes)
    running = [kernels_nccl.Peer.start(s, b.options.nccl, device, most) for s in wanted]
    ready = [peer for peer in running if peer.ready()]
    for peer in running:
        if peer in ready:
            b.options.nccl_version, b.options.nccl_timing = peer.version, peer.timing
            continue
        row = {**peer.setting.label, "part": "cells", "failure": peer.failure}
        b.rows += [{**row, "kind": kind} for kind in b.options.kinds if peer.setting.ways(kind)]
        peer.close()
    return ready


def engines(b: Benchmark) -> None:
    """Compares generated code and the interpreter, with equal plans, blocks, threads and slots: of
    three algorithms, and of HM at ResCCL's levels of execution."""
    o = b.options
    cases = [
        plans.case(algorithm, o.ranks[0], protocol, o.blocks)
        for algorithm in plans.ALGORITHMS
        for protocol in o.protocols
    ]
    for case in [*cases, *map(plans.level, plans.LEVELS)]:
        data = b.data(case.plan.collective.ranks)
        made = [partial(b.call, case, data, engine=engine, threads=o.threads) for engine in Engine]
        b.measure("engines", made, "all_reduce", b.counts)


def sweep(b: Benchmark) -> None:
    """Compares numbers of thread blocks and of their threads, for rings."""
    o = b.options
    for ranks in o.ranks:
        data = b.data(ranks)
        made = [
            partial(b.call, plans.case(plans.RING, ranks, protocol, blocks), data, threads=threads)
            for protocol in o.protocols
            for blocks in SWEPT_BLOCKS
            if blocks <= 2 * o.blocks
            for threads in (SWEPT_THREADS if b.is_cuda else (o.threads,))
        ]
        b.measure("sweep", made, "all_reduce", b.counts)


RUNNERS = {"cells": cells, "engines": engines, "sweep": sweep}


def machine(b: Benchmark) -> dict[str, Any]:
    """The time, the machine and the versions."""
    found = {"device": b.device.name, "timing": b.timer.how, **facts(PACKAGES)}
    if b.is_cuda:
        found |= _cuda_facts(b.device)
    return found


def _cuda_facts(device: Any) -> dict[str, Any]:
    from sley.engine.devices.cuda import compiler, driver

    found = {
        "architecture": device.arch,
        "multiprocessors": device.multiprocessors,
        "driver_cuda": driver.version_text(driver.driver_version()),
        "nvrtc": driver.version_text(compiler.version()),
    }
    query = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        found[f"nvidia-smi {query}"] = lines.strip()
    except (OSError, subprocess.SubprocessError) as error:
        found["nvidia-smi"] = f"not here: {error}"
    return found


def save(b: Benchmark) -> Path:
    """Writes the results, and returns the path."""
    kept = {**vars(b.options), "protocols": [p.value for p in b.options.protocols]}
    kept["out"] = str(kept["out"])
    del kept["report"], kept["lines"], kept["step"]
    results = {
        "machine": machine(b),
        "options": kept,
        "rows": b.rows,
        "left_out": b.left_out,
        "seconds": round(b.seconds, 1),
    }
    name = "".join(c if c.isalnum() else "-" for c in b.device.name.split(" (")[0]).lower()
    print(pages(results))
    return save_results(results, b.options.out, f"kernels-{name}")


def _some_of(names: Iterable[str]) -> dict[str, Any]:
    """What an option says that takes some of these names, separated by commas; else all."""
    return {"default": list(names), "help": f"some of {', '.join(names)}; else all"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--device", choices=("cuda", "threads"), default="cuda")
    made.add_argument("--ordinal", type=int, default=0, help="which GPU")
    made.add_argument("--parts", type=lambda t: t.split(","), **_some_of(RUNNERS))
    made.add_argument("--sizes", type=sizes, help='"1K:256M:4" or "1K,1M"; bytes a rank')
    made.add_argument("--ranks", type=numbers, help='"8,4,2"; engines take the first')
    made.add_argument("--kinds", type=lambda t: t.split(","), **_some_of(plans.KINDS))
    made.add_argument("--blocks", type=int, default=16, help="thread blocks a rank, at most (16)")
    made.add_argument("--threads", type=int, help="of engines' blocks; else 128, 256 or 512 each")
    made.add_argument("--rounds", type=int, help="of each measurement; else 5, or 3 with --quick")
    made.add_argument("--protocols", type=protocols, default=list(Protocol), help='"LL,DIRECT"')
    made.add_argument("--nccl", help="libnccl.so.2, of NCCL 2.30 or newer")
    made.add_argument("--quick", action="store_true", help="fewer sizes, rounds and settings")
    made.add_argument("--limit-s", type=float, default=450.0, help="what is left then is left out")
    made.add_argument("--lines", type=Path, help="a file that gets a line of JSON for each time")
    made.add_argument("--step", help="its name in these lines")
    made.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="of an instruction's wait")
    made.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    made.add_argument("--report", type=Path, help="print the tables of these results, no more")
    return made


def settled(options: argparse.Namespace) -> argparse.Namespace:
    """The options that depend on --quick."""
    quick = options.quick
    options.sizes = options.sizes or sizes("256,16K,256K,4M,64M" if quick else "256:256M:4")
    options.rounds = options.rounds or (3 if quick else 5)
    options.ranks = options.ranks or [8, 4, 2]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = settled(parser().parse_args(arguments))
    if options.report is not None:
        print(pages(json.loads(options.report.read_text())))
        return 0
    for what, given, known in (
        ("parts", options.parts, RUNNERS),
        ("kinds", options.kinds, plans.KINDS),
    ):
        if unknown := set(given) - set(known):
            print(f"--{what}: {', '.join(unknown)} of {', '.join(known)}", file=sys.stderr)
            return 2
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a queue for each rank's stream
    try:
        device = kernels_nccl.open_device(options.device, options.ordinal)
    except SleyError as error:
        print(error, file=sys.stderr)
        return 1
    b = Benchmark(options, device, timer_of(device))
    if options.lines is not None:
        b.lines = Lines(options.lines, options.step or "+".join(options.parts))
    if not b.is_cuda:
        b.left_out.append("threads of a block: this device is threads of a CPU")
    try:
        for part in options.parts:
            RUNNERS[part](b)
    finally:
        print(f"written: {save(b)}", file=sys.stderr)
    return int(any(row["by"] == "sley" and "failure" in row for row in b.rows))


if __name__ == "__main__":
    sys.exit(main())
