"""Damaged schedules: texts of synthesisers with a few changes, by a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from sley.lang.schedules import ImportedSchedule, forestcoll, taccl, teccl
from support.inputs.schedule_files import (
    forest,
    halves,
    numbered_forest,
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
SEEDS: list[tuple[Callable[[str], ImportedSchedule], str]] = [
    (teccl.read, teccl_allgather(ring_flows(3, 2), 2)),
    (teccl.read, teccl_allgather(VIA, 1, **{"6-Demand_Met": MET})),
    (teccl.read, teccl_alltoall(halves(3), 2)),
    (forestcoll.read, forest(3, 2, 2)),
    (forestcoll.read, numbered_forest(3)),
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


def changed_words(rng: random.Random) -> tuple[Callable[[str], ImportedSchedule], str]:
    """A reader, and a text for it with one to three changed words."""
    read, text = rng.choice(SEEDS)
    tokens = TOKEN.findall(text)
    for _ in range(rng.randint(1, 3)):
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
    return read, "".join(tokens)


def changed_values(rng: random.Random) -> tuple[Callable[[str], ImportedSchedule], str]:
    """A reader of JSON, and a text for it with one or two changed values."""
    read, text = rng.choice([seed for seed in SEEDS if seed[0] is not forestcoll.read])
    document = json.loads(text)
    for _ in range(rng.randint(1, 2)):
        places = _places(document)
        if not places:
            break
        container, key = rng.choice(places)
        change = rng.randrange(3)
        if change == 0:
            container[key] = rng.choice(JUNK)
        elif change == 1:
            del container[key]
        else:
            other, place = rng.choice(places)
            container[key] = json.loads(json.dumps(other[place]))
    return read, json.dumps(document)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) of a JSON value."""
    if isinstance(value, dict):
        own = [(value, key) for key in value]
    elif isinstance(value, list):
        own = [(value, key) for key in range(len(value))]
    else:
        return []
    return own + [place for container, key in own for place in _places(container[key])]
