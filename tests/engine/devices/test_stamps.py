"""The times that the blocks of a call note, as a simulation with them."""

from __future__ import annotations

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine
from sley.engine.kernels import Kernels
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.connections import Messages
from sley.ir.tables import NONE
from sley.report.simulation import simulation_lines
from sley.report.trace import trace
from support.devices.device_calls import executor, wrong
from support.generators.sampling import each_value

RANKS, COUNT, TOPOLOGY = 3, 3000, "1x3"


@pytest.mark.parametrize(
    ("protocol", "engine", "name"),
    each_value([*sley.Protocol, "LL"], Engine, ["ring-allreduce"] * 4 + ["all-pairs-allreduce"]),
)
def test_blocks_note_when_they_do_what(
    protocol: sley.Protocol | str, engine: Engine, name: str
) -> None:
    """Runs as their first instruction."""
    program = build(name, ranks=RANKS, in_place=True)
    plan = sley.compile(program, protocol=protocol, allocate="instance")
    rows = np.arange(len(plan.instructions))
    first = np.where(Kernels.of(plan).operands.runs.length > 0, rows, 0)
    noted, number = np.unique(np.maximum.accumulate(first), return_inverse=True)
    has_runs = name != "ring-allreduce" and protocol is not sley.Protocol.LL128
    assert (len(noted) < len(rows)) is has_runs
    on = executor(plan, engine=engine, slot_bytes=2048, stamps=True)
    assert wrong(on, COUNT, "int32") == 0
    simulation = sley.simulate(plan, COUNT * DATA_TYPES["int32"].size_bytes, TOPOLOGY)
    found = on.timeline(simulation)
    e, b = found.executions, found.blocks
    assert e is not None
    assert found.tiles > 1
    ran = np.lexsort((e.tile, e.instruction))
    assert np.array_equal(e.instruction[ran], np.repeat(noted, found.tiles))
    assert np.array_equal(e.tile[ran], np.tile(np.arange(found.tiles), len(noted)))
    assert (e.turn_us <= e.start_us).all()
    assert (e.start_us <= e.end_us).all()
    before = e.after != NONE
    assert (e.end_us[e.after[before]] <= e.turn_us[before]).all(), "a block does one at a time"
    assert (e.turn_us >= found.launch_us).all()
    assert (e.end_us <= b.end_us[plan.block[e.instruction]]).all()
    ends, turns = (of[ran].reshape(-1, found.tiles)[number] for of in (e.end_us, e.turn_us))
    send = Messages.of(plan).send_of
    taken = send != NONE
    assert (ends[taken] >= turns[send[taken]]).all(), "a message is taken before it is sent"
    moves = [event for event in trace(found)["traceEvents"] if "move" in event.get("cat", "")]
    assert len(moves) == len(e)
    text = "\n".join(simulation_lines(found))
    assert f"time                   {found.time_us:.1f} us" in text
    assert "model's error" not in text


def test_a_run_waits_for_messages_though_it_begins_with_a_copy() -> None:
    plan = sley.compile(build("flat-gather", ranks=RANKS), allocate="instance")
    on = executor(plan, engine=Engine.INTERPRETED, stamps=True)
    assert wrong(on, COUNT, "int32") == 0
    found = on.timeline(sley.simulate(plan, COUNT * 4 * RANKS, TOPOLOGY)).blocks
    assert found.message_us[0] > 0
    assert found.slot_us[0] == 0, "the root sends nothing"


def test_without_stamps_there_is_no_time_line() -> None:
    names = ("ring-allgather", "all-pairs-allgather")
    plan, other = (sley.compile(build(name, ranks=RANKS)) for name in names)
    for stamps, expected in ((False, "stamps=True"), (True, "simulation of")):
        on = executor(plan, engine=Engine.INTERPRETED, stamps=stamps)
        with pytest.raises(SleyError, match=expected):
            on.timeline(sley.simulate(other, 1 << 10, TOPOLOGY))


def test_a_time_line_is_of_the_last_call() -> None:
    plan = sley.compile(build("ring-allreduce", ranks=RANKS))
    on = executor(plan, engine=Engine.INTERPRETED, stamps=True)
    simulation = sley.simulate(plan, COUNT * 4, TOPOLOGY)
    with pytest.raises(SleyError, match="a call with the executor first"):
        on.timeline(simulation)
    for count in (7, COUNT, 7):
        assert wrong(on, count, "int32") == 0
    with pytest.raises(SleyError, match="last call's 28 bytes"):
        on.timeline(simulation)
