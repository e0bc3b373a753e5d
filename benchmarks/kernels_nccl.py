"""NCCL with several ranks on one GPU, for comparison: each setting in a separate process.

    python benchmarks/kernels_nccl.py --lib libnccl.so.2 --ranks 4 --most-bytes 1048576

is such a process: it reads requests, one JSON object on each line ({"size_bytes": ..., "calls":
...}), and answers each with {"us": ...} or {"failure": ...}. NCCL reads its settings from the
environment when a process makes its first communicator, so each setting needs a process. All
processes run, and the benchmark sends requests to one at a time.

Several ranks of a communicator on one GPU require NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1, which
is experimental; the process has one thread, and one stream for each rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from typing import Any

from kernels_timing import CALLS, TurnError, timer_of

NEEDED = (2, 30)
_FLOAT32, _SUM = 7, 0  # nccl.h: ncclDataType_t, ncclRedOp_t

START_S = 120.0
"""The longest time for a process to load NCCL and to make its communicator."""

CALL_S = 15.0
"""The longest time for a request."""

ALGORITHMS, PROTOCOLS = ("Ring", "Tree"), ("Simple", "LL", "LL128")
BUFFER_BYTES = (512 << 10, 1 << 20, 2 << 20)
"""Sizes of a connection's FIFO besides NCCL's own 4 MiB, which for many connections on one GPU is
more than an L2 cache."""


@dataclass(frozen=True)
class Setting:
    """Settings of NCCL; NCCL chooses those that are None."""

    ranks: int
    blocks: int
    algorithm: str | None = None
    protocol: str | None = None
    buffer_bytes: int | None = None

    @property
    def label(self) -> dict[str, Any]:
        return {
            "by": "NCCL",
            "algorithm": self.algorithm or "its choice",
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


def settings(ranks: int, blocks: int, *, quick: bool) -> list[Setting]:
    """The settings: NCCL's choice, each algorithm with each protocol, and rings with smaller
    FIFOs."""
    found = [Setting(ranks, blocks)]
    found += [Setting(ranks, blocks, a, p) for a in ALGORITHMS for p in PROTOCOLS]
    if not quick:
        found += [Setting(ranks, blocks, "Ring", "Simple", size) for size in BUFFER_BYTES]
    return found


@dataclass
class Peer:
    """A process with NCCL, which takes turns with the engines. `ready` waits for its start."""

    setting: Setting
    process: subprocess.Popen[str]
    answers: Queue[dict[str, Any]]
    failure: str = ""
    version: str = ""
    timing: str = ""
    label: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.label = self.setting.label

    @classmethod
    def start(cls, setting: Setting, library: str, device: Sequence[str], most_bytes: int) -> Peer:
        """Starts the process without waiting for it."""
        command = [sys.executable, __file__, "--lib", library, *device]
        command += ["--ranks", str(setting.ranks), "--most-bytes", str(most_bytes)]
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
        first = self._answer(START_S)
        self.failure = first.get("failure", "")
        self.version, self.timing = first.get("version", ""), first.get("timing", "")
        return not self.failure

    def answers_in_time(self, size_bytes: int) -> bool:
        """Whether NCCL can be timed: its calls might wait for earlier calls that have not started
        yet."""
        try:
            return not self.prepare(size_bytes) and self.time_us(size_bytes, CALLS) > 0
        except TurnError:
            return False

    def prepare(self, size_bytes: int) -> str:
        """Runs one call, and checks the sums."""
        if self.failure:
            return self.failure
        return str(self._ask({"check": size_bytes}).get("failure", ""))

    def time_us(self, size_bytes: int, calls: int) -> float:
        answer = self._ask({"size_bytes": size_bytes, "calls": calls})
        if "us" not in answer:
            raise TurnError(answer["failure"])
        return float(answer["us"])

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

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            return {"failure": f"the process is gone: {error}"}
        return self._answer(CALL_S)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self.answers.get(timeout=timeout_s)
        except Empty:
            self.process.kill()
            return {"failure": f"no answer in {timeout_s:g} s"}


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
        self._library = library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | deep)
        handle, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclGetLastError.argtypes = [handle]
        library.ncclGetLastError.restype = ctypes.c_char_p
        library.ncclCommInitAll.argtypes = [
            ctypes.POINTER(handle),
            number,
            ctypes.POINTER(number),
        ]
        library.ncclAllReduce.argtypes = [handle, handle, size, number, number, handle, handle]
        library.ncclCommDestroy.argtypes = [handle]
        found = ctypes.c_int()
        self._check(library.ncclGetVersion(ctypes.byref(found)))
        number_of = found.value
        self.version = (number_of // 10000, number_of // 100 % 100, number_of % 100)
        if self.version < NEEDED:
            text = ".".join(map(str, self.version))
            raise RuntimeError(f"NCCL {text}: several ranks on a GPU need 2.30")

    def communicators(self, ranks: int, ordinal: int) -> list[ctypes.c_void_p]:
        """The ranks of a communicator, all on one GPU."""
        made = (ctypes.c_void_p * ranks)()
        places = (ctypes.c_int * ranks)(*[ordinal] * ranks)
        self._check(self._library.ncclCommInitAll(made, ranks, places))
        return [ctypes.c_void_p(address) for address in made]

    def allreduce(
        self, ranks: list[ctypes.c_void_p], data: list[int], count: int, streams: list[int]
    ) -> None:
        """Starts a sum of float32 in place on each rank's stream."""
        self._check(self._library.ncclGroupStart())
        for comm, address, stream in zip(ranks, data, streams, strict=True):
            self._check(
                self._library.ncclAllReduce(address, address, count, _FLOAT32, _SUM, comm, stream)
            )
        self._check(self._library.ncclGroupEnd())

    def destroy(self, ranks: list[ctypes.c_void_p]) -> None:
        for comm in ranks:
            self._library.ncclCommDestroy(comm)

    def _check(self, result: int) -> None:
        if result:
            name = self._library.ncclGetErrorString(result).decode()
            last = (self._library.ncclGetLastError(None) or b"").decode()
            raise RuntimeError(f"NCCL: {name} {last}".strip())


def serve(
    library: str, device_name: str, ordinal: int, ranks: int, most_bytes: int, gate: bool
) -> None:
    """Answers requests until the input ends."""
    from kernels_runs import Data

    device = open_device(device_name, ordinal)
    nccl = Nccl(library)
    timer = timer_of(device, gate=gate)
    data = Data(device, ranks, most_bytes)
    streams = timer.streams(ranks)
    addresses = [_address(stream) for stream in streams]
    comms = nccl.communicators(ranks, ordinal)
    places = [memory.address for memory in data.memory]
    answer({"version": ".".join(map(str, nccl.version)), "timing": timer.how})

    def run(size_bytes: int, _: object = None) -> None:
        nccl.allreduce(comms, places, size_bytes // data.item, addresses)

    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "check" in request:
                size = request["check"]
                data.fill(size)
                run(size)
                for stream in streams:
                    device.synchronize(stream)
                wrong = data.wrong(size)
                answer({"failure": f"{wrong} wrong elements" if wrong else ""})
                continue
            size = request["size_bytes"]
            us = timer.time_us(partial(run, size), streams, request["calls"])
            answer({"us": us})
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
    options = parser.parse_args()
    try:
        o = options
        serve(o.lib, o.device, o.ordinal, o.ranks, o.most_bytes, not o.no_gate)
    except Exception as error:  # of any kind: the answer tells it
        answer({"failure": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
