"""Execution plans of MSCCL++: what is written obeys the executor's rules, and means the plan."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import formats
from sley.errors import SleyError
from sley.formats import TARGETS
from sley.formats.mscclpp import emission, reader, writer
from sley.formats.mscclpp.placing import Range
from sley.verification import Proof
from support.generators.examples import examples
from support.inputs.algorithm_cases import (
    SIZED,
    cases,
    in_turn,
    label,
    of_each_collective,
    one_of_each,
    program,
)
from support.inputs.mscclpp_plans import text_of, text_read_back
from support.inputs.mscclpp_rules import broken_rules
from support.machines.mscclpp_executor import begin_under, result_of

WAYS: tuple[dict[str, Any], ...] = (
    {"protocol": "simple"},
    {"protocol": "ll"},
    {"protocol": "simple", "zero_copy": True},
    {"protocol": "simple", "hosts": True},
    {"protocol": "simple", "hosts": True, "zero_copy": True, "instances": 2},
    {"protocol": "ll", "instances": 2, "allocate": "instance"},
)
"""Ways to compile and to write an algorithm. hosts: with port channels between hosts."""

HAS_ROOT = {"broadcast", "reduce", "gather", "scatter"}


def written(plan: sley.Plan, **settings: Any) -> dict[str, Any]:
    """The written plan, which obeys the rules and is proven as the executor reads it."""
    text = text_read_back(plan, TARGETS["mscclpp"], **settings)
    assert broken_rules(json.loads(text)) == []
    found: dict[str, Any] = json.loads(text)
    proof = prove(found)
    assert proof.plan.collective == plan.collective
    assert proof.plan.protocol is plan.protocol
    return found


def executed(document: dict[str, Any]) -> str:
    """What a call gives in the model of the executor, with buffers anywhere in their allocations
    where the conditions of the proof allow it."""
    chance = random.Random(len(text_of(document)))
    proof = prove(document)
    begin = begin_under(proof.conditions, len(document["gpus"]), chance)
    return result_of(document, 1 + chance.randrange(2), chance.randrange(1 << 30), begin)


def prove(document: dict[str, Any]) -> Proof:
    """The proof of a plan's file."""
    (way,) = formats.FORMATS[".json"].executions(text_of(document), TARGETS["mscclpp"]).executions
    return sley.verify(way.plan).under(way.conditions)


def operations(plan: dict[str, Any], rank: int = 0) -> Counter[str]:
    """How many operations of each kind a rank performs."""
    blocks = plan["gpus"][rank]["threadblocks"]
    return Counter(op["name"] for block in blocks for op in block["ops"])


def check(name: str, parameters: dict[str, Any], way: dict[str, Any]) -> None:
    """Writes an algorithm, or sees that it is refused for what the executor does not have."""
    options = dict(way)
    settings = {"zero_copy": options.pop("zero_copy", False)}
    if options.pop("hosts", False) and "nodes" in parameters:
        settings["ranks_per_node"] = parameters["gpus"]
    plan = sley.compile(program(name, parameters), **options)
    hosts = 1 if plan.topology is None else plan.topology.nodes
    refused = ""
    if plan.collective.name in HAS_ROOT:
        refused = "F443"
    elif options["protocol"] == "ll" and hosts > 1:
        refused = "F441"
    if not refused:
        assert executed(written(plan, **settings)) == "right"
        return
    with pytest.raises(SleyError, match=refused):
        written(plan, **settings)


@pytest.mark.parametrize(
    ("name", "parameters", "way"), of_each_collective(one_of_each(WAYS, SIZED)), ids=label
)
def test_a_written_algorithm_breaks_a_rule_or_is_not_proven(name, parameters, way):
    check(name, parameters, way)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters", "way"), in_turn(WAYS, cases(SIZED)), ids=label)
def test_an_algorithm_written_in_each_way_breaks_a_rule_or_is_not_proven(name, parameters, way):
    check(name, parameters, way)


def ring(ranks: int = 4, **options: Any) -> sley.Plan:
    return sley.compile(sley.algorithms.build("ring-allreduce", ranks=ranks), **options)


def test_a_long_block_is_not_cut_at_barriers():
    found = written(ring(8))
    sizes = [len(block["ops"]) for block in found["gpus"][0]["threadblocks"]]
    assert len(sizes) == 2
    assert max(sizes) <= 64
    assert operations(found)["barrier"] == 2


def test_the_blocks_of_a_plan_are_merged_for_their_semaphores():
    """A GPU has as many semaphores as its blocks need; the list of an operation has 16."""
    plan = sley.compile(
        sley.algorithms.build("recursive-halving-doubling-allreduce", ranks=5), instances=3
    )
    found = written(plan)
    blocks = [len(gpu["threadblocks"]) for gpu in found["gpus"]]
    assert blocks == list(Counter(plan.block_rank.tolist()).values())
    assert max(len(gpu["semaphores"]) for gpu in found["gpus"]) == 26
    form, target = formats.FORMATS[".json"], TARGETS["mscclpp"]
    text = text_read_back(plan, replace(target, semaphores_per_operation=2))
    ops = [op for gpu in json.loads(text)["gpus"] for b in gpu["threadblocks"] for op in b["ops"]]
    assert max(len(op.get("semaphore_ids", ())) for op in ops) == 2
    (way,) = form.executions(text, target).executions
    sley.verify(way.plan)


def test_the_parts_of_a_block_wait_for_one_another_at_semaphores_too():
    plan = sley.compile(sley.algorithms.build("all-pairs-allreduce", nodes=2, gpus=4), max_blocks=2)
    form, target = formats.FORMATS[".json"], replace(TARGETS["mscclpp"], operations=20)
    text = text_read_back(plan, target)
    found = json.loads(text)
    assert broken_rules(found) == []
    assert min(len(gpu["semaphores"]) for gpu in found["gpus"]) > 0
    assert operations(found)["barrier"] > 0
    for way in form.executions(text, target).executions:
        sley.verify(way.plan)


def test_all_blocks_are_made_before_too_long_ones_are_refused(monkeypatch: pytest.MonkeyPatch):
    made = []
    emit = writer.emit
    monkeypatch.setattr(
        writer, "emit", lambda *given: (made.append(block) or block for block in emit(*given))
    )
    smaller = replace(TARGETS["mscclpp"], barriers=0)
    with pytest.raises(SleyError, match="F482"):
        formats.FORMATS[".json"].write(ring(8), smaller)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("table", "code"), [("operations", "F444"), ("barriers", "F482"), ("channels", "F482")]
)
def test_a_plan_that_does_not_fit_into_a_table_is_written(table, code):
    tables = {
        "operations": {"operations": 4, "barriers": 99},
        "barriers": {"barriers": 0, "operations": 40},
    }
    smaller = replace(TARGETS["mscclpp"], **tables.get(table, {table: 0}))
    with pytest.raises(SleyError) as error:
        formats.FORMATS[".json"].write(ring(8), smaller)
    assert {found.code for found in error.value.diagnostics} == {code}


@pytest.mark.parametrize("table", ["port_channels", "port_memories"])
def test_more_ports_than_a_trigger_can_name_are_written(table):
    plan, form = ring(4), formats.FORMATS[".json"]
    enough = {"port_channels": 1, "port_memories": 4}
    target = replace(TARGETS["mscclpp"], **enough)
    form.write(plan, target, ranks_per_node=2)
    smaller = replace(target, **{table: enough[table] - 1})
    with pytest.raises(SleyError, match="F482"):
        form.write(plan, smaller, ranks_per_node=2)


def test_an_operation_exceeds_the_limits_of_the_target():
    plan = sley.compile(sley.algorithms.build("one-step-allreduce", ranks=4), max_blocks=1)
    form, target = formats.FORMATS[".json"], TARGETS["mscclpp"]
    smaller = replace(
        target, channels_per_operation=2, buffers_per_operation=3, offset_bytes=1 << 20
    )
    for limits, channels, sources in ((target, 3, 4), (smaller, 2, 3)):
        found = json.loads(form.write(plan, limits))
        ops = [op for block in found["gpus"][0]["threadblocks"] for op in block["ops"]]
        assert max(len(op.get("channel_ids", ())) for op in ops) == channels
        assert max(len(op.get("src_buff", ())) for op in ops) == sources
        assert (found["max_message_size"] < 1 << 20) == (limits is smaller)


def test_zero_copy_sends_data_through_scratch():
    plan = sley.compile(sley.algorithms.build("ring-allgather", ranks=4))
    plain, direct = written(plan), written(plan, zero_copy=True)
    assert [gpu["scratch_chunks"] for gpu in plain["gpus"]] == [3] * 4
    assert [gpu["scratch_chunks"] for gpu in direct["gpus"]] == [0] * 4
    assert operations(direct)["copy"] == 1
    assert {of["type"] for of in plain["gpus"][0]["remote_buffers"]} == {"s"}


def test_zero_copy_overwrites_a_chunk_that_the_receiver_still_needs():
    """Two ranks swap a chunk in place: neither may be written before it is read."""
    algorithm = sley.algorithms.build("all-pairs-alltoall", ranks=2, in_place=True)
    found = written(sley.compile(algorithm), zero_copy=True)
    assert max(gpu["scratch_chunks"] for gpu in found["gpus"]) > 0


def test_ports_are_used_within_a_host_or_memory_channels_between_hosts():
    plan = sley.compile(sley.algorithms.build("hierarchical-allreduce", nodes=2, gpus=2))
    found = written(plan, ranks_per_node=2)
    for gpu in found["gpus"]:
        for entry in gpu["channels"]:
            near = {peer // 2 == gpu["id"] // 2 for peer in entry["connected_to"]}
            assert near == {entry["channel_type"] == "memory"}
    assert operations(found)["pws"] > 0


def test_a_port_reads_a_buffer_that_is_overwritten_meanwhile():
    """An in-place ring overwrites a chunk after it has sent it."""
    plan = sley.compile(sley.algorithms.build("ring-allreduce", ranks=4, in_place=True))
    written(plan, ranks_per_node=1)


def test_packets_have_one_copy_of_scratch():
    found = written(ring(protocol="ll"))
    assert found["use_double_scratch_buffer"]
    assert {gpu["scratch_chunks"] % 8 for gpu in found["gpus"]} == {0}
    assert len({gpu["scratch_chunks"] for gpu in found["gpus"]}) == 1
    assert not written(ring())["use_double_scratch_buffer"]


def test_sums_into_one_chunk_are_separate_operations():
    plan = sley.compile(sley.algorithms.build("one-step-allreduce", ranks=2), protocol="ll")
    assert operations(written(plan))["nop"] <= 2


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"threads": 33}, "threads=33"),
        ({"threads": 2048}, "threads=2048"),
        ({"min_bytes": 2, "max_bytes": 1}, "min_bytes=2, max_bytes=1"),
        ({"max_bytes": 8}, "max_bytes=8"),
        ({"max_bytes": 1 << 40}, "max_bytes=1099511627776"),
        ({"ranks_per_node": 3}, "ranks_per_node=3"),
    ],
    ids=str,
)
def test_a_setting_that_the_executor_cannot_use_is_written(settings, found):
    with pytest.raises(SleyError) as error:
        written(ring(), **settings)
    (diagnostic,) = error.value.diagnostics
    assert (diagnostic.code, diagnostic.found.endswith(found)) == ("F451", True)


@pytest.mark.parametrize("protocol", ["direct", "ll128"])
def test_a_protocol_that_the_executor_does_not_have_is_written(protocol):
    with pytest.raises(SleyError, match="F441"):
        written(ring(protocol=protocol))


def test_the_largest_size_leaves_offsets_that_do_not_fit():
    found = written(ring(2))
    scratch = max(gpu["scratch_chunks"] for gpu in found["gpus"])
    chunks = max(scratch, found["gpus"][0]["input_chunks"])
    unit = found["max_message_size"] // found["gpus"][0]["input_chunks"]
    assert chunks * unit < 1 << 32 <= chunks * (unit + 32)


def test_a_saved_file_is_parsed_to_be_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(reader, "parse")
    sley.save(ring(), tmp_path / "ring.json")


def test_what_is_written_is_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A plan with an operation less, of which the file says what the plan does not."""
    emit = writer.emit

    def without_waits(*given: Any) -> Iterator[emission.Emitted]:
        for of in emit(*given):
            kept = tuple(op for op in of.block.operations if op.name != "wait")
            yield replace(of, block=replace(of.block, operations=kept))

    monkeypatch.setattr(writer, "emit", without_waits)
    path = tmp_path / "ring.json"
    with pytest.raises(SleyError) as error:
        sley.save(ring(), path)
    assert error.value.code.startswith("V2")
    assert not path.exists()


def test_a_saved_file_lacks_its_settings_or_is_not_proven(tmp_path: Path):
    path = tmp_path / "ring.json"
    sley.save(ring(), path, name="ring", min_bytes="1K", max_bytes="1M", threads=512)
    found = json.loads(path.read_text())
    assert (found["name"], found["min_message_size"], found["max_message_size"]) == (
        "ring",
        1 << 10,
        1 << 20,
    )
    (proof,) = sley.verify_file(path, "mscclpp").proofs
    assert proof.plan.name == "ring"


@pytest.mark.parametrize(
    ("protocol", "sizes"),
    [("ll", (0, "16K")), ("simple", ("16K", "4M")), ("simple", ("4M", None))],
    ids=["small", "medium", "large"],
)
def test_a_size_class_is_not_the_range_of_the_file(protocol, sizes, tmp_path: Path):
    path, (least, most) = tmp_path / "class.json", sizes
    sley.save(ring(protocol=protocol), path, min_bytes=least, max_bytes=most)
    conditions = [str(one) for one in sley.verify_file(path).proofs[0].conditions]
    found = json.loads(path.read_text())
    assert any("an input of" in one for one in conditions)
    # A call of no bytes would end the process.
    assert found["min_message_size"] == {0: 64, "16K": 1 << 14, "4M": 1 << 22}[least]
    if most is not None:
        assert found["max_message_size"] == {"16K": 1 << 14, "4M": 1 << 22}[most]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_channel_is_used_by_two_threads_in_no_order(zero_copy):
    """Two messages between each two ranks, all by one block, so that channels come in several
    operations, at several places."""

    def body(p):
        for rank in range(3):
            for to in range(3):
                for k in range(2):
                    p.chunk(rank, "in", 2 * to + k).copy(to, "out", 2 * rank + k)

    program = sley.trace(sley.AllToAll(3, 2), body, name="pairs")
    written(sley.compile(program, max_blocks=1, allocate="state", slots=8), zero_copy=zero_copy)


IN_PLACE = [
    (f"{name}-allgather", {"nodes": 2, "gpus": gpus, "in_place": True})
    for name in ("all-pairs", "ring", "hm", "two-level", "multi-ring")
    for gpus in (2, 4)
]


@pytest.mark.parametrize(("name", "parameters"), IN_PLACE, ids=label)
def test_a_port_reads_the_input_of_an_allgather_in_place(name, parameters):
    """The input is not at the start of its allocation, but the output may be."""
    plan = sley.compile(program(name, parameters))
    found = written(plan, zero_copy=True, ranks_per_node=parameters["gpus"])
    assert operations(found, parameters["gpus"] - 1)["pws"] > 0
    assert executed(found) == "right"


def test_the_model_of_the_executor_lets_a_port_read_where_an_input_begins(monkeypatch):
    """MSCCL++'s test passes the rank's part of the output as input, which begins at chunk 0 only on
    rank 0. A port reads from the start of the allocation on all ranks."""
    as_named = lambda plan, *operand: Range(*operand)  # noqa: E731
    monkeypatch.setattr(emission, "range_of", as_named)
    plan = sley.compile(sley.algorithms.build("ring-allgather", nodes=2, gpus=2, in_place=True))
    text = formats.FORMATS[".json"].write(plan, "mscclpp", zero_copy=True, ranks_per_node=2)
    assert result_of(json.loads(text), 1) == "wrong"
    with pytest.raises(SleyError, match="V221"):
        prove(json.loads(text))


@pytest.mark.parametrize("ranks_per_node", [2, 4])
def test_a_message_into_the_output_of_a_reduce_scatter_in_place_is_refused(ranks_per_node):
    """The output begins elsewhere on each rank."""

    def body(p):
        for part in range(4):
            for rank in range(1, 4):
                p.chunk(0, "in", part).reduce(p.chunk(rank, "in", part))
            if part:
                p.chunk(0, "in", part).copy(part, "out", 0)

    plan = sley.compile(sley.trace(sley.ReduceScatter(4, in_place=True), body, name="by one"))
    found = written(plan, zero_copy=True, ranks_per_node=ranks_per_node)
    assert executed(found) == "right"


def random_shifted(chance: random.Random) -> sley.Program:
    """An AllGather or a ReduceScatter in place: each chunk goes along a random tree, from and to
    names of the same memory in turn."""
    ranks = chance.choice([2, 3, 4])

    def named(rank, part):
        """A rank's chunk of a part: of the larger buffer, or of the smaller one, if it is there."""
        larger, smaller = ("out", "in") if gathers else ("in", "out")
        inside = rank == part and chance.random() < 0.5
        return (rank, smaller, 0) if inside else (rank, larger, part)

    def body(p):
        for part in range(ranks):
            others = [rank for rank in range(ranks) if rank != part]
            chance.shuffle(others)
            known = [part]
            for rank in others:
                near = chance.choice(known)
                known.append(rank)
                ends = [named(near, part), named(rank, part)]
                if gathers and chance.random() < 0.3:
                    p.chunk(*ends[0]).copy(rank, "scratch", part).copy(*ends[1])
                elif gathers:
                    p.chunk(*ends[0]).copy(*ends[1])
            for rank in () if gathers else others:
                p.chunk(*named(part, part)).reduce(p.chunk(rank, "in", part))
            if not gathers and chance.random() < 0.5:
                p.chunk(*named(part, part)).copy(others[0], "scratch", 0).copy(*named(part, part))

    gathers = chance.random() < 0.6
    collective = sley.AllGather if gathers else sley.ReduceScatter
    return sley.trace(collective(ranks, in_place=True), body, name="shifted")


@given(seed=st.integers(0, 2**48))
@examples(10, deadline=None)
def test_a_random_program_in_place_is_written_and_wrong(seed: int) -> None:
    chance = random.Random(seed)
    plan = sley.compile(random_shifted(chance))
    hosts = chance.choice([None, *range(1, plan.ranks + 1)])
    if hosts is not None and plan.ranks % hosts:
        hosts = None
    found = written(plan, zero_copy=chance.random() < 0.8, ranks_per_node=hosts)
    assert executed(found) == "right"
