"""The generated text: golden files, and its growth with the plan."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import sley
from sley.algorithms import build
from sley.engine.kernels import Engine, Kernels, Platform, Variant
from sley.engine.types import DATA_TYPES
from sley.ir.tables import NONE
from support.checks.golden import Golden
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import SIZED, one_of_each

CPU = Variant(Platform.CPU, 2, sley.ReduceOp.SUM)


def kernels(name: str, options: dict[str, Any], **parameters: Any) -> Kernels:
    return Kernels.of(sley.compile(build(name, **parameters), **options))


def test_the_text_of_a_ring_equals_the_golden_file(golden: Golden) -> None:
    found = kernels("ring-allreduce", {}, ranks=4, in_place=True)
    golden("ring_allreduce_4.txt", found.text)


def test_the_text_of_a_hierarchical_mesh_equals_the_golden_file(golden: Golden) -> None:
    options = {"schedule": "hpds", "allocate": "state", "protocol": "ll128"}
    found = kernels("hm-allreduce", options, nodes=2, gpus=2, in_place=True)
    for word in ("wait(", ".posts()", "sub-pipeline 1"):
        assert word in found.text
    golden("hm_allreduce_2x2.txt", found.text)


def test_the_text_of_a_direct_plan_with_holds_equals_the_golden_file(golden: Golden) -> None:
    found = kernels("all-pairs-alltoall", {"protocol": "direct"}, ranks=2, in_place=True)
    for word in ("hold(", ".in_place()", ".at("):
        assert word in found.text
    golden("direct_alltoall_2.txt", found.text)


def test_the_text_of_a_plan_for_switches_equals_the_golden_file(golden: Golden) -> None:
    plan = sley.compile(build("nvls-allreduce", ranks=3, in_place=True))
    found = Kernels.of(plan, switches=True)
    assert ".of(2)" in found.text
    golden("nvls_allreduce_3.txt", found.text)
    assert ".of(" not in Kernels.of(plan).text


def calls(text: str) -> int:
    return len(re.findall(r"^ +\w+\(tile, step", text, re.MULTILINE))


@pytest.mark.parametrize("protocol", ["simple", "direct"])
def test_the_text_grows_with_the_steps_not_with_the_ranks(protocol: str) -> None:
    rest = set()
    for ranks in (4, 8, 16, 32):
        options = {"protocol": protocol}
        found = kernels("ring-allreduce", options, ranks=ranks, in_place=True)
        assert len(found.kinds.members) == 1
        assert calls(found.text) == 2 * ranks - 1
        rest.add(len(found.text.splitlines()) - calls(found.text))
    assert len(rest) == 1


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_instances_share_code(instances: int) -> None:
    options = {"instances": instances}
    found = kernels("ring-allreduce", options, ranks=8, in_place=True)
    assert (found.kinds.kind != NONE).sum() == 8 * instances
    assert len(found.kinds.members) == 1
    assert calls(found.text) == 15


def test_all_pairs_shares_code_among_ranks() -> None:
    """A block for each peer; their code is the same."""
    counts = {
        ranks: len(kernels("all-pairs-allgather", {}, ranks=ranks, in_place=True).kinds.members)
        for ranks in (4, 8, 16)
    }
    assert len(set(counts.values())) == 1


@examples(14)
@given(random_programs(max_operations=24))
def test_every_block_has_code(random: RandomProgram) -> None:
    plan = sley.compile(random.program)
    found = Kernels.of(plan)
    kinds, sizes = found.kinds, np.diff(plan.block_offset)
    assert ((kinds.kind == NONE) == (sizes == 0)).all()
    for number, members in enumerate(kinds.members):
        assert (kinds.kind[members] == number).all()
        assert kinds.member[members].tolist() == list(range(len(members)))
        assert len(set(sizes[members].tolist())) == 1
        assert f"case {number}: kind_{number}(" in found.text
    assert calls(found.text) == sum(int(sizes[members[0]]) for members in kinds.members)


def test_comments_name_source_lines() -> None:
    lines = ["p.transfer(0, 1, 0, 0, 'recv')", "p.transfer(1, 2, 1, 0, 'recv')"]
    code = compile("\n".join(lines), "a.py", "exec")
    program = sley.trace(sley.Broadcast(3, in_place=True), lambda p: exec(code, {"p": p}))
    text = Kernels.of(sley.compile(program)).text
    assert re.findall(r"// (a\.py:\d.*)", text) == ["a.py:1", "a.py:1", "a.py:2"]


def test_a_text_stands_alone() -> None:
    """The only headers that it includes are the standard library's; for GPUs none at all."""
    found = kernels("ring-allreduce", {}, ranks=4, in_place=True)
    for engine in Engine:
        text = found.source(engine, CPU)
        assert set(re.findall(r"#include (.)", text)) == {"<"}
        assert "#pragma once" not in text
        gpu = found.source(engine, Variant(Platform.CUDA, 2, sley.ReduceOp.SUM))
        assert "#include" not in gpu


def test_the_librarys_plans_have_prebuilt_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings")
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / ".ci")
    variant = replace(CPU, platform=Platform.CUDA)
    texts = set(import_module("prebuild").texts())
    for name, sizes, protocol in one_of_each(list(sley.Protocol), SIZED):
        assert (
            kernels(name, {"protocol": protocol}, **sizes).source(Engine.INTERPRETED, variant)
            in texts
        )


def test_the_same_plan_gives_the_same_text() -> None:
    """Kernels are cached by their text."""
    one, two = (
        kernels("hierarchical-allreduce", {}, nodes=2, gpus=2, in_place=True) for _ in range(2)
    )
    assert one.text == two.text


def test_plans_that_reduce_nothing_share_a_text_for_all_types_of_a_size() -> None:
    moving = [kernels("ring-allgather", {}, ranks=4), kernels("flat-scatter", {}, ranks=8)]
    halves = [replace(CPU, dtype=DATA_TYPES[name].number) for name in ("float16", "bfloat16")]
    moved = {k.source(Engine.INTERPRETED, half) for k in moving for half in halves}
    assert len(moved) == 1
