"""Damaged schedules: each is refused with a code, or its program is proven."""

from __future__ import annotations

import json
import random
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import schedules
from sley.schedules import Schedule, forestcoll, taccl, teccl
from support.examples import examples
from support.schedule_files import (
    forest,
    halves,
    ring_flows,
    taccl_schedule,
    teccl_allgather,
    teccl_alltoall,
)

VIA = [(0, 0, 0, 1, 0, " via switches 9"), (0, 1, 1, 0, 0, "")]
MET = {"GPU 1": {"GPU 0": {"Chunk 0": 1e-6}}}
GATHER = [[[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]]]
REDUCE = [
    [[0, 1, 0, 0, 0, "rrc"], [1, 0, 1, 0, 0, "rrc"]],
    [[0, 0, 1, 9, 0, None], [1, 1, 0, 9, 0, None]],
]
SEEDS: list[tuple[Callable[[str], Schedule], str]] = [
    (teccl.read, teccl_allgather(ring_flows(3, 2), 2)),
    (teccl.read, teccl_allgather(VIA, 1, **{"6-Demand_Met": MET})),
    (teccl.read, teccl_alltoall(halves(3), 2)),
    (forestcoll.read, forest(3, 2, 2)),
    (taccl.read, taccl_schedule("Allgather(n=2)", 2, GATHER)),
    (taccl.read, taccl_schedule("Allreduce(n=2)", 2, REDUCE)),
]
WORDS = ['"', "0", "-1", "4095", "4096", "999999999", "1e400", "0.3333", "null", "[]", "{}", "->"]
WORDS += [" via switches 1", "(0, 'GPU', 9)", "''", "<send/>", "</tree>", "&lt;", "\0", "€", "rrc"]
TOKEN = re.compile(r"[0-9.eE+-]+|\w+|\"|\s+|.")
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    10**400,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    [0, 1, 2],
    "Chunk 0",
]
CODES = {"F551", "F552", "F553", "F554", "F555", "F556", "F557", "F558", "F559"}


def outcome(read: Callable[[str], Schedule], text: str) -> str:
    """The code with which a text is refused, "" for one whose program is proven."""
    try:
        schedule = read(text)
        schedule.facts()
        program = schedule.program()
    except sley.SleyError as error:
        code = error.code
        if code == "F404":  # a text that begins with something else counts as a path
            assert not text.lstrip().startswith("<" if read is forestcoll.read else "{")
            return code
        assert code in CODES, error
        return code
    try:
        sley.compile(program)
    except sley.SleyError as error:
        # Which sums reach a rank is left to the verifier.
        assert program.collective.name == "allreduce", error
        return error.code
    return ""


@examples(120)
@given(st.integers(0, len(SEEDS) - 1), st.integers(0, 2**62), st.integers(1, 3))
def test_changed_words_are_refused_or_proven(which: int, seed: int, times: int) -> None:
    (read, text), rng = SEEDS[which], random.Random(seed)
    tokens = TOKEN.findall(text)
    for _ in range(times):
        at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        change = rng.randrange(5)
        if change == 0:
            tokens[at] = rng.choice(WORDS)
        elif change == 1:
            tokens[at] = ""
        elif change == 2:
            tokens.insert(at, tokens[other])
        elif change == 3:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        else:
            numbers = [k for k, token in enumerate(tokens) if token.isdigit()]
            tokens[rng.choice(numbers)] = str(rng.choice([0, 1, 2, 3, 4, 10**6, 2**31, 10**9]))
    outcome(read, "".join(tokens))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) of a JSON value."""
    if isinstance(value, dict):
        own = [(value, key) for key in value]
    elif isinstance(value, list):
        own = [(value, key) for key in range(len(value))]
    else:
        return []
    return own + [place for container, key in own for place in _places(container[key])]


@examples(60)
@given(st.integers(0, len(SEEDS) - 1), st.integers(0, 2**62))
def test_changed_values_are_refused_or_proven(which: int, seed: int) -> None:
    (read, text), rng = SEEDS[which], random.Random(seed)
    if read is forestcoll.read:
        return
    document = json.loads(text)
    for _ in range(rng.randrange(1, 3)):
        container, key = rng.choice(_places(document))
        change = rng.randrange(3)
        if change == 0:
            container[key] = rng.choice(JUNK)
        elif change == 1:
            del container[key]
            if not _places(document):
                return
        else:
            other, place = rng.choice(_places(document))
            container[key] = json.loads(json.dumps(other[place]))
    outcome(read, json.dumps(document))


def _huge() -> dict[str, str]:
    head = '{"1-Epoch_Duration": 1, "3-Epochs_Required": 1, "4-Collective_Finish_Time": 1, '
    head += '"5-Algo_Bandwidth": 1, "7-Flows": '
    spread = [(0, s, s, (s + 1) % 4096, 0, "") for s in range(4096)]
    many = [[k % 4096, k % 4096, (k + 1) % 4096] for k in range(100_000)]
    return {
        "strings": head + "[" + '"x",' * 3_000_000 + '"x"]}',
        "numbers": head + "[" + "999," * 3_000_000 + "1]}",
        "nested": head + "[" * 5_000_000,
        "objects": head + "[" + "{}," * 3_000_000 + "1]}",
        "GPUs": teccl_allgather(spread, 1),
        "a cycle of epochs": teccl_allgather([(0, 1, 0, 1, 999_999, "")], 10**6),
        "ranks": taccl_schedule("Allgather(n=4096)", 4096, [many]),
        "text": "<Algo nchunkspernode='1'>" + " " * 15_000_000,
        "attribute": "<Algo nchunkspernode='" + "1" * 15_000_000,
        "path": forest(2).replace("path=\"", "path=\"" + "(0, 'GPU', 0)," * 500_000, 1),
        "trees": "<Algo nchunkspernode='1'>" + "<tree root=\"(0, 'G', 0)\" index='0' nchunks='1' "
        "height='1'/>" * 200_000 + "</Algo>",
    }  # fmt: skip


@pytest.mark.slow
def test_huge_files_are_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for case, text in _huge().items():
        path.write_text(text)
        start = time.process_time()
        tracemalloc.start()
        with pytest.raises(sley.SleyError):
            schedules.load(path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1 << 30, case
        assert time.process_time() - start < 120, case


def test_the_schedules_to_damage_are_right() -> None:
    assert {outcome(read, text) for read, text in SEEDS} == {""}
