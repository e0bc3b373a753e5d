"""Raw: the rows of an execution plan's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sley.errors import Place
from sley.formats.mscclpp.words import PORT, Where
from sley.ir.words import Buffer, Protocol


@dataclass(frozen=True, slots=True)
class RawRange:
    """A source or destination. number: the Buffer of a local one, otherwise the index of a remote
    buffer or switch channel in the lists of the block."""

    where: Where
    number: int
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class RawOperation:
    """An operation. number: its place among the operations of its block, those inside of pipelines
    counted after the pipeline. line: 0 if it is not known. Keys that the file does not have are
    empty, "" or 0; share and shares are 0 and 1 without tbg_info."""

    name: str
    number: int
    line: int
    channel_type: str = ""
    channel_ids: tuple[int, ...] = ()
    sources: tuple[RawRange, ...] = ()
    destinations: tuple[RawRange, ...] = ()
    share: int = 0
    shares: int = 1
    barrier: int = 0
    barrier_blocks: int = 0
    semaphores: tuple[int, ...] = ()
    unit_bytes: int = 0
    chunks: int = 0
    inner: tuple[RawOperation, ...] = ()
    reduce_op: str = ""


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A thread block. channels, buffers: by type of channel, the numbers of the GPU's channels and
    of its remote buffers, in the order in which operations count them."""

    channels: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    operations: tuple[RawOperation, ...]


@dataclass(frozen=True, slots=True)
class RawRemote:
    """A remote buffer, and the types of channel that access it."""

    rank: int
    buffer: Buffer
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawGroup:
    """A switch channel: a buffer of several ranks."""

    buffer: Buffer
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RawGpu:
    """A GPU. peers, lines: by type of channel, the peer of each channel, and the line of each, 0 if
    it is not known. semaphores: initial values."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: Mapping[str, tuple[int, ...]]
    lines: Mapping[str, tuple[int, ...]]
    groups: tuple[RawGroup, ...]
    remote: tuple[RawRemote, ...]
    semaphores: tuple[int, ...]
    blocks: tuple[RawBlock, ...]

    @property
    def port_buffers(self) -> int:
        """The number of remote buffers that ports access; one for each time it is named."""
        return sum(remote.types.count(PORT) for remote in self.remote)


@dataclass(frozen=True, slots=True)
class RawPlan:
    """A file. ignored: the keys that the executor does not read, with the first place of each."""

    file: str
    name: str
    collective: str
    protocol: Protocol
    in_place: bool
    reuses: bool
    doubles: bool
    alignment: int
    threads: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[RawGpu, ...]
    ignored: Mapping[str, Place]

    @property
    def whole(self) -> Place:
        """The place of the file as a whole."""
        return Place(self.file)

    def at(self, rank: int, block: int, operation: RawOperation | None = None) -> Place:
        """The place of an operation, or of a block."""
        return place_of(self.file, rank, block, operation)

    def at_channel(self, rank: int, word: str, channel: int) -> Place:
        """The place of a GPU's channel of a type."""
        line = self.gpus[rank].lines[word][channel]
        return Place(self.file, line, detail=f"rank {rank} {word} channel {channel}")


def place_of(file: str, rank: int, block: int = -1, operation: RawOperation | None = None) -> Place:
    """The place of an operation, a block or a GPU."""
    detail = f"rank {rank}" if block < 0 else f"rank {rank} block {block}"
    if operation is None:
        return Place(file, detail=detail)
    detail += f" operation {operation.number} ({operation.name})"
    return Place(file, operation.line, detail=detail)
