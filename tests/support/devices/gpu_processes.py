"""Ranks in separate processes on one device, and their control by a test.

    python gpu_processes.py DEVICE RANK RANKS PROTOCOL ENGINE TIMEOUT_S

runs a rank. It writes one JSON object on each line: {"exchange": ...} requests the exchanged values
of all ranks, {"done": ...} gives the outcome of a call. The test distributes the exchanged values.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

HERE = Path(__file__).parent
COUNT = 1003
START_S = 120.0
"""The longest time for processes to start and to compile their kernels."""

CALLS = 10
GONE_TIMEOUT_S = 3.0
PATIENCE_S = 30.0
"""By then a call with that timeout must have ended, on a GPU that processes share in turns."""


class Ranks:
    """The processes of all ranks of an AllReduce in place. one_each: whether each sees only the GPU
    with its rank's number."""

    def __init__(
        self,
        device: str,
        ranks: int,
        protocol: str = "SIMPLE",
        engine: str = "generated",
        timeout_s: float = 20.0,
        *,
        one_each: bool = False,
    ) -> None:
        arguments = [str(ranks), protocol, engine, str(timeout_s)]
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "gpu_processes.py"), device, str(rank), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    **({"CUDA_VISIBLE_DEVICES": str(rank)} if one_each else {}),
                },
            )
            for rank in range(ranks)
        ]
        self._answers: list[Queue[dict[str, Any]]] = [Queue() for _ in self._processes]
        self._asked: dict[int, str] = {}
        self._asking, self._saying = threading.Lock(), threading.Lock()
        for rank in range(ranks):
            threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self, rank: int) -> None:
        """Starts a call on a rank, without waiting for it."""
        self._say(rank, {"command": "call"})

    def answer(self, rank: int, timeout_s: float = START_S) -> dict[str, Any]:
        """The outcome of a rank's call."""
        return self._answers[rank].get(timeout=timeout_s)

    def call(self) -> list[dict[str, Any]]:
        """A call on all ranks."""
        for rank in range(len(self._processes)):
            self.start(rank)
        return [self.answer(rank) for rank in range(len(self._processes))]

    def kill(self, rank: int) -> None:
        """Kills a process, so that it can't notify its peers."""
        self._processes[rank].kill()
        self._processes[rank].wait()

    def stop(self, rank: int) -> None:
        """Suspends a process."""
        self._processes[rank].send_signal(signal.SIGSTOP)

    def _say(self, rank: int, message: dict[str, Any]) -> None:
        pipe = self._processes[rank].stdin
        assert pipe is not None
        with self._saying:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()

    def _listen(self, rank: int) -> None:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        for line in pipe:
            message = json.loads(line)
            if "exchange" in message:
                self._exchanged(rank, message["exchange"])
            else:
                self._answers[rank].put(message["done"])
        self._answers[rank].put({"gone": self._processes[rank].wait()})

    def _exchanged(self, rank: int, message: str) -> None:
        with self._asking:
            self._asked[rank] = message
            if len(self._asked) < len(self._processes):
                return
            everything = [self._asked.pop(r) for r in range(len(self._processes))]
        for each in range(len(self._processes)):
            self._say(each, {"exchanged": everything})


def check_calls(
    device: str, ranks: int, protocol: str, engine: str, *, one_each: bool = False
) -> None:
    """Some calls of all ranks give right results."""
    with Ranks(device, ranks, protocol, engine, one_each=one_each) as processes:
        for _ in range(CALLS):
            assert processes.call() == [{"wrong": 0}] * ranks


def check_gone(device: str, how: str, timeout_s: float = GONE_TIMEOUT_S) -> None:
    """Rank 1 makes one call and is there no more; the next call of rank 0 says what waits."""
    with Ranks(device, 2, timeout_s=timeout_s) as processes:
        assert processes.call() == [{"wrong": 0}] * 2
        getattr(processes, how)(1)
        begin = time.monotonic()
        processes.start(0)
        found = processes.answer(0)
        assert time.monotonic() - begin < PATIENCE_S
        if device == "cuda" and how == "kill" and found["code"] == "K516":
            return  # the memory of the killed process is gone: CUDA leaves open what a write does
        assert found["code"] == "K508"
        assert "rank 0, block 0, step 1" in found["text"]
        assert "waits for a message from rank 1" in found["text"]
        processes.start(0)
        assert processes.answer(0)["code"] == "R508"


def _exchange(message: bytes) -> list[bytes]:
    """The executor's exchange, through the test's process."""
    print(json.dumps({"exchange": message.hex()}), flush=True)
    while "exchanged" not in (answer := json.loads(sys.stdin.readline())):
        _commands.append(answer)  # an answer that arrived early
    return [bytes.fromhex(text) for text in answer["exchanged"]]


_commands: list[dict[str, Any]] = []


def _next_commands() -> Iterator[dict[str, Any]]:
    """Runs commands until the test ends."""
    while True:
        while _commands:
            yield _commands.pop(0)
        line = sys.stdin.readline()
        if not line:
            return
        yield json.loads(line)


def _rank(
    device_name: str, rank: int, ranks: int, protocol: str, engine: str, timeout_s: float
) -> None:
    import numpy as np

    import sley
    from sley.engine.devices import Device, Engine, Executor, Settings
    from support.devices.device_calls import threads
    from support.devices.gpu_plans import ring

    def opened() -> Device:
        if device_name == "threads":
            return threads()
        from sley.engine.devices.cuda import CudaDevice

        return CudaDevice.open(0)

    device = opened()
    plan = ring(ranks, sley.Protocol[protocol])
    on = Executor(
        plan,
        {rank: device},
        Settings(engine=Engine(engine), slot_bytes=256, timeout_s=timeout_s),
        exchange=_exchange,
    )
    made = on.empty("int32", COUNT)
    memory = made[rank].memory if device.platform == "cuda" else None

    def put(values: np.ndarray[Any, Any]) -> None:
        if memory is None:
            made[rank][:] = values
        else:
            device.write(memory, 0, values.view(np.uint8))

    def got() -> np.ndarray[Any, Any]:
        if memory is None:
            return np.array(made[rank])
        found = np.empty(COUNT, np.int32)
        device.read(memory, 0, found.view(np.uint8))
        return found

    def call() -> dict[str, Any]:
        put(np.arange(COUNT, dtype=np.int32) + rank)
        on(made)
        expected = np.arange(COUNT) * ranks + ranks * (ranks - 1) // 2
        return {"wrong": int(np.count_nonzero(got() != expected))}

    for _ in _next_commands():
        try:
            done = call()
        except sley.SleyError as error:
            first = error.diagnostics[0]
            done = {"code": first.rule.code, "text": str(error)}
        print(json.dumps({"done": done}), flush=True)


if __name__ == "__main__":
    name, rank, ranks, protocol, engine, timeout_s = sys.argv[1:]
    _rank(name, int(rank), int(ranks), protocol, engine, float(timeout_s))
