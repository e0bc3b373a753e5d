"""NCCL's topology XML: PCIe tree, NVLink or xGMI, and cards, as NCCL_TOPO_DUMP_FILE writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from xml.parsers import expat

from sley.errors import Diagnostic, Place, Rule, SleyError, counted
from sley.errors.topology import T605, T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import MAX_RANKS
from sley.topologies.assumptions import CARD_SHARE, PROCESSORS, note_assumption, nvlink_rate
from sley.topologies.machine import Machine
from sley.topologies.node import Node, Rate

_MAX_ELEMENTS = 100_000
_MAX_DEPTH = 64
_LANE_GBPS = {
    "2.5": (0.25, 0.1875),
    "5": (0.5, 0.375),
    "8": (0.985, 0.75),
    "16": (1.969, 1.5),
    "32": (3.938, 3.0),
    "64": (7.563, 6.0),
}
"""Rates in GB/s of one PCIe lane by its GT/s: after encoding, and in NCCL's table (topo.cc)."""

_XGMI = {"gfx90a": Rate(50.0, 36.0), "gfx94": Rate(64.0, 48.0), "gfx95": Rate(76.8, 48.0)}
_XGMI_OLD = Rate(46.0, 24.0)
_SWITCH = "0x0680"


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[_Element]:
        """This element and its descendants with this tag, in the order of the file."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.all(tag)


def machine_from_xml(file: str, text: str, notes: list[Diagnostic]) -> Machine:
    """The machine that NCCL's XML describes. Errors: T605, T607, T608."""
    return _Reader(file, _parse(file, text), notes).machine()


def _parse(file: str, text: str) -> _Element:
    """The <system> element of XML text. Refuses document types, and with them entities, so that
    memory stays bounded. Errors: T605."""
    parser = expat.ParserCreate("utf-8")  # the text is decoded, whatever it declares
    root = _Element("", {}, 0)
    path, elements = [root], 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal elements
        elements += 1
        if elements > _MAX_ELEMENTS or len(path) > _MAX_DEPTH:
            expected = f"at most {_MAX_ELEMENTS} elements, {_MAX_DEPTH} deep"
            place = Place(file, parser.CurrentLineNumber)
            raise T605.error(at=place, expected=expected, found="more")
        path[-1].children.append(_Element(tag, attributes, parser.CurrentLineNumber))
        path.append(path[-1].children[-1])

    def refuse(*_: object) -> None:
        place = Place(file, parser.CurrentLineNumber)
        raise T605.error(at=place, expected="XML without a document type", found="a DOCTYPE")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        place = Place(file, error.lineno, error.offset + 1)
        found = expat.ErrorString(error.code)
        raise T605.error(at=place, expected="well-formed XML", found=found) from error
    system = root.children[0]
    if system.tag != "system":
        raise T605.error(
            at=Place(file, system.line), expected="NCCL's <system>", found=f"<{system.tag[:30]}>"
        )
    return system


class _Reader:
    """Builds a machine from the elements of one file."""

    def __init__(self, file: str, system: _Element, notes: list[Diagnostic]) -> None:
        self._file = file
        self._system = system
        self._notes = notes
        self._gpus = self._numbered_gpus()
        if not 1 <= len(self._gpus) <= MAX_RANKS:
            expected = f"1 to {MAX_RANKS} <gpu> elements"
            raise T607.error(at=Place(file), expected=expected, found=str(len(self._gpus)))
        self._node = Node(len(self._gpus))
        self._number = {id(gpu): i for i, (gpu, _) in enumerate(self._gpus)}
        self._bus = {pci.attributes.get("busid", ""): i for i, (_, pci) in enumerate(self._gpus)}

    def machine(self) -> Machine:
        tree: list[int] = []
        for cpu in self._system.all("cpu"):
            vertex = self._node.add(VertexKind.PCIE)
            tree.append(vertex)
            for child in cpu.children:
                self._hang(child, vertex)
        for a, b in combinations(tree, 2):
            self._node.join(a, b, LinkKind.PCIE, PROCESSORS)
        if len(tree) > 1:
            self._assume(f"{PROCESSORS.GBps:g} GB/s between two processors (<cpu>)")
        self._join_fabric()
        cards = self._node.cards
        if cards:
            self._assume(f"cards reach {CARD_SHARE:.0%} of their speed")
        else:
            self._assume("a single node, as there are no network cards")
        description = (
            f"{counted(len(self._gpus), 'GPU')}, {counted(len(cards), 'card')}, as NCCL found them"
        )
        return Machine(Path(self._file).stem, description, {"nvlink": "NCCL's figures"}, self._node)

    def _assume(self, found: str, line: int = 0) -> None:
        note_assumption(self._notes, Place(self._file, line), found)

    def _numbered_gpus(self) -> list[tuple[_Element, _Element]]:
        """The <gpu> elements and their <pci>, sorted by rank, or by dev if one has no rank."""
        found = [
            (gpu, pci)
            for pci in self._system.all("pci")
            for gpu in pci.children
            if gpu.tag == "gpu"
        ]
        words = "rank" if all("rank" in gpu.attributes for gpu, _ in found) else "dev"
        return sorted(found, key=lambda pair: self._number_of(pair[0], words, 0))

    def _hang(self, element: _Element, above: int) -> None:
        """Adds an element and its children below a vertex of the PCIe tree."""
        if element.tag == "nic":
            self._hang_cards(element, above, None)
        if element.tag != "pci":
            return
        rate = self._pcie_rate(element)
        gpus = [child for child in element.children if child.tag == "gpu"]
        nics = [child for child in element.children if child.tag == "nic"]
        for gpu in gpus:
            self._node.join(self._number[id(gpu)], above, LinkKind.PCIE, rate)
        for nic in nics:
            self._hang_cards(nic, above, rate)
        below = [child for child in element.children if child.tag == "pci"]
        if below:
            vertex = self._node.add(VertexKind.PCIE)
            self._node.join(vertex, above, LinkKind.PCIE, rate)
            for child in below:
                self._hang(child, vertex)

    def _hang_cards(self, nic: _Element, above: int, rate: Rate | None) -> None:
        """Adds a card for each <net> of a <nic>, linked at the rate of the PCIe slot."""
        for net in nic.children:
            if net.tag == "net":
                nominal = self._number_of(net, "speed", 10_000) / 8000
                if nominal <= 0:
                    raise self._wrong(net, "speed", "Mb/s above 0")
                speed = Rate(nominal, nominal * CARD_SHARE)
                card = self._node.add_card(speed)
                self._node.join(card, above, LinkKind.PCIE, rate or speed)

    def _pcie_rate(self, pci: _Element) -> Rate:
        """link_speed times link_width; NCCL's substitutes where one is missing."""
        word = pci.attributes.get("link_speed", "")
        found = re.match(r"([0-9]+(?:\.[0-9]+)?) ?GT/s", word)
        speed = f"{float(found[1]):g}" if found else ""
        if speed not in _LANE_GBPS:
            self._assume(f"PCIe 3.0 for link_speed={word[:30]!r}", pci.line)
            speed = "8"
        lanes = self._number_of(pci, "link_width", 0)
        if lanes == 0:
            self._assume("16 lanes for a link_width of 0 or none", pci.line)
            lanes = 16
        if lanes < 0:
            raise self._wrong(pci, "link_width", "a number of lanes")
        return Rate(*_LANE_GBPS[speed]).times(lanes)

    def _join_fabric(self) -> None:
        """Adds the links of NVLink or xGMI, between GPUs or to one switch."""
        pairs: Counter[tuple[int, int]] = Counter()
        through: Counter[int] = Counter()
        for i, (gpu, _) in enumerate(self._gpus):
            for link in gpu.children:
                if link.tag not in ("nvlink", "xgmi"):
                    continue
                count = self._number_of(link, "count", 1)
                if not 1 <= count <= 64:
                    raise self._wrong(link, "count", "1 to 64 links")
                target = link.attributes.get("target", "")
                if target in self._bus:
                    if self._bus[target] == i:
                        raise self._wrong(link, "target", "another GPU", T608)
                    pairs[i, self._bus[target]] += count
                elif link.attributes.get("tclass", "").startswith(_SWITCH):
                    through[i] += count
                else:
                    self._assume(f"no links to {target[:30]!r}, which is no GPU or switch here")
        for (a, b), count in pairs.items():
            if a < b or (b, a) not in pairs:
                self._node.join(a, b, LinkKind.NVLINK, self._fabric_rate(a).times(count))
        if through:
            switch = self._node.add(VertexKind.SWITCH)
            for number, count in through.items():
                rate = self._fabric_rate(number).times(count)
                self._node.join(number, switch, LinkKind.NVLINK, rate)
        if pairs or through:
            rate = self._fabric_rate(min(through or [a for a, _ in pairs]))
            self._assume(f"{rate.nominal_GBps:g} GB/s a link, {rate.GBps:g} reached")

    def _fabric_rate(self, gpu: int) -> Rate:
        """The rate of one link of a GPU."""
        element = self._gpus[gpu][0]
        if any(child.tag == "xgmi" for child in element.children):
            words = element.attributes.get("gcn", "")
            name = {"910": "gfx90a", "942": "gfx94", "940": "gfx94"}.get(words, words)
            return next((r for start, r in _XGMI.items() if name.startswith(start)), _XGMI_OLD)
        return nvlink_rate(self._number_of(element, "sm", 70))

    def _number_of(self, element: _Element, name: str, default: int) -> int:
        text = element.attributes.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise self._wrong(element, name, "a whole number")
        return int(text)

    def _wrong(self, element: _Element, name: str, expected: str, rule: Rule = T607) -> SleyError:
        found = element.attributes.get(name, "")[:40]
        place = Place(self._file, element.line, detail=f"<{element.tag} {name}>")
        return rule.error(at=place, expected=expected, found=repr(found))
