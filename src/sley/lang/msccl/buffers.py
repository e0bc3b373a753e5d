"""Buffers: the names of input and output, and scratch buffers, which have any other name."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any

from sley.ir.words import is_integer


class _Word(Enum):
    """A word of msccl.language, which prints as its value."""

    def __str__(self) -> str:
        return str(self.value)


class Buffer(_Word):
    """The input and the output of a rank, and a scratch buffer among others."""

    input = "i"
    output = "o"
    scratch = "s"

    def __lt__(self, other: Buffer) -> bool:
        return str(self.value) < str(other.value)


class ThreadblockPolicy(_Word):
    """Whether the compiler assigns thread blocks, or the script by sendtb and recvtb."""

    auto = "auto"
    manual = "manual"


class BufferSlice(list[Any]):
    """The chunks of a scratch buffer on one rank. Writing beyond its end extends it."""

    def __init__(self, buf: Buffer, name: Hashable) -> None:
        super().__init__()
        self.buf = buf
        self.name = name

    def instance_size(self) -> int:
        """Its number of chunks."""
        return len(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        if is_integer(index) and index >= len(self):
            self.extend([None] * (index + 1 - len(self)))
        super().__setitem__(index, value)
