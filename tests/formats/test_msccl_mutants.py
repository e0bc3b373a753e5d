"""Random mutants of files: what is proven for a runtime, the model of this runtime runs rightly."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from sley.errors import SleyError
from sley.formats import msccl_xml
from sley.verification import verify
from support.machines.runtime_model import faults_of
from support.mutants.file_mutants import FILES, TARGETS, base, mutant

USUAL, LONG = 120, 9000


ROOTED = re.compile('coll="(broadcast|reduce|gather|scatter)"')


def is_proven(text: str, target: str) -> bool:
    try:
        root = 0 if ROOTED.search(text) else None
        for way in msccl_xml.executions(text, target, root=root).executions:
            verify(way.plan, way.slots, per_chunk=way.per_chunk)
    except SleyError:
        return False
    return True


def cases() -> list[Any]:
    """(number of a file, target): each file for one target in turn, for the others in slow runs."""
    return [
        pytest.param(number, target, marks=() if number % len(TARGETS) == k else pytest.mark.slow)
        for number in range(FILES)
        for k, target in enumerate(TARGETS)
    ]


@pytest.mark.parametrize(("number", "target"), cases())
def test_a_file_without_changes_is_refused_or_wrong(number: int, target: str) -> None:
    text = base(number, target)
    assert is_proven(text, target)
    assert faults_of(text, target, random.Random(number)) is None


@pytest.mark.parametrize("number", [USUAL, pytest.param(LONG, marks=pytest.mark.slow)])
def test_a_proven_mutant_is_never_refused_hanging_or_wrong(number: int) -> None:
    accepted = 0
    for seed in range(number):
        rng = random.Random(seed)
        text, target = mutant(rng)
        if is_proven(text, target):
            accepted += 1
            fault = faults_of(text, target, rng)
            assert fault is None, f"seed {seed}, {target}: {fault}"
    assert accepted > number // 8
