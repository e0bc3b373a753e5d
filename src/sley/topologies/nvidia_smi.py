"""The output of `nvidia-smi topo -m`: the kind of path between each pair of GPUs and cards."""

from __future__ import annotations

import re
from itertools import combinations

from sley.errors.topology import T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.assumptions import (
    PCIE_4,
    PROCESSORS,
    Import,
    by_capability,
)
from sley.topologies.machine import Node, Rate

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


Pair = tuple[int, int]


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
    ) -> tuple[list[str], dict[Pair, int], dict[Pair, int], dict[int, str]]:
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
        levels: dict[Pair, int] = {}
        nvlinks: dict[Pair, int] = {}
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

    def _join_nvlinks(self, nvlinks: dict[Pair, int]) -> None:
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


def _join_tree(node: Node, levels: dict[Pair, int], vertex: dict[int, int], slot: Rate) -> None:
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


def _merge(groups: list[list[int]], pairs: list[Pair]) -> list[list[int]]:
    """Merges the groups that pairs connect; sorted by their first members."""
    name = {member: group[0] for group in groups for member in group}
    for a, b in pairs:
        first, second = sorted((name[a], name[b]))
        if first != second:
            name = {member: first if n == second else n for member, n in name.items()}
    merged: dict[int, list[int]] = {}
    for member in sorted(name):
        merged.setdefault(name[member], []).append(member)
    return list(merged.values())
