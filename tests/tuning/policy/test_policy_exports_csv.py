"""The CSVs decide as the policy does, read by the rules of the tuners that read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import given

from sley.communicator.selection.policy import program_of
from sley.errors import SleyError
from sley.ir.sizes import SizeRange
from sley.ir.words import Protocol
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe
from sley.tuning.policy.exports import nccl_csv, ncclx_csv, rccl_csv
from sley.tuning.policy.exports.tables import ONE_CHANNEL_BYTES
from sley.tuning.policy.nccl_names import COLLECTIVES, NCCL_ALGORITHMS, nccl_choice
from support.generators.examples import examples
from support.generators.random_policies import (
    expected_choice,
    interesting_sizes,
    policies,
    random_policy,
)

ALGORITHMS = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
PROTOCOLS = ["ll", "ll128", "simple"]
MACHINE = Machine("simulator", "ndv4", "f00d", 1, 8)
NAMES = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"]


@dataclass(frozen=True)
class Call:
    collective: str
    size_bytes: int
    nodes: int
    ranks: int


def example_plugin(text, call, *, excluded=frozenset(), own_default=1):
    """The answer of NVIDIA's example plug-in: algorithm, protocol (None: NCCL's), channels.

    excluded: what NCCL excludes. own_default: the channels of a call without a line; RCCL's is 0.
    """
    pieces = [
        line[start : start + 255]  # as fgets cuts it
        for line in text.splitlines(keepends=True)
        for start in range(0, len(line), 255)
    ]
    for piece in pieces:
        words = [word.strip(" \t") for word in piece.rstrip("\n").split(",") if word]
        if piece[0] in "#\n" or not 8 <= len(words) <= 10:
            continue
        collective = words[0] if words[0] in NAMES else "allreduce"
        algorithm = words[3] if words[3] in ALGORITHMS else "ring"
        protocol = words[4] if words[4] in PROTOCOLS else "simple"
        least, most, channels, nodes, ranks = (int(words[i]) for i in (1, 2, 5, 6, 7))
        if (
            collective == call.collective
            and least <= call.size_bytes <= most
            and nodes in (-1, call.nodes)
            and ranks in (-1, call.ranks)
            and (algorithm, protocol) not in excluded
        ):
            return algorithm, protocol, own_default if channels == -1 else channels
    return None, None, own_default


def interval(text):
    """The least and the greatest integer of NCCLX's interval; None for no end."""
    if text == "*":
        return None, None
    if re.fullmatch(r"-?\d+", text):
        return int(text), int(text)
    match = re.fullmatch(r"([\[(])\s*(-?\d*)\s*,\s*(-?\d*)\s*([\])])", text)
    assert match, f"NCCLX refuses {text!r}"
    least = int(match[2]) + (match[1] == "(") if match[2] else None
    most = int(match[3]) - (match[4] == ")") if match[3] else None
    if match[2] and match[3]:
        assert int(match[2]) <= int(match[3]), f"NCCLX refuses {text!r}"
    return least, most


def has(text, number):
    least, most = interval(text)
    return (least is None or least <= number) and (most is None or number <= most)


def ncclx(text, call, gpus):
    """The answer of NCCLX's tuner, which refuses a wrong line."""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] == "#":
            continue
        words = [word.strip() for word in re.split(r",(?![^\[(]*[\])])", line)]
        assert 7 <= len(words) <= 10
        assert words[0] in NAMES
        assert words[2] in ALGORITHMS
        assert words[3] in PROTOCOLS
        if (
            words[0] == call.collective
            and has(words[1], call.size_bytes // call.ranks)
            and has(words[5], call.nodes)
            and has(words[6], gpus)
        ):
            return words[2], words[3], int(words[4])
    return None


def calls(policy):
    m = policy.machine
    for size_bytes in interesting_sizes(policy):
        for collective in NAMES:
            yield Call(collective, size_bytes, m.nodes, m.ranks)


def wanted(policy, collective, size_bytes):
    one = policy.find(collective, size_bytes)
    return one and expected_choice(one.recipe, policy.machine.gpus)


@examples(12)
@given(policies)
def test_the_csv_of_nccl_decides_as_the_policy(policy):
    text = nccl_csv(policy).text
    for call in calls(policy):
        answer = example_plugin(text, call)
        choice = wanted(policy, call.collective, call.size_bytes)
        if choice:
            assert answer == choice, call
        elif call.size_bytes < ONE_CHANNEL_BYTES:
            assert answer == (None, None, 1), "NCCL's own choice, and its own single channel"
        else:
            assert answer[0] == "ring", call
            assert answer[2] == 0, f"{call} doesn't have NCCL's number of channels"


@examples(12)
@given(policies)
def test_other_communicators_keep_their_channels_with_the_csv_of_nccl(policy):
    text = nccl_csv(policy).text
    m = policy.machine
    for call in calls(policy):
        other = Call(call.collective, call.size_bytes, m.nodes, m.ranks - 1)
        assert example_plugin(text, other)[2] == (0 if call.size_bytes >= ONE_CHANNEL_BYTES else 1)


def test_calls_whose_algorithm_nccl_excludes_keep_their_channels():
    policy = random_policy(1)
    text = nccl_csv(policy).text
    for excluded in (
        {(a, "ll128") for a in ALGORITHMS},
        {("ring", p) for p in PROTOCOLS},  # NCCL_ALGO=tree
    ):
        for call in calls(policy):
            if call.size_bytes >= ONE_CHANNEL_BYTES and call.collective == "allreduce":
                answer = example_plugin(text, call, excluded=excluded)
                assert answer[0] is not None, call


@examples(12)
@given(policies)
def test_the_csv_of_nccl_has_no_word_that_its_reader_misunderstands(policy):
    for text in (nccl_csv(policy).text, rccl_csv(policy).text):
        assert text.isascii()
        for line in text.splitlines():
            assert 0 < len(line) < 255
            if line[0] != "#":
                words = line.split(",")
                assert words[0] in NAMES
                assert words[3] in ALGORITHMS
                assert words[4] in PROTOCOLS
                assert len(words) == 8
                assert int(words[5]) >= 0, "channels of -1 are one channel"


@examples(12)
@given(policies)
def test_the_csv_of_rccl_decides_as_the_policy_and_leaves_other_calls_alone(policy):
    text = rccl_csv(policy).text
    for call in calls(policy):
        answer = example_plugin(text, call, own_default=0)
        assert answer == (wanted(policy, call.collective, call.size_bytes) or (None, None, 0)), call
        assert answer[2] >= 0


@examples(12)
@given(policies)
def test_the_csv_of_ncclx_decides_as_the_policy_for_multiples_of_the_ranks(policy):
    """NCCLX divides the size by the ranks, rounded down: other sizes have the decision of the
    multiple below them."""
    m = policy.machine
    try:
        text = ncclx_csv(policy).text
    except SleyError as error:
        assert error.code == "D905"
        text = ""
    for call in calls(policy):
        multiple = call.size_bytes // m.ranks * m.ranks
        choice = wanted(policy, call.collective, multiple)
        assert ncclx(text, call, m.gpus) == choice, call
    other = Call("allreduce", 1 << 20, m.nodes + 1, m.ranks + m.gpus)
    assert ncclx(text, other, m.gpus) is None, "a communicator of another size isn't left alone"


def test_ncclx_names_the_ranges_whose_ends_it_rounds():
    ring = Recipe("ring-allreduce")
    policy = Policy(
        (
            PlanRow(ring, SizeRange(0, 1023), "allreduce"),
            PlanRow(ring, SizeRange(1025, 1027), "allreduce"),
            PlanRow(ring, SizeRange(1032, 2000), "allreduce"),
        ),
        machine=MACHINE,
    )
    export = ncclx_csv(policy)
    assert re.findall(r"allreduce,(\S+?\]),", export.text) == ["[0,127]", "[129,250]"]
    assert [note.split(":")[0] for note in export.remarks] == [
        "allreduce, 1025 to 1027",
        "allreduce, 1032 to 2000",
    ]
    assert "left out" in export.remarks[0]
    assert "rounds" in export.remarks[1]
    gather = Policy(
        (PlanRow(Recipe("ring-allgather"), SizeRange(1, 9999), "allgather"),), machine=MACHINE
    )
    assert ncclx_csv(gather).remarks == [], "its sizes are multiples of the ranks"
    nothing = Policy((PlanRow(ring, SizeRange(1025, 1027), "allreduce"),), machine=MACHINE)
    with pytest.raises(SleyError, match="multiple of 8 bytes"):
        ncclx_csv(nothing)


def test_what_nccl_does_not_have_is_left_out_and_named():
    policy = Policy(
        (
            PlanRow(Recipe("all-pairs-allreduce"), SizeRange(0, 10), "allreduce"),
            PlanRow(
                Recipe("ring-allreduce", options={"protocol": Protocol.DIRECT}),
                SizeRange(11, 20),
                "allreduce",
            ),
            PlanRow(
                Recipe("ring-allreduce", options={"schedule": "hpds"}, tile=0.5),
                SizeRange(21, 30),
                "allreduce",
            ),
            PlanRow(Recipe("multi-tree-allreduce", tile=0.25), SizeRange(31, 40), "allreduce"),
            PlanRow(Recipe("direct-alltonext"), SizeRange(0, None), "alltonext"),
        ),
        machine=MACHINE,
    )
    for export in (nccl_csv(policy), rccl_csv(policy), ncclx_csv(policy)):
        notes = " / ".join(export.remarks)
        for word in ("all-pairs-allreduce", "Direct", "direct-alltonext", "schedule", "tile=0.5"):
            assert word in notes
        assert "31 to 40: NCCL has no tile of trees" in notes
        assert "all-pairs" not in export.text
    nothing = Policy(policy.rows[:2], machine=MACHINE)
    for write in (nccl_csv, rccl_csv, ncclx_csv):
        with pytest.raises(SleyError) as caught:
            write(nothing)
        assert caught.value.code == "D905"


def test_a_title_with_line_ends_stays_a_comment():
    machine = Machine("simulator", "x\nallreduce,0,1,ring,ll,9,-1,-1\r*/\\\u2028ü" * 9, "f", 1, 4)
    policy = Policy(
        (PlanRow(Recipe("ring-allreduce"), SizeRange(0, 9), "allreduce"),),
        machine=machine,
        facts={"agent": "a\nb"},
    )
    text = rccl_csv(policy).text
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        "allreduce,0,9,ring,simple,1,1,4"
    ]
    assert text.isascii()
    assert max(map(len, text.splitlines())) < 255


def test_the_channels_of_a_choice_are_those_of_the_plan():
    from sley.compiler import compile

    for name in NCCL_ALGORITHMS:
        for given_options in ({}, {"instances": 3}):
            recipe = Recipe(name, options=given_options)
            plan = compile(program_of(recipe, 2, 4, in_place=True), **recipe.options)
            choice = nccl_choice(recipe, 4)
            assert choice is not None
            if choice.algorithm.startswith("nvls"):  # a channel of NCCL's has all heads
                trees = 2 if choice.algorithm == "nvls_tree" else 1
                assert choice.channels == trees * recipe.options.get("instances", 1)
            else:
                assert choice.channels == plan.channels, (name, given_options)
    low = Recipe("nvls-allreduce", options={"protocol": "LL"})
    assert nccl_choice(low, 4) is None, "NVLS has only Simple"
    assert list(COLLECTIVES) == NAMES
