"""Assumptions: the rates that an imported file leaves open, by the generation of its GPUs or by the
machine that the caller names (like)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from sley.errors import Diagnostic, Place, Rule, SleyError, counted
from sley.errors.formats import F434
from sley.errors.topology import T607
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind, VertexKind
from sley.topologies.machine import Machine, Node, Rate, bundled, find_machine, machine_names

CARD_SHARE = 0.96
"""Reached over nominal rate of a network card: 24 of 25 GB/s with NCCL on HDR InfiniBand."""

PCIE_3 = Rate(15.75, 12.0)
PCIE_4 = Rate(31.5, 24.0)
PCIE_5 = Rate(63.0, 48.0)
"""16 lanes of PCIe 3.0, 4.0 and 5.0; the reached rates are NCCL's."""

PROCESSORS = Rate(16.0, 16.0)
"""A link between two processors: NCCL's figure for EPYC."""


MOST_GPUS = 1024
"""The most GPUs of a file: twice the GPUs of the largest rack that is announced."""

_MOST_CARDS = 4096
_MOST_PROCESSORS = 256

_POST_US = (1.0, 2.0)
"""NCCL's overhead of a message to the network, by whether the processors are AMD's."""


class Generation(NamedTuple):
    """A generation of GPUs.

    gpu: a GPU of this generation.
    machine: the machine that has its rates, or the nearest ones.
    link: the rate of one NVLink or xGMI link: the data sheet's, and NCCL's or RCCL's figure.
    pcie: the rate of its PCIe slot.
    """

    gpu: str
    machine: str
    link: Rate
    pcie: Rate


_BY_CAPABILITY = {
    60: Generation("P100", "dgx1", Rate(20.0, 18.0), PCIE_3),
    70: Generation("V100", "dgx1", Rate(25.0, 20.0), PCIE_3),
    80: Generation("A100", "dgx-a100", Rate(25.0, 20.0), PCIE_4),
    86: Generation("A10, A40 or L40", "dgx-a100", Rate(14.0, 12.0), PCIE_4),
    90: Generation("H100 or H200", "dgx-h100", Rate(25.0, 20.6), PCIE_5),
    100: Generation("Blackwell", "dgx-b200", Rate(50.0, 40.1), PCIE_5),
}
"""By the lowest compute capability of the generation."""

_BY_TARGET = {
    "gfx90a": Generation("MI200", "mi250x", Rate(50.0, 36.0), PCIE_4),
    "gfx94": Generation("MI300", "mi300x", Rate(64.0, 48.0), PCIE_5),
    "gfx95": Generation("MI350", "mi355x", Rate(76.8, 57.6), PCIE_5),
    "gfx": Generation("MI50 or MI100", "mi250x", Rate(46.0, 24.0), PCIE_4),
}
"""By the beginning of LLVM's name of the GPU."""

_BY_DEVICE: Mapping[tuple[str, range], int | str] = {
    ("10de", range(0x15F0, 0x1600)): 60,
    ("10de", range(0x1D80, 0x1E00)): 70,
    ("10de", range(0x2080, 0x2100)): 80,
    ("10de", range(0x2200, 0x2300)): 86,
    ("10de", range(0x2300, 0x2400)): 90,
    ("10de", range(0x2680, 0x2900)): 86,
    ("10de", range(0x2900, 0x2A00)): 100,
    ("10de", range(0x3180, 0x3200)): 100,
    ("1002", range(0x7380, 0x7400)): "gfx908",
    ("1002", range(0x7400, 0x7420)): "gfx90a",
    ("1002", range(0x74A0, 0x74C0)): "gfx942",
    ("1002", range(0x75A0, 0x75C0)): "gfx950",
}
"""By the vendor's and the device's number on PCI (pci.ids)."""


def by_capability(capability: int) -> Generation:
    """The generation of GPUs with this compute capability (80 for an A100)."""
    known = [c for c in _BY_CAPABILITY if c <= capability]
    return _BY_CAPABILITY[max(known, default=60)]


def by_target(name: str) -> Generation:
    """The generation of AMD GPUs with this name: gfx942, or RCCL's 942 for it."""
    name = {"910": "gfx90a", "940": "gfx94", "942": "gfx94", "950": "gfx95"}.get(name, name)
    found = (one for start, one in _BY_TARGET.items() if name.startswith(start))
    return next(found, _BY_TARGET["gfx"])


def by_device(vendor: str, device: str) -> Generation | None:
    """The generation of the GPU with these hexadecimal numbers on PCI; None for an unknown one."""
    try:
        number = int(device, 16)
    except ValueError:
        return None
    for (maker, devices), key in _BY_DEVICE.items():
        if maker == vendor.lower().removeprefix("0x") and number in devices:
            return by_capability(key) if isinstance(key, int) else by_target(key)
    return None


_CARD_GBPS = {
    ("1d0f", "efa0"): 12.5,
    ("1d0f", "efa1"): 12.5,
    ("1d0f", "efa2"): 25.0,
    ("15b3", "1013"): 12.5,
    ("15b3", "1017"): 12.5,
    ("15b3", "1019"): 12.5,
    ("15b3", "101b"): 25.0,
    ("15b3", "1021"): 50.0,
    ("15b3", "1023"): 100.0,
}
"""The highest speed of cards by vendor and device on PCI: EFA of p4d, p5 and p5en; ConnectX-4 to
8."""


def card_rate(vendor: str, device: str, slot: Rate) -> Rate:
    """The rate of a card without a known speed: its slot's, but not more than its kind has."""
    key = (vendor.lower().removeprefix("0x"), device.lower().removeprefix("0x"))
    most = _CARD_GBPS.get(key, slot.nominal_GBps)
    if most >= slot.nominal_GBps:
        return slot
    return Rate(most, min(most * CARD_SHARE, slot.GBps))


class Import:
    """A node as a file of another tool describes it, and what this file leaves open; an importer
    reads it into these:

    found: where its GPUs and cards come from, in words.
    node: the node. Cards without a known speed have their `card_rate`.
    generation: the generation of its GPUs, None if the file doesn't show it.
    open_cards: the cards without a known speed. notes: a remark about each assumption.
    no_nvlink: why the file doesn't show NVLink or xGMI; empty if it would.
    processor: the maker of the processors, or their architecture; empty if unknown.
    """

    found: str
    node: Node
    generation: Generation | None = None
    no_nvlink = ""
    processor = ""

    def __init__(self, file: str) -> None:
        self.file = file
        self.notes: list[Diagnostic] = []
        self.open_cards: set[int] = set()

    def assume(self, found: str, line: int = 0) -> None:
        """Notes an assumption (F434), once for all places."""
        if all(note.found != found for note in self.notes):
            at = Place(self.file, line)
            note = F434.diagnostic(at=at, expected="a complete description", found=found)
            self.notes.append(note)

    def wrong(
        self, rule: Rule, expected: str, found: str, remedy: str = "", line: int = 0, at: str = ""
    ) -> SleyError:
        """The error about a line. at: the place in it, in words."""
        place = Place(self.file, line, detail=at)
        return rule.error(at=place, expected=expected, found=found, remedy=remedy)

    def join_processors(self, vertices: list[int], rate: Rate = PROCESSORS) -> None:
        """Joins each pair of a host's processors at a rate, with a remark. Errors: T607."""
        if len(vertices) > _MOST_PROCESSORS:
            expected = f"at most {_MOST_PROCESSORS} processors with PCIe devices in a host"
            raise self.wrong(T607, expected, str(len(vertices)))
        for a, b in combinations(vertices, 2):
            self.node.join(a, b, LinkKind.PCIE, rate)
        if len(vertices) > 1:
            self.assume(f"{rate.GBps:g} GB/s between two processors")

    def machine(self, like: Machine | None) -> Machine:
        """The machine, completed with the rates of its generation of GPUs, or of `like`; notes each
        assumption. Errors: T607."""
        if len(self.node.cards) > _MOST_CARDS:
            expected = f"at most {_MOST_CARDS} network cards"
            raise self.wrong(T607, expected, str(len(self.node.cards)))
        self._add_nvlink(like)
        self._rate_cards(like)
        if like is None:
            self._note_switches()
        return Machine(
            Path(self.file).stem,
            f"{counted(self.node.gpus, 'GPU')}, {counted(len(self.node.cards), 'card')}, "
            f"{self.found}",
            {},
            self.node,
            like.network if like else None,
            self._model(like),
            in_network=like is not None and like.in_network,
            caution=like.caution if like else "",
        )

    def _add_nvlink(self, like: Machine | None) -> None:
        """Adds the links of NVLink of `like` to a node that has none, since the file can't show
        them."""
        node = self.node
        alone = node.gpus == 1 or any(link.kind == LinkKind.NVLINK for link in node.links)
        if alone or not self.no_nvlink:
            return
        if like is None or like.node.gpus != node.gpus:
            more = (
                f"{like.name} has {like.node.gpus} GPUs"
                if like
                else "name the machine with FILE,like=MACHINE"
            )
            self.assume(f"no NVLink between GPUs: {self.no_nvlink}; {more}")
            return
        vertex = {gpu: gpu for gpu in range(node.gpus)}
        for link in like.node.links:
            if link.kind == LinkKind.NVLINK:
                for end in (link.src, link.dst):
                    if end not in vertex:
                        vertex[end] = node.add(VertexKind.SWITCH)
                node.links.append(link._replace(src=vertex[link.src], dst=vertex[link.dst]))
        self.assume(f"NVLink as in {like.name}, GPU by GPU")

    def _rate_cards(self, like: Machine | None) -> None:
        """Gives the cards without a known speed their share of those of `like`, but not more than
        their slots have."""
        node, cards = self.node, sorted(self.open_cards)
        if not node.cards:
            self.assume("a single node, as there are no network cards")
        elif not cards:
            self.assume(f"cards reach {CARD_SHARE:.0%} of their speed")
        elif like is not None and like.node.cards:
            rates = like.node.cards.values()
            total = [sum(column) / len(cards) for column in zip(*rates, strict=True)]
            for card in cards:
                slot = node.cards[card]
                node.cards[card] = Rate(min(total[0], slot[0]), min(total[1], slot[1]))
            capped = any(node.cards[card][0] < total[0] for card in cards)
            source = f"as much as their slots or kind allow; {like.name} has faster ones"
            source = source if capped else f"as those of {like.name}"
            self.assume(f"{_rates_of(node, cards)}, {source}")
        else:
            self.assume(f"{_rates_of(node, cards)}, by their PCIe slots, as the file has no speeds")
        if len(bundled(node).cards) < len(node.cards):
            self.assume("several cards next to a GPU are one with the sum of their rates")

    def _note_switches(self) -> None:
        """Says how to have switches that reduce and multicast, which no file shows."""
        own = self.generation.machine if self.generation else ""
        for name in {own, f"{own}-nvls"} & {*machine_names()}:
            if find_machine(name).in_network and VertexKind.SWITCH in self.node.kinds:
                self.assume(
                    "switches that don't reduce and multicast (NVLS), as the file doesn't tell; "
                    f"FILE,like={name} has some that do"
                )

    def _model(self, like: Machine | None) -> CostModel:
        if like is not None:
            self.assume(f"GPUs compute at the rates of {like.name}")
            return like.model
        if self.generation is None:
            self.assume(
                "GPUs compute at an A100's rates, as the file doesn't say which they are; name the "
                "machine with FILE,like=MACHINE"
            )
            model = CostModel()
        else:
            machine = find_machine(self.generation.machine)
            model = machine.model
            self.assume(
                f"GPUs of the generation of {self.generation.gpu} compute at the rates of "
                f"{machine.name}: {model.nvlink_block_GBps:g} GB/s a thread block, "
                f"{model.memory_GBps:g} GB/s from memory"
            )
        if not self.processor:
            return model
        return replace(model, post_us=_POST_US[self.processor == "AuthenticAMD"])


def _rates_of(node: Node, cards: list[int]) -> str:
    """The rates of cards in words."""
    rates = sorted({(node.cards[card].nominal_GBps, node.cards[card].GBps) for card in cards})
    words = " or ".join(f"{nominal:.4g} GB/s, {reached:.4g} reached" for nominal, reached in rates)
    return f"{counted(len(cards), 'card')} of {words}"
