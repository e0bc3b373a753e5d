"""TACCL's profiles of topologies (JSON): the time that a chunk takes on each link."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sley.errors import Place
from sley.errors.text_files import Section, json_of
from sley.errors.topology import T602, T605, T607
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.sizes import size_in_bytes
from sley.ir.topology import MAX_RANKS
from sley.ir.words import is_real
from sley.topologies.assumptions import Import
from sley.topologies.machine import Link, Machine, Node, Rate, count_of

_SIZE = re.compile(r"(?:^|[-_])([1-9][0-9]{0,3}) ?(KB|MB|GB|K|M|G)(?:$|[-_.])", re.IGNORECASE)
_TIME_UNIT_US = {2**10: 0.01, 2**15: 0.1, 2**20: 1.0}
"""The unit of time in TACCL's own profiles, by the size of the chunk. They scale times to whole
numbers (alpha is 0.3 us in all of them)."""

_NDV2 = {
    **dict.fromkeys([(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)], 0),
    **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)], 1),
}
"""The linked pairs of GPUs in TACCL's NDv2, and the index of each pair's cost."""


_REMOTE = ("alpha", "beta", "invbw", "invbws")
_OF_MATRIX, _OF_KNOWN = ("links", "betas", "invbws"), ("node_betas_list", "node_invbws_list")
"""The keys of the network, of direct links, and of a node that sley knows."""


class TacclImport(Import):
    """The machine of a profile: GPUs around a switch (one cost), NDv2's mesh (two costs), or n x n
    matrices, with all rates.

    Nominal and reached rates are the chunk's size over beta; alpha is the latency of links.
    """

    def __init__(self, file: str, text: str) -> None:
        values = json_of(file, text, T605)
        if not isinstance(values, dict):
            found = type(values).__name__
            raise T605.error(at=Place(file), expected="a JSON object", found=found)
        super().__init__(file)
        self._top = top = Section(file, values, T607)
        remote = ("nics_per_node", *(f"remote_{word}" for word in _REMOTE))
        own = _OF_MATRIX if "links" in top else _OF_KNOWN
        top.check_keys(("gpus_per_node", "alpha"), ("name", *own, *remote))
        self._name = top.typed("name", str, Path(file).stem)
        self._chunk, self._unit_us = self._scale()
        self.node = Node(count_of(top, "gpus_per_node", MAX_RANKS))

    def machine(self, like: Machine | None) -> Machine:
        """The machine, which has all rates. Errors: T602, T607."""
        top, node = self._top, self.node
        alpha = self._cost("alpha") * self._unit_us
        if "links" in top:
            self._join_matrix(alpha)
        else:
            self._join_known(alpha)
        self._add_cards()
        description = f"TACCL's profile of {self._name}"
        return Machine(self._name, description, {"nvlink": "TACCL's profile"}, node)

    def _scale(self) -> tuple[int, float]:
        """The chunk's bytes and the unit of time, read from the file's name or the profile's."""
        for text in (Path(self.file).stem, self._name):
            found = _SIZE.search(text)
            words = found[1] + found[2] if found else ""
            size = size_in_bytes(words)
            if size is not None:
                if size in _TIME_UNIT_US:
                    return size, _TIME_UNIT_US[size]
                self.assume(f"times in us for chunks of {words}")
                return size, 1.0
        self.assume("chunks of 1 MB and times in us, as neither name contains a size")
        return 2**20, 1.0

    def _cost(self, key: str) -> float:
        """A time of at least 0."""
        cost = self._top.number(key)
        if not 0 <= cost < 1e15:
            raise self._top.refuse(key, "a time from 0", cost, T602)
        return cost

    def _rate(self, key: str, beta: Any, alpha_us: float) -> Rate:
        """The rate of a link: the chunk's size over beta."""
        if not is_real(beta):
            raise self._top.refuse(key, "a number", beta)
        time_us = float(beta) * self._unit_us
        if not 0 < time_us < 1e15:
            raise self._top.refuse(key, "a time above 0", beta, T602)
        rate = self._chunk / time_us / 1e3
        return Rate(rate, rate, alpha_us)

    def _join_known(self, alpha_us: float) -> None:
        """Adds the links of a known node: a switch for one cost, NDv2's mesh for two."""
        node = self.node
        betas = self._top.typed("node_betas_list", list)
        if len(betas) == 1:
            switch = node.add(VertexKind.SWITCH)
            # A path crosses two links, each with half of its latency.
            rate = self._rate("node_betas_list[0]", betas[0], alpha_us / 2)
            for gpu in range(node.gpus):
                node.join(gpu, switch, LinkKind.NVLINK, rate)
            return
        if len(betas) != 2 or node.gpus != 8:
            expected = "one cost for GPUs around a switch, or two for the 8 GPUs of NDv2's mesh"
            raise self._top.refuse("node_betas_list", expected, betas)
        for (a, b), which in _NDV2.items():
            rate = self._rate(f"node_betas_list[{which}]", betas[which], alpha_us)
            node.join(a, b, LinkKind.NVLINK, rate)

    def _join_matrix(self, alpha_us: float) -> None:
        """Adds direct links in one direction each, from links[dst][src] and betas[dst][src]."""
        linked, betas = self._matrix("links"), self._matrix("betas")
        for dst, row in enumerate(linked):
            for src, used in enumerate(row):
                if not is_real(used) or used < 0:
                    raise self._top.refuse(f"links[{dst}][{src}]", "a number from 0", used)
                if src != dst and used:
                    rate = self._rate(f"betas[{dst}][{src}]", betas[dst][src], alpha_us)
                    self.node.links.append(Link(src, dst, LinkKind.NVLINK, rate))

    def _matrix(self, key: str) -> list[list[Any]]:
        n = self.node.gpus
        rows = self._top.typed(key, list)
        if len(rows) != n or not all(isinstance(row, list) and len(row) == n for row in rows):
            raise self._top.refuse(key, f"{n} rows of {n} numbers", rows, T607)
        return rows

    def _add_cards(self) -> None:
        """Adds the cards, each shared by neighbouring GPUs; remote_alpha is the latency of a path
        between nodes."""
        top, node = self._top, self.node
        if top.value("nics_per_node", "", -1) == -1:
            self.assume("a single node, as there are no network cards")
            return
        count = count_of(top, "nics_per_node", MAX_RANKS)
        if node.gpus % count:
            raise top.refuse("nics_per_node", f"a divisor of {node.gpus} GPUs", count)
        latency = self._cost("remote_alpha") * self._unit_us
        # The network's two links have all of the latency; the link to the card has none.
        beta = top.value("remote_beta", "a time above 0")
        rate = self._rate("remote_beta", beta, latency / 2)
        cards = [node.add_card(rate) for _ in range(count)]
        for gpu in range(node.gpus):
            card = cards[gpu * count // node.gpus]
            node.join(gpu, card, LinkKind.PCIE, Rate(rate.nominal_GBps, rate.GBps, 0.0))
