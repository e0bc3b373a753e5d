"""A communicator between hosts whose interfaces fail, or become slow, while it makes calls.

    RANK=0 WORLD_SIZE=4 python benchmarks/replanning.py --folder F --nics eth0,eth1 --gbps 0.2

All ranks run this script, as root, with the same number on each host, numbered host by host; the
folder is one that all see, and not by these interfaces. Float32 AllReduces over TCP or UCX.

cuts: so many times a random interface of a random host is taken down (ip link set) at a random
moment of a stream of calls, in place and out of place by turns; then it is taken up, and the ranks
replan. Every result is checked. A call that was not repeated ended with N635, on all ranks or on
those that had not finished it. The recovery is the time from the cut to the end of the first call
after it.

rates: calls of 64 MB before, after the last interface of the first host was cut, and with that one
sending at half of its rate (tc), before and after replanning. bound: of the network of these rates
(`sley.model.bounds`). Rank 0 prints the tables, and writes all to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common.machine import facts, text
from common.results import RESULTS, save
from common.tables import ms_text, ratio_text, table

import sley
from sley.communicator import Communicator, FolderStore, Network, Settings
from sley.communicator.rendezvous.nics import Nic
from sley.communicator.rendezvous.survey import Survey
from sley.communicator.selection.replanned import topology_of
from sley.model.bounds import Bounds

SIZE_BYTES, CALLS = 64 << 20, 3
STREAM_BYTES, STREAM_CALLS = 1 << 20, 40
SEED = 9
SETTLED_S = 0.5


def command(words: str) -> None:
    subprocess.run(words.split(), check=True)


class Stream:
    """Streams of calls of a rank, each with a cut. rows: of each cut."""

    def __init__(self, comm: Communicator, nics: list[str]) -> None:
        self.comm, self._nics = comm, nics
        self._random = random.Random(SEED)
        self._base = np.arange(STREAM_BYTES // 4, dtype=np.float32) % 1000
        self._total = self._base * comm.ranks + sum(range(comm.ranks))
        self._out = np.empty_like(self._base)
        self.rows: list[dict[str, Any]] = []

    def cut(self, number: int) -> None:
        """A stream, in which an interface is cut; the same on all ranks."""
        comm, began = self.comm, time.monotonic()
        self._call(in_place=False)
        comm.barrier()
        longest_s = (time.monotonic() - began) * STREAM_CALLS / 2
        victim, nic = self._random.randrange(comm.ranks), self._random.choice(self._nics)
        wait_s, cut = self._random.random() * longest_s, [0.0]

        def take_down() -> None:
            time.sleep(wait_s)
            cut[0] = time.monotonic()
            command(f"ip link set {nic} down")

        thread = threading.Thread(target=take_down)
        if comm.rank == victim:
            thread.start()
        codes, ends = [], []
        for call in range(STREAM_CALLS):
            codes.append(self._call(in_place=call % 2 == 1))
            ends.append(time.monotonic())
        row: dict[str, Any] = {"cut": number, "rank": comm.rank, "codes": "".join(codes)}
        if comm.rank == victim:
            thread.join()
            after = [end for end in ends if end > cut[0]]
            gaps = np.diff([cut[0], *after])
            # The call under way may end before its data miss the interface.
            first = int(np.argmax(gaps)) if len(after) else 0
            row |= {"nic": nic, "recovery_s": after[first] - cut[0] if len(after) else None}
            command(f"ip link set {nic} up")
        self.rows.append(row)
        comm.barrier()
        time.sleep(SETTLED_S)
        comm.replan()

    def _call(self, *, in_place: bool) -> str:
        """- if it ended well, X if it was cut short."""
        data = self._base + self.comm.rank
        try:
            self.comm.all_reduce(data, None if in_place else self._out)
        except sley.SleyError as error:
            if error.code != "N635":
                raise
            return "X"
        if not np.array_equal(data if in_place else self._out, self._total):
            raise SystemExit(f"a wrong sum on rank {self.comm.rank}")
        return "-"


def rates(comm: Communicator, nics: list[str], gbps: float) -> list[dict[str, Any]]:
    """Times of large calls in each state of the last interface of the first host."""
    data = np.ones(SIZE_BYTES // 4, np.float32)
    out, last, found = np.empty_like(data), nics[-1], list[dict[str, Any]]()
    shape, half = (
        f"root tbf rate {mbit:g}mbit burst 32kb limit 1mb" for mbit in (1e3 * gbps, 5e2 * gbps)
    )

    def measure(state: str, share: float) -> None:
        comm.all_reduce(data, out)
        comm.barrier()
        began = time.monotonic()
        for _ in range(CALLS):
            comm.all_reduce(data, out)
        comm.barrier()
        took_ms = (time.monotonic() - began) / CALLS * 1e3
        if not (out == comm.ranks).all():
            raise SystemExit("a wrong sum")
        found.append({"state": state, "ms": took_ms, "bound_ms": bound_ms(comm, nics, gbps, share)})

    def change(words: str, *, replans: bool = True) -> None:
        if comm.rank == 0:
            command(words)
        time.sleep(SETTLED_S)
        comm.barrier()
        if replans:
            comm.replan()

    measure("whole", 1)
    change(f"ip link set {last} down", replans=False)
    measure("one interface cut", 0)
    change(f"ip link set {last} up")
    measure("mended, replanned", 1)
    change(f"tc qdisc replace dev {last} {half}", replans=False)
    measure("one at half rate", 0.5)
    comm.replan()
    measure("one at half rate, replanned", 0.5)
    change(f"tc qdisc replace dev {last} {shape}")
    measure("whole, replanned", 1)
    return found


def bound_ms(comm: Communicator, nics: list[str], gbps: float, share: float) -> float:
    """The least time of a call if the last interface of the first host sends at a share of its
    rate."""
    sent = np.full((comm.hosts.count, len(nics)), gbps / 8)
    sent[0, -1] *= share
    received, numbers = np.full_like(sent, gbps / 8), len(nics)
    if not share:
        sent, received, numbers = sent[:, :-1], received[:, :-1], numbers - 1
    survey = Survey(((Nic("", ()),) * comm.hosts.count,) * numbers, sent, received)
    collective = sley.AllReduce(comm.ranks, 1, True)
    return Bounds.of(collective, topology_of(comm.hosts, survey)).at(SIZE_BYTES).time_us / 1e3


def gathered(folder: Path, comm: Communicator, own: Any) -> list[Any]:
    """The values of all ranks, through the folder."""
    (folder / f"result-{comm.rank}.json").write_text(json.dumps(own))
    comm.barrier()
    return [json.loads((folder / f"result-{r}.json").read_text()) for r in range(comm.ranks)]


def report_cuts(of_ranks: list[list[dict[str, Any]]]) -> str:
    lines, word = [], {True: "all ranks", False: "those that had not finished it"}
    for rows in zip(*of_ranks, strict=True):
        mine = next(row for row in rows if "nic" in row)
        short = {n: [row["codes"][n] for row in rows] for n in range(STREAM_CALLS)}
        cut = {n: codes for n, codes in short.items() if "X" in codes}
        ends = [
            f"{'in' if n % 2 else 'out of'} place, {word['-' not in c]}" for n, c in cut.items()
        ]
        recovery = mine["recovery_s"]
        seconds = "after the stream" if recovery is None else f"{recovery:.2f}"
        lines.append((mine["cut"], mine["nic"], mine["rank"], seconds, "; ".join(ends) or "none"))
    known = [row["recovery_s"] for rows in of_ranks for row in rows if row.get("recovery_s")]
    head = ("cut", "interface", "of rank", "recovery, s", "calls that ended with N635")
    return f"{table(head, lines)}\n\nrecovery: median {median(known):.2f} s, most {max(known):.2f}"


def report_rates(rows: list[dict[str, Any]]) -> str:
    head = ("64 MB AllReduce", "ms", "GB/s", "bound, ms", "times the bound")
    return table(
        head,
        [
            (
                row["state"],
                ms_text(row["ms"]),
                f"{SIZE_BYTES / row['ms'] / 1e6:.3f}",
                ms_text(row["bound_ms"]),
                ratio_text(row["ms"] / row["bound_ms"]),
            )
            for row in rows
        ],
    )


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--folder", type=Path, required=True, help="that all ranks see, empty")
    made.add_argument("--nics", required=True, help="interfaces: eth0,eth1")
    made.add_argument("--gbps", type=float, required=True, help="of one interface, Gbit/s")
    made.add_argument("--cuts", type=int, default=20)
    made.add_argument("--network", default="tcp")
    made.add_argument("--timeout", type=float, default=10.0)
    made.add_argument("--output", type=Path, default=RESULTS)
    options = made.parse_args()
    rank, ranks, nics = (
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        options.nics.split(","),
    )
    network = Network(options.network)
    settings = Settings(timeout_s=options.timeout, network=network, replan=True)
    environ = {**os.environ, "SLEY_NICS": options.nics}
    store = FolderStore(options.folder)
    with Communicator(store, rank, ranks, settings=settings, environ=environ) as comm:
        stream = Stream(comm, nics)
        for number in range(options.cuts):
            stream.cut(number)
        of_ranks = gathered(options.folder, comm, stream.rows)
        times = rates(comm, nics, options.gbps)
        hosts = comm.hosts.count
    if rank:
        return
    machine = facts()
    print(text(machine), f"{hosts} hosts, {ranks} ranks, {network.name}\n", sep="\n")
    if options.cuts:
        print(report_cuts(of_ranks), "\n")
    print(report_rates(times))
    words = {k: str(v) for k, v in vars(options).items() if not isinstance(v, Path)}
    results = {"machine": machine, "options": words, "cuts": of_ranks, "rates": times}
    save(results, options.output, f"replanning-{hosts}x{ranks // hosts}-{network.value}")


if __name__ == "__main__":
    main()
