"""XML trees: a file of XML as a tree of elements, whatever its size and nesting; and the PCIe trees
of GPUs and cards that two tools write.

NCCL writes what it found (NCCL_TOPO_DUMP_FILE), and reads files with the PCIe tree alone
(NCCL_TOPO_FILE), which clouds supply for their machines; it adds the GPUs, cards and NVLinks when
it runs. The rules are those of NCCL 2.30, src/graph/topo.cc and xml.cc.

hwloc, versions 2 and 3 (lstopo topo.xml), writes the PCIe tree, and the matrices of NVLink and
xGMI.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.parsers import expat

from sley.errors import Place, SleyError
from sley.errors.topology import T605, T607
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.topologies.assumptions import (
    CARD_SHARE,
    MOST_GPUS,
    PCIE_3,
    PROCESSORS,
    Generation,
    Import,
    by_capability,
    by_device,
    by_target,
    card_rate,
)
from sley.topologies.machine import Node, Rate

_MAX_ELEMENTS = 100_000
_MAX_DEPTH = 64


@dataclass
class XmlElement:
    """An element of XML.

    tag, attributes, text: its name, its attributes, and the text directly inside it.
    line: the line of its beginning.
    children: the elements directly inside it.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """An attribute; empty without one."""
        return self.attributes.get(name, "")

    def all(self, tag: str) -> Iterator[XmlElement]:
        """This element and its descendants with this tag, in the order of the file."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.all(tag)


def parse(file: str, text: str) -> XmlElement:
    """The outermost element of XML text. Refuses document types that declare anything, and with
    them entities, so that memory stays bounded. Errors: T605."""
    parser = expat.ParserCreate("utf-8")  # the text is decoded, whatever it declares
    parser.buffer_text = True
    root = XmlElement("", {}, 0)
    path, elements = [root], 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal elements
        elements += 1
        if elements > _MAX_ELEMENTS or len(path) > _MAX_DEPTH:
            expected = f"at most {_MAX_ELEMENTS} elements, {_MAX_DEPTH} deep"
            place = Place(file, parser.CurrentLineNumber)
            raise T605.error(at=place, expected=expected, found="more")
        path[-1].children.append(XmlElement(tag, attributes, parser.CurrentLineNumber))
        path.append(path[-1].children[-1])

    def add_text(words: str) -> None:
        path[-1].text += words

    def refuse(name: str, system: str | None, public: str | None, declares: bool) -> None:
        if declares:
            place = Place(file, parser.CurrentLineNumber)
            expected = "XML without declarations in its document type"
            raise T605.error(at=place, expected=expected, found="<!DOCTYPE ... [")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        place = Place(file, error.lineno, error.offset + 1)
        found = expat.ErrorString(error.code)
        raise T605.error(at=place, expected="well-formed XML", found=found) from error
    return root.children[0]


_LANE_GBPS = {
    "2.5": (0.25, 0.1875),
    "5": (0.5, 0.375),
    "8": (0.985, 0.75),
    "16": (1.969, 1.5),
    "32": (3.938, 3.0),
    "64": (7.563, 6.0),
}
"""Rates in GB/s of one PCIe lane by its GT/s: after encoding, and in NCCL's table."""

_GPU_CLASSES = ("0x03", "0x12")
_CARD_CLASS = "0x02"
_SWITCH_CLASS = "0x068000"
_PROCESSOR_CLASS = "0x068001"
"""The beginnings of PCI's numbers of classes: display controllers and accelerators, network cards,
NVSwitches, and NVLink at a POWER processor."""

_INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
"""NCCL's rates in GB/s between Intel's processors, by the lowest number of the model."""


class _Gpu(NamedTuple):
    """A GPU: its <gpu>, or its <pci> in a file of the PCIe tree alone; its <pci>; the number of
    its <cpu>; the host."""

    element: XmlElement
    pci: XmlElement
    cpu: int
    host: str

    @property
    def bus(self) -> tuple[str, str]:
        """The host and the bus id, as NVLinks name their targets."""
        return self.host, self.pci.get("busid").lower()


class NcclXmlImport(Import):
    """The node that NCCL's XML describes. Errors: T605, T607."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__(file)
        system = parse(file, text)
        if system.tag != "system":
            remedy = "Let NCCL write its topology: NCCL_TOPO_DUMP_FILE=topo.xml."
            found = f"<{system.tag[:30]}>"
            raise self.wrong(T605, "NCCL's <system>", found, remedy, system.line)
        self._cpus = list(system.all("cpu")) or [system]
        self._dumped = any(system.all("gpu"))
        self._has_nets = any(self._is_net(net) for net in system.all("net"))
        self._gpus = self._numbered_gpus()
        if not 1 <= len(self._gpus) <= MOST_GPUS:
            unknown = sum(not pci.get("class") for cpu in self._cpus for pci in cpu.all("pci"))
            more = f", and {unknown} <pci> whose class NCCL looks up when it runs"
            raise self.wrong(
                T607,
                f"1 to {MOST_GPUS} GPUs, as <gpu> or as <pci> of class 0x03... or 0x12...",
                f"{len(self._gpus)}{more if unknown else ''}",
                "Let NCCL write the whole file on a machine with GPUs, "
                "NCCL_TOPO_DUMP_FILE=topo.xml, or name a machine: `sley topology list`.",
            )
        self._number = {id(gpu.element): i for i, gpu in enumerate(self._gpus)}
        self._by_bus = {gpu.bus: i for i, gpu in enumerate(self._gpus)}
        hosts = list(dict.fromkeys(gpu.host for gpu in self._gpus))
        self._hosts = {host: i for i, host in enumerate(hosts)}
        self.node = Node(len(self._gpus), hosts=[self._hosts[gpu.host] for gpu in self._gpus])
        self._processor: dict[int, int] = {}
        self._add_processors()
        self._join_fabric()
        self.found = "as NCCL found them" if self._dumped else "in a PCIe tree for NCCL"
        self.generation = self._generation(self._gpus[0])
        self.no_nvlink = self._no_nvlink()
        self.processor = self._cpus[0].get("vendor") or self._cpus[0].get("arch")

    def _no_nvlink(self) -> str:
        if not self._dumped:
            return "NCCL finds it when it runs, and writes it with NCCL_TOPO_DUMP_FILE"
        if any(self._is_own(gpu, link) for gpu in self._gpus for link in self._links(gpu)):
            return "the file links GPUs only to themselves"
        usual = self.generation is not by_capability(86)
        return "the file has none" if usual else ""

    def _numbered_gpus(self) -> list[_Gpu]:
        """The GPUs by rank, or by dev if one has no rank, or by bus id without <gpu>."""
        found = [
            _Gpu(element, pci, i, cpu.get("host_hash"))
            for i, cpu in enumerate(self._cpus)
            for pci in cpu.all("pci")
            for element in self._gpus_at(pci)
        ]
        if not self._dumped:
            return sorted(
                found, key=lambda gpu: [_hexadecimal(p) for p in re.split("[:.]", gpu.bus[1])]
            )
        word = "rank" if all("rank" in gpu.element.attributes for gpu in found) else "dev"
        return sorted(found, key=lambda gpu: self._number_of(gpu.element, word, 0))

    def _gpus_at(self, pci: XmlElement) -> list[XmlElement]:
        """The GPUs of a <pci>: each <gpu>, or itself if no <gpu> is in the file."""
        if self._dumped:
            return [child for child in pci.children if child.tag == "gpu"]
        return [pci] if pci.get("class").startswith(_GPU_CLASSES) else []

    def _add_processors(self) -> None:
        """Adds the processors of the hosts with GPUs, and all that hangs below them."""
        by_host: dict[int, list[int]] = {number: [] for number in self._hosts.values()}
        for i, cpu in enumerate(self._cpus):
            if cpu.get("host_hash") in self._hosts:
                by_host[self._hosts[cpu.get("host_hash")]].append(i)
        for number, own in by_host.items():
            for i in own:
                self._processor[i] = self.node.add(VertexKind.PCIE, number)
                for child in self._cpus[i].children:
                    self._hang(child, self._processor[i])
            vertices = [self._processor[i] for i in own]
            self.join_processors(vertices, self._between_processors(self._cpus[own[0]]))

    def _between_processors(self, cpu: XmlElement) -> Rate:
        """NCCL's rate between a processor and another one of its host."""
        arch, vendor = cpu.get("arch"), cpu.get("vendor")
        if arch in ("arm64", "ppc64"):
            return Rate(6.0, 6.0) if arch == "arm64" else Rate(32.0, 32.0)
        if vendor != "GenuineIntel":
            return PROCESSORS
        model = self._number_of(cpu, "modelid", 0)
        GBps = next(rate for least, rate in _INTEL if max(model, 0) >= least)  # noqa: N806 - a unit
        return Rate(GBps, GBps)

    def _hang(self, element: XmlElement, above: int) -> None:
        """Adds an element and its children below a vertex of the PCIe tree."""
        if element.tag == "nic":
            self._add_cards(element, above, None)
        if element.tag != "pci":
            return
        rate = self._pcie_rate(element)
        for gpu in self._gpus_at(element):
            self.node.join(self._number[id(gpu)], above, LinkKind.PCIE, rate)
        for nic in element.children:
            if nic.tag == "nic":
                self._add_cards(nic, above, rate)
        if not self._has_nets and element.get("class").startswith(_CARD_CLASS):
            own = card_rate(element.get("vendor"), element.get("device"), rate)
            card = self.node.add_card(own, self.node.hosts[above])
            self.open_cards.add(card)
            self.node.join(card, above, LinkKind.PCIE, rate)
        below = [child for child in element.children if child.tag == "pci"]
        if below:
            vertex = self.node.add(VertexKind.PCIE, self.node.hosts[above])
            self.node.join(vertex, above, LinkKind.PCIE, rate)
            for child in below:
                self._hang(child, vertex)

    def _is_net(self, net: XmlElement) -> bool:
        """Whether NCCL sends over this <net>: it has a number, and isn't for other uses only."""
        return net.tag == "net" and "dev" in net.attributes and net.get("net") != "0"

    def _add_cards(self, nic: XmlElement, above: int, slot: Rate | None) -> None:
        """Adds a card for each <net> of a <nic>, which share the rate of their PCIe slot."""
        nets = list(filter(self._is_net, nic.children))
        for net in nets:
            speed = self._number_of(net, "speed", 0)
            if speed <= 0:
                self.assume("10 Gb/s for a card without a speed, as in NCCL", net.line)
                speed = 10_000
            rate = Rate(speed / 8000, speed / 8000 * CARD_SHARE)
            card = self.node.add_card(rate, self.node.hosts[above])
            share = slot.times(1 / len(nets)) if slot else rate
            self.node.join(card, above, LinkKind.PCIE, share)

    def _pcie_rate(self, pci: XmlElement) -> Rate:
        """link_speed times link_width; NCCL's substitutes where one is missing."""
        word = pci.get("link_speed")
        found = re.match(r"([0-9]+(?:\.[0-9]+)?) ?GT/s", word)
        speed = f"{float(found[1]):g}" if found else ""
        if speed not in _LANE_GBPS:
            self.assume(f"PCIe 3.0 for link_speed={word[:30]!r}", pci.line)
            speed = "8"
        lanes = self._number_of(pci, "link_width", 0)
        if lanes == 0:
            self.assume("16 lanes for a link_width of 0 or none", pci.line)
            lanes = 16
        if lanes < 0:
            raise self._wrong(pci, "link_width", "a number of lanes")
        return Rate(*_LANE_GBPS[speed]).times(lanes)

    def _links(self, gpu: _Gpu) -> list[XmlElement]:
        return [link for link in gpu.element.children if link.tag in ("nvlink", "xgmi")]

    def _is_own(self, gpu: _Gpu, link: XmlElement) -> bool:
        return (gpu.host, link.get("target").lower()) == gpu.bus

    def _join_fabric(self) -> None:
        """Adds the links of NVLink or xGMI: between GPUs, to one switch, which may join hosts, or
        to processors."""
        pairs: Counter[tuple[int, int]] = Counter()
        through: Counter[int] = Counter()
        for i, gpu in enumerate(self._gpus):
            for link in self._links(gpu):
                count = self._number_of(link, "count", 1)
                if not 1 <= count <= 64:
                    raise self._wrong(link, "count", "1 to 64 links")
                target, kind = link.get("target"), link.get("tclass")
                other = self._by_bus.get((gpu.host, target.lower()))
                if self._is_own(gpu, link):
                    self.assume(
                        "no links of GPUs to themselves, though the file has some", link.line
                    )
                elif other is not None:
                    pairs[i, other] += count
                elif kind.startswith(_PROCESSOR_CLASS):
                    rate = self._link_rate(i).times(count)
                    self.node.join(i, self._processor[gpu.cpu], LinkKind.NVLINK, rate)
                elif kind.startswith(_SWITCH_CLASS):
                    through[i] += count
                else:
                    self.assume(f"no links to {target[:30]!r}, which is no GPU or switch here")
        for (a, b), count in pairs.items():
            if a < b or (b, a) not in pairs:
                self.node.join(a, b, LinkKind.NVLINK, self._link_rate(a).times(count))
        if through:
            switch = self.node.add(VertexKind.SWITCH, NONE if len(self._hosts) > 1 else 0)
            for number, count in through.items():
                rate = self._link_rate(number).times(count)
                self.node.join(number, switch, LinkKind.NVLINK, rate)
        if pairs or through:
            rate = self._link_rate(min(through or [a for a, _ in pairs]))
            self.assume(f"{rate.nominal_GBps:g} GB/s a link, {rate.GBps:g} reached")

    def _generation(self, gpu: _Gpu) -> Generation | None:
        """The generation of a GPU: by its compute capability or LLVM's name, or its device on
        PCI."""
        if "gcn" in gpu.element.attributes:
            return by_target(gpu.element.get("gcn"))
        if "sm" in gpu.element.attributes:
            return by_capability(self._number_of(gpu.element, "sm", 0))
        return by_device(gpu.pci.get("vendor"), gpu.pci.get("device"))

    def _link_rate(self, number: int) -> Rate:
        """The rate of one link of a GPU."""
        gpu = self._gpus[number]
        found = self._generation(gpu)
        if found is None:
            amd = any(link.tag == "xgmi" for link in self._links(gpu))
            found = by_target("gfx") if amd else by_capability(70)
        return found.link

    def _number_of(self, element: XmlElement, name: str, default: int) -> int:
        text = element.attributes.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise self._wrong(element, name, "a whole number")
        return int(text)

    def _wrong(self, element: XmlElement, name: str, expected: str) -> SleyError:
        found, place = repr(element.get(name)[:40]), f"<{element.tag} {name}>"
        remedy = "Correct it, or let NCCL write the file again: NCCL_TOPO_DUMP_FILE=topo.xml."
        return self.wrong(T607, expected, found, remedy, element.line, place)


def _hexadecimal(text: str) -> int:
    """A hexadecimal number; 0 for another text."""
    return int(text, 16) if re.fullmatch("[0-9a-f]{1,16}", text) else 0


_GPU_NAME = re.compile(r"(?:cuda|nvml|rsmi)[0-9]+")
_HWLOC_CLASSES = ("0302", "0380", "12")
_GPU_MAKERS = ("10de", "1002")
_VERSIONS = ("2", "3")
_INFINIBAND_CLASS, _ETHERNET_CLASS = "0207", "0200"
"""The beginnings of PCI's numbers of classes."""

_MATRICES = ("NVLinkBandwidth", "XGMIBandwidth")
"""The matrices whose cells are rates in MB/s; hwloc 2 writes 100 GB/s for every xGMI."""

_ANY_XGMI = 100_000


class HwlocImport(Import):
    """The node that hwloc's XML describes. Errors: T605, T607."""

    found = "as hwloc found them"

    def __init__(self, file: str, text: str) -> None:
        super().__init__(file)
        self._top = top = parse(file, text)
        self._version = top.get("version").partition(".")[0]
        if top.tag != "topology" or self._version not in _VERSIONS:
            raise self.wrong(
                T605,
                "hwloc's <topology> of version 2 or 3",
                f"<{top.tag[:30]}> of version {top.get('version')[:10] or '1'}",
                "Write the file with lstopo of hwloc 2 or later.",
                top.line,
            )
        devices = [one for one in top.all("object") if one.get("type") == "PCIDev"]
        gpus = sorted(filter(_is_gpu, devices), key=lambda gpu: gpu.get("pci_busid"))
        if not 1 <= len(gpus) <= MOST_GPUS:
            remedy = "Write the file on a machine with GPUs: lstopo topo.xml."
            raise self.wrong(T607, f"1 to {MOST_GPUS} GPUs, as PCIDev", str(len(gpus)), remedy)
        self.generation = by_device(*_ids(gpus[0])[1:])
        self._gpu = {id(gpu): i for i, gpu in enumerate(gpus)}
        self._cards = {id(card) for card in self._active(self._found_cards(devices))}
        self.node = Node(len(gpus))
        self._processors: dict[int, int] = {}
        for child in top.children:
            self._visit(child)
        self.join_processors(list(self._processors.values()))
        matrices = [
            one
            for tag in ("distances2", "distances2hetero")
            for one in top.all(tag)
            if one.get("name") in _MATRICES
        ]
        for matrix in matrices:
            self._join_fabric(matrix)
        if not matrices:
            self.no_nvlink = "lstopo shows it if it was built with NVML or ROCm SMI"
        self.open_cards |= self.node.cards.keys()
        vendors = (i.get("value") for i in top.all("info") if i.get("name") == "CPUVendor")
        self.processor = next(vendors, "")

    def _found_cards(self, devices: list[XmlElement]) -> list[XmlElement]:
        """The cards that carry data: with verbs, or of InfiniBand, else the fastest of Ethernet."""
        verbs = [d for d in devices if any(self._has_verbs(one) for one in d.children)]
        infiniband = [d for d in devices if _ids(d)[0].startswith(_INFINIBAND_CLASS)]
        ethernet = [d for d in devices if _ids(d)[0].startswith(_ETHERNET_CLASS)]
        most = max((_speed(d) for d in ethernet), default=0.0)
        return verbs or infiniband or [d for d in ethernet if _speed(d) == most]

    def _has_verbs(self, device: XmlElement) -> bool:
        kind = device.get("osdev_type")
        bits = int(kind) if re.fullmatch("[0-9]{1,3}", kind) else 0
        return bits == 3 if self._version == "2" else bool(bits & 32)

    def _active(self, cards: list[XmlElement]) -> list[XmlElement]:
        """The cards with an active port, or all if the file shows none."""
        up = [
            card
            for card in cards
            if any(
                re.fullmatch("Port[0-9]+State", info.get("name")) and info.get("value") == "4"
                for info in card.all("info")
            )
        ]
        if up and len(up) < len(cards):
            self.assume("no cards without an active port")
        return up or cards

    def _visit(self, element: XmlElement) -> None:
        """Adds the PCIe trees below an object, each at the object that it hangs from."""
        for child in element.children:
            if child.get("type") in ("Bridge", "PCIDev"):
                if self._leads_to_devices(child):
                    self._hang(child, self._processor(element))
            elif child.tag == "object":
                self._visit(child)

    def _processor(self, element: XmlElement) -> int:
        """The vertex of a package or another object with PCIe devices."""
        if id(element) not in self._processors:
            self._processors[id(element)] = self.node.add(VertexKind.PCIE)
        return self._processors[id(element)]

    def _leads_to_devices(self, element: XmlElement) -> bool:
        return any(id(one) in self._gpu or id(one) in self._cards for one in element.all("object"))

    def _hang(self, element: XmlElement, above: int) -> None:
        """Adds a bridge or a device, and all below it, at a vertex of the PCIe tree."""
        inner = above
        if element.get("bridge_type").startswith("1"):
            inner = self.node.add(VertexKind.PCIE)
            self.node.join(inner, above, LinkKind.PCIE, self._rate(element))
        elif id(element) in self._gpu:
            self.node.join(self._gpu[id(element)], above, LinkKind.PCIE, self._rate(element))
        elif id(element) in self._cards:
            rate = self._rate(element)
            card = self.node.add_card(card_rate(*_ids(element)[1:], rate))
            self.node.join(card, above, LinkKind.PCIE, rate)
        for child in element.children:
            if child.get("type") in ("Bridge", "PCIDev") and self._leads_to_devices(child):
                self._hang(child, inner)

    def _rate(self, device: XmlElement) -> Rate:
        """The rate of a device's link; that of PCIe 3.0 with 16 lanes if the file has none."""
        speed = _speed(device)
        if speed == 0:
            self.assume("PCIe 3.0 with 16 lanes for a pci_link_speed of 0", device.line)
            return PCIE_3
        return PCIE_3.times(speed / PCIE_3.nominal_GBps)

    def _join_fabric(self, matrix: XmlElement) -> None:
        """Adds the links of a matrix: between GPUs, to one switch, or to processors."""
        cells = self._cells(matrix)
        link = (self.generation or by_capability(70)).link
        values = set(cells.values())
        by_number = {one.get("gp_index"): one for one in self._top.all("object")}
        by_number |= {
            child.get("gp_index"): parent
            for parent in self._top.all("object")
            for child in parent.children
            if id(parent) in self._gpu
        }
        through: defaultdict[int, float] = defaultdict(float)
        for (source, target), speed in cells.items():
            a, b = by_number.get(source), by_number.get(target)
            if a is None or b is None or id(a) not in self._gpu or a is b:
                continue
            gpu = self._gpu[id(a)]
            count = speed / 1000 / link.nominal_GBps
            if matrix.get("name") == "XGMIBandwidth":
                count = 1 if values == {_ANY_XGMI} else max(round(count), 1)
            if id(b) in self._gpu:
                if gpu < self._gpu[id(b)]:
                    self.node.join(gpu, self._gpu[id(b)], LinkKind.NVLINK, link.times(count))
            elif b.get("type") == "PCIDev":
                through[gpu] += count
            else:
                self.node.join(gpu, self._processor(b), LinkKind.NVLINK, link.times(count))
        if through:
            switch = self.node.add(VertexKind.SWITCH)
            for gpu, count in through.items():
                self.node.join(gpu, switch, LinkKind.NVLINK, link.times(count))
        self.assume(f"{link.nominal_GBps:g} GB/s a link, {link.GBps:g} reached", matrix.line)

    def _cells(self, matrix: XmlElement) -> dict[tuple[str, str], int]:
        """The cells above 0 outside the diagonal, by the numbers of both objects."""
        words: dict[str, list[str]] = {"indexes": [], "u64values": []}
        for part in matrix.children:
            words.setdefault(part.tag, []).extend(part.text.split())
        names = [word.rpartition(":")[2] for word in words["indexes"]]
        values, size = words["u64values"], len(names)
        right = all(re.fullmatch("[0-9]{1,9}", value) for value in values)
        if not right or len(values) != size * size or len(set(names)) < size:
            expected = f"{size * size} whole numbers for {size} objects"
            found, remedy = f"{len(values)} values", "Write the file with lstopo again."
            raise self.wrong(T607, expected, found, remedy, matrix.line, matrix.get("name"))
        return {
            (names[i // size], names[i % size]): int(value)
            for i, value in enumerate(values)
            if int(value) > 0 and i // size != i % size
        }


def _ids(device: XmlElement) -> tuple[str, str, str]:
    """The class, the vendor and the device of a PCIDev, in hexadecimal; empty if unknown."""
    found = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", device.get("pci_type"))
    return (found[1], found[2], found[3]) if found else ("", "", "")


def _speed(device: XmlElement) -> float:
    """The rate of a device's link in GB/s, 0 if unknown."""
    word = device.get("pci_link_speed")
    return float(word) if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", word) else 0.0


def _is_gpu(device: XmlElement) -> bool:
    """Whether a PCIDev is a GPU that computes: by its drivers, or by its class and maker."""
    kind, maker, _ = _ids(device)
    drivers = any(_GPU_NAME.fullmatch(child.get("name")) for child in device.children)
    return drivers or (kind.startswith(_HWLOC_CLASSES) and maker in _GPU_MAKERS)
