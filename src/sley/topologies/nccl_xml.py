"""NCCL's topology XML: the PCIe tree with its GPUs and cards.

NCCL writes what it found (NCCL_TOPO_DUMP_FILE), and reads files with the PCIe tree alone
(NCCL_TOPO_FILE), which clouds supply for their machines; it adds the GPUs, cards and NVLinks when
it runs. The rules are those of NCCL 2.30, src/graph/topo.cc and xml.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from sley.errors import SleyError
from sley.errors.topology import T605, T607
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.topologies.assumptions import (
    CARD_SHARE,
    MOST_GPUS,
    PROCESSORS,
    Generation,
    Import,
    by_capability,
    by_device,
    by_target,
    card_rate,
)
from sley.topologies.machine import Node, Rate
from sley.topologies.xml_elements import XmlElement, parse

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
