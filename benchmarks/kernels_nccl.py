"""NCCL with several ranks on one GPU, for comparison: each setting in a separate process.

    python benchmarks/kernels_nccl.py --lib libnccl.so.2 --ranks 4 --most-bytes 1048576

is such a process: it reads requests, one JSON object on each line ({"way": ..., "count": ...,
"calls": ...}; without calls it checks one), and answers each with {"us": ...} or {"failure": ...}.
NCCL reads its settings from the environment when a process makes its first communicator, so each
setting needs a process. All processes run, and the benchmark sends requests to one at a time.

Several ranks of a communicator on one GPU require NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1, which
is experimental; the process has one thread, and one launch and stream for each rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from kernels_timing import CALLS, TurnError, timer_of

NEEDED = (2, 30)
_FLOAT32, _SUM, _ROOT = 7, 0, 0  # nccl.h: ncclDataType_t, ncclRedOp_t
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC

START_S = 60.0
"""The longest time for a process to load NCCL and to make its communicator."""

CALL_S = 15.0
"""The longest time for a request."""

ALGORITHMS, PROTOCOLS = ("Ring", "Tree"), ("Simple", "LL", "LL128")
BUFFER_BYTES = (512 << 10, 1 << 20, 2 << 20)
"""Sizes of a connection's FIFO besides NCCL's own 4 MiB, which for many connections on one GPU is
more than an L2 cache."""

WAYS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
}
"""The function of each kind of calls."""

SENDS = "ncclSend and ncclRecv"
"""Another way of an AllToAll, in a group."""


@dataclass(frozen=True)
class Setting:
    """Settings of NCCL; NCCL chooses those that are None. windows: whether arrays are in symmetric
    windows, for which NCCL has kernels of its own."""

    ranks: int
    blocks: int
    algorithm: str | None = None
    protocol: str | None = None
    buffer_bytes: int | None = None
    windows: bool = False

    @property
    def label(self) -> dict[str, Any]:
        return {
            "by": "NCCL",
            "algorithm": self.algorithm or ("windows" if self.windows else "its choice"),
            "protocol": self.protocol or "its choice",
            "buffer_bytes": self.buffer_bytes or 4 << 20,
            "launching": "by-rank",
            "ranks": self.ranks,
            "blocks": self.blocks,
        }

    def environment(self) -> dict[str, str]:
        """The environment variables for this setting, with at most our number of blocks a rank."""
        found = {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_MAX_CTAS": str(self.blocks),
            "NCCL_CGA_CLUSTER_SIZE": "0",
            "NCCL_NVLS_ENABLE": "0",
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "CUDA_MODULE_LOADING": "EAGER",
        }
        if self.algorithm is not None:
            found |= {"NCCL_ALGO": self.algorithm, "NCCL_MIN_CTAS": str(self.blocks)}
        if self.protocol is not None:
            found["NCCL_PROTO"] = self.protocol
        if self.buffer_bytes is not None:
            found["NCCL_BUFFSIZE"] = str(self.buffer_bytes)
        return found

    def ways(self, kind: str) -> list[str]:
        """How this setting makes a kind of calls: with no function if it makes no difference there.
        NCCL has trees for AllReduces only, and no algorithm for sends and receives."""
        if kind == "all_to_all":
            return [] if self.algorithm else [WAYS[kind], *([] if self.windows else [SENDS])]
        return [] if self.algorithm == "Tree" and kind != "all_reduce" else [WAYS[kind]]


def settings(ranks: int, blocks: int, *, quick: bool) -> list[Setting]:
    """The settings: NCCL's choice, also in windows, each algorithm with each protocol, and rings
    with smaller FIFOs."""
    found = [Setting(ranks, blocks), Setting(ranks, blocks, windows=True)]
    found += [Setting(ranks, blocks, a, p) for a in ALGORITHMS for p in PROTOCOLS]
    if not quick:
        found += [Setting(ranks, blocks, "Ring", "Simple", size) for size in BUFFER_BYTES]
    return found


@dataclass
class Peer:
    """A process with NCCL. `ready` waits for its start."""

    setting: Setting
    process: subprocess.Popen[str]
    answers: Queue[dict[str, Any]]
    failure: str = ""
    version: str = ""
    timing: str = ""
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, setting: Setting, library: str, device: Sequence[str], most_bytes: int) -> Peer:
        """Starts the process without waiting for it."""
        command = [sys.executable, __file__, "--lib", library, *device]
        command += ["--ranks", str(setting.ranks), "--most-bytes", str(most_bytes)]
        command += ["--windows"] if setting.windows else []
        process = subprocess.Popen(
            command,
            env={**os.environ, **setting.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=_listen, args=(process, answers), daemon=True).start()
        return cls(setting, process, answers)

    def ready(self) -> bool:
        """Waits until the process answers; False if it can't, with the reason in `failure`."""
        first = self._answer(self.started + START_S - time.monotonic())
        self.failure = first.get("failure", "")
        self.version, self.timing = first.get("version", ""), first.get("timing", "")
        return not self.failure

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request."""
        if self.failure:
            return {"failure": self.failure}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            return {"failure": f"the process is gone: {error}"}
        return self._answer(CALL_S)

    def close(self) -> None:
        """Ends the process."""
        with suppress(OSError):  # it may be gone
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self.answers.get(timeout=max(timeout_s, 0.0))
        except Empty:
            self.process.kill()
            self.failure = "no answer in time"
            return {"failure": self.failure}


class Way:
    """A way of calling NCCL in a process, as a run that takes turns with sley's."""

    def __init__(self, peer: Peer, kind: str, way: str) -> None:
        self._peer, self._way = peer, way
        self.label = {**peer.setting.label, "kind": kind}
        if way == SENDS:
            self.label["algorithm"] = "sends"

    def answers_in_time(self, count: int) -> bool:
        """Whether NCCL can be timed: its calls might wait for earlier calls that have not started
        yet."""
        try:
            return not self.prepare(count) and self.time_us(count, CALLS) > 0
        except TurnError:
            return False

    def prepare(self, count: int) -> str:
        """Runs one call, and checks the results."""
        return str(self._peer.ask(way=self._way, count=count).get("failure", ""))

    def time_us(self, count: int, calls: int) -> float:
        answer = self._peer.ask(way=self._way, count=count, calls=calls)
        if "us" not in answer:
            raise TurnError(answer["failure"])
        return float(answer["us"])


def _listen(process: subprocess.Popen[str], answers: Queue[dict[str, Any]]) -> None:
    """Forwards the lines with answers; NCCL also writes other lines."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answers.put(json.loads(line))
    answers.put({"failure": f"the process ended with {process.wait()}"})


class Nccl:
    """The functions of libnccl.so.2 that this benchmark needs, through ctypes."""

    def __init__(self, path: str) -> None:
        deep = getattr(os, "RTLD_DEEPBIND", 0)  # apart from another NCCL of the process
        self._windows: list[ctypes.c_void_p] = []
        self._library = library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | deep)
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclGetLastError.restype = ctypes.c_char_p
        found = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(found))
        number_of = found.value
        self.version = (number_of // 10000, number_of // 100 % 100, number_of % 100)
        if self.version < NEEDED:
            text = ".".join(map(str, self.version))
            raise RuntimeError(f"NCCL {text}: several ranks on a GPU need 2.30")

    def communicators(self, ranks: int, ordinal: int) -> list[ctypes.c_void_p]:
        """The ranks of a communicator, all on one GPU."""
        made = (ctypes.c_void_p * ranks)()
        self._call("ncclCommInitAll", made, ranks, (ctypes.c_int * ranks)(*[ordinal] * ranks))
        return [ctypes.c_void_p(address) for address in made]

    def allocate(self, size_bytes: int) -> int:
        """Memory that can be in a window: its address."""
        place = ctypes.c_void_p()
        self._call("ncclMemAlloc", ctypes.byref(place), ctypes.c_size_t(size_bytes))
        return int(place.value or 0)

    def register(self, comms: Sequence[ctypes.c_void_p], memory: Sequence[Any]) -> None:
        """Makes a symmetric window of the ranks' memory, until the process ends."""
        with self._group():
            for comm, one in zip(comms, memory, strict=True):
                place, size = ctypes.c_void_p(one.address), ctypes.c_size_t(one.size_bytes)
                self._windows.append(ctypes.c_void_p())
                window = ctypes.byref(self._windows[-1])
                self._call("ncclCommWindowRegister", comm, place, size, window, _SYMMETRIC)

    def start(
        self,
        way: str,
        comms: Sequence[ctypes.c_void_p],
        places: Sequence[tuple[int, int]],
        count: int,
        streams: Sequence[int],
    ) -> None:
        """Starts a call of float32 on each rank's stream. places: each rank's input and output."""
        size = ctypes.c_size_t(count)
        with self._group():
            for comm, (source, target), stream in zip(comms, places, streams, strict=True):
                at = comm, ctypes.c_void_p(stream)
                if way == SENDS:
                    for peer in range(len(comms)):
                        for name, base in (("ncclSend", source), ("ncclRecv", target)):
                            place = ctypes.c_void_p(base + peer * count * 4)
                            self._call(name, place, size, _FLOAT32, peer, *at)
                    continue
                op = [_SUM] if "Reduce" in way else []
                root = [_ROOT] if way in (WAYS["broadcast"], WAYS["reduce"]) else []
                buffers = ctypes.c_void_p(source), ctypes.c_void_p(target)
                self._call(way, *buffers, size, _FLOAT32, *op, *root, *at)

    def destroy(self, comms: Sequence[ctypes.c_void_p]) -> None:
        for comm in comms:
            self._library.ncclCommDestroy(comm)

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Calls of all ranks, which start at its end; it ends in any case."""
        self._call("ncclGroupStart")
        try:
            yield
        except RuntimeError:
            self._library.ncclGroupEnd()
            raise
        self._call("ncclGroupEnd")

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise RuntimeError(f"this NCCL has no {name}")
        result = function(*arguments)
        if result:
            words = self._library.ncclGetErrorString(result).decode()
            last = (self._library.ncclGetLastError(None) or b"").decode()
            raise RuntimeError(f"NCCL: {name}: {words} {last}".strip())


def serve(o: argparse.Namespace) -> None:
    """Answers requests until the input ends."""
    from kernels_runs import Data

    from sley.engine.devices.device import Memory

    device, nccl = open_device(o.device, o.ordinal), Nccl(o.lib)
    timer = timer_of(device, gate=not o.no_gate)
    comms = nccl.communicators(o.ranks, o.ordinal)

    def allocate(size_bytes: int) -> Memory:
        return Memory(nccl.allocate(size_bytes), size_bytes, None)

    data = Data(device, o.ranks, o.most_bytes, allocate=allocate if o.windows else None)
    for memory in (data.inputs, data.outputs) if o.windows else ():
        nccl.register(comms, memory)
    streams = timer.streams(o.ranks)
    addresses = [_address(stream) for stream in streams]
    kinds = {SENDS: "all_to_all"} | {way: kind for kind, way in WAYS.items()}
    answer({"version": ".".join(map(str, nccl.version)), "timing": timer.how})

    def starter(way: str, count: int) -> Callable[..., None]:
        every = zip(*data.memory(kinds[way]), strict=True)
        places = [(source.address, target.address) for source, target in every]
        return lambda _=None: nccl.start(way, comms, places, count, addresses)

    for line in sys.stdin:
        request = json.loads(line)
        way, count = request["way"], request["count"]
        try:
            start = starter(way, count)
            if "calls" in request:
                answer({"us": timer.time_us(start, streams, request["calls"])})
                continue
            data.fill(kinds[way], count)
            start()
            for stream in streams:
                device.synchronize(stream)
            wrong = data.wrong(kinds[way], count)
            answer({"failure": f"{wrong} wrong elements" if wrong else ""})
        except Exception as error:  # of any kind: the benchmark goes on without this setting
            answer({"failure": str(error)})
    nccl.destroy(comms)


def open_device(name: str, ordinal: int) -> Any:
    """A device by the name of its kind."""
    if name == "threads":
        from sley.engine.devices import ThreadsDevice

        return ThreadsDevice.open(ordinal)
    from sley.engine.devices.cuda import CudaDevice

    return CudaDevice.open(ordinal)


def _address(stream: Any) -> int:
    return stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else 0


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lib", required=True)
    parser.add_argument("--device", choices=("cuda", "threads"), default="cuda")
    parser.add_argument("--ordinal", type=int, default=0)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--most-bytes", type=int, required=True)
    parser.add_argument("--no-gate", action="store_true", help="calls start at once")
    parser.add_argument("--windows", action="store_true", help="arrays are in symmetric windows")
    try:
        serve(parser.parse_args())
    except Exception as error:  # of any kind: the answer tells it
        answer({"failure": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
