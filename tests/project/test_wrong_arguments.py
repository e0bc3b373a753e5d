"""Sizes and topologies as arguments: every function takes the same texts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sley
from sley.compiler.options import OptionWords
from sley.ir.sizes import SizeRange
from sley.model.bounds import Bounds, bound
from sley.model.simulation import Simulator

RING = sley.algorithms.ring_allreduce(8)
PLAN = sley.compile(RING)
PAIR = sley.compile(sley.algorithms.ring_allreduce(2))
NDV4 = sley.topologies.ndv4()
ONE = {"instances": 1, "channels": 1, "protocol": "Simple", "schedule": "msccl"}


@pytest.mark.parametrize(
    "call",
    [
        lambda topology: sley.compile(RING, topology=topology),
        lambda topology: sley.choose(RING, "1M", topology, **ONE),
        lambda topology: sley.simulate(PLAN, "1M", topology),
        lambda topology: Simulator(PLAN, topology)("1M"),
        lambda topology: Bounds.of(PLAN.collective, topology).at("1M"),
        lambda topology: bound(PLAN.collective, topology, "1M"),
    ],
)
def test_the_name_of_a_topology_stands_for_it(call: Callable[[Any], object]) -> None:
    assert call("ndv4") == call(NDV4)
    with pytest.raises(sley.SleyError, match=r"T604(?s:.*)Did you mean ndv4"):
        call("ndv44")
    with pytest.raises(sley.SleyError, match="C307"):
        call(8)


@pytest.mark.parametrize("several", [("1M", 4096), np.array([2**20, 4096])])
def test_several_sizes_give_a_list_in_their_order(several: Any) -> None:
    found = sley.simulate(PLAN, several, NDV4)
    assert found == [sley.simulate(PLAN, size, NDV4) for size in (2**20, 4096)]
    measured = sley.run(PAIR, several, iterations=1, warmup=0)
    assert [m.size_bytes for m in measured] == [2**20, 4096]
    choices = sley.choose(RING, several, NDV4, **ONE)
    assert choices.sizes == SizeRange(4096, 2**20)


@pytest.mark.parametrize("size", ["4K", np.int64(4096)])
def test_one_size_is_a_number_or_a_text(size: Any) -> None:
    assert sley.simulate(PLAN, size, NDV4).size_bytes == 4096
    assert [m.size_bytes for m in sley.run(PAIR, size, iterations=1, warmup=0)] == [4096]
    assert sley.choose(RING, size, NDV4, **ONE).at(size).sizes == SizeRange(4096, 4096)
    assert sley.compile(RING, topology=NDV4, schedule="auto", size=size, channels=1, instances=1)


@pytest.mark.parametrize("sizes", [[], "64 apples", ["4K", -1], 1.5, None])
def test_every_function_refuses_the_same_sizes(sizes: Any) -> None:
    for call in (
        lambda: sley.simulate(PLAN, sizes, NDV4),
        lambda: sley.choose(RING, sizes, NDV4, **ONE),
        lambda: sley.run(PAIR, sizes),
    ):
        with pytest.raises(sley.SleyError, match="S702"):
            call()


def test_a_reduction_is_a_member_or_its_name() -> None:
    for op in ("MAX", 3):
        found = sley.run(PAIR, "4K", reduce_op=op, iterations=1, warmup=0)
        assert [(m.reduce_op, m.wrong) for m in found] == [(sley.ReduceOp.MAX, 0)]
    ones = [np.ones(4, np.float32), np.full(4, 3, np.float32)]
    assert sley.execute(PAIR, ones, reduce_op="max")[0].tolist() == [3.0] * 4
    with pytest.raises(sley.SleyError, match=r"R504(?s:.*)Did you mean max"):
        sley.run(PAIR, "4K", reduce_op="maxx")


def test_arguments_of_the_compiler_are_the_fields_of_options_by_name() -> None:
    fields = {f.name: str(f.type) for f in dataclasses.fields(sley.Options)}
    words = {name: str(kind.__forward_arg__) for name, kind in OptionWords.__annotations__.items()}
    assert {name: kind.replace(" | str", "") for name, kind in words.items()} == fields
    assert "phase" not in inspect.signature(sley.compile).parameters


def test_the_name_of_an_algorithm_is_refused_with_the_call_that_builds_it() -> None:
    remedy = r"C307(?s:.*)sley\.algorithms\.build\('ring-allreduce', ranks=8\)"
    with pytest.raises(sley.SleyError, match=remedy):
        sley.compile("ring-allreduce")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [5, None, b"ring-allreduce"])
def test_what_is_loaded_is_a_text_or_a_path(what: Any) -> None:
    with pytest.raises(sley.SleyError, match=r"C307(?s:.*)the path of a file"):
        sley.load(what)


def test_a_value_is_loaded_of_the_class_that_is_asked_for() -> None:
    assert sley.load("ring-allreduce", sley.Program, ranks=2).ranks == 2
    with pytest.raises(sley.SleyError, match=r"C307(?s:.*)a Plan\n(?s:.*)a Program\n"):
        sley.load("ring-allreduce", sley.Plan, ranks=2)
    with pytest.raises(sley.SleyError, match=r"C307(?s:.*)sley\.Program or sley\.Plan"):
        sley.load("ring-allreduce", "plan", ranks=2)  # type: ignore[call-overload]


def test_numbers_are_no_bools_and_do_not_overflow() -> None:
    with pytest.raises(sley.SleyError, match="R514"):
        sley.verify(PLAN, slots=True)
    assert sley.algorithms.ring_allreduce(np.uint8(200)) == sley.algorithms.ring_allreduce(200)
    assert sley.AllReduce(np.uint8(20), np.uint8(20)) == sley.AllReduce(20, 20)
