"""Matrices of GPUs that vendors' tools print: `nvidia-smi topo -m`, with the kind of path between
each pair of GPUs and cards; `rocm-smi --showtopo` and `amd-smi topology`, its text and its JSON.

AMD's matrices have a cell for each pair of GPUs: the type of the link (XGMI or PCIE), its weight
(15 for each xGMI link on the way), hops (2 within a processor, 3 between two processors; 1 for
xGMI, however long the way), and the bandwidth in MB/s of one link and of all links between the two
GPUs. Neither of AMD's tools shows cards or names the GPUs. Sources: rocm_smi.py, amdsmi_cli, and
AMD's text on hops and weights (rocm-systems, amd-smi's how-to).
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
from sley.ir.tables import by_key
from sley.topologies.assumptions import (
    PCIE_4,
    PROCESSORS,
    Generation,
    Import,
    by_capability,
    by_target,
)
from sley.topologies.machine import Machine, Node, Rate

_MOST_LINKS = 18
"""The most NVLinks that a GPU has (H100, B200): a row with more means that there is a switch."""

_CAPABILITY = {6: 70, 12: 80, 18: 90}
"""The compute capability of a GPU by its number of NVLinks: V100, A100, H100. A B200 has 18 too;
then like= tells."""

_LEVELS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5}
_LEGEND = re.compile(r"^\s*NV#\s*=", re.MULTILINE)
_DEVICE = re.compile(r"(?:GPU|NIC|mlx\w*_?)[0-9]+")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_MAX_DEVICES = 256


def is_matrix(text: str) -> bool:
    """Whether text looks like the output of nvidia-smi topo -m."""
    return any(line.split()[:1] == ["GPU0"] for line in _ESCAPE.sub("", text).splitlines())


_Pair = tuple[int, int]


class NvidiaImport(Import):
    """The node that a matrix describes. Errors: T607, T608."""

    found = "as nvidia-smi found them"

    def __init__(self, file: str, text: str) -> None:
        super().__init__(file)
        names, levels, nvlinks, numa = self._cells(_ESCAPE.sub("", text))
        gpus = [i for i, name in enumerate(names) if name.startswith("GPU")]
        if gpus != list(range(len(gpus))):
            raise self.wrong(T608, "GPUs before cards", ", ".join(names)[:60])
        self.node = node = Node(len(gpus))
        if nvlinks:
            self._join_nvlinks(nvlinks)
        slot = self.generation.pcie if self.generation else PCIE_4
        cards = range(len(gpus), len(names))
        vertex = {i: i for i in gpus} | {i: node.add_card(slot) for i in cards}
        self.open_cards |= node.cards.keys()
        if levels:
            # Cells that show NVLink hide the level of PCIe, which NUMA nodes tell if known.
            for pair in nvlinks:
                if pair[0] in numa and pair[1] in numa:
                    level = "NODE" if numa[pair[0]] == numa[pair[1]] else "SYS"
                    levels.setdefault(pair, _LEVELS[level])
            _join_tree(node, levels, vertex, slot)
            found = f"{slot.nominal_GBps:g} GB/s over PCIe, {slot.GBps:g} reached"
            self.assume(f"{found}; {PROCESSORS.GBps:g} between processors")
        # The legend of -m explains NV#, that of -mp doesn't.
        if not _LEGEND.search(text):
            self.no_nvlink = "topo -mp leaves it out, topo -m shows it"

    def _cells(
        self, text: str
    ) -> tuple[list[str], dict[_Pair, int], dict[_Pair, int], dict[int, str]]:
        """The devices' names, the level of each pair joined by PCIe, the number of NVLinks of each
        other pair, and the NUMA node of each GPU."""
        lines = [line.split() for line in text.splitlines()]
        head = next((i for i, words in enumerate(lines) if words[:1] == ["GPU0"]), 0)
        # The header line starts with GPU0, and so does the first row; the header comes first.
        names = [word for word in lines[head] if _DEVICE.fullmatch(word)]
        if not 1 <= len(names) <= _MAX_DEVICES or len(set(names)) < len(names):
            expected = f"a header line with 1 to {_MAX_DEVICES} different names"
            raise self.wrong(T607, expected, " ".join(names)[:60], line=head + 1)
        rows = {
            words[0]: (number, words[1:])
            for number, words in enumerate(lines[head + 1 :], head + 2)
            if words and words[0] in names and len(words) > len(names)
        }
        levels: dict[_Pair, int] = {}
        nvlinks: dict[_Pair, int] = {}
        numa: dict[int, str] = {}
        for a, name in enumerate(names):
            if name not in rows:
                expected = f"a row of {len(names)} cells for {name}"
                raise self.wrong(T608, expected, "none", line=head + 1)
            number, cells = rows[name]
            if name.startswith("GPU") and len(cells) >= len(names) + 2:
                numa[a] = cells[len(names) + 1]
            for b, cell in enumerate(cells[: len(names)]):
                joined = re.fullmatch(r"NV([0-9]{1,2})", cell)
                if (cell == "X") != (a == b) or not (cell == "X" or joined or cell in _LEVELS):
                    expected = f"NV#, {', '.join(_LEVELS)}, and X at the device itself"
                    at = f"{name}, {names[b]}"
                    raise self.wrong(T607, expected, repr(cell[:30]), line=number, at=at)
                if joined:
                    nvlinks[min(a, b), max(a, b)] = int(joined[1])
                elif a != b:
                    levels[min(a, b), max(a, b)] = _LEVELS[cell]
        return names, levels, nvlinks, numa

    def _join_nvlinks(self, nvlinks: dict[_Pair, int]) -> None:
        """Adds NVLink: direct links, or a switch if a row has more links than a GPU; and finds the
        generation of GPUs with this number of links."""
        node = self.node
        total = [sum(k for pair, k in nvlinks.items() if gpu in pair) for gpu in range(node.gpus)]
        switched = max(total) > _MOST_LINKS
        links = max(nvlinks.values()) if switched else max(total)
        rate = by_capability(_CAPABILITY.get(links, 80)).link
        if switched:
            switch = node.add(VertexKind.SWITCH)
            for gpu in range(node.gpus):
                own = max((k for pair, k in nvlinks.items() if gpu in pair), default=0)
                if own:
                    node.join(gpu, switch, LinkKind.NVLINK, rate.times(own))
            self.assume(f"an NVSwitch, as {max(total)} links are more than a GPU has")
        else:
            for (a, b), count in nvlinks.items():
                node.join(a, b, LinkKind.NVLINK, rate.times(count))
        self.assume(f"{rate.nominal_GBps:g} GB/s an NVLink, {rate.GBps:g} reached")
        if links in _CAPABILITY:
            self.generation = by_capability(_CAPABILITY[links])


def _join_tree(node: Node, levels: dict[_Pair, int], vertex: dict[int, int], slot: Rate) -> None:
    """Adds PCIe: a vertex for each group of devices that a level joins, linked to the vertex of
    the next level's group around it, at the rate of a slot. Groups that only SYS joins are linked
    as processors."""
    groups = [[i] for i in vertex]
    top = list(vertex.values())
    for level in range(_LEVELS["PIX"], _LEVELS["SYS"]):
        wider = _merge(groups, [pair for pair, known in levels.items() if known <= level])
        above: list[int] = []
        for group in wider:
            parts = [top[i] for i, one in enumerate(groups) if one[0] in group]
            if len(parts) == 1 and (len(group) > 1 or level < _LEVELS["NODE"]):
                above.append(parts[0])
                continue
            above.append(node.add(VertexKind.PCIE))
            for part in parts:
                node.join(part, above[-1], LinkKind.PCIE, slot)
        groups, top = wider, above
    for a, b in combinations(top, 2):
        node.join(a, b, LinkKind.PCIE, PROCESSORS)


def _merge(groups: list[list[int]], pairs: list[_Pair]) -> list[list[int]]:
    """Merges the groups that pairs connect; sorted by their first members."""
    name = {member: group[0] for group in groups for member in group}
    # Groups may meet late, so all members of both take the lower name.
    for a, b in pairs:
        first, second = sorted((name[a], name[b]))
        if first != second:
            name = {member: first if n == second else n for member, n in name.items()}
    return list(by_key((name[member], member) for member in sorted(name)).values())


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
        self._cells: dict[str, dict[_Pair, str]] = {}
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

    def _number(self, matrix: str, pair: _Pair) -> int | None:
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

    def _matrix(self, lines: list[str], begin: int) -> dict[_Pair, str]:
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
        cells: dict[_Pair, str] = {}
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

    def _kinds(self) -> Mapping[_Pair, str]:
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

    def _join_xgmi(self, pairs: list[_Pair], like: Machine | None) -> Generation:
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

    def _join_pcie(self, kinds: Mapping[_Pair, str], rate: Rate) -> None:
        """Adds a PCIe vertex for each processor, by the GPUs' NUMA nodes, or by the hops between
        them."""
        node = self.node
        numa = [self._numa.get(gpu) for gpu in range(node.gpus)]
        if None not in numa:
            near = [(numa.index(one), gpu) for gpu, one in enumerate(numa)]
        elif "PCIE" in kinds.values() or node.gpus == 1:
            hops = {pair: self._number("hops", pair) for pair in kinds}
            near = [p for p, kind in kinds.items() if kind == "XGMI" or hops[p] == _NEAR_HOPS]
        else:
            return
        groups = _merge([[gpu] for gpu in range(node.gpus)], near)
        processors = [node.add(VertexKind.PCIE) for _ in groups]
        of = {gpu: one for one, gpus in zip(processors, groups, strict=True) for gpu in gpus}
        for gpu in range(node.gpus):
            node.join(gpu, of[gpu], LinkKind.PCIE, rate)
        self.join_processors(processors)
        self.assume(f"PCIe with 16 lanes, {rate.GBps:g} GB/s reached, at each GPU")
