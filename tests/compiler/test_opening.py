"""Opening: every kind of thing that a user brings, as a program or a plan; and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sley
from sley.compiler.opening import Source, load
from sley.errors import recognition

SCRIPTS = Path(__file__).resolve().parents[1] / "lang" / "msccl_scripts"
OWN = """
import sys
import sley

words = sys.argv[1:]


def gather(ranks, in_place=False, *, chunks=1):
    @sley.program(sley.AllGather(ranks, chunks, in_place), name="-".join(["gather", *words]))
    def program(p):
        for rank in range(ranks):
            for other in range(ranks):
                if rank != other or not in_place:
                    p.chunk(rank, "in", 0, chunks).copy(other, "out", rank * chunks)

    return program


two = gather(2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "hm.resccl").write_text(sley.algorithms.resccl_text("hm-allgather"))
    sley.save(sley.compile(sley.algorithms.ring_allreduce(2), per_chunk=True), tmp_path / "r.xml")
    return tmp_path


@pytest.mark.parametrize(
    ("what", "arguments", "ranks", "name"),
    [
        ("ring-allreduce", {"ranks": 4}, 4, "ring-allreduce"),
        ("ring-allreduce", {"nodes": 2, "gpus": 3}, 6, "ring-allreduce"),
        ("hm-allreduce", {"nodes": 2, "gpus": 2, "in_place": True}, 4, "hm-allreduce"),
        ("own.py", {}, 2, "gather"),
        ("own.py:two", {}, 2, "gather"),
        ("own.py:gather", {"ranks": 3, "in_place": True}, 3, "gather"),
        ("own.py:gather", {"ranks": 3, "script": ["a", "b"]}, 3, "gather-a-b"),
        ("hm.resccl", {}, 32, "hm-allgather"),
        ("hm.resccl", {"nodes": 2, "gpus": 2}, 4, "hm-allgather"),
        ("hm.resccl", {"nRanks": 8, "in_place": True}, 8, "hm-allgather"),
        (SCRIPTS / "ring.py", {"script": ["4", "1"]}, 4, "ring"),
        (f"{SCRIPTS / 'gathers.py'}:scatter", {}, None, "scatter"),
        ("r.xml", {}, 2, "ring-allreduce"),
    ],
)
def test_everything_is_opened(
    what: Any,
    arguments: dict[str, Any],
    ranks: int | None,
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    found = load(what, **arguments)
    assert found.name == name
    assert ranks in (None, found.collective.ranks)
    if "in_place" in arguments:
        assert found.collective.in_place
    assert isinstance(found, sley.Plan) == (what == "r.xml")


@pytest.mark.parametrize(
    ("what", "arguments", "code"),
    [
        ("ring-alreduce", {}, "L120"),
        ("nothing-like-it", {}, "F404"),
        ("no.xml", {}, "F404"),
        ("no.py", {}, ""),
        ("ring-allreduce", {}, "L112"),
        ("ring-allreduce", {"ranks": 4, "root": 1}, "L112"),
        ("own.py", {"ranks": 4}, "L112"),
        ("own.py:gather", {"ranks": 3, "rows": 1}, "L114"),
        ("own.py:other", {}, "L115"),
        ("hm.resccl", {"nodes": 2}, "L112"),
        ("hm.resccl", {"rows": 2}, "L1"),
        ("machine.toml", {}, "F550"),
        ("r.xml", {"ranks": 2}, "C309"),
        (SCRIPTS / "gathers.py", {}, "L115"),
        (SCRIPTS / "ring.py", {"script": ["2", "1"], "ranks": 2}, "L112"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_a_code(
    what: Any, arguments: dict[str, Any], code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "machine.toml").write_text("gpus = 8\n")
    with pytest.raises(sley.SleyError) as caught:
        load(what, **arguments)
    assert caught.value.code.startswith(code)


def test_a_source_says_what_it_takes_and_runs_a_file_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "own.py"
    path.write_text(
        f"{OWN}\nimport pathlib\npathlib.Path({str(folder)!r}, 'runs').open('a').write('x')\n"
    )
    source = Source.of(f"{path}:gather")
    assert not (folder / "runs").exists(), "it is recognised without running"
    assert source.maker.parameters == ("ranks", "chunks")
    assert source.maker.required == ("ranks",)
    assert (source.maker.takes_place, source.maker.has_both_places) == (True, True)
    for ranks in (2, 3):
        assert source.maker.make({"ranks": ranks}).collective.ranks == ranks
    assert (folder / "runs").read_text() == "x"
    ring = Source.of("ring-allreduce")
    assert (ring.kind, ring.maker.parameters) == (None, ("ranks", "channels"))
    xml = Source.of(folder / "r.xml")
    assert (xml.kind, xml.is_plan, xml.takes_collective) == (recognition.MSCCL_XML, True, True)
