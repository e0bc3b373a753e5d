"""Calls of a communicator's ranks, which choose their plan by size: `native.DeviceCalls`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine import native
from sley.engine.devices import LinkSet, Settings
from sley.engine.devices.programs import Programs
from sley.engine.kernels import KERNELS
from sley.engine.native import StartOutcome
from sley.engine.types import data_type
from support.devices.device_calls import TIMEOUT_S, threads
from support.processes.process_ranks import Meeting, together

RANKS, KIND, INT8 = 3, 4, data_type("int8")
ENDS = [100, 301]


class Rank:
    """A rank with two plans, for other results: sums up to ENDS[0] bytes, which need scratch, and
    again beyond ENDS[1]; rank 0's data in between."""

    def __init__(self, rank: int, exchange: Callable[[bytes], Sequence[bytes]]) -> None:
        plans = [
            sley.compile(build(name, ranks=RANKS, in_place=True), protocol="Direct")
            for name in ("one-step-allreduce", "binomial-broadcast")
        ]
        settings = Settings("interpreted", timeout_s=TIMEOUT_S)
        self.links = LinkSet(plans, {rank: threads(rank)}, settings, exchange=exchange)
        self.stream = threads(rank).stream()
        self.calls = native.DeviceCalls(
            self.links.order, self.links.memory.index, rank, together=True
        )
        for (plan,) in self.links.on_devices:
            self.calls.add_plan(plan)
        self.calls.set_table(KIND, True, 0, ENDS, [0, 1, 0])
        self.programs = Programs(self.links)

    def start(self, data: Any, size_bytes: int) -> StartOutcome:
        place = data.ctypes.data, size_bytes, 0, 0, threads().stream_address(self.stream)
        fixed = KIND, True, 0, INT8.number, 0
        return self.calls.start(*fixed, size_bytes, 1, size_bytes, *place, keeps=data)

    def call(self, data: Any) -> list[StartOutcome]:
        """Makes a call, and what it lacks before; what it was told until then."""
        told, links = [], self.links
        while len(told) < 3 and (outcome := self.start(data, data.size)):
            told.append(outcome)
            number = self.calls.plan_of(KIND, True, 0, data.size)
            if outcome == StartOutcome.LACKS_PROGRAM:
                (made,) = self.programs.of(
                    number, INT8, sley.ReduceOp.SUM, scales=False, wait=links.wait
                )
                self.calls.set_program(number, INT8.number, 0, False, made[KERNELS[0]], 0)
            else:
                most = max(links.tables[number].scratch_bytes(1, data.size))
                links.memory.grow([most] * RANKS, links.wait)
        return told


def test_calls_run_the_plan_of_their_size_and_tell_what_they_lack() -> None:
    """Each end is the last size of its plan. A refused call disturbs no later one."""
    meeting = Meeting(RANKS)

    def process(rank: int) -> None:
        own = Rank(rank, meeting.exchange(rank))
        before = np.zeros(0, np.int8)
        assert own.call(before) == [], "a call of nothing lacks nothing"
        every = []
        for size, lacks in (
            (100, [StartOutcome.LACKS_PROGRAM, StartOutcome.LACKS_SCRATCH]),
            (101, [StartOutcome.LACKS_PROGRAM]),
            (1, []),
            (301, []),
            (302, [StartOutcome.LACKS_SCRATCH]),
            (0, []),
            (5000, [StartOutcome.LACKS_SCRATCH]),
            (250, []),
        ):
            data = np.full(size, rank + 1, np.int8)
            assert own.call(data) == lacks, size
            every.append(data)
            if size == 302:
                with pytest.raises(sley.SleyError) as caught:
                    own.start(data, 2**60)
                assert caught.value.code == "R503"
        threads(rank).synchronize(own.stream)
        for data in every:
            expected = 1 if 100 < data.size <= 301 else 6
            np.testing.assert_array_equal(data, expected, str(data.size))
        own.links.close()

    together([lambda rank=rank: process(rank) for rank in range(RANKS)])
