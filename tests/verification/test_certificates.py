"""Certificates: `sley_check`, which shares no code with sley, accepts what sley proves and nothing
else, and each of its rules is needed."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
import sley_check
from sley.algorithms import CATALOG, build
from sley.errors import SleyError
from sley.formats import msccl_xml, plan_file
from sley.ir.faults import check_tables
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges
from sley.ir.words import LoopOrder, Op, Protocol
from sley.verification import Proof, verifier
from sley.verification.certificate import certificate
from sley.verification.hangs import run_abstractly
from support.generators.examples import examples
from support.generators.random_options import random_options
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import GROUPED, cases, few, in_turn, label
from support.inputs.xml_plans import I, O, Step, plan_of
from support.machines.runtime_model import faults_of
from support.mutants.file_mutants import TARGETS, mutant
from support.mutants.plan_mutants import KINDS, PLANS, Mutator

Witness = dict[str, Any]
MOST_BYTES = 3_000_000


def witness(*proofs: Proof) -> Witness:
    """The certificate of proofs, as its reader has it."""
    found: Witness = json.loads(gzip.decompress(certificate(proofs)))
    return found


def forged(plan: Plan) -> Witness:
    """The best certificate of a plan that needn't be right, but for its tables and messages, and
    that of one tile ends. Errors: V201 to V203."""
    check_tables(plan)
    run = run_abstractly(plan, verifier.messages_of(plan), plan.slots, per_chunk=plan.per_chunk)
    if (run.level == NONE).any():
        raise SleyError(run.diagnostics)
    return witness(Proof(plan, plan.slots, plan.per_chunk, 0, ()))


def refusal(plan: Plan, found: Witness) -> str:
    """Why a certificate of a plan is refused, "" if it is accepted."""
    try:
        [read] = sley_check.read_plan(plan_file.encode(plan))
        sley_check.check(read, found["executions"][0])
    except sley_check.WRONG as error:
        return str(error) or type(error).__name__
    return ""


def proven(plan: Plan) -> bool:
    try:
        sley.verify(plan)
    except SleyError:
        return False
    return True


@examples(30)
@given(random_programs(), random_options())
def test_what_is_proven_is_accepted(random: RandomProgram, options: dict[str, Any]) -> None:
    plan = sley.compile(random.program, **options)
    assert refusal(plan, forged(plan)) == ""


@examples(30)
@given(random_programs(), random_options(), st.sampled_from([k for k, _ in KINDS]), st.data())
def test_a_mutant_is_accepted_only_if_it_is_proven(
    random: RandomProgram, options: dict[str, Any], kind: Mutator, data: st.DataObject
) -> None:
    plan = sley.compile(random.program, **options)
    mutants = list(kind(plan))
    if not mutants:
        return
    mutant = data.draw(st.sampled_from(mutants))
    kept = refusal(mutant, forged(plan))
    try:
        own = refusal(mutant, forged(mutant))
    except SleyError:
        own = "no certificate could be"
    assert (own == "") == proven(mutant), own
    assert kept or not own, "accepted with the certificate of another plan"


CERTIFIED = [
    sley.compile(sley.load("three-step-alltoall", nodes=2, gpus=2), schedule="hpds"),
    sley.compile(sley.load("all-pairs-allreduce", ranks=3), schedule="hpds", protocol="Direct"),
]
JUNK = (None, True, -1, 0, 1, 7, 10**30, 0.5, float("nan"), "1", [], [0], {}, [0, -1, 0])


@examples(60)
@given(st.sampled_from(CERTIFIED), st.data())
def test_a_damaged_certificate_is_accepted_only_if_it_shows_as_much(
    plan: Plan, data: st.DataObject
) -> None:
    """Whatever a certificate has, it is refused, unless its numbers still show all."""
    found = forged(plan)
    own = found["executions"][0]
    word = data.draw(st.sampled_from(sorted(own)))
    junk = data.draw(st.sampled_from(JUNK))
    if isinstance(own[word], list) and own[word] and data.draw(st.booleans()):
        own[word][data.draw(st.integers(0, len(own[word]) - 1))] = junk
    else:
        own[word] = junk
    if refusal(plan, found) == "":
        # Other numbers that grow as they must, or a path or a staged message that isn't needed.
        assert word in ("in_place", "staged", "hops", "paths") or isinstance(junk, int)


def random_damage(rng: random.Random, own: dict[str, Any], other: dict[str, Any]) -> None:
    """Damages a list of a certificate, or takes it from the one of another plan."""
    words = sorted(word for word in own if own[word] and word != "in_place")
    numbers = own[word := rng.choice(words)]
    k, to = rng.choices(range(len(numbers)), k=2)
    of_fixed_length = word in ("events", "meetings")
    kinds = ["swap", "move"] if of_fixed_length else ["swap", "move", "drop", "repeat"]
    match rng.choice([*kinds, "exchange"]):
        case "swap":
            numbers[k], numbers[to] = numbers[to], numbers[k]
        case "drop":
            del numbers[k]
        case "repeat":
            numbers.insert(to, numbers[k])
        case "move":
            of, k = (numbers, k) if isinstance(numbers[k], int) else (numbers[k], rng.randrange(2))
            of[k] += rng.choice([-3, -2, -1, 1, 2, 3])
        case "exchange":
            own[word] = other.get(word, [])


@cache
def mutated() -> list[list[Plan]]:
    """Plans with all kinds of witnesses, each with its mutants behind it."""
    by_instruction = {"schedule": "hpds", "loop_order": "instruction"}
    made = (
        ("three-step-alltoall", {"nodes": 2, "gpus": 2}, by_instruction),
        ("two-level-reducescatter", {"nodes": 2, "gpus": 2}, {"protocol": "LL", "per_chunk": True}),
        ("all-pairs-allreduce", {"ranks": 3}, {"protocol": "Direct", **by_instruction}),
        ("one-step-allreduce", {"ranks": 3}, {"schedule": "hpds", "protocol": "Direct"}),
        ("all-pairs-alltoallv", {"ranks": 3}, {}),
        ("nvls-allreduce", {"ranks": 3}, {}),
    )
    plans = [sley.compile(build(name, **sizes), **options) for name, sizes, options in made]
    plans += PLANS.values()
    return [[plan, *(one for kind, _ in KINDS for one in kind(plan))] for plan in plans]


@pytest.mark.parametrize("number", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_damaged_certificate_is_accepted_for_a_wrong_plan(number: int) -> None:
    """Of a plan or a mutant of it, the certificate is from either one or from another plan's, and
    damaged once or twice; of a mutant also as it is."""
    rng, verdicts = random.Random(number), Counter[str]()
    for _ in range(number):
        (plan, *mutants), (other, *_) = rng.sample(mutated(), 2)
        run = rng.choice([plan, rng.choice(mutants)])
        found, taken = forged(plan), forged(other)
        if run is not plan and rng.random() < 0.5:
            with contextlib.suppress(SleyError):
                found = forged(run)
        for _ in range(rng.choice([1 if run is plan else 0, 1, 2])):
            random_damage(rng, found["executions"][0], taken["executions"][0])
        why = refusal(run, found)
        assert why or proven(run)
        verdicts[why.split(":")[0]] += 1
    print(verdicts)
    assert 0.02 < verdicts[""] / number < 0.4


OPTIONS: list[dict[str, Any]] = [
    {},
    {"protocol": "Direct", "instances": 2},
    {"schedule": "hpds", "allocate": "state"},
    {"protocol": "LL", "per_chunk": True},
    {"schedule": "hpds", "protocol": "Direct", "loop_order": "instruction"},
]


@pytest.mark.parametrize(
    ("name", "parameters", "options"), few(in_turn(OPTIONS, cases(CATALOG))), ids=label
)
def test_every_algorithm_is_accepted(
    name: str, parameters: dict[str, Any], options: dict[str, Any]
) -> None:
    if name in GROUPED:
        options = {}
    plan = sley.compile(build(name, **parameters), **options)
    assert refusal(plan, witness(sley.verify(plan))) == ""


def test_files_of_others_have_the_same_verdict(data_dir: Path) -> None:
    verdicts = Counter[bool]()
    for file in sorted(data_dir.glob("**/*.xml")):
        text = file.read_text() if file.stat().st_size < MOST_BYTES else ""
        for target in TARGETS if "<algo" in text else ():
            code, found = both(text, target, root=None)
            assert (found == "") == (code == ""), (file, target, code, found)
            verdicts[code == ""] += 1
    assert min(verdicts[True], verdicts[False]) > 20


# What sley-check leaves to the runtimes' parsers, which refuse such files.
PARSED = {"F406", "F444", "F462", "F464"}


@pytest.mark.parametrize("number", [60, pytest.param(9000, marks=pytest.mark.slow)])
def test_a_mutant_of_a_file_is_accepted_only_if_it_is_proven(number: int) -> None:
    for seed in range(number):
        rng = random.Random(seed)
        text, target = mutant(rng)
        code, found = both(text, target, root=0)
        if code and not found and code not in PARSED:  # sley may be stricter than the runtime is
            assert faults_of(text, target, rng) is None, (seed, code)
        else:
            assert (found == "") == (code == "") or not found, (seed, code, found)


def both(text: str, target: str, root: int | None) -> tuple[str, str]:
    """Why sley refuses a text, and why `sley_check` does with the best certificate; "" if not."""
    code, ways = "", ()
    try:
        ways = msccl_xml.executions(text, target, root=root).executions
        for way in ways:
            sley.verify(way.plan, way.slots, per_chunk=way.per_chunk, flagged=True)
    except SleyError as error:
        code = error.code
    try:
        for k, plan in enumerate(sley_check.read_xml(text.encode(), target, root=root)):
            rows = plan.at[-1] if plan.per_chunk else plan.rows
            own = {"events": [*range(rows)], "hops": [], "paths": []}
            with contextlib.suppress(SleyError, IndexError):
                known = replace(ways[k].plan, per_chunk=ways[k].per_chunk)
                own = forged(known)["executions"][0]
            sley_check.check(plan, own)
    except sley_check.WRONG as error:
        return code, str(error) or type(error).__name__
    return code, ""


# One mutant for each rule, which no other rule refuses.

NOTHING = sley.Custom("nothing", 3, 3, 3, lambda rank, index: None)
COPY = Step(Op.COPY, (I, 0), (O, 0))
SEND, RECV = Step(Op.SEND, (I, 0), send=1, chan=0), Step(Op.RECV, dst=(O, 0), recv=0, chan=0)


def by_hand(*ranks: list[list[Step]], events: list[int], **changes: Any) -> tuple[Plan, Witness]:
    """A plan that promises nothing with a certificate. changes: of the plan, or of the witness."""
    plan = plan_of(NOTHING, ranks + ([],) * (3 - len(ranks)), scratch=[1, 1, 1])
    own = {"events": events, "hops": [], "paths": []}
    for word in ("hops", "paths", "meetings", "staged"):
        if word in changes:
            own[word] = changes.pop(word)
    return replace(plan, slots=2, **changes), {"executions": [own]}


def promising(
    promise: sley.Collective, *ranks: list[list[Step]], events: list[int]
) -> tuple[Plan, Witness]:
    return plan_of(promise, ranks), by_hand(*ranks, events=events)[1]


def several(step: Step, *destinations: int) -> list[Step]:
    return [replace(step, dst=(O, k)) for k in destinations]


MEETINGS = {"loop_order": LoopOrder.INSTRUCTION}
WAITING = [[COPY], [replace(COPY, dst=(O, 1), waits=((0, 0),))]]
RACING = [[COPY], [replace(COPY, src=(I, 1))]]
PARTS = [
    [[replace(SEND, count=2)], [Step(Op.RECV, dst=(I, 1), recv=1, chan=0, count=2)]],
    [[Step(Op.RECV_COPY_SEND, dst=(I, 0), recv=0, send=0, chan=0, count=2)]],
]
PASSED = [
    [[SEND]],
    [[Step(Op.RECV_REDUCE_SEND, (I, 0), recv=0, send=2, chan=0)]],
    [[replace(RECV, recv=1)]],
]
SWAPPED = [
    [[*several(replace(COPY, src=(I, 1)), 0), COPY, replace(SEND, src=(I, 1)),
      Step(Op.RECV, dst=(O, 1), recv=1, chan=0)]],
    [[Step(Op.COPY, (I, 1), (O, 1)), replace(SEND, send=0), RECV]],
]  # fmt: skip

MUTANTS: dict[str, Callable[[], tuple[Plan, Witness]]] = {
    "matching": lambda: by_hand([[SEND]], events=[0]),
    "one-block": lambda: by_hand(
        [[SEND], [replace(SEND, waits=((0, 0),))]], [several(RECV, 0, 1)], events=[0, 1, 2, 3]
    ),
    "message-size": lambda: by_hand([[replace(SEND, count=2)]], [[RECV]], events=[0, 1]),
    "block-order": lambda: by_hand([several(COPY, 0, 1)], events=[0, 0]),
    "wait-order": lambda: by_hand(WAITING, events=[0, 0]),
    "message-order": lambda: by_hand([[SEND]], [[RECV]], events=[0, 0]),
    "slot-order": lambda: by_hand([[SEND] * 3], [several(RECV, 0, 1, 2)], events=[*range(6)]),
    "meeting-block": lambda: by_hand(
        [several(COPY, 0, 1)], events=[0, 1], meetings=[0, 0], **MEETINGS
    ),
    "meeting-ends": lambda: by_hand([[SEND]], [[RECV]], events=[0, 1], meetings=[0, 1], **MEETINGS),
    "meeting-wait": lambda: by_hand(WAITING, events=[0, 1], meetings=[1, 0], **MEETINGS),
    "hop": lambda: by_hand(RACING, events=[0, 1], hops=[[1, -1], [0, 0]], paths=[[0, 1, 1]]),
    "path": lambda: by_hand(RACING, events=[0, 1], hops=[[1, -1]], paths=[[0, 1, 0]]),
    "race": lambda: by_hand(RACING, events=[0, 1]),
    "race-of-pieces": lambda: by_hand(
        *PARTS, events=[0, 2, 1], hops=[[1, -1], [2, 0], [0, 1]], paths=[[0, 1, 2]]
    ),
    "hold-order": lambda: by_hand(
        [[SEND, Step(Op.COPY, (I, 1), (I, 0))]],
        [[RECV]],
        events=[0, 1, 2],
        staged=[],
        protocol=Protocol.DIRECT,
    ),
    "staged": lambda: by_hand(*PASSED, events=[0, 1, 2], staged=[], protocol=Protocol.DIRECT),
    "varying": lambda: promising(sley.AllToAllV(2), *SWAPPED, events=[0, 1, 2, 6, 3, 4, 5]),
    "result": lambda: promising(sley.Broadcast(2), [[COPY]], [[]], events=[0]),
    "operands": lambda: by_hand([[replace(COPY, dst=(I, 1), count=2)]], events=[0]),
    "groups": lambda: in_groups(),
    "promise": lambda: without_promise(),
}


def in_groups() -> tuple[Plan, Witness]:
    plan = sley.compile(sley.load("nvls-allreduce", ranks=4))
    return replace(plan, protocol=Protocol.LL), forged(plan)


def without_promise() -> tuple[Plan, Witness]:
    plan, found = promising(sley.Broadcast(2), [[COPY]], [[]], events=[0])
    c = plan.collective
    return replace(plan, collective=replace(c, expected=np.full_like(c.expected, NONE))), found


@pytest.mark.parametrize("rule", MUTANTS)
def test_each_rule_refuses_what_no_other_does(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = MUTANTS[rule]()
    assert refusal(plan, found).startswith(f"{rule}: ")
    without(rule, monkeypatch)
    assert refusal(plan, found) == ""


def without(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves a rule of `sley_check` out."""
    need = sley_check.need

    def most(holds: object, name: str, *found: object) -> None:
        need(holds or name == rule, name, *found)

    monkeypatch.setattr(sley_check, "need", most)


XML = """<algo name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="broadcast"
inplace="0" outofplace="1" minBytes="0" maxBytes="0"><gpu id="0" i_chunks="1" o_chunks="1"
s_chunks="2"><tb id="0" send="1" recv="-1" chan="0">{0}</tb><tb id="1" send="-1" recv="1"
chan="0">{1}</tb></gpu><gpu id="1" i_chunks="0" o_chunks="1" s_chunks="2"><tb id="0" send="0"
recv="0" chan="0">{2}</tb></gpu></algo>""".replace("\n", " ")


def steps(*rows: str) -> str:
    """Steps as texts of "type src dst depid deps hasdep"."""
    found = []
    for s, row in enumerate(rows):
        kind, src, dst, depid, deps, hasdep = row.split()
        found.append(
            f'<step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" '
            f'dstoff="{dst[1:]}" cnt="1" depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'
        )
    return "".join(found)


SENT, COPIED, GOT = "s i0 o0 -1 -1 0", "cpy i0 o0 -1 -1 1", "r i0 o0 -1 -1 0"
INTO = "cpy i0 s0 -1 -1 0"
RIGHT = ((SENT,), (COPIED,), (GOT,))
# The blocks, and the numbers of their steps without nops.
XML_MUTANTS: dict[str, tuple[tuple[tuple[str, ...], ...], list[int]]] = {
    # The announcement is of an earlier step, and none is needed.
    "never-ends": (
        ((SENT.replace("-1 -1", "1 1"),), (COPIED, INTO), (GOT,)),
        [0, 1, 2, 3],
    ),
    "nops": ((("nop i0 o0 1 0 0", SENT), (COPIED,), (GOT,)), [1, 0, 2]),
    "operation": (
        ((SENT,), (COPIED, "r i0 s1 -1 -1 0"), ("rcs i0 o0 -1 -1 0",)),
        [0, 1, 3, 2],
    ),
    "input": (((SENT, COPIED, "cpy s0 i0 -1 -1 0"), (), (GOT,)), [0, 1, 2, 3]),
    "merged": (
        ((SENT,), (COPIED, INTO, "re s1 s0 -1 -1 0", "re s0 s0 -1 -1 0"), (GOT,)),
        [*range(6)],
    ),
}


def read_as(target: str, blocks: tuple[tuple[str, ...], ...], events: list[int]) -> str:
    """Why the text of these blocks is refused with these numbers, "" if it isn't."""
    try:
        text = XML.format(*(steps(*rows) for rows in blocks))
        [plan] = sley_check.read_xml(text.encode(), target, root=0)
        sley_check.check(plan, {"events": events, "hops": [], "paths": []})
    except sley_check.WRONG as error:
        return str(error)
    return ""


@pytest.mark.parametrize("rule", XML_MUTANTS)
def test_each_rule_of_xml_files_refuses_what_no_other_does(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "rccl" if rule == "operation" else "executor"
    assert read_as(target, RIGHT, [0, 1, 2]) == ""
    assert read_as(target, *XML_MUTANTS[rule]).startswith(f"{rule}: ")
    without(rule, monkeypatch)
    assert read_as(target, *XML_MUTANTS[rule]) == ""


# Files that were accepted once, though they are wrong.


def wrong_plan(name: str) -> tuple[Plan, Witness]:
    if name == "a sum of one input, as often as there are ranks":
        reduce = replace(COPY, op=Op.REDUCE)
        twice = replace(reduce, src=(O, 0))
        blocks = [[[COPY, twice, twice, reduce, replace(SEND, src=(O, 0))]], [[RECV]]]
        plan, found = promising(sley.AllReduce(2), *blocks, events=[*range(6)])
        values = Edges(np.array([0, 5]), np.zeros(5, np.int32))
        return replace(plan, collective=replace(plan.collective, values=values)), found
    if name == "memory between two buffers in place":
        inner = [[Step(Op.COPY, (I, 0), (I, 2)), Step(Op.COPY, (I, 2), (O, 0))]]
        nothing = sley.Custom("own", 1, 1, 1, lambda rank, index: [(0, 0)], in_place=True)
        plan, found = promising(nothing, inner, events=[0, 1])
        base = np.array([4], np.int32)
        return replace(plan, collective=replace(plan.collective, output_base=base)), found
    # A receive from a group reduces, so that a copy of a chunk onto itself writes it.
    own = Step(Op.COPY, (I, 0), (I, 0))
    sent = replace(SEND, send=0)
    blocks = [[[replace(RECV, recv=3)]], [[own], [sent]], [[sent]]]
    plan, found = by_hand(*blocks, events=[3, 0, 1, 2], protocol=Protocol.SIMPLE)
    return replace(plan, groups=Edges(np.array([0, 2]), np.array([1, 2], np.int32))), found


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("a sum of one input, as often as there are ranks", "promise"),
        ("memory between two buffers in place", "operands"),
        ("a copy onto itself beside a switch", "race"),
    ],
)
def test_a_wrong_plan_is_refused(name: str, rule: str) -> None:
    assert refusal(*wrong_plan(name)).startswith(f"{rule}: ")


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (('depid="-1" deps="-1" hasdep="1"', 'depid="0" deps="-9" hasdep="1"'), "steps"),
        (('cnt="1"', 'cnt="1\u0661"'), "file"),
        (('<tb id="1" send="-1" recv="1"', '<tb id="1" send="1" recv="-1"'), "peers"),
        (('minBytes="0" maxBytes="0"', 'minBytes="9" maxBytes="8"'), "sizes"),
        (('s_chunks="2"', 's_chunks="300000000"'), "tables"),
    ],
)
def test_a_wrong_file_is_refused(edit: tuple[str, str], rule: str) -> None:
    text = XML.format(*(steps(*rows) for rows in RIGHT))
    assert text.count(edit[0]) > 0
    with pytest.raises(sley_check.Refused, match=f"^{rule}: "):
        sley_check.read_xml(text.replace(*edit).encode(), "executor", root=0)
