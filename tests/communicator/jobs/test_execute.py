"""The results of `execute`: types, operations, counts, loop orders, slots, in and out of place."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator.jobs import execute
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES, Array
from sley.ir.collectives import AllReduce, AllToAll, Broadcast, Custom
from sley.ir.cut import border
from sley.ir.plan import Plan
from sley.ir.words import LoopOrder, Op, ReduceOp
from support.generators.examples import examples
from support.inputs import small_plans
from support.processes import rank_threads


def bitwise(combine: np.ufunc) -> Any:
    """The combination of the bits of two arrays of one type."""

    def bits(array: Any) -> Any:
        return array.view(f"u{array.itemsize}")

    return lambda a, b: combine(bits(a), bits(b)).view(a.dtype)


BINARY = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: bitwise(np.bitwise_and),
    ReduceOp.BOR: bitwise(np.bitwise_or),
    ReduceOp.BXOR: bitwise(np.bitwise_xor),
}


def integers(ranks: int, count: int, dtype: Any = np.float32) -> list[Any]:
    generator = np.random.default_rng(count)
    return [generator.integers(0, 20, count).astype(dtype) for _ in range(ranks)]


def threads(
    plan: Plan, inputs: list[Any], *, settings: dict[str, int] | None = None, **options: Any
) -> list[Any]:
    told = rank_threads.Limits(timeout_s=10, **settings or {})
    return rank_threads.execute(plan, inputs, told, **options)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_every_type_and_operation_is_right(dtype: str, op: ReduceOp) -> None:
    kind, most = DATA_TYPES[dtype], 2 if dtype.startswith("float8") else 5
    values = [v % most + 1 for v in integers(3, 41, np.float32 if kind.is_bits else dtype)]
    inputs = [kind.bits(v) for v in values]
    is_bitwise = op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    expected = reduce(BINARY[op], inputs) if is_bitwise else kind.bits(reduce(BINARY[op], values))
    for fused in (False, True):
        outputs = threads(
            small_plans.ring_allreduce(3, fused=fused), inputs, dtype=dtype, reduce_op=op
        )
        for output in outputs:
            np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_average_divides_once_at_the_end(dtype: str) -> None:
    kind = DATA_TYPES[dtype]
    if kind.is_bits:
        values = [v % 3 for v in integers(3, 50)]  # exact sums, even of 8 bits
        expected = kind.bits(sum(values) / np.float32(3))
        inputs = [kind.bits(v) for v in values]
    else:
        values = inputs = integers(3, 50, dtype)
        if dtype.startswith("int"):
            values = inputs = [-v for v in inputs]
        total, array = sum(v.astype(np.float64) for v in values), kind.array
        is_whole = array.kind in "iu"
        expected = np.trunc(total / 3) if is_whole else total.astype(array) / array.type(3)
    for plan in (
        small_plans.ring_allreduce(3, fused=True, width=2),
        small_plans.scratch_allreduce(3, width=4),
    ):
        for output in threads(plan, inputs, dtype=dtype, reduce_op=ReduceOp.AVG):
            np.testing.assert_array_equal(output, expected.astype(output.dtype))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_types_round_to_nearest_even(name: str) -> None:
    """All bit patterns plus a random operand: the result of float32, rounded once."""
    everything = np.arange(1 << 16, dtype=np.uint16)
    other = np.random.default_rng(1).permutation(everything)
    plan = small_plans.scratch_allreduce(2)
    with np.errstate(all="ignore"):
        if name == "float16":
            a, b = everything.view(np.float16), other.view(np.float16)
            got = threads(plan, [a, b])[0]
            expected = (a.astype(np.float32) + b.astype(np.float32)).astype(np.float16)
        else:
            bits = threads(plan, [everything, other], dtype=name)[0]
            kind = DATA_TYPES[name]
            got = kind.values(bits)
            expected = kind.values(kind.bits(kind.values(everything) + kind.values(other)))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nan_wins_in_minimum_and_maximum(dtype: str, op: ReduceOp) -> None:
    a = np.array([1, np.nan, 1, np.nan] * 9, dtype)
    b = np.array([2, 2, np.nan, np.nan] * 9, dtype)
    output = threads(small_plans.ring_allreduce(2, fused=True), [a, b], reduce_op=op)[0]
    assert np.isnan(output).tolist() == [False, True, True, True] * 9


def test_integers_wrap_around() -> None:
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"):
        top = np.iinfo(dtype).max
        inputs = [np.full(20, top, dtype)] * 2
        plan = small_plans.scratch_allreduce(2)
        assert threads(plan, inputs)[0][0] == np.array(top, dtype) + np.array([top], dtype)[0:1]
        square = threads(plan, inputs, reduce_op=ReduceOp.PRODUCT)[0]
        assert square[0] == (inputs[0] * inputs[1])[0]


@pytest.mark.parametrize("order", LoopOrder)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 12, 13, 97, 4096, 5001])
def test_counts_that_chunks_do_not_divide_are_right(
    count: int, width: int, order: LoopOrder
) -> None:
    inputs = integers(3, count)
    for plan in (
        small_plans.ring_allreduce(3, fused=False, width=width, loop_order=order),
        small_plans.ring_allreduce(3, fused=True, width=width, loop_order=order),
        small_plans.scratch_allreduce(3, width=width, loop_order=order),
    ):
        slots = 64 if order is LoopOrder.INSTRUCTION else None
        for output in threads(plan, inputs, settings={"slots": slots, "slot_bytes": 1024}):
            np.testing.assert_array_equal(output, sum(inputs))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_allgather_leaves_its_inputs_as_they_are(count: int, in_place: bool) -> None:
    plan = small_plans.direct_allgather(3, in_place=in_place, chunks=2)
    parts = integers(3, count, np.int32)
    inputs = parts
    if in_place:
        inputs = [np.full(3 * count, -1, np.int32) for _ in parts]
        for rank, part in enumerate(parts):
            inputs[rank][rank * count : (rank + 1) * count] = part
    before = [array.copy() for array in inputs]
    for output in threads(plan, inputs, count=count):
        np.testing.assert_array_equal(output, np.concatenate(parts))
    for array, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, old)


@examples(14)
@given(
    ranks=st.integers(2, 5),
    count=st.integers(0, 300),
    width=st.integers(1, 3),
    slots=st.sampled_from([2, 3, 8]),
    slot_bytes=st.sampled_from([12, 16, 64, 1000, 65536]),
    fused=st.booleans(),
)
def test_tiny_slots_make_many_tiles(
    ranks: int, count: int, width: int, slots: int, slot_bytes: int, fused: bool
) -> None:
    inputs = integers(ranks, count)
    plan = small_plans.ring_allreduce(ranks, fused=fused, width=width)
    for output in threads(plan, inputs, settings={"slots": slots, "slot_bytes": slot_bytes}):
        np.testing.assert_array_equal(output, sum(inputs))


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_any_number_of_slots_gives_the_same_result(slots: int) -> None:
    inputs = integers(4, 999)
    outputs = threads(
        small_plans.scratch_allreduce(4), inputs, settings={"slots": slots, "slot_bytes": 40}
    )
    np.testing.assert_array_equal(outputs[3], sum(inputs))


def test_a_left_over_element_may_rest_in_a_chunk_that_has_none() -> None:
    """Count 1 in 2 chunks: chunk 0 has no element, yet the plan stores chunk 1 there meanwhile."""
    hand = small_plans.Hand()
    for rank in range(2):
        hand.add(rank, 0, Op.SEND, (small_plans.IN, 1), to=1 - rank)
        hand.add(rank, 0, Op.COPY, (small_plans.IN, 1), (small_plans.SCRATCH, 0))
        hand.add(rank, 0, Op.RECV, dst=(small_plans.IN, 0), of=1 - rank)
        hand.add(rank, 0, Op.REDUCE, (small_plans.IN, 0), (small_plans.IN, 1))
    plan = hand.plan(AllReduce(2, chunks=2, in_place=True), scratch=1)
    outputs = threads(plan, [np.array([3], np.int64), np.array([4], np.int64)])
    assert [o.tolist() for o in outputs] == [[7], [7]]


@pytest.mark.parametrize("slot_bytes", [8, 65536])
@pytest.mark.parametrize("op", [Op.COPY, Op.REDUCE], ids=lambda op: op.name)
@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("count", [12, 14, 60])
def test_overlapping_operands_are_read_before_they_are_overwritten(
    shift: int, count: int, op: Op, slot_bytes: int
) -> None:
    """What moves onto its neighbours, or is added to them, is what was there before. Of 14 elements
    the last chunk has two more than the others, which have no room for them."""
    hand = small_plans.Hand()
    src, dst = (0, 1) if shift > 0 else (1, 0)
    hand.add(0, 0, op, (small_plans.IN, src), (small_plans.IN, dst), count=2)
    data = np.arange(1, count + 1, dtype=np.int32)
    size = int(border(1, 3, count, 4))

    def chunks(values: Array) -> Array:
        """The elements that every chunk has."""
        return values[: 3 * size].reshape(3, size)

    expected = chunks(data).copy()
    old = expected[dst : dst + 2].copy() if op is Op.REDUCE else 0
    expected[dst : dst + 2] = chunks(data)[src : src + 2] + old
    plan = hand.plan(AllReduce(1, chunks=3, in_place=True))
    got = threads(plan, [data], settings={"slot_bytes": slot_bytes})[0]
    np.testing.assert_array_equal(chunks(got), expected)


def test_ranks_without_input_or_output_take_part() -> None:
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 0))
    hand.add(0, 0, Op.SEND, (small_plans.IN, 0), to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, 0), of=0)
    plan = hand.plan(Broadcast(3, root=0))  # rank 2 does not even have a block
    data, nothing = np.arange(9.0), np.zeros(0)
    outputs = threads(plan, [data, nothing, nothing])
    np.testing.assert_array_equal(outputs[1], data)
    assert not outputs[2].any()


def test_buffers_are_whole_blocks() -> None:
    plan = small_plans.Hand().plan(Custom("odd", 2, [3, 0], [1, 4], lambda r, i: None, chunks=2))
    assert buffer_sizes(plan, 0, 10).input == 20
    assert buffer_sizes(plan, 1, 10).output == 20
    outputs = threads(plan, [np.ones(20), np.ones(0)])
    assert [len(o) for o in outputs] == [10, 20]


def test_each_block_of_an_alltoall_is_cut_by_itself() -> None:
    """Each block is cut by itself, and begins where the one before it ends."""
    hand = small_plans.Hand()
    for rank in range(2):
        hand.add(rank, 0, Op.COPY, (small_plans.IN, 2 * rank), (small_plans.OUT, 2 * rank), count=2)
        hand.add(rank, 1, Op.SEND, (small_plans.IN, 2 - 2 * rank), count=2, to=1 - rank)
        hand.add(rank, 1, Op.RECV, dst=(small_plans.OUT, 2 - 2 * rank), count=2, of=1 - rank)
    inputs = [np.arange(10), np.arange(10, 20)]
    outputs = threads(hand.plan(AllToAll(2, chunks=2)), inputs)
    assert outputs[0].tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert outputs[1].tolist() == [5, 6, 7, 8, 9, 15, 16, 17, 18, 19]


def test_a_message_across_blocks_has_the_elements_of_both() -> None:
    """Of five elements in two chunks the second chunk has three, in both blocks."""
    hand = small_plans.Hand()
    hand.add(0, 0, Op.COPY, (small_plans.IN, 0), (small_plans.OUT, 0), count=2)
    hand.add(0, 0, Op.SEND, (small_plans.IN, 1), count=3, to=1)
    hand.add(1, 0, Op.RECV, dst=(small_plans.OUT, 1), count=3, of=0)
    plan = hand.plan(Custom("two-blocks", 2, 4, 4, lambda r, i: None, chunks=2))
    data = np.arange(1, 11)
    outputs = threads(plan, [data, data], count=5)
    assert outputs[0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    assert outputs[1].tolist() == [0, 0, 3, 4, 5, 6, 7, 8, 9, 10]


def test_processes_and_threads_agree() -> None:
    inputs = [np.random.default_rng(r).random(1237) for r in range(3)]
    plan = small_plans.ring_allreduce(3, fused=True)
    for a, b in zip(execute(plan, inputs), threads(plan, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_instruction_order_needs_more_slots_for_the_same_lists() -> None:
    """machine.md: the same lists may be right in one order and hang in the other."""
    plan = small_plans.scratch_allreduce(2)
    inputs = integers(2, 64)
    np.testing.assert_array_equal(
        threads(plan, inputs, settings={"slot_bytes": 16})[0], sum(inputs)
    )
    by_instruction = replace(plan, loop_order=LoopOrder.INSTRUCTION)
    outputs = threads(by_instruction, inputs, settings={"slot_bytes": 16, "slots": 16})
    np.testing.assert_array_equal(outputs[0], sum(inputs))
