"""Tests of pictures of meshes and tori: GPUs in rows and columns."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import sley
from sley.ir.fabric import LinkKind
from sley.ir.topology import Builder
from sley.report.pictures import topology_picture
from sley.topologies.structure import sides_of

NVLINK = LinkKind.NVLINK


def boxes(topology: sley.Topology) -> dict[int, tuple[float, float]]:
    found = [box for box in topology_picture(topology).boxes if box.id.startswith("vertex-")]
    return {int(box.id.split("-")[1]): (box.x, box.y) for box in found}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torus:4x4", (4, 4)),
        ("torus:2x8", (2, 8)),
        ("mesh:3x5", (3, 5)),
        ("mesh:2x2", (2, 2)),
        ("torus:3x4x5", (3, 4, 5)),
        ("mesh:2x2x2", (2, 2, 2)),
        ("torus:8", None),
        ("1x8", None),
        ("dgx1", None),
        ("dgx-h100:2", None),
    ],
)
def test_the_sides_of_a_lattice_come_from_its_links(name: str, expected: object) -> None:
    topology = replace(sley.topologies.find(name), name="without a hint")
    assert sides_of(topology) == expected


def test_a_torus_with_one_link_more_or_less_is_none() -> None:
    torus = sley.topologies.torus(4, 4)
    builder = Builder("more", np.zeros(16, np.int32))
    for link in torus.links:
        builder.link(link.src, link.dst, NVLINK, 25, 20)
    assert sides_of(builder.topology()) == (4, 4)
    builder.link(0, 5, NVLINK, 25, 20)
    assert sides_of(builder.topology()) is None
    fewer = Builder("fewer", np.zeros(16, np.int32))
    for link in torus.links:
        if {link.src, link.dst} != {5, 6}:
            fewer.link(link.src, link.dst, NVLINK, 25, 20)
    assert sides_of(fewer.topology()) is None


def test_a_torus_is_a_grid() -> None:
    places = boxes(sley.topologies.torus(3, 4))
    columns = sorted({x for x, _ in places.values()})
    rows = sorted({y for _, y in places.values()})
    assert (len(rows), len(columns)) == (3, 4)
    for rank, (x, y) in places.items():
        assert (rows.index(y), columns.index(x)) == divmod(rank, 4)


def test_layers_of_a_third_axis_hide_no_box() -> None:
    places = boxes(sley.topologies.torus(3, 3, 3))
    assert len(places) == 27
    for (x, y), (other_x, other_y) in combinations(places.values(), 2):
        assert abs(x - other_x) >= 0.74 or abs(y - other_y) >= 0.26


def test_links_around_the_edge_pass_beside_the_boxes_between() -> None:
    picture = topology_picture(sley.topologies.torus(4, 4))
    lines = {line.id: line.points for line in picture.lines if line.id.startswith("link-")}
    assert len(lines) == 32
    assert {len(points) for points in lines.values()} > {2}
    for name, points in lines.items():
        ends = {int(number) for number in name.split("-")[1:3]}
        for box in picture.boxes:
            if box.id.startswith("vertex-") and int(box.id.split("-")[1]) not in ends:
                assert not any(
                    box.x < x < box.x + box.width and box.y < y < box.y + box.height
                    for x, y in points
                ), (name, box.id)
