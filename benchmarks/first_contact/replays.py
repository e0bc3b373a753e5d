"""A thousand replays of a graph, alone and beside calls on another stream; and two communicators
on two streams, a thousand calls each. All data is checked at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from first_contact.lines import Lines, run_step, step_parser
from sley.engine.devices import Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from sley.ir.words import Protocol
from support.devices.device_calls import current
from support.devices.gpu_checks import Sums
from support.devices.gpu_plans import ring

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


class Communicator:
    """A communicator with data of its own, and a stream."""

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


def _replays(device: CudaDevice, protocol: Protocol, timeout_s: float) -> Mapping[str, Any]:
    one = Communicator(device, protocol, timeout_s)
    replay = one.replay()
    for _ in range(TURNS):
        replay()
    return {"wrong": one.wrong(TURNS)}


def _beside(device: CudaDevice, protocol: Protocol, timeout_s: float) -> Mapping[str, Any]:
    """A graph, and calls on another stream: in the order of their launches."""
    one, other = Communicator(device, protocol, timeout_s), device.stream()
    replay = one.replay()
    for _ in range(TURNS):
        replay()
        one.start(other)
    return {"wrong": one.wrong(2 * TURNS)}


def _two(device: CudaDevice, protocol: Protocol, timeout_s: float) -> Mapping[str, Any]:
    both = [Communicator(device, protocol, timeout_s) for _ in range(2)]
    for _ in range(TURNS):
        for one in both:
            one.start(one.stream)
    return {"wrong": sum(one.wrong(TURNS) for one in both)}


CASES = {
    "replays": _replays,
    "replays beside calls": _beside,
    "two communicators": _two,
}


def step(lines: Lines, timeout_s: float) -> bool:
    device, good = CudaDevice.open(0), []
    for what, case in CASES.items():
        for protocol in (Protocol.LL, Protocol.DIRECT):
            row = {"what": what, "protocol": protocol.name, "turns": TURNS}
            good.append(lines.attempt(row, partial(case, device, protocol, timeout_s)))
    return all(good)


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("replays", options.lines, lambda lines: step(lines, options.timeout_s))
