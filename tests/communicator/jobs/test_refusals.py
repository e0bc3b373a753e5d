"""Refusals before a run: plans that would access memory out of bounds, wrong inputs, settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sley.communicator import Settings
from sley.communicator.jobs import execute, run
from sley.engine.limits import LONGEST_TIMEOUT_S
from sley.engine.measure import Sweep
from sley.errors import SleyError
from sley.ir.collectives import AllReduce, Custom
from sley.ir.plan import Plan
from sley.ir.tables import Edges
from sley.ir.words import Op, ReduceOp
from support.inputs import small_plans
from support.processes import rank_threads

PLAN = small_plans.ring_allreduce(3, fused=False, width=2)
INPUTS = [np.ones(60, np.float32)] * 3


def told(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a call, those of Settings as one."""
    own = {
        name: options.pop(name) for name in ("slots", "slot_bytes", "timeout_s") & options.keys()
    }
    return {"settings": Settings(**own), **options}


def refusal(code: str, plan: Plan = PLAN, inputs: Any = None, **options: Any) -> str:
    with pytest.raises(SleyError) as caught:
        execute(plan, INPUTS if inputs is None else inputs, **told(options))
    assert caught.value.code == code
    return str(caught.value)


def mutated(row: int, column: str, value: int, plan: Plan = PLAN) -> Plan:
    values = getattr(plan.instructions, column).astype(np.int64).copy()
    values[row] = value
    return replace(plan, instructions=replace(plan.instructions, **{column: values}))


SEND = int(PLAN.sends[0])
RECV = int(PLAN.receives[0])
MUTATIONS = [
    (SEND, "src_index", 5),
    (SEND, "src_index", -1),
    (SEND, "src_index", 2**31 - 1),
    (SEND, "src_buffer", 2),
    (SEND, "src_buffer", 7),
    (SEND, "src_buffer", -1),
    (SEND, "count", 0),
    (SEND, "count", -3),
    (SEND, "count", 3),
    (SEND, "count", 2**31 - 1),
    (SEND, "send_peer", 3),
    (SEND, "send_peer", -1),
    (SEND, "send_peer", 0),
    (SEND, "send_peer", 2),
    (SEND, "channel", -1),
    (SEND, "channel", 1),
    (SEND, "op", 10),
    (SEND, "op", -1),
    (SEND, "op", int(Op.NOP)),
    (RECV, "dst_index", 5),
    (RECV, "dst_buffer", 2),
    (RECV, "recv_peer", -2),
    (RECV, "recv_peer", 1),
]


@pytest.mark.parametrize(("row", "column", "value"), MUTATIONS)
def test_a_wrong_value_in_an_instruction_is_refused(row: int, column: str, value: int) -> None:
    message = refusal("V201", mutated(row, column, value))
    if column in ("src_index", "dst_index", "src_buffer", "dst_buffer"):
        assert f"{small_plans.FILE}:" in message


def test_random_mutations_never_leave_memory() -> None:
    """Whatever one column of one row says: it is refused, or runs (perhaps stalls) harmlessly."""
    generator = np.random.default_rng(7)
    columns = ("op", "src_buffer", "src_index", "dst_buffer", "dst_index", "count", "channel")
    for _ in range(300):
        row = int(generator.integers(len(PLAN.instructions)))
        column = columns[generator.integers(len(columns))]
        plan = mutated(row, column, int(generator.integers(-2, 11)))
        try:
            rank_threads.execute(plan, INPUTS, rank_threads.Limits(timeout_s=0.05))
        except SleyError as error:
            assert error.code in ("V201", "R502")


@pytest.mark.parametrize(
    "change",
    [
        {"block_offset": np.array([0, 2, 1, len(PLAN.instructions)])},
        {"block_offset": np.array([0, 1, 2, 3])},
        {"block_rank": np.array([0, 2, 1])},
        {"block_rank": np.array([0, 1, 3])},
        {"block_rank": np.array([-1, 1, 2])},
        {"scratch_chunks": np.array([0, 0])},
        {"scratch_chunks": np.array([0, -1, 0])},
        {"waits": Edges(np.array([0, 1]), np.array([0]))},
        {"slots": 0},
        {"instructions": replace(PLAN.instructions, source=PLAN.instructions.source + 10**6)},
    ],
)
def test_wrong_blocks_are_refused(change: dict[str, Any]) -> None:
    refusal("V201", replace(PLAN, **change))


@pytest.mark.parametrize("target", [-5, 10**6, len(PLAN.instructions) - 1])
def test_a_wait_outside_the_rank_is_refused(target: int) -> None:
    rows = len(PLAN.instructions)
    offset = np.ones(rows + 1, np.int64)
    offset[0] = 0
    refusal("V201", replace(PLAN, waits=Edges(offset, np.array([target]))))


def test_two_blocks_on_one_connection_are_refused() -> None:
    hand = small_plans.Hand()
    for block in (0, 1):
        hand.add(0, block, Op.SEND, (small_plans.IN, 0), to=1)
        hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, 0), of=0)
    said = refusal("V201", hand.plan(AllReduce(2)), INPUTS[:2])
    assert "one sending block for the connection from rank 0 to rank 1, channel 0" in said
    assert "blocks 0 and 1 of rank 0" in said


def test_a_message_that_nobody_receives() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.SEND, (small_plans.IN, 0), to=1)
    assert "1 send, 0 receives" in refusal("V201", hand.plan(AllReduce(2)), INPUTS[:2])


def test_messages_of_different_lengths_are_refused() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.SEND, (small_plans.IN, 0), count=2, to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, 0), of=0)
    said = refusal("V201", hand.plan(AllReduce(2, chunks=2)), INPUTS[:2])
    assert "2 chunks sent, 1 received" in said


@pytest.mark.parametrize(
    "inputs",
    [
        INPUTS[:2],
        [np.ones(60, np.float32), np.ones(59, np.float32), np.ones(60, np.float32)],
        [np.ones((6, 10), np.float32)] * 3,
        [np.ones(60, np.float32), np.ones(60, np.float64), np.ones(60, np.float32)],
    ],
)
def test_wrong_inputs_are_refused(inputs: Any) -> None:
    refusal("R503", inputs=inputs)


def test_inputs_that_are_no_whole_blocks_are_refused() -> None:
    plan = small_plans.direct_allgather(3, in_place=True)
    refusal("R503", plan, [np.ones(10)] * 3)


def test_unknown_types_and_operations_are_refused() -> None:
    refusal("R504", dtype="complex64")
    refusal("R504", inputs=[np.ones(60, complex)] * 3)
    refusal("R504", reduce_op=9)
    refusal("R504", reduce_op="summ")
    refusal("R503", dtype="bfloat16")


def test_fewer_slots_than_the_plan_was_made_for_are_refused() -> None:
    with pytest.raises(SleyError, match="N652"):
        rank_threads.execute(PLAN, INPUTS, rank_threads.Limits(slots=1))


def test_a_slot_too_small_for_an_element_of_each_chunk_is_refused() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.SEND, (small_plans.IN, 0), count=9, to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, 0), count=9, of=0)
    plan = hand.plan(AllReduce(2, chunks=9))
    inputs = [np.ones(9)] * 2
    assert "slot_bytes >= 72: 9 chunks" in refusal("R506", plan, inputs, slot_bytes=64)
    execute(plan, [one.astype(np.float32) for one in inputs], Settings(slot_bytes=64))
    rank_threads.execute(PLAN, INPUTS, rank_threads.Limits(slot_bytes=8))


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": 1},
        {"slots": 10**23},
        {"slots": 2.0},
        {"slots": True},
        {"slot_bytes": 63},
        {"slot_bytes": 4.5},
        {"slot_bytes": 10**23},
        {"slot_bytes": "64K"},
        {"count": -1},
        {"count": 64.0},
        {"count": 10**23},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"timeout_s": 1e10},
        {"timeout_s": 1e300},
        {"timeout_s": 10**400},
        {"timeout_s": "5"},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    assert next(iter(options)) in refusal("R514", **options)


def test_the_longest_timeout_is_waited_for() -> None:
    outputs = execute(PLAN, INPUTS, Settings(timeout_s=LONGEST_TIMEOUT_S))
    np.testing.assert_array_equal(outputs[0], np.full(60, 3.0))


def test_numbers_of_numpy_are_numbers() -> None:
    options = {"slots": np.int64(3), "slot_bytes": np.int32(64), "timeout_s": np.float32(5)}
    outputs = execute(PLAN, INPUTS, count=np.int32(60), **told(options))
    np.testing.assert_array_equal(outputs[0], np.full(60, 3.0))


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 0},
        {"iterations": 10**23},
        {"iterations": 1.5},
        {"warmup": -1},
        {"warmup": 10**23},
        {"sizes_bytes": [-1]},
        {"sizes_bytes": [64, 1e3]},
        {"sizes_bytes": [10**23]},
    ],
)
def test_settings_of_a_measurement_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SleyError) as caught:
        run(PLAN, Sweep(**({"sizes_bytes": [64]} | options)))
    assert caught.value.code == "R514"


def test_too_little_memory_for_outputs_is_told() -> None:
    """Ranks without inputs, whose outputs are as long as `count` says."""
    plan = small_plans.Hand().plan(Custom("nothing", 2, 0, 1, lambda rank, index: None))
    nothing = [np.zeros(0, np.float32)] * 2
    for count in (1 << 45, 1 << 62):
        with pytest.raises(SleyError) as caught:
            execute(plan, nothing, count=count)
        assert caught.value.code == "R507"
        assert f"{8 * count:,} bytes" in str(caught.value)


def test_too_little_memory_for_scratch_is_told() -> None:
    plan = small_plans.scratch_allreduce(2)
    plan = replace(plan, scratch_chunks=np.full(2, 2**31 - 1))
    with pytest.raises(SleyError) as caught:
        execute(plan, [np.zeros(1 << 16)] * 2)
    assert caught.value.code == "R507"
    assert f"{2 * (2**31 - 1) * 8 << 16:,}"[:9] in str(caught.value)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_too_little_memory_for_a_measurement_is_told(size: int) -> None:
    with pytest.raises(SleyError) as caught:
        run(PLAN, Sweep([size]))
    assert caught.value.code == "R507"
    assert f"{3 * size:,} bytes of memory for buffers and scratch of 3 ranks" in str(caught.value)
    assert "ulimit" not in str(caught.value)


def test_the_engine_itself_refuses_memory_of_a_wrong_size() -> None:
    from sley.engine import native
    from sley.engine.program import load

    loaded = load(PLAN, None, 1024)
    fabric = rank_threads.fabrics(loaded.wiring)[0]
    engine = loaded.programs[0].engine(fabric, loaded.wiring)
    memory = np.zeros(241, np.uint8)
    for size in (0, 239, 241):
        call = native.Call.create(60, 2, int(ReduceOp.SUM), memory.ctypes.data, size, 0, 0)
        with pytest.raises(ValueError, match="wrong size"):
            rank_threads.run_met(engine, call, fabric, rank_threads.Limits(timeout_s=0.1))
    assert native.ProgramFault.__module__ == "sley.engine._native"


@pytest.mark.parametrize("column", ["send", "recv"])
@pytest.mark.parametrize("connection", ["another rank's", -1, 3])
def test_the_engine_itself_refuses_connections(column: str, connection: Any) -> None:
    """`load` never makes such programs; the engine does not rely on it."""
    from sley.engine import native
    from sley.engine.program import load

    loaded = load(PLAN, None, 1024)
    ends = loaded.wiring.src if column == "send" else loaded.wiring.dst
    if not isinstance(connection, int):
        connection = int(np.flatnonzero(ends != 0)[0])
    program, wiring = loaded.programs[0], loaded.wiring
    found = getattr(program, column)
    broken = replace(program, **{column: np.where(found >= 0, np.int32(connection), found)})
    with pytest.raises(native.ProgramFault, match="connection"):
        broken.engine(rank_threads.fabrics(wiring)[0], wiring)


def test_the_engine_itself_refuses_two_blocks_on_one_connection() -> None:
    from sley.engine import native
    from sley.engine.program import load

    loaded = load(PLAN, None, 1024)
    program, wiring = loaded.programs[0], loaded.wiring
    middle = int(np.flatnonzero(program.send >= 0)[1])
    broken = replace(program, block_offset=np.insert(program.block_offset, 1, middle))
    with pytest.raises(native.ProgramFault, match="two thread blocks"):
        broken.engine(rank_threads.fabrics(wiring)[0], wiring)
