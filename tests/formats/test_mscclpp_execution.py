"""Plans that are proven give the right result in a model of the executor, for all sizes of the
proof's conditions, whole chunks or not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.formats import mscclpp
from sley.formats.mscclpp.lowering import cut
from sley.formats.mscclpp.parse import parse
from sley.formats.mscclpp.targets import MSCCLPP
from support.generators.examples import examples
from support.inputs import mscclpp_right as right
from support.inputs.mscclpp_plans import Made, text_of
from support.inputs.mscclpp_right import RIGHT
from support.machines.mscclpp_executor import begin_under, result_of
from support.mutants.mscclpp_mutants import rearranged


@pytest.mark.parametrize("name", RIGHT)
def test_a_proven_plan_gives_the_right_result(name: str) -> None:
    document = RIGHT[name]().to_json()
    (way, *_) = mscclpp.executions(text_of(document), MSCCLPP).executions
    sley.verify(way.plan).under(way.conditions)
    for seed, chunk in enumerate((3, 6)):
        begin = begin_under(way.conditions, way.plan.collective.ranks, random.Random(seed))
        assert result_of(document, chunk, seed, begin) == "right"


def test_a_plan_with_48_semaphores_gives_the_right_result() -> None:
    assert result_of(right.copies_with_semaphores().to_json(), 2) == "right"


@pytest.mark.parametrize("chunk", [3, 4, 5, 7, 8])
def test_shares_of_single_chunks_are_exact_for_all_sizes(chunk: int) -> None:
    assert result_of(right.allreduce_in_shares(3).to_json(), chunk) == "right"


def test_fewer_units_than_shares_are_moved_wrongly() -> None:
    assert result_of(right.allreduce_in_shares(3).to_json(), 2) == "wrong"


def _shares_and_halves() -> Made:
    """Three blocks share two chunks, and then each of the chunks is sent on by itself."""
    made = Made("allreduce", 1, (2, 2, 2))
    (gpu,) = made.gpus
    for share in range(3):
        gpu.block().move("copy", [("i", 0, 2)], [("s", 0, 2)], share=(share, 3)).barrier(0, 3)
    gpu.blocks[0].move("copy", [("s", 0, 1)], [("o", 0, 1)])
    gpu.blocks[1].move("copy", [("s", 1, 1)], [("o", 1, 1)])
    return made


@pytest.mark.parametrize("chunk", [3, 6])
def test_shares_of_several_chunks_are_exact_for_multiples(chunk: int) -> None:
    document = _shares_and_halves().to_json()
    (way,) = mscclpp.executions(text_of(document), MSCCLPP).executions
    assert str(way.conditions[0]) == "chunks of a multiple of 48 bytes"
    sley.verify(way.plan)
    assert result_of(document, chunk) == "right"


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 8, 11, 12])
def test_pipelines_of_single_chunks_are_exact_for_all_sizes(chunk: int) -> None:
    """Chunks of up to three units of 64 bytes."""
    document = right.allreduce_in_pipeline().to_json()
    for gpu in document["gpus"]:
        gpu["threadblocks"][0]["ops"][3]["iter_context"]["unit_size"] = 64
    assert result_of(document, chunk) == "right"


def judge(seed: int) -> str:
    """The verdict on a plan with changed operations; if it is proven, what the model gives."""
    chance = random.Random(seed)
    document = rearranged(chance)
    try:
        (way, *_) = mscclpp.executions(text_of(document), MSCCLPP).executions
        sley.verify(way.plan).under(way.conditions)
    except SleyError as error:
        return error.code
    cutting = cut(parse(text_of(document)), 1, MSCCLPP)
    least = -(-cutting.least_bytes // cutting.multiple_bytes) * cutting.multiple_bytes
    assert least <= 4096
    chunk = (least + chance.randrange(3) * cutting.multiple_bytes) // 16
    begin = begin_under(way.conditions, way.plan.collective.ranks, chance)
    return result_of(document, chunk, seed, begin)


@given(seed=st.integers(0, 2**48))
@examples(9, deadline=None)
def test_no_plan_with_changed_operations_is_proven_and_wrong(seed: int) -> None:
    assert judge(seed) not in ("wrong", "hangs")


@pytest.mark.parametrize("seed", range(3))
def test_the_model_finds_a_missing_signal_and_a_wrong_share(seed: int) -> None:
    document = right.allgather_by_put().to_json()
    del document["gpus"][0]["threadblocks"][0]["ops"][-2]
    assert result_of(document, 2, seed) == "hangs"
    document = right.allreduce_in_shares(3).to_json()
    document["gpus"][0]["threadblocks"][1]["ops"][3]["tbg_info"]["tb_id"] = 0
    assert result_of(document, 3, seed) == "wrong"
