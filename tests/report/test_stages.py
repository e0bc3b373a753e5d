"""Tests of the tables of the results of passes."""

from __future__ import annotations

import pytest

import sley
from sley.algorithms import ring_allreduce
from sley.compiler.pipeline import PASSES
from sley.lang import ChunkProgram
from sley.report.tables import stage_table
from sley.topologies import cluster
from support.checks.golden import Golden
from support.checks.stages import Stages


def relay(p: ChunkProgram) -> None:
    """The golden files contain the numbers of these lines."""
    for index in (0, 1):
        c = p.chunk(0, "in", index).copy(1, "out", index).copy(2, "scratch", index)
        p.chunk(2, "in", index).reduce(c)
    p.chunk(0, "in", 0, 2).copy(2, "out", 0, channel=3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("depth", {"instances": 2}),
        ("pipelines", {"schedule": "hpds", "allocate": "state", "topology": cluster(3, 1)}),
    ],
)
def test_the_tables_of_all_passes_equal_the_golden_files(
    golden: Golden, name: str, options: dict[str, object]
) -> None:
    program = sley.trace(sley.Custom("relay", 3, 2, 2, lambda rank, index: None), relay)
    lines: list[str] = []
    for word, value in Stages.of(program, **options).values.items():
        lines += [f"after {word}:", *stage_table(value), ""]
    golden(f"stages-{name}.txt", "\n".join(lines))


def test_the_passes_have_this_order() -> None:
    whole = Stages.of(ring_allreduce(2), schedule="hpds").values
    depth = Stages.of(ring_allreduce(2), max_blocks=1).values
    ran = {*whole, *depth}
    assert [word for word in PASSES if word in ran] == list(PASSES)
    for values in (whole, depth):
        assert list(values) == [word for word in PASSES if word in values]


def test_a_program_without_transfers_has_tables_without_rows() -> None:
    program = sley.trace(sley.Custom("none", 2, 1, 1, lambda rank, index: None), lambda p: None)
    for value in Stages.of(program).values.values():
        for line in stage_table(value):
            assert not any(character.isdigit() for character in line), line
