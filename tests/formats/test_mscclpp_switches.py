"""Execution plans with switch channels: what switches do in them means the plan, and the rest is
refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import formats
from sley.errors import SleyError
from sley.formats import TARGETS
from sley.formats.mscclpp import writer
from sley.ir.words import Op
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import cases_in_a_place, label, program
from support.inputs.mscclpp_plans import text_read_back
from support.inputs.mscclpp_rules import broken_rules
from support.machines.mscclpp_executor import Executor, begin_under

FORM, TARGET = formats.FORMATS[".json"], TARGETS["mscclpp"]
SERVED = ("nvls-allreduce", "nvls-allgather")
"""The algorithms of which switch channels do all that switches do."""

CASES = [one for one in cases_in_a_place(SERVED) if np.prod(list(one[1].values())[:-1]) <= 8]
"""Both algorithms on several sizes, in place and out of place."""


def written(plan: sley.Plan, **settings: Any) -> dict[str, Any]:
    """The written plan, which obeys the rules and is proven as the executor reads it."""
    text = text_read_back(plan, TARGET, **settings)
    found: dict[str, Any] = json.loads(text)
    assert broken_rules(found) == []
    for way in FORM.executions(text, TARGET).executions:
        assert sley.verify(way.plan).plan.collective == plan.collective
    return found


def operations(plan: dict[str, Any], rank: int = 0) -> Counter[str]:
    blocks = plan["gpus"][rank]["threadblocks"]
    return Counter(op["name"] for block in blocks for op in block["ops"])


def outputs(document: dict[str, Any], seed: int) -> list[list[Any]]:
    """What a call leaves in the outputs, in the model of the executor."""
    (way,) = FORM.executions(json.dumps(document), TARGET).executions
    begin = begin_under(way.conditions, len(document["gpus"]), random.Random(seed))
    executor = Executor(document, 2, seed, begin)
    assert executor.run()
    gpus = enumerate(document["gpus"])
    return [
        [executor.read(rank, "o", unit) for unit in range(2 * gpu["output_chunks"])]
        for rank, gpu in gpus
    ]


@pytest.mark.parametrize("zero_copy", [False, True], ids=["scratch", "zero-copy"])
@pytest.mark.parametrize(("name", "parameters"), CASES, ids=label)
def test_a_written_plan_for_switches_gives_another_result(name, parameters, zero_copy):
    hosts = {"ranks_per_node": parameters["gpus"]} if "gpus" in parameters else {}
    plan = sley.compile(program(name, parameters))
    found = written(plan, zero_copy=zero_copy, **hosts)
    done = operations(found)
    assert done["glres"] + done["gstore"] == (plan.rank[plan.grouped] == 0).sum()
    ranks, chunks = plan.collective.ranks, found["gpus"][0]["input_chunks"]
    every = range(ranks)
    if name == "nvls-allreduce":
        expected = [tuple(sorted((r, u) for r in every)) for u in range(2 * chunks)]
    else:
        expected = [((r, u),) for r in every for u in range(2 * chunks)]
    assert outputs(found, seed=ranks) == [expected] * ranks


@pytest.mark.parametrize("zero_copy", [False, True], ids=["scratch", "zero-copy"])
def test_the_text_of_an_allreduce_in_the_switch_equals_the_golden_file(zero_copy, golden):
    plan = sley.compile(sley.algorithms.nvls_allreduce(3))
    name = "zero-copy" if zero_copy else "scratch"
    golden(f"mscclpp-switch-{name}.json", FORM.write(plan, TARGET, zero_copy=zero_copy))


@pytest.mark.parametrize("in_place", [False, True])
def test_zero_copy_uses_scratch_for_an_allreduce_in_the_switch(in_place):
    plan = sley.compile(sley.algorithms.nvls_allreduce(8, in_place=in_place), instances=4)
    found = written(plan, zero_copy=True)
    assert {gpu["scratch_chunks"] for gpu in found["gpus"]} == {0}
    done = operations(found)
    assert (done["glres"], done["copy"], done["rlxsignal"]) == (4, 0, 0)
    types = {of["buffer_type"] for of in found["gpus"][0]["channels"] if "buffer_type" in of}
    assert types == ({"o"} if in_place else {"i", "o"})


def switches(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """The buffers that the switch reads and writes, for each glres of rank 0."""
    types = [of["buffer_type"] for of in plan["gpus"][0]["channels"] if "buffer_type" in of]
    return [
        (
            types[op["src_buff"][0]["switch_channel_id"]],
            types[op["dst_buff"][0]["switch_channel_id"]],
        )
        for block in plan["gpus"][0]["threadblocks"]
        for op in block["ops"]
        if op["name"] == "glres"
    ]


def by_one_head(before=None, after=None) -> sley.Plan:
    """An AllReduce on three ranks whose one switch operation is rank 0's."""

    def body(p):
        if before is not None:
            before(p)
        total = p.chunk(0, "in", 0).copy(0, "out", 0).load_reduce(p.chunk([1, 2], "in", 0))
        total.multicast([1, 2], "out", 0)
        if after is not None:
            after(p)

    return sley.compile(sley.trace(sley.AllReduce(3, 1), body, name="one-head"))


def test_zero_copy_overwrites_what_the_switch_still_reads():
    found = written(
        by_one_head(after=lambda p: p.chunk(2, "in", 0).copy(1, "in", 0)), zero_copy=True
    )
    assert switches(found) == [("s", "o")]


def test_zero_copy_overwrites_what_a_member_still_reads():
    def before(p):
        p.chunk(1, "in", 0).copy(1, "out", 0).reduce(p.chunk(1, "in", 0)).copy(2, "scratch", 0)

    assert switches(written(by_one_head(before), zero_copy=True)) == [("i", "s")]
    assert switches(written(by_one_head(), zero_copy=True)) == [("i", "o")]


def test_a_switch_channel_is_smaller_than_the_scratch_of_one_of_its_ranks():
    def body(p):
        for rank in range(3):
            own = p.chunk(rank, "in", 0)
            own.copy(rank, "out", rank)
            own.multicast([(rank + 1) % 3], "out", rank)
            if rank != 0:
                own.copy((rank + 2) % 3, "out", rank)
            else:
                own.multicast([2], "out", 0)

    written(sley.compile(sley.trace(sley.AllGather(3, 1), body, name="pairs")))


def test_a_rank_without_operations_of_a_switch_does_not_make_its_channel():
    found = written(by_one_head())
    assert [operations(found, rank)["glres"] for rank in range(3)] == [1, 0, 0]
    groups = [
        [of["rank_groups"] for of in gpu["channels"] if of["channel_type"] == "switch"]
        for gpu in found["gpus"]
    ]
    assert groups == [[[{"size": 3, "ranks": [0, 1, 2]}]]] * 3


def refusal(plan: sley.Plan, **settings: Any) -> tuple[str, str, str]:
    with pytest.raises(SleyError) as error:
        FORM.write(plan, TARGET, **settings)
    found = error.value.diagnostics[0]
    return found.code, found.expected, found.found


def test_what_no_switch_channel_does_is_written():
    alone = sley.compile(sley.algorithms.nvls_reducescatter(1, 8))
    assert refusal(alone) == (
        "F438",
        "a result that goes to all ranks from which the switch reads, as in glres",
        "data of ranks 1, 2, 3, 4, 5, 6, 7, and a result for no other",
    )
    nvls = sley.compile(sley.algorithms.nvls_allreduce(4))
    assert refusal(nvls, ranks_per_node=2) == (
        "F438",
        "the ranks of a switch channel on one host",
        "ranks 0, 1, 2, 3 on several",
    )
    with pytest.raises(SleyError, match="F438"):
        formats.FORMATS[".xml"].write(nvls, TARGETS["msccl"])


def test_a_switch_that_adds_no_own_data_is_written():
    plan = sley.compile(sley.algorithms.nvls_allreduce(3))
    t = plan.instructions
    op = t.op.copy()
    op[plan.grouped] = Op.RECV_COPY_SEND
    code, _, found = refusal(replace(plan, instructions=replace(t, op=op)))
    assert (code, found) == ("F438", "a recv_copy_send of 2 ranks alone")


def test_a_plan_without_switches_has_switch_channels():
    plan = sley.compile(sley.algorithms.nvls_reducescatter(1, 4), switches=False)
    found = written(plan)
    assert {of["channel_type"] for gpu in found["gpus"] for of in gpu["channels"]} == {"memory"}


def test_more_switch_channels_than_a_block_has_room_for_are_written():
    plan = sley.compile(sley.algorithms.nvls_allreduce(4))
    smaller = replace(TARGET, channels=0)
    with pytest.raises(SleyError, match="F482"):
        FORM.write(plan, smaller)


def test_a_proof_lacks_the_conditions_of_switches(tmp_path):
    plan, path = sley.compile(sley.algorithms.nvls_allreduce(4)), tmp_path / "nvls.json"
    sley.save(plan, path)
    about = [str(one) for one in sley.verify_file(path).proofs[0].conditions]
    assert "allocations of one size on all ranks" in about
    assert "H100s or later GPUs, around switches that reduce and multicast" in about
    assert "elements of 16 or 32 bits" in about
    sley.save(plan, path, zero_copy=True)
    about = [str(one) for one in sley.verify_file(path).proofs[0].conditions]
    assert "the input in memory of cuMemMap, such as MSCCL++'s GpuBuffer" in about


@examples(12)
@given(random_programs(groups=True), st.booleans())
def test_a_random_plan_with_groups_is_written_wrongly(random: RandomProgram, zero_copy: bool):
    with pytest.MonkeyPatch.context() as patched:
        # A file can't name a program's own collective; here the reader is told it.
        patched.setattr(writer, "standard", lambda collective: collective)
        try:
            plan = sley.compile(random.program)
            text = text_read_back(plan, TARGET, zero_copy=zero_copy)
        except SleyError as error:
            assert error.code in ("F438", "F444", "F482")
            return
    for way in FORM.executions(text, TARGET, collective=plan.collective).executions:
        sley.verify(way.plan)
