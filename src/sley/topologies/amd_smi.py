"""AMD's matrices of GPUs: the output of `rocm-smi --showtopo` and of `amd-smi topology`, its text
and its JSON.

Each matrix has a cell for each pair of GPUs: the type of the link (XGMI or PCIE), its weight (15
for each xGMI link on the way), hops (2 within a processor, 3 between two processors; 1 for xGMI,
however long the way), and the bandwidth in MB/s of one link and of all links between the two GPUs.
Neither tool shows cards or names the GPUs. Sources: rocm_smi.py, amdsmi_cli, and AMD's text on hops
and weights (rocm-systems, amd-smi's how-to).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.topology import T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.assumptions import (
    PCIE_4,
    PROCESSORS,
    Generation,
    Import,
    by_target,
    join_processors,
    note_assumption,
)
from sley.topologies.machine import Machine
from sley.topologies.node import Node, Rate
from sley.topologies.reading import json_of

_TITLES = re.compile(
    r"^\s*=*\s*(?:(?P<rocm>Weight|Hops|Link Type) between two GPUs\b|(?P<width>Bandwidth)\s*=+"
    r"|(?P<amd>WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:)"
)
_WORDS = {"link type": "type", "numa bw": "bandwidth"}
_KEYS = {"link_type": "type", "weight": "weight", "num_hops": "hops", "bandwidth": "bandwidth"}
_GPU = re.compile(r"GPU[0-9]{1,4}|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_NUMA = re.compile(r"^\s*GPU ?\[?([0-9]{1,4})\]?\s*: \(Topology\) Numa Node: (-?[0-9]{1,6})\s*$")
_BANDWIDTH = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_TYPES = ("XGMI", "PCIE")
_SELF = ("0", "SELF", "N/A")
_MAX_GPUS = 256
_NEAR_HOPS = 2
"""Hops between GPUs of one processor."""

_TARGETS = ("gfx90a", "gfx94", "gfx95")
"""The names of generations of GPUs with xGMI: MI200, MI300 and MI350."""

_MESH = 8
"""A node of MI300s has this number of GPUs, with a link between each pair."""

Pair = tuple[int, int]


@dataclass
class _Matrices:
    """The matrices of a file. names: of the GPUs. cells: by the matrix, the text for each pair of
    GPUs, in both directions. numa: the NUMA node of each GPU. lines: the line of each matrix."""

    names: list[str] = field(default_factory=list)
    cells: dict[str, dict[Pair, str]] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def number(self, matrix: str, pair: Pair) -> int | None:
        """A number of a matrix; None where it has none."""
        text = self.cells.get(matrix, {}).get(pair, "")
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def machine_from_amd(
    file: str, text: str, notes: list[Diagnostic], like: Machine | None = None
) -> Machine:
    """The machine that the matrices describe. like: the machine with the rates that they leave
    open. Errors: T605, T607, T608."""
    read = _from_json if text.lstrip().startswith("[") else _from_text
    found = read(file, text)
    if "type" not in found.cells:
        raise T608.error(
            at=Place(file),
            expected="a matrix of the links' types",
            found=", ".join(found.cells) or "none",
            remedy="Save the whole output of rocm-smi --showtopo or amd-smi topology.",
        )
    kinds = _kinds(file, found)
    node = Node(len(found.names))
    pairs = [pair for pair, kind in kinds.items() if kind == "XGMI"]
    generation = _join_xgmi(file, node, found, pairs, like, notes) if pairs else None
    _join_pcie(file, node, found, kinds, generation.pcie if generation else PCIE_4, notes)
    return Import(file, "as AMD's tools found them", node, generation).machine(like, notes)


def _from_text(file: str, text: str) -> _Matrices:
    """The matrices of a text. Errors: T607, T608."""
    found = _Matrices()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if numa := _NUMA.match(line):
            found.numa[int(numa[1])] = int(numa[2])
        title = _TITLES.match(line)
        if not title:
            continue
        name = (title["rocm"] or title["amd"] or title["width"]).lower()
        name = _WORDS.get(name, name)
        found.lines[name] = number + 1
        found.cells[name] = _matrix(file, found, lines, number + 1)
    return found


def _matrix(file: str, found: _Matrices, lines: list[str], begin: int) -> dict[Pair, str]:
    """The cells of a matrix whose header is at or after a line. Errors: T607, T608."""
    head = next((i for i in range(begin, len(lines)) if lines[i].strip()), len(lines) - 1)
    names = lines[head].split()
    place = Place(file, head + 1)
    if not 1 <= len(names) <= _MAX_GPUS or not all(map(_GPU.fullmatch, names)):
        raise T607.error(
            at=place,
            expected=f"a header line with 1 to {_MAX_GPUS} GPUs",
            found=lines[head].strip()[:60],
            remedy="Save the output again.",
        )
    if len(set(names)) < len(names) or names != (found.names or names):
        expected = "different names, the same in all matrices"
        raise T608.error(at=place, expected=expected, found=" ".join(names)[:60])
    found.names = names
    cells: dict[Pair, str] = {}
    for a, name in enumerate(names):
        row = lines[head + 1 + a].split() if head + 1 + a < len(lines) else []
        if len(row) != len(names) + 1 or row[0] != name:
            raise T608.error(
                at=Place(file, head + 2 + a),
                expected=f"a row of {len(names)} cells for {name}",
                found=" ".join(row)[:60] or "none",
                remedy="Save the output again, with all rows.",
            )
        cells |= {(a, b): cell for b, cell in enumerate(row[1:])}
    return cells


def _from_json(file: str, text: str) -> _Matrices:
    """The matrices of amd-smi's JSON: for each GPU its links to all GPUs. Errors: T605, T607."""
    rows, found = json_of(file, text), _Matrices()
    if not isinstance(rows, list) or not 1 <= len(rows) <= _MAX_GPUS:
        raise _wrong(file, "", f"a list of 1 to {_MAX_GPUS} GPUs", rows)
    found.names = [str(row.get("bdf")) if isinstance(row, dict) else "" for row in rows]
    for a, row in enumerate(rows):
        links = row.get("links") if isinstance(row, dict) else None
        if not isinstance(links, list) or len(links) != len(rows):
            raise _wrong(file, f"[{a}]", f"a GPU with links to {len(rows)} GPUs", row)
        for b, link in enumerate(links):
            if not isinstance(link, dict) or str(link.get("bdf")) != found.names[b]:
                expected = f"a link to {found.names[b]}"
                raise _wrong(file, f"[{a}].links[{b}]", expected, link)
            for key, matrix in _KEYS.items():
                if key in link:
                    found.cells.setdefault(matrix, {})[a, b] = str(link[key])
    return found


def _wrong(file: str, detail: str, expected: str, value: Any) -> SleyError:
    return T607.error(
        at=Place(file, detail=detail),
        expected=expected,
        found=repr(value)[:40],
        remedy="Save the output of amd-smi topology --json again.",
    )


def _kinds(file: str, found: _Matrices) -> Mapping[Pair, str]:
    """The type of the link of each pair. Errors: T607, T608."""
    cells, names = found.cells["type"], found.names
    for a in range(len(names)):
        for b in range(len(names)):
            cell = cells.get((a, b), "")
            if cell in _SELF if a == b else cell in _TYPES:
                if cell == cells.get((b, a)):
                    continue
                rule, expected = T608, f"{cell}, as in the opposite direction"
                cell = cells.get((b, a), "")
            else:
                rule, expected = T607, "0 or SELF" if a == b else " or ".join(_TYPES)
            raise rule.error(
                at=Place(file, found.lines.get("type", 0), detail=f"{names[a]}, {names[b]}"),
                expected=expected,
                found=repr(cell[:30]),
                remedy="AMD's tool could not tell how these two are linked: write the machine in "
                'TOML, for example with like = "mi300x".',
            )
    return {pair: cells[pair] for pair in combinations(range(len(names)), 2)}


def _join_xgmi(
    file: str,
    node: Node,
    found: _Matrices,
    pairs: list[Pair],
    like: Machine | None,
    notes: list[Diagnostic],
) -> Generation:
    """Adds the links of the pairs that xGMI links directly. A pair without one has bandwidth 0, or
    a larger weight than others. Returns the generation of the GPUs: that of `like`, or else the
    one whose links have the bandwidth, or are as many."""
    place = Place(file, found.lines.get("type", 0))
    known = [by_target(name) for name in _TARGETS]
    named = next((one for one in known if like and one.machine == like.name), None)
    texts = {pair: found.cells.get("bandwidth", {}).get(pair, "") for pair in pairs}
    widths = {pair: _BANDWIDTH.fullmatch(text) for pair, text in texts.items()}
    GBps = {  # noqa: N806 - a unit
        pair: (int(one[1]) / 1000, int(one[2]) / 1000)
        for pair, one in widths.items()
        if one and int(one[1])
    }
    if GBps:
        least = min(one for one, _ in GBps.values())
        generation = named or min(known, key=lambda one: abs(one.link.nominal_GBps - least))
        share = generation.link.GBps / generation.link.nominal_GBps
        for (a, b), (_, most) in GBps.items():
            node.join(a, b, LinkKind.NVLINK, Rate(most, most * share))
        note_assumption(notes, place, f"xGMI reaches {share:.0%} of the bandwidth in the matrix")
        return generation
    weights = {pair: found.number("weight", pair) for pair in pairs}
    lightest = min((weight for weight in weights.values() if weight), default=None)
    direct = [pair for pair in pairs if weights[pair] in (None, lightest)]
    is_mesh = node.gpus == _MESH and len(direct) == _MESH * (_MESH - 1) // 2
    generation = named or by_target("gfx94" if is_mesh else "gfx90a")
    rate = generation.link
    for a, b in direct:
        node.join(a, b, LinkKind.NVLINK, rate)
    note_assumption(
        notes,
        place,
        f"one xGMI link between two GPUs, as {generation.gpu} has it: {rate.nominal_GBps:g} GB/s, "
        f"{rate.GBps:g} reached; amd-smi topology shows how many there are",
    )
    return generation


def _join_pcie(
    file: str,
    node: Node,
    found: _Matrices,
    kinds: Mapping[Pair, str],
    rate: Rate,
    notes: list[Diagnostic],
) -> None:
    """Adds a PCIe vertex for each processor, by the GPUs' NUMA nodes, or by the hops between
    them."""
    numa = [found.numa.get(gpu) for gpu in range(node.gpus)]
    if None not in numa:
        group = [numa.index(one) for one in numa]
    elif "PCIE" in kinds.values() or node.gpus == 1:
        group = list(range(node.gpus))
        for (a, b), kind in kinds.items():
            if kind == "XGMI" or found.number("hops", (a, b)) == _NEAR_HOPS:
                joined = {group[a], group[b]}
                group = [min(joined) if one in joined else one for one in group]
    else:
        return
    processors = {first: node.add(VertexKind.PCIE) for first in sorted(set(group))}
    for gpu, first in enumerate(group):
        node.join(gpu, processors[first], LinkKind.PCIE, rate)
    join_processors(file, node, list(processors.values()), PROCESSORS, notes)
    note_assumption(
        notes, Place(file), f"PCIe with 16 lanes, {rate.GBps:g} GB/s reached, at each GPU"
    )
