"""Plans written to MSCCL XML and read back, and other tools' files: they run correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import jobs
from sley.engine.measure import Sweep
from sley.formats import msccl_xml
from sley.formats.msccl_xml.targets import TARGETS
from sley.ir.plan import Plan
from support.inputs.algorithm_cases import (
    SIZED,
    cases_in_a_place,
    in_turn,
    label,
    of_each_collective,
    program,
)
from support.inputs.files_of_others import OTHERS
from support.processes import rank_threads

NAMELESS = {"executor": {"alltonext"}, "rccl": {"alltonext"}}
"""Collectives that a target has no name for."""


def random_inputs(plan: Plan, count: int) -> list[np.ndarray[Any, Any]]:
    """For each rank the elements of its input buffer; in place, of all its data."""
    c, numbers = plan.collective, np.random.default_rng(count)
    chunks = c.data_chunks if c.in_place else c.input_chunks
    return [numbers.integers(-99, 99, -(-int(n) // c.chunks) * count) for n in chunks]


def promised(plan: Plan, outputs: list[np.ndarray[Any, Any]], count: int) -> list[list[int]]:
    """What of the outputs the collective promises, left-over elements too."""
    c = plan.collective
    kept = []
    for rank, output in enumerate(outputs):
        expected = c.expected[c.output_offset[rank] : c.output_offset[rank + 1]]
        said = expected.reshape(-1, c.chunks)[:, 0] != -1 if len(expected) else expected
        kept.append(output.reshape(len(said), -1)[said].ravel().tolist() if len(said) else [])
    return kept


@pytest.mark.parametrize(
    ("name", "size", "target"),
    of_each_collective(in_turn(list(TARGETS), cases_in_a_place(SIZED))),
    ids=label,
)
def test_every_algorithm_runs_the_same_through_xml(
    name: str, size: dict[str, Any], target: str
) -> None:
    plan = sley.compile(program(name, size), per_chunk=True)
    if plan.collective.name in NAMELESS.get(target, ()):
        with pytest.raises(sley.SleyError, match="F4"):
            msccl_xml.write(plan, target)
        return
    back = msccl_xml.read(msccl_xml.write(plan, target), collective=plan.collective).plan
    sley.verify(back, per_chunk=True)
    for count in (1, 37):
        inputs = random_inputs(plan, count)
        one, other = (rank_threads.execute(p, inputs) for p in (plan, back))
        assert promised(plan, one, count) == promised(plan, other, count)


USUAL = {"ncv4-ag_hier_4_LL", "ncv4-ar_tree_12_LL", "ndv4-a2a2ll"}
"""Files for normal runs: an AllGather, an AllReduce and an AllToAll."""


@pytest.mark.parametrize(
    "name", [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in OTHERS]
)
def test_files_of_others_run_with_no_wrong_element(name: str, data_dir: Path) -> None:
    plan = sley.load(data_dir / "msccl-xml" / f"{name}.xml")
    sley.verify(plan)
    rows = jobs.run(plan, Sweep([64 * 1024, 100_001], iterations=1, warmup=0))
    assert [row.wrong for row in rows] == [0, 0]
