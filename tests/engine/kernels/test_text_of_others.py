"""Text from other sources stays in comments, and large tables stay out of constant memory."""

from __future__ import annotations

from dataclasses import replace

import sley
from sley.engine.kernels import Kernels

EVIL = 'ring\n#error "code"\r\u2028*/ \\'


def lines_of(plan: sley.Plan) -> list[str]:
    return Kernels.of(plan).text.splitlines()


def test_names_and_files_stay_in_their_comments() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(4, in_place=True))
    files = (EVIL,) * len(plan.sources.files)
    lines = lines_of(replace(plan, name=EVIL, sources=replace(plan.sources, files=files)))
    assert len(lines) == len(lines_of(plan))
    for line in lines:
        if "#error" in line:
            assert line.lstrip().startswith("//")
            assert not line.endswith("\\")
    assert any("#error" in line for line in lines)


def test_large_tables_lie_in_global_memory() -> None:
    program = sley.algorithms.build("hm-allreduce", nodes=10, gpus=8)
    assert any(line.startswith("SLEY_LARGE_TABLE") for line in lines_of(sley.compile(program)))
    small = sley.algorithms.build("hm-allreduce", nodes=2, gpus=2)
    assert any(line.startswith("SLEY_TABLE") for line in lines_of(sley.compile(small)))
