"""Kernels on one GPU: generated and interpreted, levels, thread blocks, NCCL, and the lower bound.

    python benchmarks/kernels.py [--nccl libnccl.so.2] [--quick]
    python benchmarks/kernels.py --report benchmarks/results/FILE.json
    python benchmarks/kernels.py --device threads --sizes 1K,16K --blocks 2 --ranks 4 --nccl-ranks 4

All ranks are on one GPU, so the benchmark shows the cost of an engine and its use of the memory's
bandwidth, but nothing about links. All calls are an AllReduce of float32 in place, whose sums are
checked before it is timed. Compared settings take turns within one run, and times are medians. The
results go to benchmarks/results as JSON, the tables to the output. With --device threads the script
runs on CPUs, and shows nothing about GPUs.
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
from kernels_report import pages
from kernels_runs import Call, Copy, Data
from kernels_timing import Runnable, Timer, in_turn, timer_of, words

from sley.engine.devices import Device, Engine, Launching
from sley.engine.limits import TIMEOUT_S
from sley.errors import SleyError
from sley.ir.sizes import size_text
from sley.ir.words import Protocol

PACKAGES = ("sley", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "torch")

SWEPT_BLOCKS = (1, 2, 4, 8, 16, 32)
SWEPT_THREADS = (128, 256, 512, 1024)
MOST_BLOCKS = 128
"""Total number of thread blocks of all ranks in the comparison with NCCL: an H100 has 132
multiprocessors, and each can hold at least one of our blocks."""

LARGE_SLOT_BYTES = 512 << 10
"""NCCL's, for Simple; compared with the default."""

Making = Callable[[], Runnable]


def sizes(text: str) -> list[int]:
    """Sizes of arrays of float32, in bytes, as `read_sizes` reads them."""
    found = read_sizes(text)
    if any(size % 4 for size in found):
        raise argparse.ArgumentTypeError(f"{text} is not a number of float32 elements")
    return found


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

    def measure(self, part: str, made: Iterable[Making], over: Sequence[int]) -> None:
        """Times the given runs in turn, over sizes."""
        runs = []
        for make in made:
            if self.is_over(part):
                return
            try:
                runs.append(make())
            except SleyError as error:
                self.left_out.append(f"{part}: {words(error)}")
        for one in over:
            if self.is_over(f"{part} at {size_text(one)}"):
                return
            found = in_turn(runs, one, self.options.rounds, self._tell)
            rows = [{"part": part, **m.row()} for m in found]
            self.rows += rows
            for row in rows if self.lines else ():
                self.lines.write(**row)
            print(f"{self.seconds:6.1f} s  {part}: {_what(found)}", file=sys.stderr)
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


def _what(found: Sequence[Any]) -> str:
    label = found[0].label if found else {}
    words = (label.get("algorithm", label.get("by", "")), label.get("protocol", ""))
    return " ".join([*filter(None, words), size_text(found[0].size_bytes) if found else ""])


def engines(b: Benchmark) -> None:
    """Compares generated code and the interpreter, with equal plans, blocks, threads and slots."""
    o, data = b.options, b.data(b.options.ranks)
    for algorithm in plans.ALGORITHMS:
        for protocol in o.protocols:
            case = plans.case(algorithm, o.ranks, protocol, o.blocks)
            b.measure(
                "engines",
                [
                    partial(b.call, case, data, engine=engine, threads=o.threads)
                    for engine in Engine
                ],
                o.sizes,
            )


def peers(b: Benchmark) -> None:
    """Compares our plans, NCCL and a plain copy."""
    for ranks in b.options.nccl_ranks:
        blocks = min(MOST_BLOCKS // ranks, 2 * b.options.blocks)
        theirs = _nccl(b, ranks, blocks)
        try:
            data = b.data(ranks)
            others: list[Making] = [partial(Copy, data, b.timer)]
            others += [partial(_itself, peer) for peer in theirs]
            b.measure("peers", [*_ours(b, data, ranks, blocks), *others], b.options.sizes)
        finally:
            for peer in theirs:
                peer.close()


def _ours(b: Benchmark, data: Data, ranks: int, blocks: int) -> list[Making]:
    """Each algorithm with each protocol in one launch; rings also with a launch for each rank, and
    the fastest ones in a CUDA graph."""
    wanted: list[tuple[str, Protocol, dict[str, Any]]] = []
    for algorithm in plans.ALGORITHMS:
        wanted += [(algorithm, protocol, {}) for protocol in b.options.protocols]
    by_rank = {"launching": Launching.BY_RANK}
    wanted += [(plans.RING, protocol, by_rank) for protocol in b.options.protocols]
    if Protocol.SIMPLE in b.options.protocols:
        wanted.append((plans.RING, Protocol.SIMPLE, {"slot_bytes": LARGE_SLOT_BYTES}))
    if b.is_cuda:
        for algorithm in (plans.RING, plans.ALL_PAIRS):
            graphs = {Protocol.SIMPLE, Protocol.LL}.intersection(b.options.protocols)
            wanted += [(algorithm, p, {"graph": True}) for p in Protocol if p in graphs]
    found: list[Making] = []
    for algorithm, protocol, how in wanted:
        case = plans.case(algorithm, ranks, protocol, blocks)
        label = {"threads": b.options.threads, "traffic": plans.traffic(case.plan), **how}
        found.append(partial(b.call, case, data, **label))
    return found


def _itself(peer: kernels_nccl.Peer) -> Runnable:
    return peer


def _nccl(b: Benchmark, ranks: int, blocks: int) -> list[kernels_nccl.Peer]:
    """The processes with NCCL that are ready; none without NCCL."""
    if b.options.nccl is None:
        b.left_out.append("NCCL: no --nccl names its library (libnccl.so.2, 2.30 or newer)")
        return []
    found = _started(b, ranks, blocks)
    if found and not found[0].answers_in_time(min(b.options.sizes)):
        b.left_out.append("NCCL's calls behind a gate: it gave no time, so they start at once")
        for peer in found:
            peer.close()
        found = _started(b, ranks, blocks, "--no-gate")
    for peer in found:
        b.options.nccl_version, b.options.nccl_timing = peer.version, peer.timing
    return found


def _started(b: Benchmark, ranks: int, blocks: int, *further: str) -> list[kernels_nccl.Peer]:
    device = ["--device", b.options.device, "--ordinal", str(b.options.ordinal), *further]
    wanted = kernels_nccl.settings(ranks, blocks, quick=b.options.quick)
    most = max(b.options.sizes)
    running = [kernels_nccl.Peer.start(s, b.options.nccl, device, most) for s in wanted]
    ready = [peer for peer in running if peer.ready()]
    for peer in running:
        if peer not in ready:
            what = ", ".join(map(str, peer.label.values()))
            b.left_out.append(f"{what}: {peer.failure}")
            peer.close()
    return ready


def levels(b: Benchmark) -> None:
    """Compares ResCCL's levels of execution, on both engines."""
    data = b.data(8)
    made = [
        partial(b.call, plans.level(name), data, engine=engine, threads=b.options.threads)
        for name in plans.LEVELS
        for engine in Engine
    ]
    b.measure("levels", made, b.options.sizes)


def sweep(b: Benchmark) -> None:
    """Compares numbers of thread blocks and of their threads, for a ring."""
    o, data = b.options, b.data(b.options.ranks)
    threads = SWEPT_THREADS if b.is_cuda else (o.threads,)
    made = [
        partial(b.call, plans.case(plans.RING, o.ranks, Protocol.SIMPLE, blocks), data, threads=t)
        for blocks in SWEPT_BLOCKS
        if blocks <= 2 * o.blocks
        for t in threads
    ]
    b.measure("sweep", made, o.sizes[-3:] if o.quick else o.sizes[len(o.sizes) // 2 :])


RUNNERS = {"engines": engines, "peers": peers, "levels": levels, "sweep": sweep}


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
    del kept["report"], kept["lines"]
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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--device", choices=("cuda", "threads"), default="cuda")
    made.add_argument("--ordinal", type=int, default=0, help="which GPU")
    made.add_argument("--parts", type=lambda t: t.split(","), default=list(RUNNERS))
    made.add_argument("--sizes", type=sizes, help='"1K:256M:4" or "1K,1M"; bytes a rank')
    made.add_argument("--ranks", type=int, default=4, help="of all parts but peers and levels")
    made.add_argument("--blocks", type=int, default=16, help="thread blocks a rank, at most")
    made.add_argument("--threads", type=int, default=512, help="threads of a block")
    made.add_argument("--rounds", type=int)
    made.add_argument("--protocols", type=protocols, default=list(Protocol), help='"LL,DIRECT"')
    made.add_argument("--nccl", help="libnccl.so.2, of NCCL 2.30 or newer")
    made.add_argument(
        "--nccl-ranks", type=lambda t: [int(n) for n in t.split(",")], help="of the part peers"
    )
    made.add_argument("--quick", action="store_true", help="fewer sizes, rounds and settings")
    made.add_argument("--limit-s", type=float, default=450.0, help="what is left then is left out")
    made.add_argument("--lines", type=Path, help="a file that gets a line of JSON for each time")
    made.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="of an instruction's wait")
    made.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    made.add_argument("--report", type=Path, help="print the tables of these results, no more")
    return made


def settled(options: argparse.Namespace) -> argparse.Namespace:
    """The options that depend on --quick."""
    quick = options.quick
    options.sizes = options.sizes or sizes("1K:64M:16" if quick else "1K:256M:4")
    options.rounds = options.rounds or (3 if quick else 5)
    options.nccl_ranks = options.nccl_ranks or ([4] if quick else [4, 8])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = settled(parser().parse_args(arguments))
    if options.report is not None:
        print(pages(json.loads(options.report.read_text())))
        return 0
    unknown = set(options.parts) - set(RUNNERS)
    if unknown:
        print(f"--parts: {', '.join(unknown)} of {', '.join(RUNNERS)}", file=sys.stderr)
        return 2
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a queue for each rank's stream
    try:
        device = kernels_nccl.open_device(options.device, options.ordinal)
    except SleyError as error:
        print(error, file=sys.stderr)
        return 1
    b = Benchmark(options, device, timer_of(device))
    if options.lines is not None:
        b.lines = Lines(options.lines, "+".join(options.parts))
    if not b.is_cuda:
        b.left_out.append("CUDA graphs, and threads of a block: this device is threads of a CPU")
    try:
        for part in options.parts:
            RUNNERS[part](b)
    finally:
        print(f"written: {save(b)}", file=sys.stderr)
    return int(any(row["by"] == "sley" and "failure" in row for row in b.rows))


if __name__ == "__main__":
    sys.exit(main())
