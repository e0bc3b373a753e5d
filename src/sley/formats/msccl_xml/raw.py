"""Raw: the content of an MSCCL XML file as columns, before it is checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place

STEP_FIELDS = (
    "s",
    "type",
    "srcbuf",
    "srcoff",
    "dstbuf",
    "dstoff",
    "cnt",
    "depid",
    "deps",
    "hasdep",
    "line",
    "column",
    "block",
)
BLOCK_FIELDS = ("id", "send", "recv", "chan", "line", "column", "gpu")
GPU_FIELDS = ("id", "i_chunks", "o_chunks", "s_chunks", "line", "column")

STEP = {name: index for index, name in enumerate(STEP_FIELDS)}
BLOCK = {name: index for index, name in enumerate(BLOCK_FIELDS)}
GPU = {name: index for index, name in enumerate(GPU_FIELDS)}


@dataclass(frozen=True)
class Header:
    """The attributes of <algo>; None for missing ones."""

    name: str | None
    proto: str
    coll: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    inplace: int | None
    outofplace: int | None
    min_bytes: int | None
    max_bytes: int | None
    nthreads: int | None
    line: int
    column: int


@dataclass(frozen=True)
class Remark:
    """Something that the parser ignored: what, how often, and where first."""

    what: str
    times: int
    line: int
    column: int


@dataclass(frozen=True, eq=False)
class RawFile:
    """A file's elements in the order of the text.

    steps, blocks, gpus: int64 (rows, fields), with the columns of STEP, BLOCK and GPU. `type` is an
    Op, `srcbuf` and `dstbuf` are Buffers; `block` and `gpu` are the rows of the parent elements.
    """

    file: str
    header: Header
    steps: NDArray[np.int64]
    blocks: NDArray[np.int64]
    gpus: NDArray[np.int64]
    ignored: tuple[Remark, ...]

    def step(self, name: str) -> NDArray[np.int64]:
        """A column of the steps."""
        return self.steps[:, STEP[name]]

    def block(self, name: str) -> NDArray[np.int64]:
        """A column of the blocks."""
        return self.blocks[:, BLOCK[name]]

    def gpu(self, name: str) -> NDArray[np.int64]:
        """A column of the GPUs."""
        return self.gpus[:, GPU[name]]

    def algo_place(self) -> Place:
        """The place of <algo>."""
        return Place(self.file, self.header.line, self.header.column)

    def gpu_place(self, row: int) -> Place:
        """The place of a <gpu>."""
        line, column = self.gpus[row, [GPU["line"], GPU["column"]]].tolist()
        return Place(self.file, line, column, f"gpu {self.gpus[row, GPU['id']]}")

    def block_place(self, row: int) -> Place:
        """The place of a <tb>."""
        line, column = self.blocks[row, [BLOCK["line"], BLOCK["column"]]].tolist()
        return Place(self.file, line, column, self._block_name(row))

    def step_place(self, row: int) -> Place:
        """The place of a <step>."""
        s, line, column, block = (
            int(self.steps[row, STEP[name]]) for name in ("s", "line", "column", "block")
        )
        return Place(self.file, line, column, f"{self._block_name(block)}, step {s}")

    def _block_name(self, row: int) -> str:
        gpu = self.gpus[self.blocks[row, BLOCK["gpu"]], GPU["id"]]
        return f"gpu {gpu}, block {self.blocks[row, BLOCK['id']]}"
