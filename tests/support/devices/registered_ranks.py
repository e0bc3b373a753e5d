"""Ranks in separate processes on one device, which register memory of their own.

    python registered_ranks.py DEVICE RANK FOLDER CALLS MEMORY MEMORY ...

runs a rank of as many as there are kinds of memory, one of each rank: "allocated" by cuMemAlloc;
"mapped", with descriptors; "pooled"; "torch", PyTorch's. It prints the ranks that read its memory,
and how many elements were wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sley
from sley.algorithms import build
from sley.communicator import DeviceCommunicator, FolderStore
from sley.communicator import Settings as CallSettings
from sley.communicator.calls import kind_number
from sley.engine.devices import Device, Engine, Settings
from sley.engine.devices.device import Memory
from sley.formats.files import save
from support.devices.device_calls import current, threads
from support.devices.linked_plans import used_slots

HERE = Path(__file__).parent
COUNT = 100_003
END_S = 120.0


def check_registered(
    device: str, memory: Sequence[str], calls: int, folder: Path, *, one_each: bool = False
) -> list[list[int]]:
    """The ranks that read the memory of each rank in place; all sums are right. one_each: whether
    each process sees only the GPU with its rank's number."""
    (folder / "plans").mkdir()
    plan = build("all-pairs-allreduce", ranks=len(memory), in_place=True)  # sends what is in arrays
    save(sley.compile(plan, protocol="direct"), folder / "plans" / "pairs.plan")
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "registered_ranks.py"), device]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder), str(calls), *memory],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": path,
                **({"CUDA_VISIBLE_DEVICES": str(rank)} if one_each else {}),
            },
        )
        for rank in range(len(memory))
    ]
    try:
        ends = [json.loads(process.communicate(timeout=END_S)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [end["wrong"] for end in ends] == [0] * len(memory)
    readers = [end["readers"] for end in ends]
    for rank, end in enumerate(ends):
        assert sorted(end["staged"]) == [one for one in end["senders"] if rank not in readers[one]]
    return readers


def _memory(device: Any, kind: str, size_bytes: int) -> tuple[int, object]:
    """The address of memory, and what keeps it."""
    if kind == "torch":
        import torch

        tensor = torch.empty(size_bytes, dtype=torch.uint8, device="cuda:0")
        return tensor.data_ptr(), tensor
    if kind == "pooled":
        from cuda.bindings import driver as cu

        with current(device):
            _, address = cu.cuMemAllocAsync(size_bytes, 0)
            cu.cuStreamSynchronize(0)
        return int(address), None
    make = device.native.allocate_shared if kind == "mapped" else device.native.allocate
    made = make(size_bytes)
    return made.address, made


def _captured(device: Any, call: Callable[..., None]) -> Callable[[], None]:
    """Replays of a graph with a call, which has ended on return."""
    from cuda.bindings import driver as cu

    stream = device.stream()
    raw = cu.CUstream(device.stream_address(stream))
    with current(device):
        cu.cuStreamBeginCapture(raw, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        call(stream=stream)
        _, graph = cu.cuStreamEndCapture(raw)
        _, ready = cu.cuGraphInstantiate(graph, 0)

    def replay() -> None:
        with current(device):
            cu.cuGraphLaunch(ready, raw)
        device.synchronize(stream)

    return replay


class Rank:
    """A rank, and an array of its own somewhere in its memory."""

    def __init__(self, name: str, rank: int, folder: Path, memory: Sequence[str]) -> None:
        device: Device | str = threads() if name == "threads" else name
        self.comm = DeviceCommunicator(
            FolderStore(folder),
            rank,
            len(memory),
            device,
            settings=CallSettings(plan_dir=folder / "plans", plan_dir_strict=True),
            kernels=Settings(Engine.INTERPRETED, slot_bytes=1024, timeout_s=60),
            types=[],  # only what is called is compiled
        )
        first = 5 + 1000 * rank
        address, owner = _memory(self.comm.device, memory[rank], 4 * (first + COUNT + rank))
        self.memory = Memory(address + 4 * first, 4 * COUNT, owner)
        self.array = self.comm.device.array(self.memory, "int32", COUNT)
        self._noise = np.random.default_rng(3)

    def wrong(self, call: Callable[[], None], calls: int) -> int:
        """The number of wrong elements after each of so many calls."""
        comm, found, total = self.comm, np.empty(COUNT, np.int32), 0
        for _ in range(calls):
            data = self._noise.integers(-(2**31), 2**31, (comm.ranks, COUNT)).astype(np.int32)
            comm.device.write(self.memory, 0, data[comm.rank].view(np.uint8))
            call()
            comm.device.read(self.memory, 0, found.view(np.uint8))
            total += int(np.count_nonzero(found != data.sum(0, dtype=np.int32)))
        return total


def main(name: str, rank: int, folder: Path, calls: int, memory: Sequence[str]) -> dict[str, Any]:
    """What `check_registered` is told of a rank."""
    own = Rank(name, rank, folder, memory)
    comm, call = own.comm, partial(own.comm.all_reduce, own.array)
    first, second = comm.register(own.array), comm.register(own.array)
    assert first.readers == second.readers
    if name != "threads":  # no allocation has all of it; it is registered until the end
        beyond = comm.device.array(own.memory, "int32", 1 << 30)
        assert comm.register(beyond).readers == ()
    outcome = own.wrong(call, calls)
    ways = [call] if name == "threads" else [call, _captured(comm.device, call)]
    core = comm._core
    assert core is not None
    number = core.calls.plan_of(kind_number("all_reduce"), True, 0, 4 * COUNT)
    c = core.links.kernels[number].operands.connections
    slots = {"senders": sorted(set(c.src[c.dst == rank].tolist()))}
    slots["staged"] = [src for src, _ in used_slots(core.links, number)]
    for registration in (first, second):
        outcome += sum(own.wrong(way, 5) for way in ways)
        comm.deregister(registration)
    outcome += sum(own.wrong(way, 5) for way in ways)
    comm.close()
    return {"readers": first.readers, "wrong": outcome, **slots}


if __name__ == "__main__":
    name, rank, folder, calls, *memory = sys.argv[1:]
    print(json.dumps(main(name, int(rank), Path(folder), int(calls), memory)))
