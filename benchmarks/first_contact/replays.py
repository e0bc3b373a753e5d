"""A thousand replays of a graph, alone and beside calls on another stream; and two communicators
on two streams, a thousand calls each. All data is checked at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from first_contact.lines import Lines, run_step, step_parser
from sley.communicator import DeviceCommunicator, LocalStore
from sley.engine.devices import Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.ir.words import Protocol
from support.devices.device_calls import current
from support.devices.gpu_checks import Sums
from support.devices.gpu_plans import ring
from support.processes.process_ranks import together

RANKS, COUNT, TURNS = 3, 5003, 1000


@contextmanager
def captured(device: CudaDevice, stream: Any) -> Iterator[list[Callable[[], object]]]:
    """Captures what is started on a stream into a graph, whose launch on the stream is in the list
    afterwards."""
    from cuda.bindings import driver as cu

    raw, launches = cu.CUstream(device.stream_address(stream)), list[Callable[[], object]]()

    def launch(ready: Any) -> None:
        with current(device):
            (result,) = cu.cuGraphLaunch(ready, raw)
        assert result == cu.CUresult.CUDA_SUCCESS, result.name

    with current(device):
        cu.cuStreamBeginCapture(raw, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        yield launches
        _, graph = cu.cuStreamEndCapture(raw)
        _, ready = cu.cuGraphInstantiate(graph, 0)
    launches.append(partial(launch, ready))


def opened(
    name: str, device: CudaDevice, ranks: int, dtype: str, timeout_s: float
) -> list[DeviceCommunicator]:
    """The ranks of a communicator, which are threads, on one device."""
    store, found = LocalStore(), dict[int, DeviceCommunicator]()
    kernels = Settings(timeout_s=timeout_s)

    def make(rank: int) -> None:
        options: Any = {"name": name, "kernels": kernels, "types": [dtype]}
        found[rank] = DeviceCommunicator(store, rank, ranks, device, **options)

    together([partial(make, rank) for rank in range(ranks)])
    return [found[rank] for rank in range(ranks)]


class OnePlan:
    """An executor, its data, and a stream."""

    def __init__(self, device: CudaDevice, protocol: Protocol, timeout_s: float) -> None:
        self._device, self.stream = device, device.stream()
        self._on = Executor(ring(RANKS, protocol), [device] * RANKS, Settings(timeout_s=timeout_s))
        self._sums = Sums(device, RANKS, COUNT)
        self.start = self._on.prepare(self._sums.arrays)

    def replay(self) -> Callable[[], object]:
        """A graph with a call."""
        with captured(self._device, self.stream) as launches:
            self.start(self.stream)
        return launches[0]

    def wrong(self, calls: int) -> int:
        """The number of wrong elements after so many calls on whatever streams."""
        self._device.synchronize(None)
        self._on.synchronize()
        return self._sums.wrong(calls)


class Ranks:
    """A communicator, its data, and a stream for each rank. The first call is made."""

    def __init__(self, name: str, device: CudaDevice, timeout_s: float) -> None:
        self._device, self._comm = device, opened(name, device, RANKS, "int32", timeout_s)
        self._sums = Sums(device, RANKS, COUNT)
        self._calls = [
            (partial(one.all_reduce, array), device.stream())
            for one, array in zip(self._comm, self._sums.arrays, strict=True)
        ]
        together([partial(call, stream=stream) for call, stream in self._calls])

    def start(self) -> None:
        for call, stream in self._calls:
            call(stream=stream)

    def replay(self) -> Callable[[], object]:
        """A graph with a call for each rank, on its stream."""
        every: list[Callable[[], object]] = []
        for call, stream in self._calls:
            with captured(self._device, stream) as launches:
                call(stream=stream)
            every += launches
        return lambda: [launch() for launch in every]

    def wrong(self, calls: int) -> int:
        """The number of wrong elements after so many calls, and the first one."""
        for one in self._comm:
            one.synchronize()
        return self._sums.wrong(calls + 1)


def _replays(device: CudaDevice, protocol: Protocol, timeout_s: float) -> Mapping[str, Any]:
    one = OnePlan(device, protocol, timeout_s)
    replay = one.replay()
    for _ in range(TURNS):
        replay()
    return {"wrong": one.wrong(TURNS)}


def _beside(device: CudaDevice, protocol: Protocol, timeout_s: float) -> Mapping[str, Any]:
    """A graph, and calls on another stream: in the order of their launches."""
    one, other = OnePlan(device, protocol, timeout_s), device.stream()
    replay = one.replay()
    for _ in range(TURNS):
        replay()
        one.start(other)
    return {"wrong": one.wrong(2 * TURNS)}


def _two(device: CudaDevice, timeout_s: float) -> Mapping[str, Any]:
    """Two communicators, of which the second replays a graph in every other turn."""
    one, other = (Ranks(f"replays-{n}", device, timeout_s) for n in range(2))
    replay = other.replay()
    for turn in range(TURNS):
        one.start()
        (replay if turn % 2 else other.start)()
    return {"wrong": one.wrong(TURNS) + other.wrong(TURNS)}


def step(lines: Lines, timeout_s: float) -> bool:
    device, good = CudaDevice.open(0), []
    for what, case in (("replays", _replays), ("replays beside calls", _beside)):
        for protocol in (Protocol.LL, Protocol.DIRECT):
            row = {"what": what, "protocol": protocol.name, "turns": TURNS}
            good.append(lines.attempt(row, partial(case, device, protocol, timeout_s)))
    row = {"what": "two communicators", "turns": TURNS}
    good.append(lines.attempt(row, lambda: _two(device, timeout_s)))
    return all(good)


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("replays", options.lines, lambda lines: step(lines, options.timeout_s))
