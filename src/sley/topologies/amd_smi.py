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
from itertools import combinations, product
from typing import Any

from sley.errors import SleyError
from sley.errors.text_files import json_of
from sley.errors.topology import T605, T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.assumptions import (
    PCIE_4,
    Generation,
    Import,
    by_target,
)
from sley.topologies.machine import Machine, Node, Rate

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


class AmdImport(Import):
    """The node that the matrices describe. Errors: T605, T607, T608.

    names: of the GPUs. cells: by the matrix, the text for each pair of GPUs, in both directions.
    numa: the NUMA node of each GPU. lines: the line of each matrix.
    """

    found = "as AMD's tools found them"

    def __init__(self, file: str, text: str, like: Machine | None) -> None:
        """like: the machine whose generation of GPUs they are."""
        super().__init__(file)
        self._names: list[str] = []
        self._cells: dict[str, dict[Pair, str]] = {}
        self._numa: dict[int, int] = {}
        self._lines: dict[str, int] = {}
        if text.lstrip().startswith("["):
            self._read_json(text)
        else:
            self._read_text(text.splitlines())
        if "type" not in self._cells:
            found = ", ".join(self._cells) or "none"
            remedy = "Save the whole output of rocm-smi --showtopo or amd-smi topology."
            raise self.wrong(T608, "a matrix of the links' types", found, remedy)
        kinds = self._kinds()
        self.node = Node(len(self._names))
        if pairs := [pair for pair, kind in kinds.items() if kind == "XGMI"]:
            self.generation = self._join_xgmi(pairs, like)
        self._join_pcie(kinds, self.generation.pcie if self.generation else PCIE_4)

    def _number(self, matrix: str, pair: Pair) -> int | None:
        """A number of a matrix; None where it has none."""
        text = self._cells.get(matrix, {}).get(pair, "")
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None

    def _read_text(self, lines: list[str]) -> None:
        """Reads the matrices of a text. Errors: T607, T608."""
        for number, line in enumerate(lines):
            if numa := _NUMA.match(line):
                self._numa[int(numa[1])] = int(numa[2])
            title = _TITLES.match(line)
            if not title:
                continue
            name = (title["rocm"] or title["amd"] or title["width"]).lower()
            name = _WORDS.get(name, name)
            self._lines[name] = number + 1
            self._cells[name] = self._matrix(lines, number + 1)

    def _matrix(self, lines: list[str], begin: int) -> dict[Pair, str]:
        """The cells of a matrix whose header is at or after a line. Errors: T607, T608."""
        head = next((i for i in range(begin, len(lines)) if lines[i].strip()), len(lines) - 1)
        names, line = lines[head].split(), head + 1
        if not 1 <= len(names) <= _MAX_GPUS or not all(map(_GPU.fullmatch, names)):
            expected = f"a header line with 1 to {_MAX_GPUS} GPUs"
            found, remedy = lines[head].strip()[:60], "Save the output again."
            raise self.wrong(T607, expected, found, remedy, line)
        if len(set(names)) < len(names) or names != (self._names or names):
            expected = "different names, the same in all matrices"
            raise self.wrong(T608, expected, " ".join(names)[:60], line=line)
        self._names = names
        cells: dict[Pair, str] = {}
        for a, name in enumerate(names):
            row = lines[line + a].split() if line + a < len(lines) else []
            if len(row) != len(names) + 1 or row[0] != name:
                expected = f"a row of {len(names)} cells for {name}"
                remedy = "Save the output again, with all rows."
                found = " ".join(row)[:60] or "none"
                raise self.wrong(T608, expected, found, remedy, line + 1 + a)
            cells |= {(a, b): cell for b, cell in enumerate(row[1:])}
        return cells

    def _read_json(self, text: str) -> None:
        """Reads amd-smi's JSON: for each GPU its links to all GPUs. Errors: T605, T607."""
        rows = json_of(self.file, text, T605)
        if not isinstance(rows, list) or not 1 <= len(rows) <= _MAX_GPUS:
            raise self._wrong_value("", f"a list of 1 to {_MAX_GPUS} GPUs", rows)
        self._names = [str(row.get("bdf")) if isinstance(row, dict) else "" for row in rows]
        for a, row in enumerate(rows):
            links = row.get("links") if isinstance(row, dict) else None
            if not isinstance(links, list) or len(links) != len(rows):
                raise self._wrong_value(f"[{a}]", f"a GPU with links to {len(rows)} GPUs", row)
            for b, link in enumerate(links):
                if not isinstance(link, dict) or str(link.get("bdf")) != self._names[b]:
                    expected = f"a link to {self._names[b]}"
                    raise self._wrong_value(f"[{a}].links[{b}]", expected, link)
                for key, matrix in _KEYS.items():
                    if key in link:
                        self._cells.setdefault(matrix, {})[a, b] = str(link[key])

    def _wrong_value(self, at: str, expected: str, value: Any) -> SleyError:
        remedy = "Save the output of amd-smi topology --json again."
        return self.wrong(T607, expected, repr(value)[:40], remedy, at=at)

    def _kinds(self) -> Mapping[Pair, str]:
        """The type of the link of each pair. Errors: T607, T608."""
        cells, names = self._cells["type"], self._names
        for a, b in product(range(len(names)), repeat=2):
            cell, opposite = cells.get((a, b), ""), cells.get((b, a), "")
            if cell not in (_SELF if a == b else _TYPES):
                rule, expected = T607, "0 or SELF" if a == b else " or ".join(_TYPES)
            elif cell == opposite:
                continue
            else:
                rule, expected, cell = T608, f"{cell}, as in the opposite direction", opposite
            raise self.wrong(
                rule,
                expected,
                repr(cell[:30]),
                "AMD's tool could not tell how these two are linked: write the machine in TOML, "
                'for example with like = "mi300x".',
                self._lines.get("type", 0),
                f"{names[a]}, {names[b]}",
            )
        return {pair: cells[pair] for pair in combinations(range(len(names)), 2)}

    def _join_xgmi(self, pairs: list[Pair], like: Machine | None) -> Generation:
        """Adds the links of the pairs that xGMI links directly. A pair without one has bandwidth 0,
        or a larger weight than others. Returns the generation of the GPUs: that of `like`, or else
        the one whose links have the bandwidth, or are as many."""
        line = self._lines.get("type", 0)
        known = [by_target(name) for name in _TARGETS]
        named = next((one for one in known if like and one.machine == like.name), None)
        texts = {pair: self._cells.get("bandwidth", {}).get(pair, "") for pair in pairs}
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
                self.node.join(a, b, LinkKind.NVLINK, Rate(most, most * share))
            self.assume(f"xGMI reaches {share:.0%} of the bandwidth in the matrix", line)
            return generation
        weights = {pair: self._number("weight", pair) for pair in pairs}
        lightest = min((weight for weight in weights.values() if weight), default=None)
        direct = [pair for pair in pairs if weights[pair] in (None, lightest)]
        is_mesh = self.node.gpus == _MESH and len(direct) == _MESH * (_MESH - 1) // 2
        generation = named or by_target("gfx94" if is_mesh else "gfx90a")
        rate = generation.link
        for a, b in direct:
            self.node.join(a, b, LinkKind.NVLINK, rate)
        self.assume(
            f"one xGMI link between two GPUs, as {generation.gpu} has it: {rate.nominal_GBps:g} "
            f"GB/s, {rate.GBps:g} reached; amd-smi topology shows how many there are",
            line,
        )
        return generation

    def _join_pcie(self, kinds: Mapping[Pair, str], rate: Rate) -> None:
        """Adds a PCIe vertex for each processor, by the GPUs' NUMA nodes, or by the hops between
        them."""
        node = self.node
        numa = [self._numa.get(gpu) for gpu in range(node.gpus)]
        if None not in numa:
            group = [numa.index(one) for one in numa]
        elif "PCIE" in kinds.values() or node.gpus == 1:
            group = list(range(node.gpus))
            # Groups may meet late, so all members of both take the lower number.
            for (a, b), kind in kinds.items():
                if kind == "XGMI" or self._number("hops", (a, b)) == _NEAR_HOPS:
                    joined = {group[a], group[b]}
                    group = [min(joined) if one in joined else one for one in group]
        else:
            return
        processors = {first: node.add(VertexKind.PCIE) for first in sorted(set(group))}
        for gpu, first in enumerate(group):
            node.join(gpu, processors[first], LinkKind.PCIE, rate)
        self.join_processors(list(processors.values()))
        self.assume(f"PCIe with 16 lanes, {rate.GBps:g} GB/s reached, at each GPU")
