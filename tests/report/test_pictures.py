"""Tests that pictures are complete, readable and deterministic."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, groupby, pairwise
from operator import itemgetter
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given

import sley
from sley.ir.dependencies import dependencies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder
from sley.report.pictures import (
    block_picture,
    chunk_picture,
    instruction_picture,
    topology_picture,
    tree_picture,
)
from sley.report.pictures.canvas import Box, Picture, text_width
from sley.report.pictures.plans import LOCAL
from support.checks.golden import Golden
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import program
from support.mutants.plan_edits import wait_pairs, with_columns, with_waits

ROOT = Path(__file__).resolve().parents[2]

CASES = {
    "ring": ("ring-allreduce", {"ranks": 4}, {}),
    "ring-in-place": ("ring-allreduce", {"ranks": 4, "in_place": True}, {"fusion": False}),
    "hierarchical": ("hierarchical-allreduce", {"nodes": 2, "gpus": 2}, {}),
    "hpds": ("hm-allreduce", {"nodes": 2, "gpus": 2}, {"schedule": "hpds", "allocate": "state"}),
    "all-pairs": ("all-pairs-allreduce", {"ranks": 3}, {"channels": 2}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[sley.Program, sley.Plan]:
    name, parameters, options = CASES[request.param]
    made = program(name, parameters)
    return made, sley.compile(made, **options)


@lru_cache(maxsize=1)
def svg_of(picture: Picture) -> str:
    """Its SVG, kept for the next question: to write it takes longer than all that is checked."""
    return picture.svg().decode()


def ids(picture: Picture, word: str) -> list[str]:
    """The ids in the SVG that start with a word."""
    return re.findall(rf'<g id="({word}-[^"]*)"', svg_of(picture))


def transfer_pairs(made: sley.Program) -> set[tuple[int, int]]:
    d = dependencies(made).dependencies
    return set(zip(d.before.tolist(), d.after.tolist(), strict=True))


def crossing(boxes: Sequence[Box]) -> list[tuple[Box, Box]]:
    """The pairs of boxes whose insides overlap."""
    x, y, width, height = np.array([(b.x, b.y, b.width, b.height) for b in boxes]).T
    beside = (x[:, None] < x + width) & (x < (x + width)[:, None])
    above = (y[:, None] < y + height) & (y < (y + height)[:, None])
    return [(boxes[k], boxes[n]) for k, n in np.argwhere(np.triu(beside & above, 1)).tolist()]


def check_readable(picture: Picture) -> None:
    """Checks that nothing covers anything else, no text is wider than its box, and nothing leaves
    the page."""
    texts = []
    for text in picture.texts:
        width, size = text_width(text.text, text.size_pt), text.size_pt / 72
        left = {"left": text.x, "center": text.x - width / 2, "right": text.x - width}[text.align]
        texts.append(Box("", left, text.y - size / 2, width, size, LOCAL))
    assert not crossing([*picture.boxes, *texts])
    for box in picture.boxes:
        assert all(text_width(line, box.size_pt) <= box.width for line in box.text), box
    for box in [*picture.boxes, *picture.grounds, *texts]:
        assert 0 <= box.x <= box.x + box.width <= picture.width, box
        assert 0 <= box.y <= box.y + box.height <= picture.height, box
    for line in picture.lines:
        assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in line.points)


def check_level_parts(picture: Picture) -> None:
    """Checks that no horizontal part of a line crosses a box with an id."""
    boxes = [box for box in picture.boxes if box.id]
    for line in picture.lines:
        for (x0, y0), (x1, y1) in pairwise(line.points):
            if y0 != y1 or not line.id:
                continue
            left, right = min(x0, x1) + 1e-6, max(x0, x1) - 1e-6
            for box in boxes:
                inside = box.y < y0 < box.y + box.height
                assert not (inside and left < box.x + box.width and box.x < right), (line, box)


def check_no_line_hides_another(picture: Picture) -> None:
    """Checks that horizontal parts of lines overlap only if the lines share their start or their
    end."""
    parts = [
        (round(y0, 9), min(x0, x1), max(x0, x1), line.id.split("-"))
        for line in picture.lines
        for (x0, y0), (x1, y1) in pairwise(line.points)
        if line.id and y0 == y1
    ]
    for _, level in groupby(sorted(parts), key=itemgetter(0)):
        for (_, left, right, one), (_, start, end, other) in combinations(level, 2):
            if left + 1e-6 < end and start + 1e-6 < right:
                assert one[0] == other[0], (one, other)
                assert one[1] == other[1] or one[2] == other[2], (one, other)


def test_every_transfer_and_dependency_is_drawn(case: tuple[sley.Program, sley.Plan]) -> None:
    made, _ = case
    picture = chunk_picture(made)
    assert sorted(ids(picture, "transfer")) == sorted(
        f"transfer-{row}" for row in range(len(made.transfers))
    )
    assert sorted(ids(picture, "dependency")) == sorted(
        f"dependency-{b}-{a}" for b, a in transfer_pairs(made)
    )
    check_readable(picture)
    check_level_parts(picture)
    check_no_line_hides_another(picture)


def test_every_instruction_message_and_wait_is_drawn(
    case: tuple[sley.Program, sley.Plan],
) -> None:
    _, plan = case
    picture = instruction_picture(plan)
    rows = len(plan.instructions)
    assert sorted(ids(picture, "instruction")) == sorted(f"instruction-{r}" for r in range(rows))
    assert sorted(ids(picture, "wait")) == sorted(f"wait-{b}-{a}" for a, b in wait_pairs(plan))
    order = [f"order-{r}-{r + 1}" for r in range(rows - 1) if plan.block[r] == plan.block[r + 1]]
    assert sorted(ids(picture, "order")) == sorted(order)
    messages = [tuple(map(int, x.split("-")[1:])) for x in ids(picture, "message")]
    assert sorted(s for s, _ in messages) == plan.sends.tolist()
    assert sorted(r for _, r in messages) == plan.receives.tolist()
    i = plan.instructions
    for send, receive in messages:
        assert (i.send_peer[send], i.recv_peer[receive]) == (plan.rank[receive], plan.rank[send])
        assert i.channel[send] == i.channel[receive]
        assert i.count[send] == i.count[receive]
    check_readable(picture)
    check_level_parts(picture)
    check_no_line_hides_another(picture)


def test_lines_go_from_left_to_right(case: tuple[sley.Program, sley.Plan]) -> None:
    made, plan = case
    for picture in (chunk_picture(made), instruction_picture(plan)):
        boxes = {box.id: box for box in picture.boxes}
        for line in picture.lines:
            if not line.id:
                continue
            word = "transfer" if line.id.startswith("dependency") else "instruction"
            source, target = (boxes[f"{word}-{row}"] for row in line.id.split("-")[1:])
            assert line.points[0][0] == source.x + source.width
            assert line.points[-1][0] == target.x
            xs = [x for x, _ in line.points]
            assert xs == sorted(xs)


def test_every_block_and_wait_of_the_thread_blocks_is_drawn(
    case: tuple[sley.Program, sley.Plan],
) -> None:
    _, plan = case
    picture = block_picture(plan)
    rows = range(len(plan.instructions))
    assert sorted(ids(picture, "instruction")) == sorted(f"instruction-{r}" for r in rows)
    numbers = zip(plan.block_rank, plan.block_number, strict=True)
    blocks = [f"block-{rank}-{number}" for rank, number in numbers]
    assert sorted(ids(picture, "block")) == sorted(blocks)
    assert sorted(ids(picture, "wait")) == sorted(f"wait-{b}-{a}" for a, b in wait_pairs(plan))
    boxes = {box.id: box for box in picture.boxes}
    for row in rows:
        head = boxes[f"block-{plan.rank[row]}-{plan.block_number[plan.block[row]]}"]
        box = boxes[f"instruction-{row}"]
        assert (box.x, box.width) == (head.x, head.width)
    for line in picture.lines:
        if line.id:
            source, target = (boxes[f"instruction-{row}"] for row in line.id.split("-")[1:])
            for box, (x, y) in ((source, line.points[0]), (target, line.points[-1])):
                assert min(abs(x - box.x), abs(x - box.x - box.width)) < 1e-9
                assert box.y < y < box.y + box.height
    check_readable(picture)
    check_level_parts(picture)
    check_no_line_hides_another(picture)


def test_arrows_of_waits_cross_no_box(case: tuple[sley.Program, sley.Plan]) -> None:
    picture = block_picture(case[1])
    boxes = [box for box in picture.boxes if box.id]
    for line in picture.lines:
        for (x0, y0), (x1, y1) in pairwise(line.points):
            if x0 != x1 or not line.id:
                continue
            low, high = sorted((y0, y1))
            for box in boxes:
                beside = not box.x < x0 < box.x + box.width
                assert beside or high <= box.y or low >= box.y + box.height, (line, box)


@examples(10)
@given(random_programs())
def test_pictures_of_random_programs_are_complete_and_readable(random: RandomProgram) -> None:
    plan = sley.compile(random.program)
    chunks = chunk_picture(random.program)
    drawn = {line.id for line in chunks.lines if line.id}
    assert drawn == {f"dependency-{b}-{a}" for b, a in transfer_pairs(random.program)}
    for picture in (chunks, instruction_picture(plan), block_picture(plan)):
        check_readable(picture)
        check_level_parts(picture)
        check_no_line_hides_another(picture)


def test_pictures_of_chosen_ranks_show_only_these() -> None:
    made = program("ring-allreduce", {"ranks": 4})
    plan = sley.compile(made)
    t = made.transfers
    touched = np.flatnonzero((t.src == 2) | (t.dst == 2))
    assert sorted(ids(chunk_picture(made, [2]), "transfer")) == sorted(
        f"transfer-{row}" for row in touched
    )
    own = np.flatnonzero(np.isin(plan.rank, [1, 2]))
    for picture in (instruction_picture(plan, [1, 2]), block_picture(plan, [1, 2])):
        assert {int(x.split("-")[1]) for x in ids(picture, "instruction")} == set(own.tolist())
        check_readable(picture)


def test_the_users_settings_of_matplotlib_dont_change_a_picture() -> None:
    plan = sley.compile(program("all-pairs-allreduce", {"ranks": 3}))
    svg, png = block_picture(plan).svg(), block_picture(plan).png()
    with matplotlib.rc_context({"lines.dashed_pattern": (9.0, 9.0), "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert block_picture(plan).svg() == svg
        assert block_picture(plan).png() == png
        assert dict(matplotlib.rcParams) == before
    assert b"<dc:date>" not in svg


def test_a_picture_can_be_a_figure_of_matplotlib() -> None:
    picture = chunk_picture(program("ring-allreduce", {"ranks": 2}))
    figure = picture.figure()
    assert tuple(figure.get_size_inches()) == pytest.approx((picture.width, picture.height))


def test_a_long_picture_stays_within_the_limits_of_png() -> None:
    picture = replace(chunk_picture(program("ring-allreduce", {"ranks": 2})), width=700.0)
    width, _ = struct.unpack(">II", picture.png()[16:24])
    assert 15_000 < width <= 16_000


@pytest.mark.parametrize("draw", [instruction_picture, block_picture])
def test_large_plans_are_refused(draw: object) -> None:
    plan = sley.compile(program("ring-allreduce", {"ranks": 16}))
    with pytest.raises(sley.SleyError, match="at most 400 instructions") as caught:
        draw(plan)  # type: ignore[operator]
    assert caught.value.code == "P801"
    assert "--rank" in str(caught.value)
    assert draw(plan, [0, 1])  # type: ignore[operator]


def test_large_programs_are_refused() -> None:
    with pytest.raises(sley.SleyError, match="at most 400 transfers") as caught:
        chunk_picture(program("ring-allreduce", {"ranks": 16}))
    assert caught.value.code == "P801"
    assert chunk_picture(program("ring-allreduce", {"ranks": 16}), [3])


def test_the_instruction_picture_of_a_plan_that_hangs_is_refused() -> None:
    plan = sley.compile(program("all-pairs-allreduce", {"ranks": 3}))
    first, last = (int(plan.block_offset[b]) for b in (0, 1))
    stuck = with_waits(plan, [(first, last), (last, first)])
    with pytest.raises(sley.SleyError) as caught:
        instruction_picture(stuck)
    assert caught.value.code == "V203"
    assert len(ids(block_picture(stuck), "wait")) == 2


@pytest.mark.parametrize(
    "values", [{"op": 77}, {"src_index": -1}, {"send_peer": 9}, {"channel": -3}, {"source": 10**6}]
)
def test_a_plan_that_contradicts_itself_has_no_picture(values: dict[str, int]) -> None:
    plan = sley.compile(program("all-pairs-allreduce", {"ranks": 3}))
    broken = with_columns(plan, int(plan.sends[0]), **values)
    for draw in (block_picture, instruction_picture):
        with pytest.raises(sley.SleyError) as caught:
            draw(broken)
        assert caught.value.code == "V201"


@pytest.mark.parametrize("name", ["ring.jpg", "ring", "ring.svg.gz"])
def test_unknown_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    picture = chunk_picture(program("ring-allreduce", {"ranks": 2}))
    with pytest.raises(sley.SleyError, match=r"\.svg, \.png or \.pdf") as caught:
        picture.save(tmp_path / name)
    assert caught.value.code == "F460"
    assert list(tmp_path.iterdir()) == []


def test_save_writes_the_format_of_the_suffix(tmp_path: Path) -> None:
    picture = chunk_picture(program("ring-allreduce", {"ranks": 2}))
    picture.save(tmp_path / "ring.SVG")
    picture.save(str(tmp_path / "ring.png"))
    picture.save(tmp_path / "ring.pdf")
    assert (tmp_path / "ring.pdf").read_bytes() == picture.pdf()
    assert picture.pdf().startswith(b"%PDF")
    assert (tmp_path / "ring.SVG").read_bytes() == picture.svg()
    assert (tmp_path / "ring.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(sley.SleyError) as caught:
        picture.save(tmp_path / "nowhere" / "ring.svg")
    assert caught.value.code == "F461"


def boards() -> sley.Topology:
    """Two nodes of two sockets, cards and networks of unequal rates, a link in one direction."""
    builder = Builder("boards", np.repeat([0, 1], 4))
    pcie = builder.add(VertexKind.PCIE, [0, 0, 1, 1])
    root = builder.add(VertexKind.PCIE, [0, 1])
    card = builder.add(VertexKind.NIC, [0, 0, 1, 1])
    leaf = builder.add(VertexKind.NETWORK, [-1, -1])
    spine = builder.add(VertexKind.NETWORK, [-1])
    builder.both(np.arange(8), pcie[np.arange(8) // 2], LinkKind.PCIE, 16, 13)
    builder.both(pcie, root[[0, 0, 1, 1]], LinkKind.PCIE, 12, 9)
    builder.both(card, pcie, LinkKind.PCIE, 16, 13)
    builder.both(card, leaf[[0, 0, 1, 1]], LinkKind.NETWORK, 12.5, 12)
    builder.both(leaf, spine[[0, 0]], LinkKind.NETWORK, 25, 24)
    builder.both(0, 3, LinkKind.NVLINK, 25, 20)
    builder.link(1, 2, LinkKind.NVLINK, 50, 40)
    builder.link(4, 7, LinkKind.NVLINK, 50, 40)
    builder.link(7, 4, LinkKind.NVLINK, 25, 20)
    return builder.topology()


TOPOLOGIES = {
    "switch": sley.topologies.cluster(1, 8),
    "cards": sley.topologies.cluster(2, 4, 2),
    "mesh": sley.topologies.dgx1(),
    "pair": sley.Topology.from_links("pair", 2, [(0, 1)]),
    "one GPU": sley.topologies.cluster(1, 1),
    "one way": sley.Topology.from_links("ring", 5, [(r, (r + 1) % 5) for r in range(5)]),
    "boards": boards(),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_vertex_link_and_rate_is_drawn(name: str) -> None:
    topology = TOPOLOGIES[name]
    picture = topology_picture(topology)
    vertices = range(len(topology.vertices))
    assert sorted(ids(picture, "vertex")) == sorted(f"vertex-{v}" for v in vertices)
    t = topology.links
    joints = {
        (min(a, b), max(a, b), LinkKind(k).name.lower())
        for a, b, k in zip(t.src.tolist(), t.dst.tolist(), t.kind.tolist(), strict=True)
    }
    assert sorted(ids(picture, "link")) == sorted(f"link-{a}-{b}-{k}" for a, b, k in joints)
    labels = [box.text[0] for box in picture.boxes if box.text and not box.id]
    assert len(labels) == len(joints)
    check_readable(picture)


def test_many_nodes_continue_in_rows_below_a_network_of_their_own() -> None:
    topology = sley.topologies.ndv4(5)
    picture = topology_picture(topology)
    assert picture.width < 18.2
    assert len(set(ids(picture, "vertex"))) == len(topology.vertices) == len(ids(picture, "vertex"))
    assert len(ids(picture, "link")) == len(topology.links) / 2
    assert [box.text for box in picture.boxes].count(("network 0",)) == 3
    frames = {(frame.x, frame.y) for frame in picture.grounds}
    assert (len({x for x, _ in frames}), len({y for _, y in frames})) == (2, 3)
    check_readable(picture)


def test_labels_show_different_rates_of_both_directions() -> None:
    picture = topology_picture(boards())
    labels = [box.text[0] for box in picture.boxes if box.text and not box.id]
    assert labels.count("40 / 20") == 1
    assert labels.count("40") == 1
    lines = {line.id: line for line in picture.lines}
    assert lines["link-1-2-nvlink"].style.arrow
    assert not lines["link-4-7-nvlink"].style.arrow


def test_large_topologies_are_refused() -> None:
    with pytest.raises(sley.SleyError, match="fewer nodes") as caught:
        topology_picture(sley.topologies.cluster(64, 8))
    assert caught.value.code == "P801"


@pytest.mark.parametrize(("name", "up"), [("dgx1", False), ("dgx1:2", True), ("mi250x:2", False)])
def test_each_tree_of_a_root_is_drawn(name: str, up: bool) -> None:
    forest = sley.topologies.pack_forest(sley.topologies.find(name), up=up)
    picture = tree_picture(forest, 3)
    expected = {
        f"tree-{tree}-{above}-{rank}"
        for tree, parents in enumerate(forest.parent.tolist())
        for rank, above in enumerate(parents)
        if parents[3] < 0 <= above
    }
    assert {line.id for line in picture.lines if line.id} == expected
    places = {box.id: box for box in picture.boxes}
    for line in picture.lines:
        if line.id:
            tree, above, rank = re.findall(r"\d+", line.id)
            higher, lower = (places[f"tree-{tree}-rank-{one}"] for one in (above, rank))
            assert higher.y < lower.y
            (_, start), (_, end) = line.points
            assert (start > end) is up
    check_readable(picture)
    assert sley.draw(forest, 3) == picture
    with pytest.raises(sley.SleyError, match="L101"):
        tree_picture(forest, forest.topology.ranks)


def content(svg: bytes) -> list[tuple[str, str]]:
    """The content of an SVG: the outline of each element with an id, and the texts. Versions of
    matplotlib place texts a little differently."""
    text = svg.decode()
    outlines = re.findall(r'<g id="([a-z]+-[0-9a-z-]+)">\s*<path d="([^"]*)"', text)
    return outlines + [("text", line) for line in re.findall(r"<text[^>]*>([^<]*)", text)]


RING = {"ranks": 3, "in_place": True}

PAGE = {
    "ring-chunks.svg": lambda: chunk_picture(program("ring-allreduce", {"ranks": 3})),
    "all-pairs-instructions.svg": lambda: instruction_picture(
        sley.compile(program("all-pairs-allreduce", {"ranks": 3}))
    ),
    "all-pairs-blocks.svg": lambda: block_picture(
        sley.compile(program("all-pairs-allreduce", {"ranks": 3}))
    ),
    "gallery-chunks.svg": lambda: chunk_picture(program("ring-allreduce", RING)),
    "gallery-blocks.svg": lambda: block_picture(sley.compile(program("ring-allreduce", RING))),
    "cluster.svg": lambda: topology_picture(sley.topologies.cluster(2, 4, 2)),
    "trees.svg": lambda: tree_picture(sley.topologies.pack_forest(sley.topologies.dgx1())),
}


@pytest.mark.parametrize("name", PAGE)
def test_the_pictures_of_the_documentation_are_current(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder = ROOT / "docs" / "assets"
    now = PAGE[name]().svg()
    update = request.config.getoption("--update-golden")
    if update or not (folder / name).is_file():
        Golden(folder, update)(name, now)
    assert content((folder / name).read_bytes()) == content(now)
    assert len(content(now)) > 20


def test_without_matplotlib_a_picture_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = block_picture(sley.compile(sley.algorithms.ring_allreduce(2)))
    with pytest.raises(sley.SleyError, match=r'pip install "sley\[pictures\]"') as error:
        picture.save("ring.svg")
    assert error.value.code == "R512"
