"""Tests of the HTML page of simulations."""

import dataclasses
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli import main
from sley.errors import SleyError
from sley.report.analysis import block_bins, op_name
from sley.report.html import html_report
from sley.report.html.data import simulation_data
from sley.report.html.page import embed
from sley.report.limit import limit_of, what_if
from support.checks.browser import open_page
from support.inputs.made_simulations import mesh_simulation, ring_simulation

FIGURES = (
    "cards", "limit", "classes", "timeline", "links", "idle", "heat", "critical", "lines",
    "parameters",
)  # fmt: skip

NASTY = "</script><script>throw 1</script><!-- <b>&amp; ' \" @@data@@ \u2028"


def drawn(page, figures=FIGURES):
    return {name: int(page.attribute(name, "data-marks") or 0) for name in figures}


def checked(html, tmp_path, fragment="", script=""):
    """The opened page, after a check that it has neither errors nor empty figures."""
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", f"<script>{script}</script></body>"))
    page = open_page(path, tmp_path, fragment)
    assert page.page("data-errors") == ""
    assert page.page("data-ready") == "yes"
    assert page.console == []
    return page


def test_the_page_draws_all_figures(tmp_path):
    simulations = [ring_simulation(2**k) for k in (16, 20, 24)] + [mesh_simulation(2, 2, 2**20)]
    page = checked(html_report(simulations, title="ring"), tmp_path)
    assert 0 not in drawn(page, (*FIGURES, "curve", "all")).values()
    assert drawn(page, ("curve", "all")) == {"curve": 4, "all": 4}
    # The page starts with the largest size, whose 4 ranks are alike: 56 executions, 14 of a rank.
    assert drawn(page)["timeline"] == len(simulations[2].executions) / 4
    assert drawn(page)["critical"] == 4
    assert "<b>16.64 GB/s</b>" in page.dom


def test_the_page_of_one_simulation_has_no_curve_and_no_second_plan(tmp_path):
    page = checked(html_report([ring_simulation()], title="one"), tmp_path, "#dark")
    assert page.page("data-theme") == "dark"
    assert 0 not in drawn(page).values()
    hidden = {"sizes", "choose", "choose-beside", "what-if"}
    assert {id_ for id_ in (*hidden, "timeline") if page.hidden(id_)} == hidden


def test_the_page_states_that_a_simulation_has_no_executions(tmp_path):
    simulation = dataclasses.replace(ring_simulation(), executions=None)
    page = checked(html_report([simulation], title="one"), tmp_path)
    assert page.hidden("timeline")
    assert "has no executions" in page.text("timeline-note")
    others = set(FIGURES) - {"timeline"}
    assert 0 not in drawn(page, others).values()


def test_too_many_executions_are_summed_in_bins(tmp_path, monkeypatch):
    monkeypatch.setattr("sley.report.html.data.MOST_EXECUTIONS", 13)
    page = checked(html_report([ring_simulation()], title="one"), tmp_path)
    assert 0 not in drawn(page).values()
    assert "56 executions are too many" in page.text("timeline-note")


def test_many_simulations_share_the_limits_of_the_page():
    simulation = ring_simulation()
    kinds = {n: simulation_data(simulation, "x", n)["timeline"]["kind"] for n in (1, 6, 10_000)}
    assert kinds == {1: "executions", 6: "executions", 10_000: "bins"}


def test_too_many_blocks_are_averaged_by_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("sley.report.html.data.MOST_BLOCKS", 3)
    simulation = mesh_simulation(2, 2)
    page = checked(html_report([simulation], title="one"), tmp_path)
    assert 0 not in drawn(page).values()
    assert f"({len(simulation.blocks)} in all)" in page.text("timeline-note")
    blocks = simulation_data(simulation, "x")["blocks"]
    assert blocks["rank"] == list(range(4))
    mean = simulation.blocks.moving_us[simulation.plan.block_rank == 1].mean()
    assert blocks["moving_us"][1] == pytest.approx(mean, abs=1e-3)


def test_the_page_has_the_changes_of_what_if(tmp_path):
    plan = sley.compile(sley.algorithms.ring_allreduce(4, in_place=True), topology="1x4")
    simulation = sley.simulate(plan, "1M", executions=True)
    changes = what_if(simulation)
    page = checked(html_report([simulation], title="one", changes=[changes]), tmp_path)
    assert page.attribute("what-if", "data-marks") == "6"
    assert changes[0].text in page.text("what-if")
    assert f"{changes[0].share:+.1%}" in page.text("what-if")
    with pytest.raises(SleyError, match="P810"):
        html_report([simulation], title="one", changes=[changes, changes])


def test_two_plans_are_beside_each_other_on_one_time_axis(tmp_path):
    script = """
    const marks = (id) => Number(byId(id).dataset.marks);
    const seen = { ends: [time.end], table: byId("beside-table").innerText };
    seen.marks = ["timeline", "timeline-beside", "links-beside"].map(marks);
    seen.scales = [timeline, timelineBeside].map((lanes) => lanes.x(500));
    seen.legend = byId("timeline-legend").innerText;
    byId("beside").value = "none";
    byId("beside").dispatchEvent(new Event("change"));
    seen.ends.push(time.end);
    seen.hidden = ["compared", "timeline-beside", "links-beside"].map((id) => byId(id).hidden);
    document.documentElement.dataset.seen = JSON.stringify(seen);
    """
    fast, slow = mesh_simulation(2, 2, 2**24), ring_simulation(2**24)
    assert fast.time_us < slow.time_us
    html = html_report([fast, slow], title="two", names=["mesh", "ring"])
    seen = json.loads(checked(html, tmp_path, "", script).page("data-seen"))
    assert seen["ends"] == [slow.time_us, fast.time_us]
    assert 0 not in seen["marks"]
    assert seen["marks"][1] == len(slow.executions) / 4
    assert seen["scales"][0] == seen["scales"][1]
    assert f"{100 * (slow.time_us / fast.time_us - 1):+.1f} %" in seen["table"]
    for s in (fast, slow):
        assert limit_of(s).detail in seen["table"]
        for op in np.unique(s.plan.instructions.op):
            assert op_name(op) in seen["legend"]
    assert seen["hidden"] == [True, True, True]


def test_sizes_of_one_plan_are_not_beside_each_other_until_asked(tmp_path):
    sizes = [ring_simulation(2**20), ring_simulation(2**24)]
    page = checked(html_report(sizes, title="sizes"), tmp_path)
    assert page.hidden("compared")
    assert page.hidden("timeline-beside")
    assert not page.hidden("choose-beside")


def test_alike_ranks_have_the_rows_of_one_until_their_head_is_pressed(tmp_path):
    """The blocks of the mesh's 4 ranks in 2 groups, by press of the first head."""
    script = """
    const marks = () => Number(byId("timeline").dataset.marks);
    const box = timeline.canvas.getBoundingClientRect();
    const press = () => ["pointerdown", "pointerup"].forEach((type) =>
      timeline.canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + 200,
        clientY: box.top + 28, bubbles: true, pointerId: 1 })));
    timeline.canvas.setPointerCapture = () => {};
    const heads = () => timeline.source.heads.filter(Boolean);
    const seen = [heads(), marks()];
    press(); seen.push(heads(), marks());
    press(); seen.push(heads(), marks());
    document.documentElement.dataset.seen = JSON.stringify(seen);
    """
    simulation = mesh_simulation(2, 2)
    data = simulation_data(simulation, "x")["blocks"]
    assert [sorted(group) for group in data["alike"]] == [[0, 1], [2, 3]]
    page = checked(html_report([simulation], title="one"), tmp_path, "", script)
    closed, few, opened, more, *again = json.loads(page.page("data-seen"))
    assert len(closed) == 2
    assert re.fullmatch(r"rank \d, and 1 alike: \d", closed[0])
    assert len(opened) == 3
    assert again == [closed, few]
    assert more > few == len(simulation.executions) / 2


def test_only_ranks_that_stand_for_others_are_on_the_page_if_all_are_too_many(monkeypatch):
    simulation = mesh_simulation(2, 2)
    whole = simulation_data(simulation, "x")
    assert whole["blocks"]["detail"] == "blocks"
    monkeypatch.setattr("sley.report.html.data.MOST_BLOCKS", 15)
    part = simulation_data(simulation, "x")
    heads = [group[0] for group in part["blocks"]["alike"]]
    assert part["blocks"]["detail"] == "alike"
    assert sorted(set(part["blocks"]["rank"])) == sorted(heads)
    shown = np.isin(simulation.plan.rank[simulation.executions.instruction], heads)
    for name in ("turn", "start", "end", "tile", "cause"):
        values = [v for v, own in zip(whole["timeline"][name], shown, strict=True) if own]
        assert part["timeline"][name] == values
    # An execution names the one that it waited for, even of a rank that is not shown.
    t, all_ = part["timeline"], whole["timeline"]
    waits = [t["labels"][n] if n >= 0 else "" for n in t["after_instruction"]]
    expected = [all_["labels"][n] if n >= 0 else "" for n in all_["after_instruction"]]
    assert waits == [text for text, own in zip(expected, shown, strict=True) if own]
    assert any(not text.startswith(tuple(f"rank {r} " for r in heads)) for text in waits if text)


def test_a_torus_is_a_grid_of_links_on_the_page(tmp_path):
    ring = (0, 4, 8, 9, 5, 1, 2, 6, 10, 11, 7, 3)  # along the links
    program = sley.algorithms.multi_ring_allreduce(1, 12, orders=[ring])
    plan = sley.compile(program, topology="torus:3x4")
    page = checked(html_report([sley.simulate(plan, "1M")], title="torus"), tmp_path)
    heat = page.dom[page.dom.index('id="heat"') :]
    assert heat[: heat.index("</svg>")].count("<circle") == 12
    curves = re.findall(r"<path d=\"M([\d.-]+),[\d.-]+Q([\d.-]+),", heat[: heat.index("</svg>")])
    assert len(curves) == len(plan.topology.links)
    lattice = simulation_data(sley.simulate(plan, "1M"), "x")["heat"]["lattice"]
    assert sum(lattice["around"]) == 2 * (3 + 4)
    assert len({x for x, _ in lattice["places"]}) == 4
    assert len({y for _, y in lattice["places"]}) == 3


@pytest.mark.parametrize(
    ("nodes", "most_bytes"),
    [(32, 500_000), pytest.param(128, 500_000, marks=pytest.mark.slow)],
)
def test_the_page_of_many_gpus_opens_with_all_figures(tmp_path, nodes, most_bytes):
    ranks = 8 * nodes
    program = sley.algorithms.build("recursive-halving-doubling-allreduce", ranks=ranks)
    plan = sley.compile(program, topology=f"dgx-h100:{nodes}")
    simulation = sley.simulate(plan, "64M", executions=True)
    html = html_report([simulation], title="many")
    assert len(html) < most_bytes
    page = checked(html, tmp_path)
    assert 0 not in drawn(page).values()
    (group,) = simulation_data(simulation, "x")["blocks"]["alike"]
    assert len(group) == ranks
    assert f"{ranks} ranks in 1 group" in page.text("timeline-note")
    own = simulation.plan.rank[simulation.executions.instruction] == group[0]
    assert drawn(page)["timeline"] == own.sum()


def test_the_page_fits_a_phone(tmp_path):
    page = html_report([ring_simulation()] * 2, title="a rather long title of two simulations")
    told = (
        "<script>addEventListener('load', () => setTimeout(() => { const root = "
        "document.documentElement; root.dataset.told = [innerWidth, root.scrollWidth, "
        "document.querySelector('header').offsetHeight, ...[...document.querySelectorAll("
        "'.scroll')].map((e) => e.offsetWidth)]; }))</script></body>"
    )
    (tmp_path / "page.html").write_text(page.replace("</body>", told))
    found = open_page(tmp_path / "page.html", tmp_path, width=500).page("data-told")
    inner, whole, head, *scrolled = map(int, found.split(","))
    assert whole <= inner == 500
    assert head < 150
    assert max(scrolled) < inner


def test_controls_change_what_the_page_draws(tmp_path):
    """Choosing, colouring, filtering, zooming, dragging and hovering, one after the other."""
    script = """
    const seen = { theme: document.documentElement.dataset.theme };
    const change = (id, value) => {
      byId(id).value = value;
      byId(id).dispatchEvent(new Event("change"));
    };
    const marks = (id) => Number(byId(id).dataset.marks);
    change("choice", "0");
    seen.small = byId("cards").textContent;
    for (const colour of ["cause", "tile", "op"]) change("colour", colour);
    change("curve-of", "time"); seen.time = marks("curve");
    change("curve-of", "busbw");
    change("idle-order", "idle");
    change("rank", "2"); seen.rank = marks("timeline");
    change("rank", "all"); seen.all = marks("timeline");
    const canvas = document.querySelector("#timeline canvas");
    const box = canvas.getBoundingClientRect();
    const point = (type, x, y, more = {}) => canvas.dispatchEvent(new PointerEvent(type,
      { clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerId: 1, ...more }));
    point("pointermove", timeline.x(ring.start[0] + 1), 30);
    seen.tip = byId("tip").innerText;
    document.querySelector("[data-zoom='0.5']").click();
    seen.zoomed = [time.from, time.to];
    canvas.dispatchEvent(new WheelEvent("wheel",
      { ctrlKey: true, deltaY: -1, bubbles: true, cancelable: true, clientX: box.left + 400 }));
    seen.closer = time.to - time.from;
    byId("timeline").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    seen.moved = time.from;
    seen.fewer = marks("timeline");
    canvas.dispatchEvent(new MouseEvent("dblclick"));
    seen.whole = [time.from, time.to];
    byId("theme").click();
    document.querySelectorAll("#all tbody tr")[1].click();
    seen.chosen = byId("choice").value;
    document.querySelector("#heat rect[stroke-width]").dispatchEvent(
      new PointerEvent("pointermove", { clientX: 5, clientY: 5 }));
    seen.heat = byId("tip").innerText;
    document.documentElement.dataset.seen = JSON.stringify(seen);
    """
    script = script.replace("ring.start", "DATA.simulations[0].timeline.start")
    small, large = ring_simulation(2**20), ring_simulation(2**24)
    html = html_report([small, large], title="two")
    seen = json.loads(checked(html, tmp_path, "#light", script).page("data-seen"))
    assert seen["theme"] == "light"
    assert "135.8 us" in seen["small"]
    assert seen["time"] == 2
    assert seen["rank"] == len(small.executions) / 4
    assert seen["all"] == len(small.executions)
    assert seen["tip"].startswith("rank 0 block 0 step 0 (send, ring_program.py:11)")
    assert "last waited for launch" in seen["tip"]
    middle, quarter = small.time_us / 2, small.time_us / 4
    assert seen["zoomed"] == pytest.approx([middle - quarter, middle + quarter])
    assert seen["closer"] == pytest.approx(small.time_us / 2 * 0.8)
    assert seen["moved"] > middle - quarter
    assert 0 < seen["fewer"] < len(small.executions)
    assert seen["whole"] == pytest.approx([0, small.time_us])
    assert seen["chosen"] == "1"
    assert seen["heat"].startswith("GPU 0 -> switch 0")


def test_names_are_embedded_as_text_only(tmp_path):
    simulation = ring_simulation()
    plan = dataclasses.replace(simulation.plan, name=NASTY)
    topology = dataclasses.replace(simulation.topology, name=NASTY)
    renamed = dataclasses.replace(simulation, plan=plan, topology=topology)
    page = checked(html_report([renamed, simulation], title=NASTY), tmp_path)
    assert topology.name in page.text("setting")
    assert topology.name == NASTY.replace("\u2028", r"\u2028")  # as in all texts: one line
    assert page.text("choice").count("<b>&amp;") == 1


def test_the_page_loads_nothing():
    html = html_report([ring_simulation()], title="one")
    links = set(re.findall(r"(?:https?:)?//[a-z][^\s\"'<]*", html))
    assert links == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(link|img|iframe)|\bsrc=|@import|fetch\(|XMLHttpRequest", html)
    assert "default-src 'none'" in html


def test_the_same_simulations_give_the_same_page():
    made = [html_report([f()], title="a") for f in (ring_simulation, ring_simulation.__wrapped__)]
    assert made[0] == made[1]


@given(st.text(), st.text())
def test_embedded_data_is_read_back_and_never_ends_its_element(key, value):
    text = embed({key: [value]})
    assert json.loads(text) == {key: [value]}
    assert not set("<>&") & set(text)


def test_the_page_uses_the_given_names():
    html = html_report([ring_simulation(), ring_simulation(2**20)], title="a", names=["x", "y"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    assert [s["name"] for s in data["simulations"]] == ["x", "y"]
    for simulations, names in (([], None), ([ring_simulation()], ["x", "y"])):
        with pytest.raises(SleyError, match="P810"):
            html_report(simulations, title="a", names=names)


def test_the_page_shows_only_the_busiest_of_many_links(monkeypatch):
    simulation = mesh_simulation(2, 4)
    whole = simulation_data(simulation, "x")["links"]
    monkeypatch.setattr("sley.report.html.data.MOST_LINKS", 5)
    monkeypatch.setattr("sley.report.html.data.MOST_CELLS", 60)
    part = simulation_data(simulation, "x")["links"]
    assert (part["links"], part["used"]) == (whole["links"], whole["used"])
    # Six classes, each with its mean and its busiest link.
    assert part["label"][:6] == whole["label"][:6]
    assert len(part["label"]) == 6 + 6
    assert len(part["load"]) == 12 * part["bins"] <= 60
    # A merged bin has the average of its parts.
    together = round(part["bin"] / whole["bin"])
    average = np.mean(whole["load"][:together])
    assert part["load"][0] == pytest.approx(average, abs=1)


@pytest.mark.parametrize(("most", "level"), [(1000, "vertex"), (12, "node"), (6, "kind")])
def test_heat_maps_group_too_many_vertices(monkeypatch, most, level):
    simulation = mesh_simulation(2, 4)
    monkeypatch.setattr("sley.report.html.data.MOST_VERTICES", most)
    heat = simulation_data(simulation, "x")["heat"]
    assert heat["level"] == level
    assert sum(heat["count"]) == len(simulation.topology.links)
    mean = np.dot(heat["average"], heat["count"]) / sum(heat["count"])
    assert mean == pytest.approx(simulation.utilisation.mean(), abs=1e-4)
    assert max(heat["most"]) == pytest.approx(simulation.utilisation.max(), abs=1e-4)
    names = [f"{heat['labels'][a]} > {heat['labels'][b]}" for a, b in
             zip(heat["src"], heat["dst"], strict=True)]  # fmt: skip
    expected = {"vertex": "GPU 0 > NIC 0", "node": "node 1 GPUs > node 1 switches",
                "kind": "NICs > networks"}  # fmt: skip
    assert expected[level] in names


@pytest.mark.parametrize("count", [1, 7, 64])
def test_bins_equal_sums_of_single_intervals(count):
    """Compares bins with sums over single intervals."""
    simulation = mesh_simulation(2, 2)
    e, plan = simulation.executions, simulation.plan
    rows = np.arange(len(simulation.blocks))
    moving, waiting, cause = block_bins(simulation, e, rows, count)
    edges = np.linspace(0, simulation.time_us, count + 1)
    expected = np.zeros((2, len(rows), count))
    for row in e:
        block = plan.block[row.instruction]
        expected[0, block] += np.diff(np.clip(edges, row.start_us, row.end_us))
        expected[1, block] += np.diff(np.clip(edges, row.turn_us, row.start_us))
    width = simulation.time_us / count
    np.testing.assert_allclose(moving, expected[0] / width, atol=1e-9)
    np.testing.assert_allclose(waiting, expected[1] / width, atol=1e-9)
    assert cause.shape == moving.shape


def test_bins_of_a_rank_are_averages_of_its_blocks():
    simulation = mesh_simulation(2, 2)
    rank = simulation.plan.block_rank
    single, _, _ = block_bins(simulation, simulation.executions, np.arange(len(rank)), 9)
    together, _, _ = block_bins(simulation, simulation.executions, rank, 9)
    np.testing.assert_allclose(together[3], single[rank == 3].mean(axis=0), atol=1e-9)


def test_the_page_of_the_command_opens_without_errors(tmp_path):
    """Two sizes of a plan for two nodes, simulated by the command line."""
    path = tmp_path / "page.html"
    ring = ["hm-allreduce", "--schedule", "hpds", "--topology", "resccl:2"]
    sizes = ["-b", "1M", "-e", "16M", "-f", "16"]
    done = CliRunner().invoke(main, ["simulate", *ring, *sizes, "--html", str(path)])
    assert done.exit_code == 0, done.output
    page = checked(path.read_text(), tmp_path)
    assert 0 not in drawn(page, (*FIGURES, "curve", "all")).values()
