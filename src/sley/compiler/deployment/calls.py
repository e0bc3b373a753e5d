"""Calls: a call of a collective, as a runtime compares it with the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from sley.engine.types import DATA_TYPES
from sley.errors import Place, did_you_mean
from sley.errors.deployment import F525
from sley.ir.collectives import SIZED
from sley.ir.sizes import size_text

TYPES: Mapping[str, int] = MappingProxyType(
    {name: one.size_bytes for name, one in DATA_TYPES.items()} | {"uint32": 4, "uint64": 8}
)
"""The bytes of an element, by type."""

OPERATIONS = ("sum", "prod", "min", "max", "avg")


def _refuse(expected: str, found: str, remedy: str = "") -> NoReturn:
    raise F525.error(at=Place(detail="call"), expected=expected, found=found, remedy=remedy)


@dataclass(frozen=True)
class DeployedCall:
    """A call of a collective on a communicator.

    collective: sley's name. size_bytes: of the largest buffer of any rank, as in nccl-tests.
    ranks, node: the ranks of the communicator, and of each node. dtype: the type of the elements.
    in_place: whether input and output are the same memory. op: the reduction, which collectives
    without one ignore. root: the root, None if it isn't known or the collective has none.
    Errors: F525.
    """

    collective: str
    size_bytes: int
    ranks: int
    node: int
    in_place: bool = False
    dtype: str = "float32"
    op: str = "sum"
    root: int | None = None

    def __post_init__(self) -> None:
        for word, value, known in (
            ("collective", self.collective, tuple(SIZED)),
            ("type", self.dtype, tuple(TYPES)),
            ("reduction", self.op, OPERATIONS),
        ):
            if value not in known:
                _refuse(f"a {word} of {', '.join(known)}", value, did_you_mean(value, known))
        if self.ranks < 1 or self.node < 1 or self.ranks % self.node:
            found = f"{self.ranks} ranks, {self.node} a node"
            _refuse("ranks that the ranks of a node divide", found)
        if self.root is not None and not (self.has_root and 0 <= self.root < self.ranks):
            ranks = f"a root below {self.ranks}"
            expected = ranks if self.has_root else f"no root for {self.collective}"
            _refuse(expected, f"root {self.root}")
        unit = TYPES[self.dtype] * self.parts
        if self.size_bytes < 1 or self.size_bytes % unit:
            expected = f"a multiple of {unit} bytes, one element for each part of the buffer"
            _refuse(expected, f"{self.size_bytes} bytes")

    @property
    def parts(self) -> int:
        """The number of equal parts of the largest buffer: one for each rank, or 1."""
        return self.ranks if SIZED[self.collective].has_parts else 1

    @property
    def reduces(self) -> bool:
        """Whether the collective has a reduction."""
        return SIZED[self.collective].reduces

    @property
    def has_root(self) -> bool:
        """Whether the collective has a root."""
        return "root" in SIZED[self.collective].roles

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        op = f" {self.op}" if self.reduces else ""
        place = "in place" if self.in_place else "out of place"
        nodes = "" if self.node == self.ranks else f", {self.node} a node"
        size = size_text(self.size_bytes)
        ranks = f"{self.ranks} ranks{nodes}{root}"
        return f"{self.collective} of {size} {self.dtype}{op} on {ranks}, {place}"
