"""The order of sums: what the proof says is what an execution does."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import sley
from sley.algorithms import build
from sley.formats import TARGETS, mscclpp
from sley.verification.order import SumOrder, Trees
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import SIZED, sizes
from support.inputs.mscclpp_plans import text_of, text_read_back
from support.machines import symbolic
from support.machines.mscclpp_executor import Executor


def sum_of(one: str, other: str) -> str:
    return f"({'+'.join(sorted([one, other]))})"


def spelled(trees: Trees, tree: int) -> str:
    parts = trees.parts[tree]
    return sum_of(*(spelled(trees, part) for part in parts)) if parts else str(tree)


def executed(plan: sley.Plan, order: SumOrder) -> list[str | None]:
    """The sums of an execution on texts, in the order of `order.place`."""
    c = plan.collective
    owner = np.repeat(np.arange(c.ranks), c.input_chunks)
    by_rank = order.trees.leaves == c.ranks
    found = symbolic.run(plan, lambda k: str(owner[k] if by_rank else k), sum_of)
    return [found[place] for place in order.place.tolist()]


def is_right(plan: sley.Plan) -> bool:
    order = SumOrder.of(plan)
    return [spelled(order.trees, tree) for tree in order.tree.tolist()] == executed(plan, order)


@examples(40)
@given(random_programs())
def test_the_order_is_that_of_an_execution(random: RandomProgram) -> None:
    assert is_right(sley.compile(random.program))


@pytest.mark.parametrize("name", [name for name in SIZED if "reduce" in name])
def test_the_order_of_every_algorithm_is_that_of_an_execution(name: str) -> None:
    for size in sizes(name):
        assert is_right(sley.compile(build(name, **size), instances=2))


def orders(name: str, **size: int) -> SumOrder:
    return sley.verify(sley.compile(build(name, **size))).order


def test_the_text_of_one_order() -> None:
    order = orders("one-step-allreduce", ranks=4)
    assert str(order) == "order of every sum: ((0+1)+2)+3"
    assert order.is_one
    assert order.is_shared
    assert str(orders("one-step-allreduce", ranks=9)) == "order of every sum: [0..8]"
    assert str(orders("all-pairs-allgather", ranks=4)) == "order of sums: there are none"


def test_the_text_of_several_orders() -> None:
    order = orders("ring-allreduce", ranks=3)
    assert not order.is_one
    assert order.is_shared
    first, *others = str(order).split("\n")
    assert first == "order of sums: 3 orders; each sum has the same on all ranks"
    assert others[0] == "  3 chunks, out[0] of ranks 0-2: (1+2)+0"
    assert others[1].startswith("  3 chunks, out[1] of ranks 0-2: (0+2)+1; other by ")
    assert others[1].endswith("rank 0, block 0, step 1 (recv_reduce_send)")
    assert order.to_json()["orders"][2] == {
        "tree": "(0+1)+2",
        "chunks": 3,
        "places": "out[2] of ranks 0-2",
    }


def test_ranks_that_differ() -> None:
    @sley.program(sley.AllReduce(3, chunks=1, in_place=True))
    def own_first(p: sley.lang.ChunkProgram) -> None:
        for rank in range(3):
            for other in range(3):
                if other != rank:
                    p.chunk(other, "in", 0).copy(rank, "scratch", other)
        for rank in range(3):
            for other in range(3):
                if other != rank:
                    p.chunk(rank, "in", 0).reduce(p.chunk(rank, "scratch", other))

    order = sley.verify(sley.compile(own_first)).order
    assert order.is_fixed
    assert not order.is_shared
    assert str(order).split("\n")[:2] == [
        "order of sums: 2 orders; ranks differ: the bits of a result may differ between them",
        "  2 chunks, out[0] of ranks 0-1: (0+1)+2",
    ]


def test_switches_have_an_order_of_their_own() -> None:
    order = orders("nvls-allreduce", ranks=3)
    assert not order.is_fixed
    assert not order.is_shared
    text = str(order).split("\n")
    assert text[0] == "order of sums: 3 orders; a switch chooses some"
    assert text[1] == "  3 chunks, out[0] of ranks 0-2: 0+{1, 2}"


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (((0, 1), (2, 3)), "(0+1)+(2+3)"),
        ((((3, 0), 1), 2), "((0+3)+1)+2"),
        ((((((0, 1), 2), 3), 4), 5), "[0..5]"),
        (((((4, 5), 0), 1), (2, 3)), "[4, 5, 0, 1, (2+3)]"),
    ],
)
def test_texts_of_trees(tree: object, text: str) -> None:
    trees = Trees(6)

    def number(one: object) -> int:
        if isinstance(one, tuple):
            return trees.number((number(one[0]), number(one[1])), 0)
        assert isinstance(one, int)
        return one

    assert trees.text(number(tree)) == text


class Ordered(Executor):
    """MSCCL++'s executor on texts: sums as the executor adds."""

    def __init__(self, document: Any, chunk: int) -> None:
        super().__init__(document, chunk)
        self.memory = {place: str(units[0][0]) for place, units in self.memory.items()}  # type: ignore[misc]

    def sum_of(self, values: list[Any]) -> Any:
        return reduce(sum_of, values)


@pytest.mark.parametrize("protocol", ["simple", "ll"])
@pytest.mark.parametrize(
    "name", ["all-pairs-allreduce", "one-step-allreduce", "ring-allreduce", "ring-reducescatter"]
)
def test_the_order_of_a_file_is_that_of_its_executor(name: str, protocol: str) -> None:
    plan = sley.compile(build(name, ranks=4), protocol=protocol)
    text = text_read_back(plan, TARGETS["mscclpp"])
    assert follows_its_executor(json.loads(text))


def follows_its_executor(document: Any) -> bool:
    executor = Ordered(document, chunk=1)
    assert executor.run()
    order = SumOrder.of(mscclpp.read(text_of(document)).plan)
    c = order.plan.collective
    rank = np.searchsorted(c.output_offset, order.place, side="right") - 1
    index = order.place - c.output_offset[rank]
    found = [executor.read(r, "o", i) for r, i in zip(rank.tolist(), index.tolist(), strict=True)]
    return found == [spelled(order.trees, tree) for tree in order.tree.tolist()]


def test_the_executor_adds_packets_before_the_plain_operand() -> None:
    plan = sley.compile(build("all-pairs-reducescatter", ranks=4), protocol="ll")
    document = json.loads(text_read_back(plan, TARGETS["mscclpp"]))
    for gpu in document["gpus"]:
        sums = [
            (block, op)
            for block in gpu["threadblocks"]
            for op in block["ops"]
            if op["name"] == "repkt"
        ]
        # One sum of the rank's own chunk and three packets, instead of three sums.
        (_, total), *others = sums
        total["src_buff"] += [op["src_buff"][1] for _, op in others]
        for block, op in sums:
            block["ops"] = [total] if op is total else []
    assert follows_its_executor(document)
    assert "((1+2)+3)+0" in str(SumOrder.of(mscclpp.read(text_of(document)).plan))
