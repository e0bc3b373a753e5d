"""Tracebacks of users' mistakes: the users' lines, and hardly any of sley's."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sley
from sley.errors import known_file, without_inner_frames

PLAN = sley.compile(sley.algorithms.ring_allreduce(2))


def lines(error: BaseException) -> list[tuple[str, str]]:
    """The file and function of each frame."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(Path(f.filename).name, f.name) for f in frames]


@pytest.mark.parametrize(
    "call",
    [
        lambda: sley.compile("ring"),  # type: ignore[arg-type]
        lambda: sley.simulate(PLAN, "64 apples", "ndv4"),
        lambda: sley.choose([], "1M"),
        lambda: sley.verify(PLAN, slots=0),
        lambda: sley.run(PLAN, "4K", dtype="x"),
        lambda: sley.execute(PLAN, []),
        lambda: sley.load("no.xml"),
        lambda: sley.save(PLAN, "no.pdf"),
        lambda: sley.verify_file("no.xml"),
        lambda: sley.lift(3),  # type: ignore[arg-type]
        lambda: sley.load("no.py"),
        lambda: sley.topologies.find("no"),
        lambda: sley.draw(3),  # type: ignore[arg-type]
    ],
)
def test_a_traceback_ends_at_the_users_line_and_one_frame_of_sley(call: Any) -> None:
    with pytest.raises(sley.SleyError) as caught:
        call()
    own = [line for line in lines(caught.value) if line != ("__init__.py", "call")]
    assert own[-1] == ("test_frames.py", "<lambda>")
    assert len(lines(caught.value)) == len(own) + 1
    cause = caught.value.__cause__
    assert cause is None or not lines(cause)


def test_the_lines_of_a_program_stay_in_its_traceback() -> None:
    def helper(p: Any) -> None:
        p.chunk(0, "in", 9)

    def wrong(p: Any) -> None:
        helper(p)

    with pytest.raises(sley.SleyError) as caught:
        sley.trace(sley.AllReduce(2), wrong)
    assert lines(caught.value)[-2:] == [("test_frames.py", "wrong"), ("test_frames.py", "helper")]


def test_the_decorator_of_a_program_leaves_one_frame() -> None:
    with pytest.raises(sley.SleyError) as caught:

        @sley.program(sley.AllReduce(2))
        def wrong(p: sley.ChunkProgram) -> None:
            p.chunk(0, "in", 9)

    assert [name for _, name in lines(caught.value)][1:] == ["call", "wrong"]


def test_a_file_keeps_its_name_where_cells_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (None, SimpleNamespace(), SimpleNamespace(compile=compile)):
        fake = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", fake)  # type: ignore[arg-type]
        assert known_file("ring.py") == "ring.py"


def test_other_errors_keep_all_frames() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        without_inner_frames(fails)()
    assert lines(caught.value)[-2:] == [("__init__.py", "call"), ("test_frames.py", "fails")]


def test_the_exception_is_named_as_users_catch_it() -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.topologies.find("no")
    assert traceback.format_exception_only(caught.value)[0].startswith("sley.SleyError: T604")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is sley.SleyError
    assert again.diagnostics == caught.value.diagnostics
