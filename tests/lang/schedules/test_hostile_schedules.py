"""Damaged schedules: each is refused with a code, or its program is proven."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.lang import schedules
from sley.lang.schedules import ImportedSchedule, forestcoll
from support.generators.examples import examples
from support.inputs.schedule_files import (
    forest,
    taccl_schedule,
    teccl_allgather,
)
from support.mutants.schedule_mutants import SEEDS, changed_values, changed_words

CODES = {"F551", "F403", "F554", "F555", "F556", "F557", "F424"}


def outcome(read: Callable[[str], ImportedSchedule], text: str) -> str:
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


@examples(16)
@given(st.sampled_from([changed_words, changed_values]), st.integers(0, 2**62))
def test_changed_schedules_are_refused_or_proven(change, seed: int) -> None:
    outcome(*change(random.Random(seed)))


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
            schedules.read(path).program()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1 << 30, case
        assert time.process_time() - start < 120, case


def test_the_schedules_to_damage_are_right() -> None:
    assert {outcome(read, text) for read, text in SEEDS} == {""}
