"""MSCCL++ execution plans: each operation is read as the executor executes it, and proven."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli.main import main
from sley.errors import SleyError
from sley.formats import mscclpp
from sley.formats.mscclpp import reader
from sley.formats.mscclpp.parse import parse
from sley.formats.mscclpp.raw import serialise
from sley.formats.mscclpp.targets import MSCCLPP
from sley.formats.mscclpp.words import NAMES
from sley.ir.one_sided import Action, OneSidedPlan
from sley.ir.words import Buffer
from sley.report.tables import pipeline_table, plan_table
from support.generators.examples import examples
from support.inputs import mscclpp_right as right
from support.inputs.mscclpp_plans import Block, Made, edited, text_of
from support.inputs.mscclpp_right import RIGHT
from support.mutants.mscclpp_mutants import mutated

IDLE_OPERATIONS = {"flush"}


def plan_of(made: Made, **settings: Any) -> OneSidedPlan:
    plan = mscclpp.read(made.text, file="plan.json", **settings).plan
    assert isinstance(plan, OneSidedPlan)
    return plan


def prove(text: str) -> list[sley.Proof]:
    return [sley.verify(way.plan) for way in mscclpp.executions(text, MSCCLPP).executions]


def conditions_of(made: Made, about: str, way: int = 0) -> list[str]:
    found = mscclpp.executions(made.text, MSCCLPP).executions[way].conditions
    return [condition.text for condition in found if condition.about == about]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_plan_of_each_operation_is_proven(name: str) -> None:
    prove(RIGHT[name]().text)


@pytest.mark.parametrize("name", RIGHT)
def test_the_text_of_a_raw_plan_is_read_as_another_one(name: str) -> None:
    raw = parse(RIGHT[name]().text)
    assert parse(serialise(raw)) == raw


@given(seed=st.integers(0, 2**48))
@examples(30, deadline=None)
def test_the_text_of_a_changed_plan_is_read_as_another_one(seed: int) -> None:
    try:
        raw = parse(mutated(random.Random(seed)))
    except SleyError:
        return
    assert parse(serialise(raw)) == raw


def test_the_text_of_a_plan_of_mscclpp_is_read_as_another_one(data_dir: Path) -> None:
    for path in sorted((data_dir / "mscclpp-plans").glob("*.json")):
        raw = parse(path)
        assert parse(serialise(raw)) == raw


def test_the_right_plans_have_every_operation() -> None:
    used = {op["name"] for made in RIGHT.values() for op in _operations(made().to_json())}
    assert used == NAMES - IDLE_OPERATIONS


def _operations(document: Any) -> list[dict[str, Any]]:
    own = [op for gpu in document["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
    return own + [inner for op in own for inner in op.get("ops", ())]


def _without_one(name: str) -> list[str]:
    """The plan without one of the operations of its first GPU, for each of them."""
    found = []
    for block, one in enumerate(RIGHT[name]().to_json()["gpus"][0]["threadblocks"]):
        for row in range(len(one["ops"])):
            document = RIGHT[name]().to_json()
            del document["gpus"][0]["threadblocks"][block]["ops"][row]
            found.append(text_of(document))
    return found


def _assert_refused(text: str) -> None:
    with pytest.raises(SleyError):
        prove(text)


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_a_plan_without_one_of_its_operations_is_refused(number: int) -> None:
    texts = _without_one(list(RIGHT)[number])
    _assert_refused(texts[number % len(texts)])


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_plan_without_any_of_its_operations_is_refused(name: str) -> None:
    for text in _without_one(name):
        _assert_refused(text)


REAL = {
    "allreduce": [],
    "allreduce_packet": [],
    "reduce_nvls": ["V211", "V211"],
    "reduce_pack_tbg": [],
    "transfer_pack": [],
}


@pytest.mark.parametrize("name", REAL)
def test_plans_of_mscclpp_are_proven_and_a_relaxed_end_is_refused(
    data_dir: Path, name: str
) -> None:
    path = data_dir / "mscclpp-plans" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    try:
        sley.verify_file(path)
        found = []
    except SleyError as error:
        found = [one.code for one in error.diagnostics]
    assert found == REAL[name]


def test_channels_are_paired_by_their_order() -> None:
    """Rank 0's second channel to rank 1 is rank 1's second one, although its block is the first."""
    made = right.allreduce_in_shares(2)
    document = made.to_json()
    blocks = document["gpus"][1]["threadblocks"]
    for block, own in zip(blocks, ([1], [0]), strict=True):
        block["channels"][0]["channel_ids"] = own
    prove(text_of(document))
    plan = mscclpp.read(text_of(document)).plan
    first = [int(plan.block_offset[block]) for block in (0, 3)]
    posted, waited = (plan.operations.target[row] for row in (first[0], first[1] + 1))
    assert posted == waited


def test_memory_and_port_channels_have_counters_of_their_own() -> None:
    plan = plan_of(right.allgather_by_port())
    c = plan.counters
    assert sorted(zip(c.rank.tolist(), c.peer.tolist(), strict=True)) == [(0, 1)] * 2 + [(1, 0)] * 2
    assert plan.ports.tolist() == [0, 1]


def test_an_operation_is_its_threads() -> None:
    plan = plan_of(right.alltoall_by_one_put())
    t = plan.operations
    rows = slice(int(plan.block_offset[0]), int(plan.block_offset[1]))
    assert t.action[rows].tolist() == [
        Action.POST, Action.POST, Action.WAIT, Action.WAIT, Action.JOIN, Action.MOVE, Action.MOVE,
        Action.JOIN, Action.POST, Action.POST, Action.WAIT, Action.WAIT,
    ]  # fmt: skip
    assert t.thread[rows].tolist() == [0, 1, 0, 1, -1, -1, -1, -1, 0, 1, 0, 1]
    assert t.relaxed[rows].tolist() == [True] * 4 + [False] * 8
    assert t.step[rows].tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 7]
    assert plan.label(0) == "rank 0 block 0 operation 0 (rlxsignal)"
    moves = plan.ranges.move[plan.ranges.operation == 6]
    assert moves.tolist() == [1, 1, 2, 2]


def test_pushed_packets_are_awaited_by_all_threads() -> None:
    plan = plan_of(right.allgather_by_pushed_packets())
    words = np.array(plan.words)[plan.operations.word]
    rows = np.flatnonzero((words == "rppkt") & (plan.rank == 0))
    actions = [Action.MOVE, Action.JOIN, Action.PUSH]
    assert plan.operations.action[rows].tolist() == actions
    assert plan.ranges.writes[plan.ranges.operation == rows[0]].tolist() == [False]
    assert plan.ranges.packet[plan.ranges.operation == rows[2]].all()


def test_blocks_share_ranges() -> None:
    plan = plan_of(right.allreduce_in_shares(3))
    assert (plan.parts, plan.collective.chunks) == (3, 6)
    own = plan.ranges.writes & (plan.rank[plan.ranges.operation] == 1) & (plan.ranges.rank == 1)
    assert plan.ranges.index[own].tolist() == [3, 4, 5]
    assert set(plan.ranges.count.tolist()) == {1}


@pytest.mark.parametrize(
    ("shares", "size", "parts", "sizes"),
    [
        (3, 1, 3, "chunks of a multiple of 16 bytes, 48 and more"),
        (2, 2, 1, "chunks of a multiple of 16 bytes"),
        (4, 2, 2, "chunks of a multiple of 32 bytes"),
        (3, 2, 3, "chunks of a multiple of 48 bytes"),
    ],
)
def test_shared_ranges_limit_the_sizes(shares: int, size: int, parts: int, sizes: str) -> None:
    made = right.allreduce_in_shares(shares, size)
    assert plan_of(made).parts == parts
    assert conditions_of(made, "sizes") == [sizes]
    assert conditions_of(made, "allocations") == ["allocations of less than 4 GiB"]


def _shares(units: int, shares: int, alignment: int) -> list[int]:
    """The executor's cut of a range, in bytes: where each share begins, and the end."""
    ends = [g * (units // shares) + min(g, units % shares) for g in range(shares + 1)]
    return [end * alignment for end in ends]


def test_the_parts_of_a_chunk_are_where_the_executor_cuts() -> None:
    for shares, size in ((2, 2), (4, 2), (3, 2), (4, 6)):
        parts = plan_of(right.allreduce_in_shares(shares, size)).parts
        for times in (1, 2, 5):
            chunk_units = parts * times
            cuts = _shares(size * chunk_units, shares, 16)
            assert all(cut % (times * 16) == 0 for cut in cuts)


def test_iterations_of_a_pipeline_follow_one_another() -> None:
    for units in (1, 2, 3):
        plan = plan_of(right.allreduce_in_pipeline(), units=units)
        assert plan.parts == units
        rows = np.flatnonzero((plan.operations.action == Action.MOVE) & (plan.rank == 1))
        first = [plan.ranges.index[plan.ranges.operation == row].tolist() for row in rows]
        assert first == [[units + k] * 4 for k in range(units)]
    sizes = [conditions_of(right.allreduce_in_pipeline(), "sizes", way)[0] for way in range(3)]
    assert sizes == [
        "chunks of a multiple of 16 bytes, 16 to 64K",
        "chunks of a multiple of 16 bytes, 65552 to 128K",
        "chunks of a multiple of 16 bytes, 131088 to 192K",
    ]


def _two_pipelines() -> Made:
    """Each rank copies two chunks, one in units of 32, one of 48 bytes."""
    made = Made("allreduce", 1, (2, 2, 0))
    block = made.gpus[0].block()
    block.pipeline(32).move("copy", [("i", 0, 1)], [("o", 0, 1)]).done()
    block.pipeline(48).move("copy", [("i", 1, 1)], [("o", 1, 1)]).done()
    return made


def test_pipelines_of_two_units_cut_into_common_parts() -> None:
    plan = plan_of(_two_pipelines(), units=2)
    assert plan.parts == 2 * 96 // 16
    assert plan.ranges.count[~plan.ranges.writes].tolist() == [2] * 6 + [3] * 4
    assert conditions_of(_two_pipelines(), "sizes", 1)[0] == "chunks of 192 bytes"
    prove(_two_pipelines().text)


def test_a_pipeline_over_two_chunks_passes_through_both() -> None:
    made = Made("allreduce", 1, (2, 2, 0))
    made.gpus[0].block().pipeline(64, 2).move("copy", [("i", 0, 2)], [("o", 0, 2)]).done()
    plan = plan_of(made, units=3)
    assert plan.ranges.index[~plan.ranges.writes].tolist() == [0, 1, 2, 3, 4, 5]
    assert conditions_of(made, "sizes", 2)[0] == "chunks of 192 bytes"


def test_packets_make_the_scratch_twice_as_large() -> None:
    assert plan_of(right.allreduce_by_respkt()).scratch_chunks.tolist() == [4, 4]
    assert plan_of(right.allreduce_by_respkt()).scratch_copies == 2
    assert plan_of(right.allreduce_by_get()).scratch_chunks.tolist() == [2, 2]
    assert plan_of(right.allreduce_by_get()).scratch_copies == 1


def test_a_semaphore_begins_with_its_value() -> None:
    made = right.allgather_with_semaphores()
    made.gpus[0].semaphores = [3]
    c = plan_of(made).counters
    assert c.initial[(c.rank == 0) & (c.peer == 0)].tolist() == [3]


def test_a_barrier_of_one_block_is_a_join() -> None:
    made = Made("allreduce", 1, (1, 1, 0))
    made.gpus[0].block().barrier(0, 1).move("copy", [("i", 0, 1)], [("o", 0, 1)])
    assert plan_of(made).operations.action.tolist() == [Action.JOIN, Action.MOVE]


def test_conditions_on_buffers_follow_the_accesses() -> None:
    assert conditions_of(right.allreduce_by_repkt(), "buffers") == []
    assert conditions_of(right.allgather_by_port(), "buffers") == [
        "the input at the start of its allocation",
        "the output at the same offset of its allocation on all ranks",
    ]
    assert conditions_of(right.allreduce_by_rres(reuse_resources=True), "buffers") == [
        "the input at the same offset of its allocation on all ranks",
        "the input at the same place in all calls",
    ]


def test_conditions_on_calls_follow_the_scratch() -> None:
    new = "new allocations on all ranks at once"
    sizes = (
        "one size for all calls whose buffers are in the same allocations, or all ranks meet "
        "between two sizes"
    )
    assert conditions_of(right.allreduce_by_rre(), "calls") == ["sum", new]
    assert conditions_of(right.allgather_by_put(), "calls") == [new]
    assert conditions_of(right.allreduce_by_repkt(), "calls") == [
        "sum",
        sizes,
        "all ranks execute the same plans in the same order",
        "between two calls with the same buffers no other execution, "
        "or one in which all ranks meet",
        new,
    ]
    shared = right.allreduce_by_respkt(reuse_resources=True)
    assert conditions_of(shared, "calls")[3:] == [
        "between two calls no other execution, or one in which all ranks meet",
        "no execution of another plan with reuse_resources",
    ]
    assert conditions_of(shared, "chunks")[0] == "chunks of a multiple of 16 bytes, 16 to 16M"


def test_a_plan_in_place_that_says_it_is_not_is_refused_where_it_writes_the_input() -> None:
    text = text_of(edited(right.allreduce_by_rres().to_json(), "inplace", False))
    with pytest.raises(SleyError) as caught:
        prove(text)
    (found,) = caught.value.diagnostics
    assert found.code == "V206"
    assert '"name": "rres"' in text.splitlines()[found.places[0].line - 1]
    assert any("out of place" in note for note in found.notes)


def test_the_memories_and_channels_of_ports_are_conditions() -> None:
    assert conditions_of(right.allgather_by_port(), "calls")[-1] == (
        "an executor that has made at most 508 memories and 1023 port channels "
        "for other plans and allocations"
    )


def test_blocks_that_wait_for_one_another_run_at_once() -> None:
    made = right.allgather_with_semaphores()
    made.header["num_threads_per_block"] = 512
    assert conditions_of(made, "calls")[-1] == "GPUs that run 2 blocks of 512 threads at once"


def test_ranks_that_memory_channels_connect_share_a_host() -> None:
    assert conditions_of(right.allreduce_by_rres(), "hosts") == ["all ranks on one host"]
    made = Made("allreduce", 1, (1, 1, 0))
    made.gpus[0].block().move("copy", [("i", 0, 1)], [("o", 0, 1)])
    assert conditions_of(made, "hosts") == []


def test_halves_of_a_double_scratch_have_one_size_on_all_ranks() -> None:
    made = right.allreduce_by_repkt()
    assert conditions_of(made, "allocations")[-1].startswith("allocations of which 1/")
    made.gpus[0].chunks = (2, 2, 8)
    switched = right.allgather_by_packets_through_the_switch()
    switched.gpus[0].chunks = (1, 2, 3)
    for one in (made, switched):
        with pytest.raises(SleyError, match="F493"):
            prove(one.text)


def test_the_sizes_of_a_file_are_read() -> None:
    made = right.allreduce_by_rres(min_message_size=1024, max_message_size=4096)
    found = mscclpp.read(made.text)
    assert (found.min_bytes, found.max_bytes) == (1024, 4096)
    assert conditions_of(made, "sizes")[1] == "an input of 1K to 4K"


def test_a_place_names_the_line_of_an_operation() -> None:
    made = right.allreduce_by_rres()
    plan = plan_of(made)
    row = int(np.flatnonzero(plan.operations.action == Action.MOVE)[1])
    place = plan.place(row)
    lines = made.text.splitlines()
    assert '"name": "rres"' in lines[place.line - 1]
    assert str(place) == f"plan.json:{place.line}, rank 1 block 0 operation 3 (rres)"


def test_inner_operations_have_lines() -> None:
    made = right.allreduce_in_pipeline()
    document = made.to_json()
    op = document["gpus"][0]["threadblocks"][0]["ops"][3]
    document["gpus"][0]["threadblocks"][0]["ops"][3] = dict(reversed(op.items()))
    plan = mscclpp.read(text_of(document)).plan
    lines = text_of(document).splitlines()
    for row in range(len(plan.operations)):
        assert (
            f'"name": "{plan.words[plan.operations.word[row]]}"' in lines[plan.place(row).line - 1]
        )


def test_a_text_whose_names_are_spelt_otherwise_has_no_lines() -> None:
    text = right.allreduce_by_rres().text.replace('"name"', '"n\\u0061me"', 3)
    plan = mscclpp.read(text, file="plan.json").plan
    assert str(plan.place(0)) == "plan.json, rank 0 block 0 operation 0 (rlxsignal)"


def _flushed() -> Made:
    made = right.allgather_by_port()
    Block.on(made.gpus[0].blocks[0], "flush", 1, word="port")
    return made


def test_a_flush_is_a_remark_and_no_operation() -> None:
    found = mscclpp.read(_flushed().text)
    assert [note.code for note in found.notes] == ["F432"]
    assert "flush" not in found.plan.words


def test_keys_that_the_executor_does_not_read_are_remarks() -> None:
    document = edited(right.allreduce_by_rres().to_json(), "num_chunk_groups", 3)
    edited(document, "gpus.0.threadblocks.0.ops.3.comment", "of a person")
    notes = mscclpp.read(text_of(document)).notes
    assert [(note.code, note.found) for note in notes] == [
        ("F431", 'the key "comment"'),
        ("F431", 'the key "num_chunk_groups"'),
    ]
    assert "operation 3 (rres)" in str(notes[0].places[0])


@pytest.mark.parametrize(
    ("collective", "chunks"),
    [
        ("allreduce", (4, 4)),
        ("allgather", (2, 4)),
        ("reducescatter", (4, 2)),
        ("alltoall", (4, 4)),
        ("broadcast", (2, 2)),
        ("reduce", (2, 2)),
        ("gather", (2, 4)),
        ("scatter", (4, 2)),
        ("alltonext", (2, 2)),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_collective_is_its_name_and_chunks(
    collective: str, chunks: tuple[int, int], in_place: bool
) -> None:
    made = Made(collective, 2, (*chunks, 0), inplace=in_place)
    c = plan_of(made).collective
    assert (c.name, c.in_place, c.ranks) == (collective, in_place, 2)
    assert max(c.input_chunks.max(), c.output_chunks.max()) == max(chunks)


def test_the_root_of_calls_is_no_condition() -> None:
    made = Made("broadcast", 2, (1, 1, 0))
    root, other = (gpu.block() for gpu in made.gpus)
    root.move("copy", [("i", 0, 1)], [("o", 0, 1)]).on("rlxwait", 1).nop()
    root.move("put", [("i", 0, 1)], [(1, "o", 0, 1)]).nop().on("signal", 1)
    other.on("rlxsignal", 0).on("wait", 0)
    (execution,) = mscclpp.executions(made.text, MSCCLPP).executions
    conditions = [*sley.verify(execution.plan).conditions, *execution.conditions]
    found = [str(one) for one in conditions if "root" in str(one)]
    assert found == ["root 0", "no call with another root, which mscclpp does not check"]


def test_a_root_is_refused_for_a_collective_without_one() -> None:
    with pytest.raises(SleyError, match=r"L101(?s:.*)no root"):
        mscclpp.read(right.allreduce_by_rres().text, root=0)


def test_a_root_is_assumed_unless_it_is_given() -> None:
    made = Made("broadcast", 3, (1, 1, 0))
    assert [note.code for note in mscclpp.read(made.text).notes] == ["F434"]
    found = mscclpp.read(made.text, root=2)
    assert (found.plan.collective.root, found.notes) == (2, ())


def test_a_given_collective_replaces_that_of_the_file() -> None:
    made = right.allreduce_by_rres()
    made.header["collective"] = "custom"
    given = sley.AllReduce(2, 2, in_place=True)
    assert plan_of(made, collective=given).collective == given
    assert plan_of(right.allreduce_by_rre(), in_place=True).collective.in_place


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(right.allreduce_by_rres().text)
    plan = sley.load(path)
    assert isinstance(plan, OneSidedPlan)
    assert sley.verify_file(path).proofs == sley.verify_file(path, "mscclpp").proofs
    with pytest.raises(SleyError) as caught:
        sley.load(path, slots=2)
    assert caught.value.code == "C309"


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_the_command_line_proves_an_execution_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(right.allreduce_in_pipeline().text)
    code, output = invoke("verify", str(path), "--json")
    assert code == 0
    found = json.loads(output)
    assert found["target"] == "mscclpp@2026-08"
    assert [proof["slots"] for proof in found["proofs"]] == [None] * 3
    path.write_text(right.allreduce_by_rres().text.replace('"signal"', '"rlxsignal"'))
    assert "V211" in invoke("verify", str(path))[1]


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "--topology", "ndv4"),
        ("compile",),
        ("compile", "--schedule", "hpds"),
        ("lift",),
        ("run",),
        ("draw", "--of", "blocks", "-o", "plan.svg"),
        ("verify", "--target", "executor"),
    ],
)
def test_other_commands_refuse_an_execution_plan(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(right.allreduce_by_rres().text)
    code, output = invoke(command[0], str(path), *command[1:])
    assert code == 1
    assert ("F440" if "--target" in command else "F499") in output


@pytest.mark.parametrize("option", ["--slots", "--slot-bytes", "--max-bytes"])
def test_options_of_messages_are_accepted_for_an_execution_plan(
    tmp_path: Path, option: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(right.allreduce_by_rres().text)
    code, output = invoke("verify", str(path), option, "2")
    assert (code, option in output) == (2, True)


USES: dict[str, Callable[[Any], object]] = {
    "run": lambda plan: sley.run(plan, "1K"),
    "execute": lambda plan: sley.execute(plan, [np.ones(2, np.float32)] * 2),
    "simulate": lambda plan: sley.simulate(plan, "1K", topology=sley.topologies.ndv4()),
    "lift": sley.lift,
    "compile": sley.compile,
    "save as XML": lambda plan: sley.save(plan, "plan.xml"),
    "save as a kernel": lambda plan: sley.save(plan, "plan.cu"),
    "plan_table": lambda plan: plan_table(plan, 0),
    "pipeline_table": pipeline_table,
}


@pytest.mark.parametrize("use", USES)
def test_functions_for_other_plans_refuse_a_one_sided_plan(use: str) -> None:
    with pytest.raises(SleyError) as caught:
        USES[use](plan_of(right.allreduce_by_rres()))
    assert caught.value.code == "C307"


def test_the_buffers_of_a_switch_are_those_of_its_ranks() -> None:
    plan = plan_of(right.allreduce_by_switch())
    row = int(np.flatnonzero(plan.operations.action == Action.MOVE)[0])
    own = plan.ranges.operation == row
    assert plan.ranges.rank[own].tolist() == [0, 1, 0, 1]
    assert plan.ranges.buffer[own].tolist() == [Buffer.INPUT] * 4


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    with pytest.raises(SleyError, match="F404"):
        mscclpp.read(path)


def test_more_blocks_than_the_verifier_compares_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "MAX_BLOCKS", 3)
    with pytest.raises(SleyError, match="F403"):
        prove(right.allgather_by_port().text)


def test_operands_of_an_operation_without_any_are_refused() -> None:
    document = right.allreduce_by_rres().to_json()
    document["gpus"][0]["threadblocks"][0]["ops"][0]["src_buff"] = [
        {"buffer_id": 9, "index": 0, "size": 1}
    ]
    with pytest.raises(SleyError, match="F479"):
        prove(text_of(document))


@pytest.mark.parametrize(("sizes", "refused"), [((1000, 1020), True), ((1000, 1024), False)])
def test_a_range_without_a_size_that_the_chunks_divide_is_proven(sizes, refused, tmp_path):
    plan = sley.compile(sley.algorithms.build("ring-allreduce", ranks=4), protocol="simple")
    path = tmp_path / "ring.json"
    settings = {"min_bytes": sizes[0], "max_bytes": sizes[1]}
    path.write_text(mscclpp.FORMAT.write(plan, "mscclpp", **settings))
    other = tmp_path / "other.json"
    for act in (
        lambda: sley.load(path),
        lambda: sley.verify_file(path),
        lambda: sley.save(plan, other, **settings),
    ):
        if refused:
            with pytest.raises(SleyError, match=r"F463.*(\n.*)*multiple of 64 bytes"):
                act()
        else:
            act()
    assert other.exists() != refused
