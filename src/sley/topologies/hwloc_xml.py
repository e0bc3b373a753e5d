"""hwloc's XML, versions 2 and 3 (lstopo topo.xml): the PCIe tree with GPUs and cards, and the
matrices of NVLink and xGMI."""

from __future__ import annotations

import re
from collections import defaultdict

from sley.errors.topology import T605, T607
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.assumptions import (
    MOST_GPUS,
    PCIE_3,
    Import,
    by_capability,
    by_device,
    card_rate,
)
from sley.topologies.machine import Node, Rate
from sley.topologies.xml_elements import XmlElement, parse

_GPU_NAME = re.compile(r"(?:cuda|nvml|rsmi)[0-9]+")
_GPU_CLASSES = ("0302", "0380", "12")
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
    return drivers or (kind.startswith(_GPU_CLASSES) and maker in _GPU_MAKERS)
