"""Workloads: their steps, their files, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.errors import SleyError
from sley.tuning.workloads import COLLECTIVES, Group, Steps, Workload, read, write
from sley.tuning.workloads.files import parse, text

BY_HAND = """
format = 1
name = "two layers"
ranks = 8

[[step]]
compute_us = 100
collective = "allreduce"
size = "64K"
overlaps = "gradients"

[[step]]
compute_us = 50
collective = "alltoall"
size = 4096
group = "node"

[[step]]
wait = ["gradients"]

[[step]]
compute_us = 20
"""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Workloads with computations, calls, overlapping calls and waits in any order."""
    steps, open_ = Steps(), list[int]()
    for word in draw(st.lists(st.sampled_from(("compute", "call", "wait")), max_size=12)):
        if word == "compute":
            steps.compute(draw(st.floats(0, 1e6)))
        elif word == "call":
            call = steps.call(
                draw(st.sampled_from(COLLECTIVES)),
                draw(st.integers(1, 1 << 40)),
                group=draw(st.sampled_from(Group)),
                overlaps=draw(st.booleans()),
            )
            if steps.workload("", 1).overlaps[call]:
                open_.append(call)
        elif open_:
            steps.wait(open_.pop(draw(st.integers(0, len(open_) - 1))))
    return steps.workload(draw(st.text(max_size=5)), draw(st.integers(1, 1 << 20)))


@given(workloads())
def test_a_file_gives_back_the_workload(workload: Workload) -> None:
    found = parse(text(workload), "file")
    assert found == workload
    assert text(found) == text(workload)


def test_a_file_by_hand_has_its_calls_waits_and_computations(tmp_path) -> None:
    path = tmp_path / "workload.toml"
    path.write_text(BY_HAND)
    workload = read(path)
    assert workload.compute_us.tolist() == [100, 50, 0, 20]
    assert [cell for _, cell in workload.calls()] == [
        ("allreduce", Group.CLUSTER, 65536),
        ("alltoall", Group.NODE, 4096),
    ]
    assert workload.waited.tolist() == [2, 1, -1, -1]
    assert workload.overlaps.tolist() == [True, False, False, False]
    write(workload, path)
    assert read(path) == workload


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("format = 1", "format = 2", "format 1"),
        ("ranks = 8", "ranks = 0", "ranks"),
        ("ranks = 8", "", "without ranks"),
        ("ranks = 8", "ranks = true", "ranks"),
        ('name = "two layers"', "name = 3", "name"),
        ('"allreduce"', '"allsum"', "allreduce"),
        ('"allreduce"', '["allreduce"]', "collective"),
        ('size = "64K"', 'size = "64X"', "size_bytes"),
        ('size = "64K"', "", "size"),
        ("size = 4096", "size = -1", "size_bytes"),
        ('"node"', '"pod"', "node"),
        ("compute_us = 100", "compute_us = -1", "compute_us"),
        ("compute_us = 100", "compute_us = nan", "compute_us"),
        ("compute_us = 100", "speed = 1", "speed"),
        ('wait = ["gradients"]', 'wait = ["gradient"]', "gradients"),
        ('wait = ["gradients"]', 'wait = ["gradients", "gradients"]', "once"),
        ('wait = ["gradients"]', 'wait = "gradients"', "list"),
        ('overlaps = "gradients"', "overlaps = 1", "overlaps"),
        ('overlaps = "gradients"', "pipeline = true", "entries of"),
        ("compute_us = 20", "", "empty"),
        ("compute_us = 20", 'size = "1K"', "collective"),
        ("[[step]]", "[step]", "TOML"),
        ("compute_us = 20", "compute_us = ", "TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(old: str, new: str, word: str) -> None:
    with pytest.raises(SleyError) as refused:
        parse(BY_HAND.replace(old, new), "file.toml")
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.rule.code == "D945"
    assert diagnostic.places[0].file == "file.toml"
    assert word in str(refused.value)


def test_a_missing_file_and_one_without_steps_are_refused(tmp_path) -> None:
    with pytest.raises(SleyError, match="D945"):
        read(tmp_path / "none.toml")
    with pytest.raises(SleyError, match="D945"):
        parse('format = 1\nname = ""\nranks = 1\nstep = []', "file")


def test_a_step_waits_only_for_a_call_in_progress() -> None:
    steps = Steps()
    done = steps.call("allreduce", 1024)
    for call in (done, 7):
        with pytest.raises(SleyError, match="D945"):
            steps.wait(call)
    open_ = steps.call("allreduce", 1024, overlaps=True)
    steps.wait(open_)
    with pytest.raises(SleyError, match="D945"):
        steps.wait(open_)


def test_columns_that_contradict_each_other_are_refused() -> None:
    good = parse(BY_HAND, "")
    columns = {name: getattr(good, name) for name in Workload.column_names()}
    for name, value in (
        ("waited", [0, 0, -1, -1]),
        ("waited", [9, 1, -1, -1]),
        ("waited", [2, 1, 3, -1]),
        ("collective", [99, 0, -1, -1]),
        ("group", [5, 0, -1, -1]),
        ("size_bytes", [0, 1, 0, 0]),
        ("compute_us", [np.inf, 0, 0, 0]),
    ):
        with pytest.raises(SleyError, match=name):
            Workload("", 8, **(columns | {name: value}))
