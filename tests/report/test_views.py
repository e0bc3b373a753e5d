"""Views: texts and pictures of values, and their HTML for notebooks."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest
from IPython.core.formatters import HTMLFormatter

import sley
from sley.report import views

RING = sley.algorithms.ring_allreduce(4)
NDV4 = sley.topologies.ndv4()
PLAN = sley.compile(RING, topology=NDV4)


@pytest.fixture
def html(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """What a notebook shows of a value, once a name of sley has been used in it."""
    formatter = HTMLFormatter()
    shell = SimpleNamespace(
        display_formatter=SimpleNamespace(formatters={"text/html": formatter}),
        compile=SimpleNamespace(format_code_name=lambda file: None),
    )
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.delitem(vars(sley), "compile", raising=False)
    assert callable(sley.compile)
    return formatter


def test_texts_are_shown_as_they_are() -> None:
    text = sley.show(PLAN, rank=1)
    assert repr(text) == str(text)
    assert text.splitlines()[0] == "rank 1 block 0"
    blocks = [f"rank {rank} block 0" for rank in range(4)]
    assert [line for line in sley.show(PLAN).splitlines() if line.startswith("rank")] == blocks
    assert "sub-pipeline 0" in sley.show(sley.compile(RING, schedule="hpds"), of="pipelines")
    assert sley.show(PLAN, of="pipelines") == ""
    assert len(sley.show(RING).splitlines()) == 1 + len(RING.transfers)
    assert "limited by" in sley.show(sley.simulate(PLAN, "4K"))


def test_pictures_and_texts_of_ranks_that_do_not_exist_are_refused() -> None:
    for rank in (4, -1, "0", 1.0):
        for call in (
            lambda r: sley.show(PLAN, r),
            lambda r: sley.draw(RING, r),
            lambda r: sley.draw(PLAN, r, of="instructions"),
        ):
            with pytest.raises(sley.SleyError, match=r"L101(?s:.*)from 0 to 3"):
                call(rank)


def test_pictures_that_do_not_exist_are_refused() -> None:
    with pytest.raises(sley.SleyError, match=r"P815(?s:.*)blocks or instructions(?s:.*)'block'"):
        sley.draw(PLAN, of="block")  # type: ignore[arg-type]
    with pytest.raises(sley.SleyError, match=r"P815(?s:.*)blocks or pipelines"):
        sley.show(PLAN, of="block")  # type: ignore[arg-type]
    with pytest.raises(sley.SleyError, match=r"P815(?s:.*)a program, plan"):
        sley.show("plan")  # type: ignore[arg-type]


def test_pictures_are_those_of_the_command_line() -> None:
    assert sley.draw(PLAN).title == "ring-allreduce: thread blocks"
    assert sley.draw(PLAN, of="instructions").title == "ring-allreduce: instruction DAG"
    assert sley.draw(RING, rank=0).title.startswith("ring-allreduce: ")
    assert sley.draw(NDV4).title == "ndv4: topology"
    assert sley.draw(PLAN, rank=0).svg().rstrip().endswith(b"</svg>")


@pytest.mark.parametrize("value", [PLAN, RING, NDV4])
def test_notebooks_show_a_value_with_its_picture(html: Callable[[Any], str], value: object) -> None:
    page = html(value)
    assert repr(value) in unescape(page)
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert found
    assert b"<svg" in base64.b64decode(found[1])


def test_notebooks_show_words_as_text_and_leave_out_what_cannot_be_drawn(
    html: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @sley.program(sley.AllReduce(2), name="<b>")
    def odd(p: object) -> None:
        pass

    assert "<b>" not in html(odd).replace("<div><b>", "")
    large = sley.compile(sley.algorithms.ring_allreduce(32))
    assert "<img" not in html(large)
    assert "<td>2016</td>" in html(large)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "<img" not in html(PLAN)
    assert "<table>" in html(PLAN)


def test_a_simulation_is_its_report_or_its_text_if_that_is_too_large(
    html: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulation = sley.simulate(PLAN, "4K")
    sley.draw(simulation).save(tmp_path / "page.html")
    page = html(simulation)
    found = re.search(r'srcdoc="([^"]+)"', page)
    assert found
    assert unescape(found[1]) == (tmp_path / "page.html").read_text()
    monkeypatch.setattr(views, "MOST_BYTES", 1000)
    assert "<pre>" in html(simulation)
    assert "limited by" in html(simulation)


def test_long_lists_show_their_first_values(html: Callable[[Any], str]) -> None:
    options = [sley.Options(instances=number) for number in range(1, 600)]
    rows = html(options).split("<tr>")[1:]
    assert len(rows) == 1 + 500 + 1
    assert "<td>500</td>" in rows[500]
    assert set(re.findall("<td>(.*?)</td>", rows[-1])) == {"..."}
