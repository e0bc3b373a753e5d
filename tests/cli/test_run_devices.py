"""Plans on devices, from Python and from the command line."""

from __future__ import annotations

import ctypes
import json
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli import main
from sley.engine import devices
from sley.engine.check import GuardedBuffer
from sley.engine.devices.execute import GuardedMemory
from sley.engine.devices.measure import CheckedData
from sley.engine.devices.names import open_devices
from sley.engine.devices.threads import ThreadsDevice
from sley.engine.kernels import Engine
from sley.engine.measure import Measurement, Sweep
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.errors.devices import K510
from sley.ir.words import Op
from sley.report.tables import ratio
from support.generators.examples import examples
from support.mutants.plan_edits import with_columns
from support.processes import rank_threads

RING = ("ring-allreduce", "--ranks", "3", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "-w", "1")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def code_of(call: Any) -> str:
    with pytest.raises(SleyError) as caught:
        call()
    return caught.value.code


def ring(*, in_place: bool = True, ranks: int = 3, **options: Any) -> sley.Plan:
    program = sley.algorithms.build("ring-allreduce", ranks=ranks, in_place=in_place)
    return sley.compile(program, **options)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class FakeGpu:
    """As many GPUs as a test wants."""

    visible = 4

    @classmethod
    def count(cls) -> int:
        return cls.visible

    @classmethod
    def open(cls, ordinal: int) -> ThreadsDevice:
        if ordinal >= cls.visible:
            raise K510.error(expected=f"one of {cls.visible}", found=str(ordinal))
        return ThreadsDevice(ordinal)


def numbers(text: str, ranks: int, ranks_per_device: int | None = None) -> list[int]:
    devices = open_devices(text, ranks, ranks_per_device)
    assert all(isinstance(device, ThreadsDevice) for device in devices)
    return [device.number for device in devices if isinstance(device, ThreadsDevice)]


@pytest.mark.parametrize(
    ("text", "ranks", "each", "expected"),
    [
        ("threads", 3, None, [0, 0, 0]),
        ("threads", 5, 2, [0, 0, 1, 1, 2]),
        ("threads:3", 2, None, [3, 3]),
        ("threads:2,0", 5, None, [2, 2, 2, 0, 0]),
        ("threads:2,threads:0", 3, 2, [2, 2, 0]),
        ("threads:0,1,2", 2, None, [0, 1]),
        ("threads:0,1,2", 2, 2, [0, 0]),
        ("cuda", 3, None, [0, 1, 2]),
        ("cuda", 8, None, [0, 0, 1, 1, 2, 2, 3, 3]),
        ("cuda", 8, 8, [0] * 8),
        ("cuda", 9, 8, [0] * 8 + [1]),
        ("cuda:1,3", 4, None, [1, 1, 3, 3]),
    ],
)
def test_names_deal_ranks_to_devices(
    text: str, ranks: int, each: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sley.engine.devices.cuda.CudaDevice", FakeGpu)
    assert numbers(text, ranks, each) == expected


@given(st.integers(1, 40), st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True))
def test_ranks_go_evenly_and_in_order(ranks: int, wanted: list[int]) -> None:
    dealt = numbers("threads:" + ",".join(map(str, wanted)), ranks)
    assert len(dealt) == ranks
    assert list(dict.fromkeys(dealt)) == wanted[:ranks]
    shares = [dealt.count(number) for number in wanted[:ranks]]
    assert max(shares) - min(shares) <= 1
    assert dealt == sorted(dealt, key=wanted.index)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "threads:",
        "threads:-1",
        "threads:1.5",
        "0,1",
        "threads,1",
        "1,threads",
        "threads:0,0",
        "threads:0,,1",
        "threads:0,cuda:1",
        "threads:\u0661",
        "cuda:4",
    ],
)
def test_an_unknown_device_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.engine.devices.cuda.CudaDevice", FakeGpu)
    assert code_of(lambda: open_devices(text, 2)) == "K510"


@pytest.mark.parametrize(
    ("text", "meant"), [("cpu", "threads"), ("gpu:0", "cuda"), ("0", "cuda:0"), ("cude", "cuda")]
)
def test_a_device_of_another_name_gets_a_hint(text: str, meant: str) -> None:
    with pytest.raises(sley.SleyError, match=f"Did you mean {meant}\\?"):
        open_devices(text, 1)


def test_too_few_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.engine.devices.cuda.CudaDevice", FakeGpu)
    assert code_of(lambda: open_devices("cuda", 9, 2)) == "K510"
    assert code_of(lambda: open_devices("threads:0,1", 5, 2)) == "K510"
    assert code_of(lambda: open_devices("threads", 5, 0)) == "R514"
    monkeypatch.setattr(FakeGpu, "visible", 0)
    assert code_of(lambda: open_devices("cuda", 2)) == "K510"


@examples(3)
@given(
    in_place=st.booleans(),
    count=st.integers(0, 70),
    dtype=st.sampled_from(["float32", "bfloat16", "int32"]),
    reduce_op=st.sampled_from([sley.ReduceOp.SUM, sley.ReduceOp.MAX, sley.ReduceOp.AVG]),
    engine=st.sampled_from(["generated", "interpreted"]),
    devices=st.sampled_from(["threads", "threads:0,1"]),
)
def test_execute_gives_what_processes_give(
    in_place: bool, count: int, dtype: str, reduce_op: sley.ReduceOp, engine: str, devices: str
) -> None:
    plan = ring(in_place=in_place)
    kind = DATA_TYPES[dtype]
    # As bits of bfloat16, 0x3F80 + small are numbers a little above 1.
    first = 0x3F80 if dtype == "bfloat16" else 1
    inputs = [((np.arange(count) + r) % 5 + first).astype(kind.array) for r in range(3)]
    kept = [array.copy() for array in inputs]
    common: dict[str, Any] = {"dtype": dtype, "count": count, "reduce_op": reduce_op}
    expected = rank_threads.execute(plan, inputs, **common)
    found = sley.execute(
        plan, inputs, devices=devices, engine=engine, slot_bytes=64, timeout_s=10, **common
    )
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [a.dtype for a in found] == [kind.array] * 3
    assert all(np.array_equal(a, b) for a, b in zip(inputs, kept, strict=True))


def test_execute_takes_ranks_without_input_and_parts_of_data() -> None:
    names = ("binomial-broadcast", "ring-allgather", "ring-reducescatter")
    for name, in_place in product(names, (False, True)):
        program = sley.algorithms.build(name, ranks=3, in_place=in_place)
        plan = sley.compile(program)
        sizes = [buffer_sizes(plan, rank, 7) for rank in range(3)]
        inputs = [
            np.arange(s.data if in_place else s.input, dtype=np.int32) + 100 * rank
            for rank, s in enumerate(sizes)
        ]
        expected = rank_threads.execute(plan, inputs, count=7)
        found = sley.execute(plan, inputs, count=7, devices="threads", engine="interpreted")
        assert [a.tolist() for a in found] == [a.tolist() for a in expected]


def test_run_measures_and_checks_on_devices() -> None:
    seen: list[Measurement] = []
    found = sley.run(
        ring(in_place=False),
        [0, 1000, 5000],
        devices="threads",
        ranks_per_device=2,
        iterations=2,
        warmup=0,
        dtype="float16",
        reduce_op=sley.ReduceOp.AVG,
        progress=seen.append,
    )
    assert seen == found
    assert [(m.size_bytes, m.count, m.wrong) for m in found] == [
        (0, 0, 0),
        (1000, 500, 0),
        (5000, 2500, 0),
    ]
    last = found[-1]
    assert last.algbw_GBps == pytest.approx(last.size_bytes / last.time_us / 1e3)
    assert last.busbw_GBps == pytest.approx(last.algbw_GBps * 4 / 3)
    unchecked = sley.run(ring(), [64], devices=[ThreadsDevice()] * 3, check=False, iterations=1)
    assert unchecked[0].wrong == -1


def test_run_counts_what_a_wrong_plan_leaves() -> None:
    """A sum that is a copy loses what the ranks before have sent."""
    plan = ring(fusion=False)
    row = int(np.flatnonzero(plan.instructions.op == Op.RECV_REDUCE_COPY)[0])
    damaged = with_columns(plan, row, op=int(Op.RECV), src_buffer=-1, src_index=-1)
    places = open_devices("threads", 3)
    (found,) = devices.run(damaged, Sweep([3000], iterations=1), places)
    assert found.wrong > 0
    (right,) = devices.run(plan, Sweep([3000], iterations=1), places)
    assert right.wrong == 0


def test_a_write_outside_an_array_is_detected() -> None:
    memory = GuardedMemory(ThreadsDevice(), 400)
    kind = DATA_TYPES["int32"]
    row = GuardedBuffer(10, kind)
    row.array[:] = range(10)
    memory.write(row)
    memory.read(row)
    assert row.array.tolist() == list(range(10))
    memory.row(kind, 11)[10] = -1
    ctypes.memset(memory.row(kind, 10).ctypes.data - 3, 0, 3)
    memory.read(row)
    assert row.count_overwritten() == 7


def test_settings_that_do_not_go_together_are_refused() -> None:
    plan, inputs = ring(), [np.ones(3, np.float32)] * 3
    devices = [ThreadsDevice()] * 3
    assert code_of(lambda: sley.run(plan, [64], engine="generated")) == "R514"
    assert code_of(lambda: sley.run(plan, [64], ranks_per_device=2)) == "R514"
    assert code_of(lambda: sley.run(plan, [64], devices=devices, ranks_per_device=2)) == "R514"
    assert code_of(lambda: sley.execute(plan, inputs, devices="threads", engine="fast")) == "R514"
    assert code_of(lambda: sley.run(plan, [64], op="sum")) == "R514"  # type: ignore[call-arg]
    assert code_of(lambda: sley.run(plan, [64], devices="threads", slot=2)) == "R514"  # type: ignore[call-arg]
    assert code_of(lambda: sley.execute(plan, inputs, devices=devices[:2])) == "R503"
    assert code_of(lambda: sley.run(plan, [64], devices="threads", iterations=0)) == "R514"


@pytest.mark.parametrize("sizes", [["1K", 2048], "3K", 3072, np.array([3072])])
def test_sizes_are_numbers_or_texts_alone_or_in_a_list(sizes: Any) -> None:
    found = sley.run(ring(), sizes, devices="threads", iterations=1)
    assert [m.size_bytes // 1020 for m in found] == ([1, 2] if len(found) == 2 else [3])


@pytest.mark.parametrize("sizes", [1e3, "1 apple", ["1K", None]])
def test_sizes_of_no_number_are_refused(sizes: Any) -> None:
    assert code_of(lambda: sley.run(ring(), sizes, devices="threads")) == "S702"


def test_a_text_of_no_size_is_refused_with_the_form_of_sizes() -> None:
    with pytest.raises(SleyError, match='a text such as "64K"'):
        sley.run(ring(), ["1 apple"], devices="threads")


def test_more_memory_than_there_is_is_refused() -> None:
    plan = ring()
    for size in (1 << 45, 1 << 60):
        run = partial(sley.run, plan, [size], devices="threads", dtype="float64")
        assert code_of(run) in ("K507", "R507")


def test_a_plan_is_proven_before_it_runs_on_devices() -> None:
    plan = ring(fusion=False)
    row = int(np.flatnonzero(plan.instructions.op == Op.RECV_REDUCE_COPY)[0])
    damaged = with_columns(plan, row, op=int(Op.RECV), src_buffer=-1, src_index=-1)
    assert code_of(lambda: sley.run(damaged, [64], devices="threads")).startswith("V2")


def test_the_command_prints_the_same_table() -> None:
    result = command("run", *RING, "--device", "threads")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1] == (
        "# 3 ranks on threads of this machine (device 0), 3 thread blocks, generated code; "
        "time is the average of the iterations"
    )
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:5] for row in rows] == [
        ["1024", "256", "float32", "sum", "-1"],
        ["4096", "1024", "float32", "sum", "-1"],
    ]
    assert [(row[8], row[12]) for row in rows] == [("0", "0"), ("0", "0")]
    assert "# Out of bounds values : 0 OK" in lines


def test_the_command_takes_several_devices_and_the_interpreter() -> None:
    result = command(
        "run", *RING, "--device", "threads", "--ranks-per-gpu", 2, "--engine", "interpreted"
    )
    assert result.exit_code == 0, result.output
    assert (
        "# 3 ranks on threads of this machine (device 0) and threads of this machine (device 1), "
        "3 thread blocks, interpreted;" in result.stdout
    )
    many = command("run", *RING, "--device", "threads", "--ranks-per-gpu", 1, "--in-place")
    assert "on 3 devices, threads of this machine (device 0) to threads" in many.stdout


def test_run_on_devices_prints_json() -> None:
    result = command("run", *RING, "--device", "threads", "--in-place", "--json")
    said = json.loads(result.stdout)
    assert said["ok"] is True
    assert said["where"].endswith("3 thread blocks, generated code")
    assert [row["in_place"]["wrong"] for row in said["rows"]] == [0, 0]
    assert [row["out_of_place"] for row in said["rows"]] == [None, None]


def test_wrong_elements_on_devices_end_in_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedData, "count_wrong", lambda *_: 2)
    result = command("run", *RING, "--device", "threads", "--in-place")
    assert result.exit_code == 1
    assert "# Out of bounds values : 4 FAILED" in result.stdout


@pytest.mark.skipif(has_driver(), reason="there is a driver")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:0,1"])
@pytest.mark.parametrize("engine", ["generated", "both"])
def test_without_a_driver_the_command_says_what_is_missing(engine: str, device: str) -> None:
    result = command("run", *RING, "--device", device, "--engine", engine)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: K501 no-cuda")
    assert "remedy:" in result.stderr
    assert "Traceback" not in result.output
    again = command("run", *RING, "--device", device, "--engine", engine, "--json")
    said = json.loads(again.stdout)
    assert said["diagnostics"][0]["code"] == "K501"


@pytest.mark.parametrize(
    "options",
    [
        ("--threads", 64),
        ("--ranks-per-gpu", 2),
        ("--engine", "generated"),
        ("--device", "processes", "--threads", 64),
        ("--device", "threads", "--threads", 33),
        ("--device", "threads", "--threads", 2048),
        ("--device", "threads", "--engine", "fast"),
        ("--device", "threads", "--ranks-per-gpu", 0),
    ],
)
def test_wrong_usage_of_devices_ends_in_code_2(options: tuple[object, ...]) -> None:
    assert command("run", *RING, *options).exit_code == 2


def test_an_unknown_device_is_refused_with_a_suggestion() -> None:
    result = command("run", *RING, "--device", "thread")
    assert result.exit_code == 2
    assert "K510" in result.stderr
    assert "Did you mean threads?" in result.stderr
    assert "sley run and sley.run use processes" in command("run", *RING, "--device", "g").stderr


def test_a_comparison_times_and_checks_both_engines_in_turn() -> None:
    calls: list[None] = []
    found = devices.compare(
        ring(),
        Sweep([1000, 3000], iterations=1, warmup=0),
        open_devices("threads", 3),
        rounds=3,
        progress=lambda: calls.append(None),
    )
    assert len(calls) == (3 + 1) * 2 * 2
    for row in found:
        assert [len(row.times_us[engine]) for engine in Engine] == [3, 3]
        assert [row.measurements[engine].wrong for engine in Engine] == [0, 0]
        middle = {engine: sorted(row.times_us[engine])[1] for engine in Engine}
        assert {e: row.measurements[e].time_us for e in Engine} == middle
        assert ratio(row) == middle[Engine.INTERPRETED] / middle[Engine.GENERATED]
