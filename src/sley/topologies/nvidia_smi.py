"""The output of `nvidia-smi topo -m`: the kind of path between each pair of GPUs and cards."""

from __future__ import annotations

import re
from itertools import combinations

from sley.errors import Diagnostic, Place
from sley.errors.topology import T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.assumptions import (
    PCIE_4,
    PROCESSORS,
    Generation,
    Import,
    by_capability,
    note_assumption,
)
from sley.topologies.machine import Machine
from sley.topologies.node import Node, Rate

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


def machine_from_matrix(
    file: str, text: str, notes: list[Diagnostic], like: Machine | None = None
) -> Machine:
    """The machine that a matrix describes. like: the machine with the rates that the matrix leaves
    open. Errors: T607, T608."""
    names, levels, nvlinks, numa = _cells(file, _ESCAPE.sub("", text))
    gpus = [i for i, name in enumerate(names) if name.startswith("GPU")]
    if gpus != list(range(len(gpus))):
        raise T608.error(at=Place(file), expected="GPUs before cards", found=", ".join(names)[:60])
    node, place = Node(len(gpus)), Place(file)
    generation = _join_nvlinks(node, nvlinks, notes, place) if nvlinks else None
    slot = generation.pcie if generation else PCIE_4
    vertex = {i: i for i in gpus} | {i: node.add_card(slot) for i in range(len(gpus), len(names))}
    if levels:
        for (a, b), known in _same_numa(nvlinks, levels, numa).items():
            levels.setdefault((a, b), known)
        _join_tree(node, levels, vertex, slot)
        found = f"{slot.nominal_GBps:g} GB/s over PCIe, {slot.GBps:g} reached"
        note_assumption(notes, place, f"{found}; {PROCESSORS.GBps:g} between processors")
    # The legend of -m explains NV#, that of -mp doesn't.
    no_nvlink = "" if _LEGEND.search(text) else "topo -mp leaves it out, topo -m shows it"
    imported = Import(
        file, "as nvidia-smi found them", node, generation, frozenset(node.cards), no_nvlink
    )
    return imported.machine(like, notes)


Pair = tuple[int, int]


def _cells(
    file: str, text: str
) -> tuple[list[str], dict[Pair, int], dict[Pair, int], dict[int, str]]:
    """The devices' names, the level of each pair joined by PCIe, the number of NVLinks of each
    other pair, and the NUMA node of each GPU."""
    lines = [line.split() for line in text.splitlines()]
    head = next((i for i, words in enumerate(lines) if words[:1] == ["GPU0"]), 0)
    # The header line starts with GPU0, and so does the first row; the header comes first.
    names = [word for word in lines[head] if _DEVICE.fullmatch(word)]
    place = Place(file, head + 1)
    if not 1 <= len(names) <= _MAX_DEVICES or len(set(names)) < len(names):
        expected = f"a header line with 1 to {_MAX_DEVICES} different names"
        raise T607.error(at=place, expected=expected, found=" ".join(names)[:60])
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
            raise T608.error(at=place, expected=expected, found="none")
        number, cells = rows[name]
        if name.startswith("GPU") and len(cells) >= len(names) + 2:
            numa[a] = cells[len(names) + 1]
        for b, cell in enumerate(cells[: len(names)]):
            joined = re.fullmatch(r"NV([0-9]{1,2})", cell)
            if (cell == "X") != (a == b) or not (cell == "X" or joined or cell in _LEVELS):
                raise T607.error(
                    at=Place(file, number, detail=f"{name}, {names[b]}"),
                    expected=f"NV#, {', '.join(_LEVELS)}, and X at the device itself",
                    found=repr(cell[:30]),
                )
            if joined:
                nvlinks[min(a, b), max(a, b)] = int(joined[1])
            elif a != b:
                levels[min(a, b), max(a, b)] = _LEVELS[cell]
    return names, levels, nvlinks, numa


def _join_nvlinks(
    node: Node, nvlinks: dict[Pair, int], notes: list[Diagnostic], place: Place
) -> Generation | None:
    """Adds NVLink: direct links, or a switch if a row has more links than a GPU. Returns the
    generation of GPUs with this number of links, None for another number."""
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
        note_assumption(notes, place, f"an NVSwitch, as {max(total)} links are more than a GPU has")
    else:
        for (a, b), count in nvlinks.items():
            node.join(a, b, LinkKind.NVLINK, rate.times(count))
    found = f"{rate.nominal_GBps:g} GB/s an NVLink, {rate.GBps:g} reached"
    note_assumption(notes, place, found)
    return by_capability(_CAPABILITY[links]) if links in _CAPABILITY else None


def _same_numa(
    nvlinks: dict[Pair, int], levels: dict[Pair, int], numa: dict[int, str]
) -> dict[Pair, int]:
    """The PCIe levels of pairs whose cell shows NVLink, derived from their NUMA nodes if known."""
    known = {pair: numa.get(pair[0]) == numa.get(pair[1], "") for pair in nvlinks}
    return {
        pair: _LEVELS["NODE"] if same else _LEVELS["SYS"]
        for pair, same in known.items()
        if pair[0] in numa and pair[1] in numa and pair not in levels
    }


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
