"""Refusals of executors, with their codes: plans, settings, devices, arrays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Executor, ThreadsDevice
from support.devices.device_calls import executor, threads, wrong
from support.generators.sampling import each_value

RANKS = 2


def plan_of(name: str = "ring-allreduce", in_place: bool = True, **options: Any) -> sley.Plan:
    return sley.compile(build(name, ranks=RANKS, in_place=in_place), **options)


def refused(code: str, call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(sley.SleyError) as caught:
        call()
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


def interpreted(plan: sley.Plan, **options: Any) -> Executor:
    return executor(plan, **{"engine": Engine.INTERPRETED} | options)


def zeros(*sizes: int, dtype: str = "int32") -> list[Any]:
    return [np.zeros(n, dtype) for n in sizes]


def test_more_ranks_than_a_kernel_takes_are_refused() -> None:
    plan = sley.compile(build("binomial-broadcast", ranks=129, in_place=True))
    refused("K521", lambda: executor(plan), "at most 128 ranks", "129 ranks")


def test_as_many_ranks_as_a_kernel_takes_run_right() -> None:
    plan = sley.compile(build("binomial-broadcast", ranks=128, in_place=True))
    assert wrong(interpreted(plan), 99) == 0


def test_more_blocks_than_a_device_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadsDevice, "capacity", lambda *_: 3)
    plan = plan_of(channels=2, instances=2)
    on = interpreted(plan)
    refused("K506", lambda: on(zeros(9, 9)), "at most 3 blocks", f"{len(plan.block_rank)} blocks")


def test_more_numbers_than_a_call_can_have_are_refused() -> None:
    """A ring of 2 has 3 steps a tile, and an epoch has 2**31 - 2 numbers."""
    tables = interpreted(plan_of(), slots=2).links.tables[0]
    most = (2**31 - 2) // 3
    count = 2 * most * 256 // 4
    assert tables.cut(4, count)["tiles"] == most
    more = f"at most {most} tiles", f"{most + 1} tiles"
    refused("R503", lambda: tables.cut(4, count + 8), *more, "slot_bytes")


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128", "Direct"])
@pytest.mark.parametrize("name", ["one-step-allreduce", "ring-allreduce"])
def test_calls_of_more_than_4_gib_are_cut_whole(name: str, protocol: str) -> None:
    plan = plan_of(name, protocol=protocol)
    tables, chunks = interpreted(plan).links.tables[0], plan.collective.chunks
    for item in (1, 8):
        for count in (2**31 - 1, 2**31, 2**32 + 1):
            cut = tables.cut(item, count)
            units = -(-count * item // 16)
            assert cut["chunk"] == (count if chunks == 1 else -(-units // chunks) * 16 // item)
            assert (cut["tiles"] - 1) * cut["tile"] < cut["chunk"] <= cut["tiles"] * cut["tile"]
            scratch = [cut["chunk"] * item * number for number in plan.scratch_chunks.tolist()]
            assert tables.scratch_bytes(item, count) == scratch


@pytest.mark.parametrize("devices", [[], [0], [0, 0, 0]], ids=len)
def test_devices_for_other_ranks_are_refused(devices: list[int]) -> None:
    given = [threads() for _ in devices]
    refused("R503", lambda: Executor(plan_of(), given), "a device for 2 ranks")


@pytest.mark.parametrize("devices", [None, threads(), "threads", ["threads"] * 2, [threads(), 3]])
def test_a_value_other_than_a_device_is_refused(devices: Any) -> None:
    refused("R503", lambda: Executor(plan_of(), devices))


def test_values_other_than_a_plan_and_an_exchange_are_refused() -> None:
    program: Any = build("ring-allreduce", ranks=RANKS)
    none: Any = None
    refused("R514", lambda: Executor(program, [threads()] * RANKS), "Program")
    refused("R514", lambda: Executor(none, [threads()] * RANKS), "a plan=None")
    no_function: Any = 3
    refused("R514", lambda: Executor(plan_of(), {0: threads()}, exchange=no_function))


def test_a_mapping_with_other_ranks_is_refused() -> None:
    refused("R503", lambda: Executor(plan_of(), {0: threads(), 2: threads()}), "[0, 2]")
    alone = {5: threads()}
    refused("R503", lambda: Executor(plan_of(), alone, exchange=lambda m: [m]), "from 0 to 1")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"slots": 1}, "N652"),
        ({"slots": 0}, "R514"),
        ({"slots": 2.5}, "R514"),
        ({"slots": 2**31}, "R514"),
        ({"slot_bytes": 2**30 + 1}, "R514"),
        ({"slots": 2**30, "slot_bytes": 2**30}, "K507"),
        ({"engine": "generate"}, "R514"),
        ({"launching": ["together"]}, "R514"),
        ({"slot_bytes": 0}, "R514"),
        ({"slot_bytes": "64K"}, "R514"),
        ({"timeout_s": 0}, "R514"),
        ({"timeout_s": "long"}, "R514"),
        ({"threads": 0}, "R514"),
        ({"threads": 33}, "R514"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], code: str) -> None:
    plan = plan_of("all-pairs-allreduce", slots=2)
    assert plan.slots == 2
    refused(code, lambda: interpreted(plan, **options))


def test_engines_and_launchings_may_be_given_by_name() -> None:
    on = executor(plan_of(), engine="interpreted", launching="by-rank")
    assert on.settings.engine is Engine.INTERPRETED
    call = on.prepare(zeros(8, 8))
    assert len(call._streams) == RANKS


@pytest.mark.parametrize(("asked", "stride"), [(1000, 896), (128, 128), (127, 112), (16, 16)])
def test_slots_lie_at_whole_lines_or_vectors(asked: int, stride: int) -> None:
    """A GPU reads vectors of 16 bytes at multiples of 16, and LL128 lines of 128."""
    plan = plan_of()
    on = interpreted(plan, slot_bytes=asked)
    assert on.loaded.wiring.slot_bytes == stride
    assert wrong(on, 700) == 0


@pytest.mark.parametrize(("protocol", "dtype"), each_value(sley.Protocol, ["int8", "float64"]))
def test_slots_that_hold_no_piece_are_refused(protocol: sley.Protocol, dtype: str) -> None:
    """They hold at least a vector, a pair of words, a line; or the call is refused."""
    least = {"LL128": 128}.get(protocol.name, 16)
    plan = plan_of(protocol=protocol)
    for size in (1, 7, 8, 15, 16, 17, 127, 128):
        on = interpreted(plan, slot_bytes=size)
        if size < least:
            data = zeros(64, 64, dtype=dtype)
            refused("R506", lambda on=on, data=data: on(data), "slot_bytes=")
        else:
            assert wrong(on, 65, dtype) == 0


@pytest.mark.parametrize(
    ("inputs", "outputs", "count", "words"),
    [
        (zeros(8, 8), zeros(8, 8), None, ["no outputs: the plan runs in place"]),
        (zeros(8), None, None, ["2 data arrays", "1, for ranks [0]"]),
        (zeros(8, 8, 8), None, None, ["2 data arrays", "3, for ranks [0, 1]"]),
        ({0: zeros(8)[0], 2: zeros(8)[0]}, None, None, ["ranks [0, 1]", "ranks [0, 2]"]),
        (zeros(8, 9), None, None, ["data of rank 1", "8 elements for count=8", "9 elements"]),
        (zeros(8, 8), None, 7, ["data of rank 0", "7 elements for count=7", "8 elements"]),
        (
            [np.zeros(8, "int32"), np.zeros(8)],
            None,
            None,
            ["int32 in the data", "float64 in the"],
        ),
        ([np.zeros(8, "int32"), None], None, None, ["data of rank 1", "0 elements"]),
        ([None, None], None, None, ["an array on some rank"]),
    ],
)
def test_arrays_that_do_not_fit_in_place_are_refused(
    inputs: Any, outputs: Any, count: int | None, words: list[str]
) -> None:
    on = interpreted(plan_of())
    refused("R503", lambda: on(inputs, outputs, count=count), *words)
    assert wrong(on, 50) == 0, "nothing has happened to it"


MEMORY = np.zeros(12, np.int32)


@pytest.mark.parametrize(
    ("inputs", "outputs", "count", "words"),
    [
        (zeros(8, 8), None, None, ["outputs: the plan runs out of place"]),
        (zeros(8, 8), zeros(16), None, ["2 output arrays"]),
        (zeros(8, 8), zeros(16, 15), None, ["output of rank 1", "16 elements", "15 elements"]),
        (zeros(8, 7), zeros(16, 16), None, ["input of rank 1", "8 elements", "7 elements"]),
        (
            zeros(8, 8),
            [*zeros(16), np.zeros(16)],
            None,
            ["float64 in the output of rank 1"],
        ),
        (
            [MEMORY[:4], *zeros(4)],
            [MEMORY[3:11], *zeros(8)],
            None,
            ["output of rank 0", "shares with the input of rank 0"],
        ),
        (zeros(8, 8), zeros(16, 16), 4, ["4 elements for count=4"]),
    ],
)
def test_arrays_that_do_not_fit_out_of_place_are_refused(
    inputs: Any, outputs: Any, count: int | None, words: list[str]
) -> None:
    on = interpreted(plan_of("ring-allgather", in_place=False))
    refused("R503", lambda: on(inputs, outputs, count=count), *words)


def test_arrays_side_by_side_share_no_memory() -> None:
    on = interpreted(plan_of("ring-allgather", in_place=False))
    memory = np.arange(12, dtype=np.int32)
    outputs = [memory[4:12], *zeros(8)]
    on([memory[:4], *zeros(4)], outputs)
    assert [o.tolist() for o in outputs] == [[0, 1, 2, 3, 0, 0, 0, 0]] * 2


def test_buffers_of_half_blocks_are_refused() -> None:
    on = interpreted(plan_of("ring-allgather"))
    refused("R503", lambda: on(zeros(9, 9)), "a multiple of 2 elements", "9 elements")


def test_ranks_without_a_buffer_give_none_or_an_empty_array() -> None:
    """Their arrays are None, or empty; the type comes from the others."""
    on = interpreted(sley.compile(build("binomial-broadcast", ranks=3, in_place=False)))
    data, outputs = np.arange(7, dtype=np.int32), zeros(7, 7, 7)
    for nothing in (None, np.zeros(0)):
        on([data, nothing, nothing], outputs)
        assert [o.tolist() for o in outputs] == [data.tolist()] * 3
        outputs = zeros(7, 7, 7)


def test_elements_that_do_not_lie_side_by_side_are_refused() -> None:
    on = interpreted(plan_of())
    for array in (np.zeros(16, np.int32)[::2], np.zeros((4, 2), np.int32).T, zeros(8)[0][::-1]):
        refused("K519", lambda given=array: on([*zeros(8), given]), "ascontiguousarray", "strides")


def test_unaligned_elements_are_refused() -> None:
    odd = np.zeros(33, np.uint8)[1:].view(np.int32)
    refused("K519", lambda: interpreted(plan_of())([*zeros(8), odd]), "data of rank 1", "int32")


def test_bytes_in_another_order_are_refused() -> None:
    swapped = [array.astype(array.dtype.newbyteorder()) for array in zeros(8, 8)]
    refused("R504", lambda: interpreted(plan_of())(swapped), "int32 with its bytes swapped")


@pytest.mark.parametrize(
    "given",
    [None, 5, np.zeros(()), (a for a in zeros(8, 8))],
    ids=["nothing", "number", "scalar", "generator"],
)
def test_a_value_other_than_a_list_of_arrays_is_refused(given: Any) -> None:
    refused("R503", lambda: interpreted(plan_of())(given), "2 data arrays")


def test_written_arrays_that_share_memory_are_refused() -> None:
    on, memory = interpreted(plan_of()), np.zeros(12, np.int32)
    for given in ([memory, memory], [memory[6:], memory[1:7]]):
        refused("R503", lambda given=given: on(given), "data of rank", "shares with")
    on = interpreted(plan_of(in_place=False))
    data, outputs = zeros(8, 8), zeros(8, 8)
    refused("R503", lambda: on(data, [outputs[0], outputs[0]]), "output of rank 1")
    refused("R503", lambda: on(data, [outputs[0], data[0]]), "rank 1", "the input of rank 0")
    refused("R503", lambda: on([memory[:8], memory[2:10]], [memory[9:], *zeros(8)], count=8))
    ones = np.ones(8, np.int32)
    on([ones, ones], outputs)
    assert [o.tolist() for o in outputs] == [[2] * 8] * 2


def test_a_matrix_is_taken_as_a_row_of_elements() -> None:
    data = [np.full((2, 4), rank, np.int32) for rank in (1, 2)]
    interpreted(plan_of())(data)
    assert (np.array(data) == 3).all()


def test_arrays_that_may_not_be_written_are_refused() -> None:
    constant = np.zeros(8, np.int32)
    constant.flags.writeable = False
    on = interpreted(plan_of())
    refused("K519", lambda: on([constant, *zeros(8)]), "rank 0")
    on = interpreted(plan_of("ring-allgather", in_place=False))
    refused("K519", lambda: on(zeros(4, 4), [*zeros(8), constant]), "output of rank 1")
    out = zeros(8, 8)
    on([constant[:4], *zeros(4)], out)  # an input may be


def test_tensors_that_lack_their_elements_in_memory_are_refused() -> None:
    """PyTorch lends the memory of a negative view, which has other signs, without saying so."""
    torch = pytest.importorskip("torch")
    on, data = interpreted(plan_of()), [torch.full((8,), rank) for rank in (1, 2)]
    on(data)
    assert (torch.stack(data) == 3).all()
    refused("K519", lambda: on([data[0], torch._neg_view(data[1])]), "rank 1", "resolve_neg")
    refused("K504", lambda: on([torch.ones(8, requires_grad=True)] * 2), "rank 0", "gradient")


@pytest.mark.parametrize("dtype", ["complex64", "bool", "uint16", "object", "datetime64[s]"])
def test_types_that_no_kernel_knows_are_refused(dtype: str) -> None:
    on = interpreted(plan_of())
    refused("R504", lambda: on([np.zeros(8, dtype)] * 2), "rank 0")


def test_a_value_other_than_an_array_is_refused() -> None:
    on = interpreted(plan_of())
    for given in ([0] * 8, "zeros", 3.5, object()):
        refused("K504", lambda given=given: on([given, given]), "rank 0", "NumPy array")


def test_an_invalid_reduction_is_refused() -> None:
    refused("R504", lambda: interpreted(plan_of())(zeros(8, 8), reduce_op=9))


@pytest.mark.parametrize("count", [-1, 2.0, True, "8", 2**63])
def test_an_invalid_count_is_refused(count: Any) -> None:
    refused("R514", lambda: interpreted(plan_of())(zeros(8, 8), count=count))


@pytest.mark.parametrize("number", [-1, 1.5, "8"])
def test_room_for_what_is_no_count_is_refused(number: Any) -> None:
    on = interpreted(plan_of())
    refused("R514", lambda: on.reserve(number, "int32"))
    refused("R514", lambda: on.empty("int32", number))


def test_arrays_of_another_type_or_too_large_are_refused() -> None:
    on = interpreted(plan_of())
    refused("R504", lambda: on.reserve(8, "int31"))
    refused("R504", lambda: on.empty("int31", 8))
    refused("K507", lambda: on.empty("int32", 2**62))


def test_a_value_other_than_a_stream_is_refused() -> None:
    refused("K517", lambda: interpreted(plan_of())(zeros(8, 8), streams="x"), "'x'")


def test_another_number_of_streams_is_refused() -> None:
    on = interpreted(plan_of())
    refused("R503", lambda: on(zeros(8, 8), streams=[threads().stream()] * 2), "1 streams")


@pytest.mark.parametrize("op", [sley.ReduceOp.MAX, sley.ReduceOp.AVG], ids=lambda op: op.name)
def test_calls_about_nothing_do_nothing(op: sley.ReduceOp) -> None:
    interpreted(plan_of())(zeros(0, 0), reduce_op=op)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    on = interpreted(plan_of())
    refused("K513", lambda: on(zeros(8, 8)), "no-such-compiler on the PATH")


def test_a_text_that_does_not_compile_is_refused_with_the_compilers_words() -> None:
    refused("K503", lambda: threads().build("int f( {", ["f"]), "ended with 1", "error")


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("K507", lambda: threads().allocate(2**62), f"{2**62} bytes")


def test_devices_are_equal_by_number_and_negative_ones_refused() -> None:
    assert ThreadsDevice.open(3) == ThreadsDevice(3) != ThreadsDevice(4)
    refused("K510", lambda: ThreadsDevice.open(-1), "threads:-1")


def test_device_memory_is_zeroed_and_readable() -> None:
    memory = threads().allocate(300)
    assert memory.address % 256 == 0
    data = np.zeros(20, np.uint8)
    threads().write(memory, 100, np.arange(20, dtype=np.uint8))
    threads().read(memory, 95, data)
    assert data.tolist() == [0] * 5 + list(range(15))


def test_the_compiler_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of the same plan share what was compiled."""
    plan = plan_of()
    assert wrong(interpreted(plan), 5) == 0
    run, commands = subprocess.run, []

    def watched(command: Any, **options: Any) -> Any:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    assert wrong(interpreted(plan), 5) == 0
    assert all("--version" in command for command in commands)
