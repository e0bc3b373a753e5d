"""sley between hosts, compared with the links' bound and gloo, over one and several interfaces.

    torchrun --nnodes 2 --nproc-per-node 4 ... benchmarks/hosts.py --gbps 1 --nics eth0
    torchrun ... benchmarks/hosts.py --gbps 0.2 --nics eth0 --nics eth0,eth1,eth2,eth3
    mpiexec ... -x MASTER_ADDR -x MASTER_PORT python benchmarks/hosts.py ... --sizes 8,1K,32K

All ranks run this script, with the same number on each host. Float32, in place. The engines are
sley over TCP and UCX, each over every given list of interfaces, gloo over the first interface of
the first list, and, if an MPI starts the ranks, that MPI (through mpi4py), over the interfaces of
its own options. They take turns, round by round. A time is that of back-to-back calls after a
barrier, on the slowest rank; a cell has the median over the rounds. Results are checked before they
are timed, and a wrong result ends the run.

bound: an AllReduce over H hosts takes at least 2 (H-1)/H x size / the rate of a host's interfaces;
--gbps is the rate of one interface. AllToNext moves every rank's buffer to the next rank: the
program of MSCCLang 7.4, over all interfaces of a host, and a direct send in one step, which uses
one interface between two hosts.

Rank 0 prints the tables, and writes all times as JSON to benchmarks/results.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common.machine import text
from common.results import RESULTS, save
from common.sizes import read_sizes
from common.tables import ms_text, ratio_text, table
from cpu_peers import machine

import sley
from sley.communicator import Communicator, Network, Settings, TorchStore
from sley.ir.sizes import size_text

TIMEOUT_S = 60.0
ENOUGH_S = 0.2
"""The smallest total time of the calls of one turn."""

Run = Callable[[np.ndarray[Any, Any]], object]


@dataclass
class Times:
    """The times in ms of one engine for one size: the time of a call in each round."""

    what: str
    engine: str
    nics: int
    size_bytes: int
    ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return median(self.ms)


@dataclass(frozen=True)
class Engine:
    """An engine that runs a collective on a rank's buffer, and the number of its interfaces a
    host."""

    name: str
    nics: int
    run: Run


def most_of_ranks(value: float) -> float:
    """The largest of the ranks' values, on every rank."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def seconds(run: Run, data: np.ndarray[Any, Any], calls: int) -> float:
    """The average time of a call in a loop of back-to-back calls, on the slowest rank."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        run(data)
    return most_of_ranks((time.perf_counter() - begin) / calls)


def measure(what: str, engines: Sequence[Engine], size_bytes: int, rounds: int) -> list[Times]:
    """The times of all engines for one size, measured in turn."""
    data = np.zeros(size_bytes // 4, np.float32)
    found = [Times(what, engine.name, engine.nics, size_bytes) for engine in engines]
    calls = []
    for engine in engines:
        engine.run(data)  # plans and connections
        calls.append(max(1, round(ENOUGH_S / seconds(engine.run, data, 1))))
    for turn in range(rounds):
        for index in np.roll(np.arange(len(engines)), -turn):
            found[index].ms.append(1e3 * seconds(engines[index].run, data, calls[index]))
    return found


def check_sum(engine: Engine) -> None:
    """Ends the run if an engine gives a wrong sum."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = np.arange(10_007, dtype=np.float32) + rank
    engine.run(data)
    expected = np.arange(10_007, dtype=np.float32) * ranks + ranks * (ranks - 1) / 2
    if not np.array_equal(data, expected):
        raise SystemExit(f"{engine.name}: a wrong sum on rank {rank}")


def check_next(engine: Engine) -> None:
    """Ends the run if an engine doesn't give each rank the data of the rank before."""
    rank = dist.get_rank()
    data = np.full(12_000, rank, np.float32)
    engine.run(data)
    if rank and not (data == rank - 1).all():
        raise SystemExit(f"{engine.name}: wrong data on rank {rank}")


def all_reduce(name: str, comm: Communicator, nics: int) -> Engine:
    return Engine(name, nics, comm.all_reduce)


def own(name: str, comm: Communicator, nics: int, plan: sley.Plan) -> Engine:
    return Engine(name, nics, lambda data: comm.run(plan, data))


def gloo(data: np.ndarray[Any, Any]) -> None:
    dist.all_reduce(torch.from_numpy(data))


def start() -> list[Engine]:
    """Starts PyTorch's world; the engine of the MPI that has started this rank, if one has."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        return []
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.size))
    dist.init_process_group("gloo")
    vendor, version = MPI.get_vendor()
    name = f"{vendor} {'.'.join(map(str, version))}"
    return [Engine(name, 1, lambda data: world.Allreduce(MPI.IN_PLACE, data))]


def bound_ms(hosts: int, size_bytes: int, gbps: float) -> float:
    """The lower bound on an AllReduce between this number of hosts, from a host's links."""
    return 2 * (hosts - 1) / hosts * size_bytes * 8 / gbps / 1e6


def all_reduce_table(times: Sequence[Times], hosts: int, gbps: float) -> str:
    head = ("size", "engine", "interfaces", "ms", "bound, ms", "times the bound")
    lines = []
    for t in times:
        bound = bound_ms(hosts, t.size_bytes, gbps * t.nics)
        ratio = ratio_text(t.median_ms / bound)
        row = size_text(t.size_bytes), t.engine, t.nics, ms_text(t.median_ms), ms_text(bound), ratio
        lines.append(row)
    return table(head, lines)


def speedup_table(times: Sequence[Times], over: Callable[[Times], Times | None], what: str) -> str:
    """The speed-ups of engines over others: the medians of the ratios in the same round."""
    lines = []
    for t in times:
        slow = over(t)
        if slow is not None:
            ratio = median(s / f for s, f in zip(slow.ms, t.ms, strict=True))
            name = f"{slow.engine}, {slow.nics}"
            own = f"{t.engine}, {t.nics}"
            lines.append((t.what, size_text(t.size_bytes), own, name, ratio_text(ratio)))
    return table(("what", "size", "engine, interfaces", what, "times faster"), lines)


def find(times: Sequence[Times], **wanted: Any) -> Times | None:
    return next((t for t in times if all(getattr(t, k) == v for k, v in wanted.items())), None)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--gbps", type=float, required=True, help="of one interface, Gbit/s")
    made.add_argument("--nics", action="append", required=True, help="interfaces: eth0,eth1")
    made.add_argument("--sizes", type=read_sizes, default=read_sizes("1M,16M,64M"))
    made.add_argument(
        "--next-sizes", type=read_sizes, default=read_sizes("16M"), help="of AllToNext"
    )
    made.add_argument("--networks", default="tcp,ucx")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--note", default="", help="kept with the results")
    made.add_argument("--output", type=Path, default=RESULTS)
    return made


def engines_of(
    options: argparse.Namespace, peers: Sequence[Engine], opened: ExitStack
) -> tuple[list[Engine], list[Engine], int]:
    """The engines of AllReduce, the engines of AllToNext, and the number of hosts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = TorchStore(dist.PrefixStore("sley", dist.group.WORLD.get_group_store()))
    sums, shifts, hosts = [Engine("gloo", 1, gloo), *peers], [], 1
    for nics in options.nics:
        for network in options.networks.split(","):
            settings = Settings(timeout_s=TIMEOUT_S, network=Network(network))
            environ = {**os.environ, "SLEY_NICS": nics}
            name = f"sley over {network.upper()}"
            made = Communicator(
                store, rank, ranks, name=f"{network} {nics}", settings=settings, environ=environ
            )
            comm = opened.enter_context(made)
            hosts, count = comm.hosts.count, len(nics.split(","))
            sums.append(all_reduce(name, comm, count))
            shifted = sley.compile(sley.algorithms.alltonext(hosts, ranks // hosts, in_place=True))
            straight = sley.compile(sley.algorithms.direct_alltonext(ranks, in_place=True))
            shifts += [
                own(f"{name}, alltonext", comm, count, shifted),
                own(f"{name}, direct", comm, count, straight),
            ]
    return sums, shifts, hosts


def report(times: list[Times], hosts: int, gbps: float) -> str:
    sums = [t for t in times if t.what == "AllReduce"]
    shifts = [t for t in times if t.what == "AllToNext"]
    fewest = min((t.nics for t in sums if t.engine.startswith("sley")), default=1)

    def one_interface(t: Times) -> Times | None:
        if t.nics == fewest or "direct" in t.engine:
            return None
        return find(times, what=t.what, engine=t.engine, size_bytes=t.size_bytes, nics=fewest)

    def direct(t: Times) -> Times | None:
        if not t.engine.endswith("alltonext"):
            return None
        name = t.engine.replace("alltonext", "direct")
        return find(shifts, engine=name, size_bytes=t.size_bytes, nics=t.nics)

    parts = [
        all_reduce_table(sums, hosts, gbps),
        speedup_table(sums, one_interface, "than over fewest"),
        speedup_table(shifts, direct, "than straight"),
    ]
    return "\n\n".join(parts)


def main() -> None:
    options = parser().parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", options.nics[0].split(",")[0])
    peers = start()
    facts, times = machine.facts(), []
    with ExitStack() as opened:
        sums, shifts, hosts = engines_of(options, peers, opened)
        if hosts < 2:
            raise SystemExit("all ranks are on one host; the benchmark needs at least 2 hosts")
        for engine in sums:
            check_sum(engine)
        for engine in shifts:
            check_next(engine)
        for size_bytes in options.sizes:
            times += measure("AllReduce", sums, size_bytes, options.rounds)
        for size_bytes in options.next_sizes:
            times += measure("AllToNext", shifts, size_bytes, options.rounds)
    if dist.get_rank() == 0:
        print(text(facts), f"{hosts} hosts, {dist.get_world_size()} ranks\n", sep="\n")
        print(report(times, hosts, options.gbps))
        results = {
            "machine": facts,
            "options": {k: str(v) for k, v in vars(options).items()},
            "hosts": hosts,
            "ranks": dist.get_world_size(),
            "times": [asdict(t) for t in times],
        }
        most = max(len(nics.split(",")) for nics in options.nics)
        name = f"hosts-{hosts}x{dist.get_world_size() // hosts}-{most}-interfaces"
        save(results, options.output, name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
