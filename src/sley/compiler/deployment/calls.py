"""Calls: a call of a collective, as a runtime compares it with the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sley.errors import Place, did_you_mean
from sley.errors.deployment import F525
from sley.ir.collectives import SIZED
from sley.ir.sizes import size_text

TYPES: Mapping[str, int] = MappingProxyType(
    {
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "uint8": 1,
        "uint32": 4,
        "uint64": 8,
    }
)
"""The bytes of an element, by type."""

OPERATIONS = ("sum", "prod", "min", "max", "avg")


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
                raise F525.error(
                    at=Place(detail="call"),
                    expected=f"a {word} of {', '.join(known)}",
                    found=value,
                    remedy=did_you_mean(value, known),
                )
        if self.ranks < 1 or self.node < 1 or self.ranks % self.node:
            raise F525.error(
                at=Place(detail="call"),
                expected="ranks that the ranks of a node divide",
                found=f"{self.ranks} ranks, {self.node} a node",
            )
        if self.root is not None and not (self.has_root and 0 <= self.root < self.ranks):
            ranks = f"a root below {self.ranks}"
            raise F525.error(
                at=Place(detail="call"),
                expected=ranks if self.has_root else f"no root for {self.collective}",
                found=f"root {self.root}",
            )
        unit = TYPES[self.dtype] * self.parts
        if self.size_bytes < 1 or self.size_bytes % unit:
            raise F525.error(
                at=Place(detail="call"),
                expected=f"a multiple of {unit} bytes, one element for each part of the buffer",
                found=f"{self.size_bytes} bytes",
            )

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
