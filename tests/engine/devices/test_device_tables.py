"""Plans' tables as files: what is read back runs as before, and damage is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine import native
from sley.engine.devices import Executor, Settings, ThreadsDevice, link_layout, tables
from sley.engine.kernels import Kernels
from sley.errors import SleyError
from support.devices.device_calls import executor, wrong


def test_tables_that_were_written_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = link_layout.plan_tables
    monkeypatch.setattr(
        link_layout,
        "plan_tables",
        lambda *given: native.PlanTables.from_bytes(made(*given).to_bytes()),
    )
    plan = sley.compile(build("all-pairs-allreduce", ranks=3, in_place=False), protocol="Direct")
    on = executor(plan, engine="interpreted")
    assert [wrong(on, count) for count in (1, 1000)] == [0, 0]


def test_damaged_tables_are_refused() -> None:
    on = executor(sley.compile(build("ring-allreduce", ranks=3, in_place=True)))
    written = on.links.tables[0].to_bytes()
    damaged = [written[:-1], written + b"\0", b"", written[:20], written[:14] + bytes(8)]
    number = random.Random(1)
    for at in number.sample(range(len(written)), 100):
        other = bytes([written[at] ^ number.randrange(1, 256)])
        damaged.append(written[:at] + other + written[at + 1 :])
    for data in damaged:
        with pytest.raises(SleyError) as caught:
            native.PlanTables.from_bytes(data)
        assert caught.value.code == "F425"


def test_equal_tables_have_equal_bytes() -> None:
    """Also in what no field names, which NumPy leaves undefined in a copy by fields."""
    kernels = Kernels.of(sley.compile(build("ring-allreduce", ranks=3, in_place=True)))
    old = [np.full(size, 255, np.uint8) for size in range(1, 1024) for _ in range(3)]
    del old  # small pieces of memory are used again
    rows = tables.blocks(kernels)
    plain = np.zeros(len(rows), rows.dtype)
    for name in rows.dtype.names or ():
        plain[name] = rows[name]
    assert rows.tobytes() == plain.tobytes()


@pytest.mark.parametrize(
    ("protocol", "devices", "small", "medium"),
    [
        ("LL", 1, 3072, 7168),
        ("LL128", 2, 5760, 13440),
        ("Simple", 2, 6144, 14336),
        ("Simple", 1, 0, 256 << 10),
    ],
)
def test_blocks_have_threads_by_the_length_of_messages(
    protocol: str, devices: int, small: int, medium: int
) -> None:
    """In whole units of 16 bytes, of which a ring of two ranks sends half of the data."""
    plan = sley.compile(build("ring-allreduce", ranks=2, in_place=True), protocol=protocol)
    places = [ThreadsDevice(rank % devices) for rank in range(2)]
    for settings, expected in (
        (Settings(), [128] * (small > 0) + [256, 256, 512]),
        (Settings(threads=64), [64] * (3 + (small > 0))),
    ):
        with Executor(plan, places, settings) as on:
            (made,) = on.links.tables
            lengths = [length for length in (small, small + 16, medium, medium + 16) if length]
            assert [made.threads(4, 2 * length // 4) for length in lengths] == expected
