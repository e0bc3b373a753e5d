"""Methods of values: the functions of sley, texts, pictures, and HTML for notebooks."""

from __future__ import annotations

import base64
import inspect
import re
import sys
from html import unescape
from pathlib import Path

import pytest

import sley
from sley import methods
from sley.ir import methods as bases
from sley.report import notebook

RING = sley.algorithms.ring_allreduce(4)
NDV4 = sley.topologies.ndv4()
PLAN = sley.compile(RING, topology=NDV4)


def test_every_method_is_attached_to_the_value_of_its_class() -> None:
    values = {
        "BlockPlanMethods": PLAN,
        "PlanMethods": PLAN,
        "ProgramMethods": RING,
        "TopologyMethods": NDV4,
        "SimulationMethods": sley.simulate(PLAN, "4K"),
    }
    assert set(bases.__all__) == set(values)
    for name, value in values.items():
        assert isinstance(value, getattr(bases, name))
        for word, method in vars(getattr(methods, name)).items():
            if callable(method):
                assert getattr(value, word).__func__ is method
                assert method.__doc__


def test_methods_do_what_the_functions_do(tmp_path: Path) -> None:
    assert RING.compile(topology="ndv4") == PLAN
    assert PLAN.ranks == RING.ranks == 4
    assert PLAN.verify() == sley.verify(PLAN)
    assert PLAN.simulate(["4K", "1M"]) == [sley.simulate(PLAN, size) for size in ("4K", "1M")]
    assert [m.wrong for m in PLAN.run("4K", iterations=1, warmup=0)] == [0]
    PLAN.save(tmp_path / "ring.xml")
    assert (loaded := sley.load(tmp_path / "ring.xml")).verify().plan is loaded
    NDV4.save(tmp_path / "ndv4.toml")
    assert sley.topologies.load(tmp_path / "ndv4.toml") == NDV4
    choices = RING.choose("4K", NDV4, instances=1, channels=1, protocol="LL", schedule="msccl")
    assert choices.at("4K").program == RING
    assert inspect.signature(PLAN.simulate).parameters.keys() == (
        inspect.signature(sley.simulate).parameters.keys() - {"plan"}
    )


def test_texts_are_shown_as_they_are() -> None:
    text = PLAN.show(rank=1)
    assert repr(text) == str(text)
    assert text.splitlines()[0] == "rank 1 block 0"
    blocks = [f"rank {rank} block 0" for rank in range(4)]
    assert [line for line in PLAN.show().splitlines() if line.startswith("rank")] == blocks
    assert "sub-pipeline 0" in RING.compile(schedule="hpds").show_pipelines()
    assert PLAN.show_pipelines() == ""
    assert len(RING.show().splitlines()) == 1 + len(RING.transfers)
    assert "limited by" in PLAN.simulate("4K").show()


def test_pictures_and_texts_of_ranks_that_do_not_exist_are_refused() -> None:
    for rank in (4, -1, "0", 1.0):
        for call in (PLAN.show, RING.draw, lambda rank: PLAN.draw("instructions", rank)):
            with pytest.raises(sley.SleyError, match=r"L101(?s:.*)from 0 to 3"):
                call(rank)  # type: ignore[operator]


def test_pictures_that_do_not_exist_are_refused() -> None:
    with pytest.raises(sley.SleyError, match=r"P815(?s:.*)blocks or instructions(?s:.*)'block'"):
        PLAN.draw("block")  # type: ignore[arg-type]


def test_pictures_are_those_of_the_command_line() -> None:
    assert PLAN.draw().title == "ring-allreduce: thread blocks"
    assert PLAN.draw("instructions").title == "ring-allreduce: instruction DAG"
    assert RING.draw(rank=0).title.startswith("ring-allreduce: ")
    assert NDV4.draw().title == "ndv4: topology"
    assert PLAN.draw(rank=0)._repr_svg_().rstrip().endswith("</svg>")


@pytest.mark.parametrize("value", [PLAN, RING, NDV4])
def test_notebooks_show_a_value_with_its_picture(value: sley.Plan) -> None:
    page = value._repr_html_()
    assert repr(value) in unescape(page)
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert found
    assert b"<svg" in base64.b64decode(found[1])


def test_notebooks_show_words_as_text_and_leave_out_what_cannot_be_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @sley.program(sley.AllReduce(2), name="<b>")
    def odd(p: object) -> None:
        pass

    assert "<b>" not in odd._repr_html_().replace("<div><b>", "")
    large = sley.compile(sley.algorithms.ring_allreduce(32))
    assert "<img" not in large._repr_html_()
    assert "<td>2016</td>" in large._repr_html_()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "<img" not in PLAN._repr_html_()
    assert "<table>" in PLAN._repr_html_()


def test_a_simulation_is_its_report_or_its_text_if_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulation = PLAN.simulate("4K")
    simulation.save(tmp_path / "page.html")
    page = simulation._repr_html_()
    found = re.search(r'srcdoc="([^"]+)"', page)
    assert found
    assert unescape(found[1]) == (tmp_path / "page.html").read_text()
    monkeypatch.setattr(notebook, "MOST_BYTES", 1000)
    assert "<pre>" in simulation._repr_html_()
    assert "limited by" in simulation._repr_html_()
