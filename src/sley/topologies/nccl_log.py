"""NCCL's log: the node that NCCL prints with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=GRAPH.

Below each processor stands a line for each link of the PCIe tree, indented as far as the name of
the vertex above, with the rate in GB/s that NCCL reckons with. Links of other kinds stand below
the vertices that they leave. RCCL prints XGMI instead of NVL. Source: NCCL's code, graph/topo.cc
(ncclTopoPrint).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from sley.errors import counted
from sley.errors.topology import T607, T608
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import MAX_RANKS
from sley.topologies.assumptions import (
    CARD_SHARE,
    PCIE_4,
    PROCESSORS,
    Generation,
    Import,
    by_capability,
    by_device,
    by_target,
)
from sley.topologies.machine import Node, Rate

_SETTINGS = "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH"
_MARK, _BEGIN = "NCCL INFO ", "=== System : max"
_PRINTER = re.compile(r"[^\s:]+:\d+:\d+")
_NAME = (
    r"(?P<kind>GPU|PCI|NVS|CPU|NIC|NET|GIN|RMA|DEV|CXB)"
    r"/(?P<id>[0-9A-Fa-f]{1,16}(?:-[0-9A-Fa-f]{1,16}){0,2})(?: \((?P<words>[^()]{0,80})\))?"
)
_ROOT = re.compile(f"(?=CPU/){_NAME}")
_LINK = re.compile(
    rf"(?P<space> *)\+ (?P<link>[A-Z0-9]{{2,4}})\[(?P<rate>[0-9]{{1,6}}\.[0-9])\] - {_NAME}"
)
_MOST_LINES = 20_000
_HOLDERS = {"NET": ("NIC",), "NVS": ("GPU", "DEV")}
_ALL_KINDS = ("CPU", "PCI", "GPU", "DEV", "NIC")
"""The kinds of vertices below which a vertex may stand."""

_UNLIMITED_GBPS = 1000.0
"""From this rate on, NCCL knows of no limit: it prints 5000."""

_PCIE_NOMINAL = PCIE_4.nominal_GBps / PCIE_4.GBps
"""Nominal over NCCL's rate of PCIe."""

_NVLINKS = {40.1: 100, 20.6: 90, 20.0: 80, 22.0: 80, 21.0: 80, 18.0: 60, 12.0: 86}
"""NCCL's rates of one NVLink, also those of older versions, and the compute capability of the GPUs
that have it. V100, A100 and H100 share some of them: the number of links tells them apart."""

_MOST_NVLINKS = 18
_XGMI = ("gfx94", "gfx90a", "gfx")
"""The names of generations of AMD GPUs, from the fastest xGMI link to the slowest."""

_MAKERS = {"1": "GenuineIntel", "2": "AuthenticAMD"}
"""The makers of processors by NCCL's numbers."""

_Key = tuple[str, str]
"""The kind of a vertex and its number."""


class _Printed(NamedTuple):
    """A link as a line shows it: from the vertex above to the vertex that the line names."""

    above: _Key
    vertex: _Key
    link: str
    rate: float
    words: str
    line: int


def is_log(text: str) -> bool:
    """Whether a text has a node that NCCL printed."""
    return _MARK + _BEGIN in text


def _printer(prefix: str) -> str:
    """The thread that printed a line, HOST:PROCESS:THREAD, by what stands before the mark."""
    found = _PRINTER.findall(prefix)
    return found[-1] if found else ""


class NcclLogImport(Import):
    """The node that the first process in a log printed. Errors: T607, T608."""

    found = "as NCCL printed them"

    def __init__(self, file: str, text: str) -> None:
        super().__init__(file)
        self._read(text)
        gpus = self._gpus()
        hosts = list(dict.fromkeys(map(_host, gpus)))
        self._hosts = {host: number for number, host in enumerate(hosts)}
        self.node = Node(len(gpus), hosts=[self._hosts[_host(gpu)] for gpu in gpus])
        self._number = {key: number for number, key in enumerate(gpus)}
        for link in self._links:
            if link.link == "LOC" and (link.above[0], link.vertex[0]) == ("DEV", "GPU"):
                self._number[link.above] = self._number[link.vertex]
        self._joined: dict[tuple[int, int], tuple[LinkKind, Rate]] = {}
        self._slots: dict[_Key, tuple[int, float]] = {}
        self._cards: set[_Key] = set()
        self._nets = Counter(link.above for link in self._links if link.vertex[0] == "NET")
        for key in self._processors:
            self._vertex(key)
        for link in self._links:
            if link.link == "PCI":
                self._hang(link)
        for link in self._links:
            if link.link == "NET" and link.vertex[0] == "NET":
                self._hang_card(link)
            elif link.link in ("SYS", "C2C"):
                self._join(link, LinkKind.PCIE, self._processors_rate(link.rate))
        self.generation = self._found_generation()
        self._join_fabric()
        for (a, b), (kind, rate) in self._joined.items():
            self.node.join(a, b, kind, rate)

    def _read(self, text: str) -> None:
        """Reads the first node of a log, which begins at a line; other processes print between its
        lines. Errors: T608."""
        self._processors: list[_Key] = []
        self._links: list[_Printed] = []
        above: list[tuple[int, _Key]] = []
        self._line, printer = 0, ""
        for number, line in enumerate(text.split("\n"), 1):
            prefix, mark, said = line.partition(_MARK)
            if not self._line:
                if mark and said.startswith(_BEGIN):
                    self._line, printer = number, _printer(prefix)
                continue
            if not mark or _printer(prefix) != printer:
                continue
            found = _LINK.match(said) or _ROOT.match(said)
            if found is None or len(self._links) >= _MOST_LINES:
                break
            key = (found["kind"], found["id"].lower())
            if found.re is _ROOT:
                self._processors.append(key)
                self.processor = self.processor or _MAKERS.get(
                    (found["words"] or "").partition("/")[2][:1], ""
                )
                above = [(0, key)]
                continue
            # A line hangs from the last vertex above it that is indented as far as its own link;
            # deeper ones have no more lines.
            indent = len(found["space"])
            while above and above[-1][0] > indent:
                above.pop()
            of = _HOLDERS.get(key[0], _ALL_KINDS)
            if not above or above[-1][0] != indent or above[-1][1][0] not in of:
                raise self.wrong(
                    T608,
                    "a line that is indented as far as the name above it, as NCCL prints it",
                    f"{counted(indent, 'space')} before the + of {'/'.join(key)}",
                    "Save the log with its spaces.",
                    number,
                )
            rate = float(found["rate"])
            self._links.append(
                _Printed(above[-1][1], key, found["link"], rate, found["words"] or "", number)
            )
            if found["link"] == "PCI":
                above.append((found.start("kind"), key))

    def _assume(self, found: str, line: int = 0) -> None:
        self.assume(found, line or self._line)

    def _gpus(self) -> list[_Key]:
        """The GPUs by rank, or by their numbers on the bus where the log shows no ranks: those that
        hang in the PCIe tree, perhaps below a device. Errors: T607, T608."""
        rank: dict[_Key, int | None] = {}
        devices: set[_Key] = set()
        for link in self._links:
            if link.vertex[0] != "GPU" or link.link not in ("PCI", "LOC"):
                continue
            if link.link == "LOC" and link.above in devices:
                expected = f"one GPU of {'/'.join(link.above)}"
                found = "another one: a GPU that is divided into parts"
                remedy = "Run without MLOPart: NCCL_TOPO_SPLIT_MLOPART=0."
                raise self.wrong(T607, expected, found, remedy, link.line)
            devices.add(link.above if link.link == "LOC" else link.vertex)
            word = link.words.split(" ")[0]
            rank[link.vertex] = int(word) if re.fullmatch(r"[0-9]{1,9}", word) else None
        if not 1 <= len(rank) <= MAX_RANKS:
            raise self.wrong(
                T608,
                f"1 to {MAX_RANKS} GPUs below the line === System",
                str(len(rank)),
                f"Save the whole log of a run with {_SETTINGS}.",
                self._line,
            )
        by_bus = {key: tuple(int(part, 16) for part in key[1].split("-")) for key in rank}
        known = all(number is not None for number in rank.values())
        return sorted(rank, key=lambda key: ((rank[key] if known else 0), by_bus[key]))

    def _vertex(self, key: _Key) -> int:
        """The number of a vertex of the PCIe tree, which is added when it is first named."""
        if key not in self._number:
            self._number[key] = self.node.add(VertexKind.PCIE, self._hosts.get(_host(key), 0))
        return self._number[key]

    def _hang(self, link: _Printed) -> None:
        """Adds a link of the PCIe tree; remembers it for the cards of a NIC."""
        above = self._vertex(link.above)
        if link.vertex[0] == "NIC":
            self._slots.setdefault(link.vertex, (above, link.rate))
        else:
            self._keep(above, self._vertex(link.vertex), LinkKind.PCIE, self._pcie_rate(link.rate))

    def _keep(self, a: int, b: int, kind: LinkKind, rate: Rate) -> None:
        """Adds a link in both directions; of several between two vertices the fastest."""
        pair = (min(a, b), max(a, b))
        if a != b and (pair not in self._joined or self._joined[pair][1].GBps < rate.GBps):
            self._joined[pair] = (kind, rate)

    def _join(self, link: _Printed, kind: LinkKind, rate: Rate) -> None:
        """Adds a link that crosses the tree. Errors: T608 for an end that the log doesn't show."""
        for key in (link.above, link.vertex):
            if key not in self._number:
                expected, found = f"{'/'.join(key)} in the same tree", "a log that ends before it"
                remedy = "Save the log up to the line of = signs that follows the tree."
                raise self.wrong(T608, expected, found, remedy, link.line)
        self._keep(self._number[link.above], self._number[link.vertex], kind, rate)

    def _hang_card(self, link: _Printed) -> None:
        """Adds a card, at the slot of its NIC, which the NIC's cards share."""
        if link.vertex in self._cards or link.above not in self._slots:
            return
        self._cards.add(link.vertex)
        exact = link.words.rsplit("/", 1)[-1]
        nominal = float(exact) if re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,9}", exact) else link.rate
        if not 0 < nominal < _UNLIMITED_GBPS:
            expected = f"the speed of {'/'.join(link.vertex)} in GB/s, above 0"
            found = exact[:40] or str(link.rate)
            raise self.wrong(T607, expected, found, "Correct the line.", link.line)
        speed = Rate(nominal, nominal * CARD_SHARE)
        above, slot = self._slots[link.above]
        rate = speed if slot >= _UNLIMITED_GBPS else self._pcie_rate(slot)
        shared = rate.times(1 / self._nets[link.above])
        card = self.node.add_card(speed, self.node.hosts[above])
        self.node.join(card, above, LinkKind.PCIE, shared)

    def _pcie_rate(self, printed: float) -> Rate:
        if printed >= _UNLIMITED_GBPS:
            self._assume(f"PCIe 4.0 with 16 lanes, where NCCL knows no rate ({printed:g})")
            return PCIE_4
        rate = max(printed, 0.1)  # 0.06 GB/s, a lane of PCIe 1.0 by half, prints as 0.1
        return Rate(rate * _PCIE_NOMINAL, rate)

    def _processors_rate(self, printed: float) -> Rate:
        if 0 < printed < _UNLIMITED_GBPS:
            return Rate(printed, printed)
        self._assume(f"{PROCESSORS.GBps:g} GB/s between processors, where NCCL knows no rate")
        return PROCESSORS

    def _found_generation(self) -> Generation | None:
        """The generation of the GPUs: by their device, which newer versions print, or by the rates
        of their links."""
        links = self._links
        ids = (link.words for link in links if link.vertex[0] == "DEV" and len(link.words) == 16)
        known = next((found for words in ids if (found := by_device(words[:4], words[4:8]))), None)
        if known:
            return known
        if own := [link.rate for link in links if link.link == "XGMI"]:
            named = map(by_target, _XGMI)
            return next((one for one in named if _is_whole(min(own), one.link.GBps)), None)
        total: defaultdict[_Key, float] = defaultdict(float)
        for link in links:
            if link.link == "NVL":
                total[link.above] += link.rate
        return by_capability(capability(max(total.values()))) if total else None

    def _join_fabric(self) -> None:
        """Adds NVLink and xGMI, between GPUs, to switches and to processors."""
        links = [link for link in self._links if link.link in ("NVL", "XGMI")]
        rate = (self.generation or by_capability(80)).link
        share = rate.GBps / rate.nominal_GBps
        for link in links:
            if link.rate <= 0:
                raise self.wrong(T607, "a rate in GB/s above 0", str(link.rate), line=link.line)
            if link.vertex[0] == "NVS" and link.vertex not in self._number:
                host = NONE if len(self._hosts) > 1 else 0
                self._number[link.vertex] = self.node.add(VertexKind.SWITCH, host)
            self._join(link, LinkKind.NVLINK, Rate(link.rate / share, link.rate))
        if links:
            name = "NVLink" if links[0].link == "NVL" else "xGMI"
            self._assume(f"{name} reaches {share:.0%} of its nominal rate", links[0].line)


def _host(key: _Key) -> str:
    """The host of a vertex, with which newer versions begin its number."""
    return key[1].partition("-")[0] if "-" in key[1] else ""


def capability(total: float) -> int:
    """The compute capability of GPUs, from the rate of all NVLinks of one by NCCL's figures; that
    of an A100 for an unknown rate."""
    for rate, found in _NVLINKS.items():
        links = total / rate
        if _is_whole(total, rate) and links < _MOST_NVLINKS + 0.5:
            if found != 80:
                return found
            return 70 if links < 6.5 else 80 if links < 12.5 else 90
    return 80


def _is_whole(total: float, rate: float) -> bool:
    """Whether a printed rate, which has one decimal, is that of a number of links."""
    links = round(total / rate)
    return links > 0 and abs(links * rate - total) < 0.06
