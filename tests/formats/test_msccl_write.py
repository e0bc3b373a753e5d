"""Writing MSCCL XML: the file for each target, and refusals."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.errors.catalog import all_rules
from sley.formats import Target, msccl_xml
from sley.formats.msccl_xml.targets import EXECUTOR, TARGETS
from sley.formats.rewriting import unfuse
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges
from sley.ir.words import LoopOrder, Op, Protocol
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.xml_plans import (
    I,
    O,
    S,
    Step,
    exchange,
    many_waits,
    plan_of,
    same_meaning,
    with_instructions,
)

PLANS = {"exchange": exchange, "exchange-apart": lambda: exchange(False), "many-waits": many_waits}
SMALL = {"fused.xml": exchange, "waits.xml": many_waits}


def refused(plan: Plan, target: str | Target, **options: object) -> SleyError:
    """Why a plan is not written, which a check without writing says too."""
    with pytest.raises(SleyError) as caught:
        msccl_xml.write(plan, target, **options)
    if not options:
        with pytest.raises(SleyError) as checked:
            msccl_xml.check(plan, target)
        assert checked.value.diagnostics == caught.value.diagnostics
    return caught.value


# What is written


@pytest.mark.parametrize("plan", SMALL)
@pytest.mark.parametrize("target", TARGETS)
def test_the_text_of_each_target_equals_the_golden_file(target: str, plan: str, golden) -> None:
    golden(f"{target}-{plan}", msccl_xml.write(SMALL[plan](), target, max_bytes=1 << 20))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("target", TARGETS)
def test_reading_what_was_written_gives_the_plan(target: str, plan: str) -> None:
    original = PLANS[plan]()
    sley.verify(original)
    text = msccl_xml.write(original, target)
    found = msccl_xml.read(text)
    assert found.notes == ()
    assert found.plan.name == original.name
    assert same_meaning(found.plan, unfuse(original, TARGETS[target].operations))
    sley.verify(found.plan)
    assert msccl_xml.write(found.plan, target) == text
    lexed(text, TARGETS[target])


@pytest.mark.parametrize("target", TARGETS)
def test_real_files_come_back_as_they_were(target: str, data_dir: Path) -> None:
    for path in sorted((data_dir / "msccl-xml").glob("*.xml")):
        original = msccl_xml.read(path).plan
        text = msccl_xml.write(original, target)
        found = msccl_xml.read(text)
        assert found.notes == ()
        assert same_meaning(found.plan, unfuse(original, TARGETS[target].operations)), path.name
        sley.verify(found.plan, 1 if path.name.startswith("ncv4") else None)
        lexed(text, TARGETS[target])


LARGE = {
    target.name: replace(
        target,
        custom_collective="custom",
        steps_per_block=1 << 20,
        blocks=1 << 20,
        channels=1 << 20,
        count=1 << 20,
        waited_block=1 << 20,
        nodes=None,
        children=None,
        keeps_input=False,
    )
    for target in TARGETS.values()
}


@examples(14)
@given(random_programs(), st.sampled_from(sorted(LARGE)), st.sampled_from([1, 2, 8]))
def test_random_plans_survive_and_stay_right(random: RandomProgram, name: str, slots: int) -> None:
    plan = sley.compile(random.program, slots=slots, per_chunk=True, verify=False)
    text = msccl_xml.write(plan, LARGE[name])
    found = msccl_xml.read(text, collective=plan.collective, slots=slots)
    assert [note.code for note in found.notes if note.code != "F433"] == []
    expected = unfuse(plan, LARGE[name].operations)
    channel = np.where(found.plan.instructions.channel == NONE, NONE, expected.instructions.channel)
    assert same_meaning(found.plan, with_instructions(expected, channel=channel))
    sley.verify(found.plan, slots)
    assert msccl_xml.write(found.plan, LARGE[name]) == text
    lexed(text, LARGE[name])


TAG = re.compile(r' *<(/?)([a-z]+)((?: [A-Za-z_]+="[^"<>\t]*")*)(/?)>\n')


def lexed(text: str, target: Target) -> None:
    """Check the text as the executor's lexer and parser would."""
    assert "".join(match.group() for match in TAG.finditer(text)) == text
    for match in TAG.finditer(text):
        attributes = re.findall(r'="([^"]*)"', match[3])
        assert len(attributes) <= 16
        assert all(len(value) <= 255 for value in attributes)
    root = ElementTree.fromstring(text)
    for gpu in root:
        blocks = [[dict(step.attrib) for step in block] for block in gpu]
        assert [int(block.get("id")) for block in gpu] == list(range(len(blocks)))
        waited = set()
        for steps in blocks:
            for number, step in enumerate(steps):
                assert int(step["s"]) == number
                if step["depid"] != "-1":
                    waited.add((int(step["depid"]), int(step["deps"])))
                if step["type"] == "nop":
                    assert step["depid"] != "-1"
                    assert steps[number + 1]["depid"] != "-1"
                elif target.name == "rccl":
                    assert step["type"] in ("s", "r", "cpy", "re")
        for block, step in waited:
            assert blocks[block][step]["hasdep"] == "1"
            assert blocks[block][step]["type"] != "nop"


def test_each_target_gets_the_header_that_it_reads() -> None:
    def header(target: str, plan: Plan, **options: object) -> dict[str, str]:
        return ElementTree.fromstring(msccl_xml.write(plan, target, **options)).attrib

    plan = plan_of(sley.ReduceScatter(2, 3), [[], []])
    assert header("msccl", plan, max_bytes=4095, threads=256) == {
        "name": "by hand", "proto": "LL", "nchannels": "1", "nchunksperloop": "6", "ngpus": "2",
        "coll": "reduce_scatter", "inplace": "0", "outofplace": "1", "minBytes": "0",
        "maxBytes": "4096", "nthreads": "256",
    }  # fmt: skip
    for target in ("executor", "rccl"):
        found = header(target, plan, min_bytes=7, max_bytes=4095)
        assert (found["coll"], found["minBytes"], found["maxBytes"]) == (
            "reducescatter",
            "7",
            "4095",
        )
        assert header(target, plan)["maxBytes"] == "0"
    assert int(header("msccl", plan)["maxBytes"]) > 1 << 37
    assert header("msccl", exchange())["inplace"] == "1"
    assert header("msccl", exchange())["outofplace"] == "0"
    gather = plan_of(sley.Gather(2, 3, root=1), [[], []])
    assert (header("executor", gather)["coll"], header("msccl", gather)["coll"]) == (
        "gather",
        "custom",
    )
    assert header("executor", gather)["nchunksperloop"] == "3"


@pytest.mark.parametrize("name", ['<a & "b">', "tab\tand\nline", "Weberknüpfer", "'", ""])
def test_any_name_survives(name: str) -> None:
    text = msccl_xml.write(exchange(), "executor", name=name)
    assert msccl_xml.read(text).plan.name == name.replace("\t", "\\t").replace("\n", "\\n")
    lexed(text, EXECUTOR)


def test_the_last_wait_stands_on_the_step_itself() -> None:
    root = ElementTree.fromstring(msccl_xml.write(many_waits(), "msccl"))
    steps = root[0][6]
    assert [s.get("type") for s in steps] == ["nop"] * 5 + ["re"]
    assert [s.get("depid") for s in steps] == ["0", "1", "2", "3", "4", "5"]


def test_waits_name_the_step_after_nops_were_put_in() -> None:
    own = [
        [Step(Op.COPY, (I, 0), (S, 0))],
        [Step(Op.COPY, (I, 0), (S, 1))],
        [Step(Op.COPY, (S, 0), (S, 2), 2, waits=((0, 0), (1, 0))), Step(Op.COPY, (I, 0), (O, 0))],
        [Step(Op.COPY, (S, 2), (S, 4), 2, waits=((2, 0),))],
    ]
    plan = plan_of(sley.AllReduce(1, 1), [own], scratch=[6])
    root = ElementTree.fromstring(msccl_xml.write(plan, "msccl"))
    assert (root[0][3][0].get("depid"), root[0][3][0].get("deps")) == ("2", "1")
    assert [s.get("hasdep") for s in root[0][2]] == ["0", "1", "0"]


def test_runs_of_reductions_are_broken_where_the_runtime_would_mix_them() -> None:
    def reductions(counts: list[int]) -> list[str]:
        own = [[Step(Op.REDUCE, (S, k), (O, 0), count) for k, count in enumerate(counts)]]
        plan = plan_of(sley.AllReduce(1, 4), [own], scratch=[64])
        root = ElementTree.fromstring(msccl_xml.write(plan, "executor"))
        return [step.get("hasdep") for step in root[0][0]]

    assert reductions([1, 1, 2, 2, 1]) == ["0", "1", "0", "1", "0"]
    runs = reductions([1] * 40)
    assert [k for k, flag in enumerate(runs) if flag == "1"] == [15, 31]


def test_a_wait_breaks_a_run_by_itself() -> None:
    reduce = Step(Op.REDUCE, (S, 0), (O, 0))
    own = [
        [Step(Op.COPY, (I, 0), (S, 1))],
        [reduce, Step(Op.REDUCE, (S, 0), (O, 0), 2, waits=((0, 0),))],
    ]
    plan = plan_of(sley.AllReduce(1, 4), [own], scratch=[2])
    root = ElementTree.fromstring(msccl_xml.write(plan, "executor"))
    assert [step.get("hasdep") for step in root[0][1]] == ["0", "0"]


# What is refused


def local(blocks: int = 1, steps: int = 1, waits: tuple[tuple[int, int], ...] = ()) -> Plan:
    """One rank whose blocks each copy something; the last one's last step has the waits."""
    copy = Step(Op.COPY, (I, 0), (O, 0))
    own = [[copy] * steps for _ in range(blocks)]
    own[-1][-1] = replace(copy, waits=waits)
    return plan_of(sley.AllReduce(1, 1), [own])


def star(peers: int, channel: int = 0) -> Plan:
    """Rank 0 sends to each of the others, on one channel."""
    ranks = [[[Step(Op.SEND, (I, 0), send=r, chan=channel)] for r in range(1, peers + 1)]]
    ranks += [[[Step(Op.RECV, dst=(O, 0), recv=0, chan=channel)]] for _ in range(peers)]
    return plan_of(sley.AllReduce(peers + 1, 1), ranks)


def pair(*steps: Step, chunks: int = 100, ranks: int = 2) -> Plan:
    """A few ranks, the first with one block of the steps."""
    return plan_of(sley.AllReduce(ranks, chunks), [[list(steps)], *[[]] * (ranks - 1)])


def waiting_for(row: int) -> Plan:
    """A plan whose first instruction waits for that row."""
    return replace(exchange(), waits=Edges([0, 1, 1, 1, 1, 1, 1], [row]))


SEND = Step(Op.SEND, (I, 0), send=1, chan=0)
PASS_ON = Step(Op.RECV_REDUCE_SEND, (I, 0), send=1, recv=1, chan=0)
ONE_EACH = sley.AllReduce(2, 1)
PUSH = [[[Step(Op.COPY, (I, 0), (I, 2), 2), Step(Op.COPY, (I, 0), (O, 0), 4)]]]
SHIFT = [[[Step(Op.COPY, (I, 0), (I, 1), 2)]]]
OTHER = replace(sley.Custom("other", 1, 1, 1, lambda rank, index: None), name="allreduce")
TOO_MUCH = [
    ("F441", "msccl", lambda: replace(exchange(), loop_order=LoopOrder.INSTRUCTION), "instruction"),
    ("F441", "msccl", lambda: pair(SEND, replace(SEND, send=2), ranks=3), "block 0, step 0"),
    ("F441", "msccl", lambda: pair(SEND, replace(SEND, chan=1)), "rank 0, block 0, step 0"),
    ("F443", "executor", lambda: plan_of(sley.AllToNext(2), [[], []]), "alltonext"),
    ("F443", "executor", lambda: plan_of(OTHER, [[]]), "isn't what executor means"),
    ("F444", "executor", lambda: local(steps=65), "rank 0, block 0"),
    ("F444", "executor", lambda: local(66, 1, tuple((b, 0) for b in range(65))), "64 of them nops"),
    ("F444", "msccl", lambda: local(steps=257), "257 steps"),
    ("F444", "rccl", lambda: pair(*[PASS_ON] * 22), "66 steps"),
    ("F444", "rccl", lambda: local(65), "65 blocks"),
    ("F444", "msccl", lambda: local(217), "217 blocks"),
    ("F444", "msccl", lambda: local(130, 1, ((128, 0),)), "rank 0, block 129, step 0"),
    ("F444", "msccl", lambda: star(33), "33 on channel 0"),
    ("F444", "executor", lambda: star(1, 32), "channel 32"),
    ("F444", "rccl", lambda: star(1, 128), "channel 128"),
    ("F444", "executor", lambda: pair(replace(SEND, count=72)), "rank 0, block 0, step 0"),
    ("F444", "msccl", lambda: pair(replace(SEND, count=73)), "73 chunks"),
    ("F444", "msccl", lambda: pair(replace(SEND, src=(I, 32768)), chunks=40000), "offset 32768"),
    ("F441", "msccl", lambda: replace(exchange(), protocol=Protocol.DIRECT), "Simple, LL or LL128"),
    ("V201", "msccl", lambda: pair(replace(SEND, src=(I, 99), count=2)), "inside its buffer"),
    ("V201", "msccl", lambda: pair(replace(SEND, src=(NONE, 0))), "inside its buffer"),
    ("V202", "msccl", lambda: plan_of(ONE_EACH, [[[SEND], [SEND]], []]), "rank 0, block 1"),
    ("F444", "executor", lambda: local(64, 63), "4098"),
    ("F444", "executor", lambda: local(1024, 3), "4098"),
    ("F444", "executor", lambda: plan_of(sley.AllReduce(1025), [[]] * 1025), "1025 GPUs"),
    ("F454", "rccl", lambda: plan_of(sley.AllReduce(1, 4), PUSH), "a write to rank 0 in[2]"),
    ("V208", "msccl", lambda: plan_of(sley.AllReduce(1, 4, in_place=True), SHIFT), "no chunk"),
    ("V201", "msccl", lambda: pair(replace(SEND, send=0)), "a send peer"),
    ("V201", "msccl", lambda: pair(replace(SEND, send=2)), "a send peer"),
    ("V201", "msccl", lambda: pair(replace(SEND, chan=NONE)), "a channel for its send"),
    ("V201", "msccl", lambda: pair(replace(SEND, count=0)), "a count of at least 1"),
    ("V201", "msccl", lambda: with_instructions(exchange(), op=[10] * 6), "operation 10"),
    ("V201", "msccl", lambda: local(1, 2, ((0, 1),)), "instructions 1"),
    ("V201", "msccl", lambda: waiting_for(6), "instruction 6"),
    ("V201", "msccl", lambda: waiting_for(3), "instruction 3"),
    ("V201", "msccl", lambda: waiting_for(0), "instructions 0"),
    ("V201", "msccl", lambda: replace(exchange(), block_rank=[1, 0]), "block_rank ascending"),
    ("V201", "msccl", lambda: replace(exchange(), block_offset=[0, 3]), "block_offset"),
    ("V201", "msccl", lambda: replace(exchange(), scratch_chunks=[0, -1]), "scratch_chunks"),
    ("V201", "msccl", lambda: replace(exchange(), scratch_chunks=[0]), "scratch_chunks"),
    ("V201", "msccl", lambda: replace(exchange(), waits=Edges.empty(5)), "waits for 6"),
    ("V201", "msccl", lambda: replace(exchange(), slots=0), "slots of at least 1"),
    ("V201", "msccl", lambda: with_instructions(exchange(), source=[7] * 6), "sources"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "target", "make", "words"), TOO_MUCH)
def test_a_plan_that_the_target_cannot_run_is_refused(code, target, make, words: str) -> None:
    error = refused(make(), target)
    assert error.code == code
    assert words in str(error)
    assert error.diagnostics[0].remedy


@pytest.mark.parametrize(
    ("target", "make"),
    [
        ("executor", lambda: local(steps=64)),
        ("executor", lambda: local(65, 1, tuple((b, 0) for b in range(64)))),
        ("msccl", lambda: local(steps=256)),
        ("rccl", lambda: local(64)),
        ("msccl", lambda: local(216)),
        ("msccl", lambda: local(129, 1, ((127, 0),))),
        ("msccl", lambda: star(32)),
        ("executor", lambda: star(1, 31)),
        ("rccl", lambda: star(1, 127)),
        ("executor", lambda: pair(replace(SEND, count=71))),
        ("msccl", lambda: pair(replace(SEND, count=72))),
        ("msccl", lambda: pair(replace(SEND, src=(I, 32767)), chunks=40000)),
        ("executor", lambda: local(1023, 3)),
    ],
)
def test_a_plan_at_the_limits_of_the_target_is_written(target: str, make) -> None:
    msccl_xml.read(msccl_xml.write(make(), target))


@pytest.mark.parametrize(
    "options",
    [
        {"min_bytes": -1},
        {"min_bytes": 2, "max_bytes": 1},
        {"max_bytes": 0},
        {"max_bytes": 1 << 63},
        {"name": "\x00"},
        {"min_bytes": "1 apple"},
        {"max_bytes": 1.5},
        {"name": "\ud800"},
        {"name": "x" * 256},
        {"name": '"' * 50},
        {"threads": 256},
    ],
)
def test_arguments_that_no_file_can_hold_are_refused(options: dict[str, object]) -> None:
    assert refused(exchange(), "executor", **options).code == "F451"


def test_fewer_than_one_thread_is_refused() -> None:
    assert refused(exchange(), "msccl", threads=0).code == "F451"
    assert refused(exchange(), "msccl", threads="256").code == "F451"


def test_sizes_may_be_texts() -> None:
    text = msccl_xml.write(exchange(), "msccl", min_bytes="64K", max_bytes="1MB")
    assert text == msccl_xml.write(exchange(), "msccl", min_bytes=1 << 16, max_bytes=1 << 20)


@pytest.mark.parametrize("target", ["nccl", "", "MSCCL"])
def test_unknown_targets_are_refused(target: str) -> None:
    assert refused(exchange(), target).code == "F440"


def test_several_problems_come_at_once() -> None:
    plan = pair(replace(SEND, count=73), replace(SEND, count=80, chan=40))
    found = Counter(d.code for d in refused(plan, "msccl").diagnostics)
    assert found == {"F441": 1, "F444": 2}


@pytest.mark.parametrize(
    ("target", "expected", "found"),
    [
        # Waits for blocks beyond 127 follow from too many blocks.
        ("rccl", "at most 64 blocks on a GPU, for rccl", "131 blocks"),
        ("executor", "waits for blocks up to 127, for executor", "a wait for block 129; 1 more"),
    ],
)
def test_a_limit_is_told_once_with_the_highest_value(
    target: str, expected: str, found: str
) -> None:
    (problem,) = refused(local(131, 1, ((128, 0), (129, 0))), target).diagnostics
    assert problem.expected == expected
    assert problem.found.startswith(found)


def test_the_page_has_the_limits_of_the_runtimes() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "machine.md").read_text().splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("| limit | executor"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[head:]]
    assert rows[0][1:] == list(TARGETS)
    words = [
        "blocks",
        "waited_block",
        "steps_per_block",
        "channels",
        "peers_per_channel",
        "count",
        "offset",
        "nodes",
        "children",
        "attribute_chars",
    ]
    for word, (_, *told) in zip(words, rows[2:], strict=False):
        limits = [getattr(one, word) for one in TARGETS.values()]
        assert told == ["-" if most is None else f"{most:,}" for most in limits], word


def test_every_rule_of_writing_is_tested() -> None:
    tested = {code for code, *_ in TOO_MUCH} | {"F440", "F451"}
    assert {code for code in all_rules() if "F440" <= code <= "F454"} <= tested


def test_writing_changes_nothing_and_repeats_itself() -> None:
    plan = exchange()
    first = [msccl_xml.write(plan, target) for target in TARGETS.values()]
    assert first == [msccl_xml.write(plan, target) for target in TARGETS]
    assert same_meaning(plan, exchange())
    assert plan.protocol is Protocol.LL
