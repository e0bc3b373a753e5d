"""Raw: the content of an MSCCL XML file as columns: of a text, before it is checked, or of a plan,
before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic, Place, Rule
from sley.formats.problems import Problems
from sley.ir.tables import BoolArray, LongArray

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": (
        *("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt"),
        *("depid", "deps", "hasdep"),
    ),
}
"""The attributes of the elements inside of <algo>, in the order in which they are written."""

PARENT: Mapping[str, str] = {"gpu": "algo", "tb": "gpu", "step": "tb"}
"""The elements around them."""


@dataclass(frozen=True)
class Header:
    """The attributes of <algo>, in the order in which they are written; None for missing ones."""

    name: str | None
    proto: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    coll: str
    inplace: int | None
    outofplace: int | None
    minBytes: int | None  # noqa: N815 - the file's word
    maxBytes: int | None  # noqa: N815
    nthreads: int | None


@dataclass(frozen=True)
class Remark:
    """Something that the parser ignored: what, how often, and where first."""

    what: str
    times: int
    place: Place


@dataclass(frozen=True, eq=False)
class Elements:
    """The elements of a name, in the order of the text.

    columns: int64 (elements,), by attribute. `type` is an Op, `srcbuf` and `dstbuf` are Buffers.
        `tb` of a step and `gpu` of a block are the rows of the elements around them. Elements of a
        text have their `line` and `column`.
    place: the place of a row.
    """

    columns: Mapping[str, LongArray]
    place: Callable[[int], Place]

    def __getitem__(self, attribute: str) -> LongArray:
        return self.columns[attribute]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def report(
        self,
        problems: Problems,
        rows: BoolArray | LongArray,
        rule: Rule,
        expected: str | Callable[[int], str],
        found: str | Callable[[int], str],
        remedy: str = "",
    ) -> None:
        """Adds a problem for each of some rows, as `Problems.add_each`. found: or the attributes to
        show, with a space between them."""
        names = found.split() if isinstance(found, str) else []

        def shown(row: int) -> str:
            return ", ".join(f"{name}={self[name][row]}" for name in names)

        text = shown if isinstance(found, str) else found
        problems.add_each(rows, rule, self.place, expected, text, remedy)

    def remark(self, mask: BoolArray, rule: Rule, expected: str, found: str) -> list[Diagnostic]:
        """One remark on all rows of `mask`, at the first of them; none without rows."""
        rows = np.flatnonzero(mask).tolist()
        more = [f"and {len(rows) - 1} more like it"] if len(rows) > 1 else []
        return [
            rule.diagnostic(at=self.place(row), expected=expected, found=found, notes=more)
            for row in rows[:1]
        ]


@dataclass(frozen=True, eq=False)
class RawFile:
    """What a file says. file: its name in messages. whole: the place of <algo>. text: if it was
    read from one."""

    file: str
    whole: Place
    header: Header
    gpus: Elements
    blocks: Elements
    steps: Elements
    ignored: tuple[Remark, ...] = ()
    text: bytes = b""

    @property
    def block_rank(self) -> LongArray:
        """int64 (blocks,): the rank of each block."""
        return self.gpus["id"][self.blocks["gpu"]]
