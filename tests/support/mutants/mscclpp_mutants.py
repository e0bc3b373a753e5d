"""Random changes of right MSCCL++ execution plans."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from sley.formats.mscclpp.words import NAMES
from support.inputs.mscclpp_plans import text_of
from support.inputs.mscclpp_right import RIGHT

VALUES = [
    None, True, False, 0, 1, 2, 3, 7, 16, -1, 65535, 1 << 31, 1 << 64, 10**40, 0.5, 1e300, "", "i",
    "o", "s", "memory", "port", "switch", "sum", "max", "LL", "Simple", "\ud7ff", [], {}, [0],
    [1, 2], [[]], [{}], *sorted(NAMES), "glre",
]  # fmt: skip
PIECES = ["", "{", "]", '"', ",", "9" * 30, "\\u0000", "\ud800", "[" * 500]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, one in entries:
        found.append((*path, key))
        if isinstance(one, (dict, list)):
            found += _places(one, (*path, key))
    return found


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for word in path:
        document = document[word]
    return document


def mutated(chance: random.Random) -> str:
    """A plan with some values replaced, removed, repeated or exchanged, or with broken text."""
    document = RIGHT[chance.choice(list(RIGHT))]().to_json()
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = _places(document)
        path, other = chance.choice(places), chance.choice(places)
        owner, last = _at(document, path[:-1]), path[-1]
        kind = chance.randrange(5)
        if kind == 0 and len(places) > 1:
            del owner[last]
        elif kind == 1 and isinstance(owner, list):
            owner.insert(chance.randrange(len(owner) + 1), copy.deepcopy(owner[last]))
        elif kind == 2:
            same = [one for one in places if one[-1] == last] if chance.randrange(4) else [other]
            owner[last] = copy.deepcopy(_at(document, chance.choice(same)))
        elif kind == 3 and isinstance(owner[last], int):
            owner[last] += chance.choice((-1, 1, 2, 255, 1 << 20))
        else:
            alike = [one for one in VALUES if type(one) is type(owner[last])]
            owner[last] = copy.deepcopy(chance.choice(alike if chance.randrange(4) else VALUES))
    text = json.dumps(document)
    if chance.randrange(8) == 0:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(PIECES) + text[at + chance.randrange(4) :]
    return "\n" + text


_NUMBERS = ("index", "size", "buffer_id", "tb_id", "tbg_size", "barrier_id", "num_threadblocks")
_NAMES = (
    ("signal", "rlxsignal"), ("wait", "rlxwait"), ("signal", "wait"), ("put", "pws", "pwsf"),
    ("re", "copy"),
    ("rre", "rres"), ("re", "res"), ("repkt", "respkt"), ("recpkt", "recspkt"), ("upkt", "copy"),
    ("sem_acquire", "sem_release"), ("nop", "nop"), ("gstore", "gstorepkt"),
)  # fmt: skip


def rearranged(chance: random.Random) -> dict[str, Any]:
    """A plan whose operations are changed: left out, repeated, exchanged, or with other names,
    numbers or buffers. It is one that the loader may well accept."""
    document = RIGHT[chance.choice(list(RIGHT))]().to_json()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        gpus = [chance.choice(document["gpus"])] if chance.randrange(3) else document["gpus"]
        block = chance.randrange(min(len(gpu["threadblocks"]) for gpu in gpus))
        row, kind = chance.randrange(100), chance.randrange(7)
        seed = chance.randrange(1 << 32)
        for gpu in gpus:
            _rearrange(gpu["threadblocks"][block]["ops"], row, kind, random.Random(seed))
        if chance.randrange(12) == 0:
            key = chance.choice(("inplace", "use_double_scratch_buffer"))
            document[key] = not document.get(key, False)
    return document


def _rearrange(ops: list[Any], row: int, kind: int, chance: random.Random) -> None:
    """Changes an operation of a block."""
    if not ops:
        return
    row %= len(ops)
    op = ops[row]
    if op["name"] == "pipeline" and chance.randrange(2):
        _rearrange(op["ops"], chance.randrange(100), kind, chance)
        return
    if kind == 0:
        del ops[row]
    elif kind == 1:
        ops.insert(chance.randrange(len(ops) + 1), copy.deepcopy(op))
    elif kind == 2:
        other = chance.randrange(len(ops))
        ops[row], ops[other] = ops[other], ops[row]
    elif kind == 3:
        ops.insert(chance.randrange(len(ops) + 1), {"name": "nop"})
    elif kind == 4:
        names = [other for pair in _NAMES if op["name"] in pair for other in pair]
        op["name"] = chance.choice(names or [op["name"]])
    else:
        _renumber(op, chance)


def _renumber(op: Any, chance: random.Random) -> None:
    """Changes a number or a buffer of an operation."""
    places = [path for path in _places(op) if path[-1] in (*_NUMBERS, "type")]
    if not places:
        return
    path = chance.choice(places)
    owner, last = _at(op, path[:-1]), path[-1]
    owner[last] = chance.choice("ios") if last == "type" else owner[last] + chance.choice((-1, 1))


def text_of_rearranged(chance: random.Random) -> str:
    """The text of `rearranged`."""
    return text_of(rearranged(chance))
