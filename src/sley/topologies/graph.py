"""Graphs: whole topologies as TOML, with every vertex and every link."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np

from sley.errors import SleyError
from sley.errors.text_files import Section
from sley.errors.topology import T601, T602, T607, T608
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import is_integer, is_real
from sley.topologies.machine import at_place, read_model

_VERTEX_WORDS = {kind.name.lower(): kind for kind in VertexKind}
_LINK_WORDS = {kind.name.lower(): kind for kind in LinkKind}
_VERTEX = '["gpu", NODE], or ["network"] outside of nodes'
_LINK = "[source, destination, kind, nominal_GBps, GBps] and optionally latency_us"
_MAX_NODE = 2**31 - 1


def graph_text(topology: Topology) -> str:
    """The TOML text of a topology; `graph_from` reads an equal one from it."""
    return "\n".join(_lines(topology)) + "\n"


def _lines(topology: Topology) -> Iterator[str]:
    yield f"name = {_quoted(topology.name)}"
    if topology.accuracy:
        yield f"accuracy = {_quoted(topology.accuracy)}"
    yield f"in_network = {str(topology.in_network).lower()}"
    yield f"shared_memory = {str(topology.shared_memory).lower()}"
    yield "# kind and node"
    yield "vertices = ["
    words = list(_VERTEX_WORDS)
    v = topology.vertices
    for kind, node in zip(v.kind.tolist(), v.node.tolist(), strict=True):
        yield f'  ["{words[kind]}"],' if node == NONE else f'  ["{words[kind]}", {node}],'
    yield "]"
    yield "# source, destination, kind, nominal_GBps, GBps, and latency_us where it differs from"
    yield "# the model's"
    yield "links = ["
    words = list(_LINK_WORDS)
    columns = [getattr(topology.links, name).tolist() for name in TopologyLinks.column_names()]
    for src, dst, kind, nominal, reached, latency in zip(*columns, strict=True):
        own = "" if latency == NONE else f", {latency!r}"
        yield f'  [{src}, {dst}, "{words[kind]}", {nominal!r}, {reached!r}{own}],'
    yield "]"
    yield ""
    yield "[model]"
    for f in fields(CostModel):
        value = getattr(topology.model, f.name)
        if isinstance(value, ByProtocol):
            ll, ll128, simple = float(value.ll), float(value.ll128), float(value.simple)
            yield f"{f.name} = {{LL = {ll!r}, LL128 = {ll128!r}, Simple = {simple!r}}}"
        else:
            yield f"{f.name} = {float(value)!r}"


def _quoted(text: str) -> str:
    """A basic string of TOML: one of JSON in which DEL is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def graph_from(file: str, values: Mapping[str, Any]) -> Topology:
    """The topology that the tables of a graph file describe. Errors: T601, T602, T603, T607,
    T608."""
    top = Section(file, values, T607)
    optional = ("in_network", "shared_memory", "accuracy", "model")
    top.check_keys(("name", "vertices", "links"), optional)
    rows = [_vertex(top, i, row) for i, row in enumerate(top.typed("vertices", list))]
    vertices = Vertices(*(np.array(rows).reshape(-1, 2).T))
    nodes = {node for kind, node in rows if kind == VertexKind.GPU}
    if (missing := next(node for node in count() if node not in nodes)) < max(nodes, default=0):
        expected = f"a GPU in each node up to {max(nodes)}"
        raise top.refuse("vertices", expected, f"none in node {missing}", T601)
    links = [_link(top, i, row, len(vertices)) for i, row in enumerate(top.typed("links", list))]
    model = top.section("model") if "model" in top else None
    if model is not None:
        model.check_keys((), [f.name for f in fields(CostModel)])
    parts = (
        top.typed("name", str),
        vertices,
        TopologyLinks(*np.array(links, float).reshape(-1, 6).T),
        CostModel() if model is None else read_model(model),
        top.typed("in_network", bool, False),
        top.typed("shared_memory", bool, False),
        top.typed("accuracy", str, ""),
    )
    try:
        return Topology(*parts)
    except SleyError as error:
        raise at_place(error, top.place()) from error


def _vertex(top: Section, index: int, row: Any) -> tuple[int, int]:
    key = f"vertices[{index}]"
    if not isinstance(row, list) or len(row) not in (1, 2):
        raise top.refuse(key, _VERTEX, row)
    if not isinstance(row[0], str) or row[0] not in _VERTEX_WORDS:
        raise top.refuse(key, f"one of {', '.join(_VERTEX_WORDS)}, and the node", row)
    node = row[1] if len(row) == 2 else NONE
    if len(row) == 2 and not (is_integer(node) and 0 <= node <= _MAX_NODE):
        raise top.refuse(key, _VERTEX, row)
    return int(_VERTEX_WORDS[row[0]]), node


def _link(top: Section, index: int, row: Any, vertices: int) -> tuple[float, ...]:
    key = f"links[{index}]"
    if not isinstance(row, list) or len(row) not in (5, 6):
        raise top.refuse(key, _LINK, row)
    src, dst, kind, *numbers = row
    if not is_integer(src) or not is_integer(dst):
        raise top.refuse(key, _LINK, row)
    if src == dst or not (0 <= src < vertices and 0 <= dst < vertices):
        raise top.refuse(key, f"two of the vertices 0 to {vertices - 1}", row, T608)
    if not isinstance(kind, str) or kind not in _LINK_WORDS:
        raise top.refuse(key, f"one of {', '.join(_LINK_WORDS)} as kind", row)
    if not all(map(is_real, numbers)):
        raise top.refuse(key, _LINK, row)
    nominal, reached, latency = [*map(float, numbers), float(NONE)][:3]
    if not (np.isfinite([nominal, reached, latency]).all() and nominal > 0 < reached):
        raise top.refuse(key, "rates above 0", row, T602)
    if len(numbers) == 3 and latency < 0:
        raise top.refuse(key, "latency_us from 0", row, T602)
    return src, dst, _LINK_WORDS[kind], nominal, reached, latency
