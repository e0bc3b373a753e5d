"""Chakra: plans as execution traces (MLCommons), which ASTRA-sim runs as custom collectives: a file
for each rank.

A trace is a graph of nodes: messages to send, messages to receive, and computations. A node starts
when those that it depends on have ended. docs/astra-sim.md says how ASTRA-sim executes it.

Field numbers are from Chakra's schema (mlcommons/chakra, schema/protobuf/et_def.proto), names of
attributes from ASTRA-sim's reader (astra-sim/chakra, src/feeder_v3), the encoding is that of
protocol buffers (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise

import numpy as np

from sley.errors import Place
from sley.errors.compiler import C310
from sley.errors.simulation import S705
from sley.formats.format import Format, refuse_varying_counts
from sley.ir.connections import Connections
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.sizes import checked_size
from sley.ir.tables import LongArray
from sley.ir.words import RECEIVES, REDUCES, SENDS, LoopOrder, Op

MAX_NODES = 2_000_000
"""The most nodes of all traces of a plan."""


class _Type(IntEnum):
    """A node's type: NodeType of the schema."""

    COMPUTE = 4
    SEND = 5
    RECEIVE = 6


# Fields of Node, AttributeProto and GlobalMetadata.
_ID, _NAME, _TYPE, _DATA_DEPENDENCIES, _ATTRIBUTE = 1, 2, 3, 5, 10
_KEY, _INT32, _INT64, _BOOL, _STRING = 1, 7, 9, 27, 29
_VERSION, _METADATA_ATTRIBUTE = 1, 2
_SCHEMA = "0.0.4"

_VARINT, _LENGTH = 0, 2
"""Types of fields: a number, and bytes after their length."""


def write(
    plan: Plan, *, size: int | str | None = None, tile_bytes: int | str | None = None
) -> list[bytes]:
    """The traces of a verified plan, by rank.

    An instruction depends on the one before it in its block and on those that it waits for. One
    that receives, reduces and sends is three nodes. Reductions and copies within a rank last as
    long as the simulator lets nodes without a duration last (ASTRA-sim: 1 ns). The number of slots
    doesn't limit messages on their way.

    size: of the call in bytes, as nccl-tests counts it, or a text such as "16M"; a chunk has its
        share, rounded up to whole bytes.
    tile_bytes: cuts chunks into tiles of at most this size, which follow one another in the plan's
        loop order; None for one tile.
    Errors: F437 for varying counts, C310 without a size, S705 for more than MAX_NODES nodes, S702
    for other sizes.
    """
    refuse_varying_counts(plan.collective)
    plan = without_groups(plan)
    if size is None:
        raise C310.error(
            at=Place(detail=plan.name),
            expected="the size of the call",
            found="none",
            remedy='Give the size: sley.save(plan, "allreduce.et", size="16M"), or --size 16M.',
        )
    chunk = -(-checked_size(size) // (plan.collective.blocks * plan.collective.chunks))
    tile = chunk if tile_bytes is None else min(checked_size(tile_bytes), chunk)
    traces = _Traces(plan, -(-chunk // tile), tile, chunk)
    total = int(traces.nodes.sum()) * traces.tiles
    if total > MAX_NODES:
        raise S705.error(
            at=Place(detail=plan.name),
            expected=f"at most {MAX_NODES} nodes",
            found=str(total),
            remedy="Use larger tiles, or none.",
        )
    head = _metadata(plan, checked_size(size))
    return [
        b"".join(map(_delimited, [head, *traces.of_rank(rank)]))
        for rank in range(plan.collective.ranks)
    ]


@dataclass(frozen=True)
class _Traces:
    """The nodes of a plan.

    tiles: the number of tiles of a chunk. tile: bytes of a tile; the last one may be smaller.
    chunk: bytes of a chunk.
    """

    plan: Plan
    tiles: int
    tile: int
    chunk: int

    @cached_property
    def nodes(self) -> LongArray:
        """int64 (instructions,): the nodes of an instruction for a tile: a message that arrives, a
        computation, a message that leaves. A nop, which only waits, is a computation."""
        op = self.plan.instructions.op
        computes = REDUCES[op] | np.isin(op, [Op.COPY, Op.COPY_SEND, Op.NOP])
        return np.asarray(RECEIVES[op].astype(np.int64) + computes + SENDS[op])

    @cached_property
    def first(self) -> LongArray:
        """int64 (instructions,): the first node of an instruction, for tile 0."""
        ends = np.cumsum(self.nodes)
        starts = np.append(0, ends)[self.plan.block_offset[self.plan.rank_block[self.plan.rank]]]
        return np.asarray((ends - self.nodes - starts) * self.tiles)

    @cached_property
    def connections(self) -> Connections:
        return Connections.of(self.plan)

    @cached_property
    def tag(self) -> LongArray:
        """int64 (connections,): the tag of a connection's first message. Messages between two ranks
        have different tags, because ASTRA-sim matches messages by ranks, tag and size."""
        c = self.connections
        before = np.append(0, np.cumsum(c.sends))
        pair = c.src.astype(np.int64) * self.plan.collective.ranks + c.dst
        # Connections are ordered by their ends, so those of a pair follow one another, and their
        # messages count on from the pair's first connection.
        first = np.searchsorted(pair, pair)
        return np.asarray((before[:-1] - before[first]) * self.tiles)

    def of_rank(self, rank: int) -> Iterator[bytes]:
        """The nodes of a rank, block after block; at least one, without which a simulation would
        not begin."""
        plan = self.plan
        first, last = plan.rank_block[rank : rank + 2].tolist()
        offsets = plan.block_offset[first : last + 1].tolist()
        if offsets[0] == offsets[-1]:
            yield _node(0, "idle", _Type.COMPUTE, [], {})
        for block, (begin, end) in enumerate(pairwise(offsets)):
            yield from self._of_block(block, begin, end)

    def _of_block(self, block: int, begin: int, end: int) -> Iterator[bytes]:
        rows, tiles = range(begin, end), range(self.tiles)
        # The order of the plan's loops decides when a message leaves, and so its tag: both ends of
        # a connection count their messages in this order.
        order = (
            ((row, tile) for tile in tiles for row in rows)
            if self.plan.loop_order is LoopOrder.TILE
            else ((row, tile) for row in rows for tile in tiles)
        )
        previous: list[int] = []
        messages: dict[tuple[_Type, int], int] = {}  # of each connection until now
        for row, tile in order:
            others = self.plan.waits[row]
            waits = (self.first[others] + (tile + 1) * self.nodes[others] - 1).tolist()
            # A set, since a wait may name the row before, too.
            parents = sorted({*previous, *waits})
            number_of_node = int(self.first[row]) + tile * int(self.nodes[row])
            name = f"block {block} step {row - begin}" + (f" tile {tile}" if self.tiles > 1 else "")
            for kind in self._kinds(row):
                is_message = kind is not _Type.COMPUTE
                attributes = self._message_of(row, tile, kind, messages) if is_message else {}
                yield _node(number_of_node, name, kind, parents, attributes)
                parents = [number_of_node]
                number_of_node += 1
            previous = parents

    def _kinds(self, row: int) -> list[_Type]:
        op = self.plan.instructions.op[row]
        kinds = [_Type.RECEIVE] * bool(RECEIVES[op]) + [_Type.SEND] * bool(SENDS[op])
        if len(kinds) < self.nodes[row]:
            kinds.insert(int(RECEIVES[op]), _Type.COMPUTE)
        return kinds

    def _message_of(
        self, row: int, tile: int, kind: _Type, messages: dict[tuple[_Type, int], int]
    ) -> dict[str, int]:
        """The attributes of a message. A sender's own rank is left out: in a group of ranks
        ASTRA-sim would take it for a rank of the whole cluster."""
        t, uses = self.plan.instructions, self.connections.uses
        sends = kind is _Type.SEND
        connection = int((uses.send if sends else uses.receive)[row])
        count = messages.get((kind, connection), 0)
        messages[kind, connection] = count + 1
        last = tile == self.tiles - 1
        size = self.chunk - tile * self.tile if last else self.tile
        peer = ("comm_dst", t.send_peer) if sends else ("comm_src", t.recv_peer)
        return {
            peer[0]: int(peer[1][row]),
            "comm_tag": int(self.tag[connection]) + count,
            "comm_size": size * int(t.count[row]),
        }


def _node(
    identity: int, name: str, kind: _Type, parents: list[int], attributes: dict[str, int]
) -> bytes:
    content = [
        _number(_ID, identity),
        _message(_NAME, f"{kind.name.lower()} {name}".encode()),
        _number(_TYPE, kind),
        _numbers(_DATA_DEPENDENCIES, parents),
        _attribute(_ATTRIBUTE, "is_cpu_op", _number(_BOOL, 0)),
    ]
    for key, value in attributes.items():
        field = _INT64 if key == "comm_size" else _INT32
        content.append(_attribute(_ATTRIBUTE, key, _number(field, value)))
    return b"".join(content)


def _metadata(plan: Plan, size: int) -> bytes:
    """The head of a trace: the schema's version, and where the trace is from."""
    texts = {
        "collective": plan.collective.name,
        "algorithm": plan.name,
        "size_bytes": str(size),
        "made_by": f"sley {version('sley')}",
    }
    attributes = (
        _attribute(_METADATA_ATTRIBUTE, key, _message(_STRING, text.encode()))
        for key, text in texts.items()
    )
    return _message(_VERSION, _SCHEMA.encode()) + b"".join(attributes)


def _attribute(field: int, key: str, value: bytes) -> bytes:
    return _message(field, _message(_KEY, key.encode()) + value)


def _varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1: seven bits a byte, the lowest first."""
    found = bytearray()
    # Each round takes 7 bits away, so at most 9 bytes come before the last one.
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint64, bool or enum; `value` is at least 0."""
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    """A field of type message, bytes, or string in UTF-8."""
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content


def _numbers(field: int, values: Iterable[int]) -> bytes:
    """A packed repeated field of numbers; nothing if there are none."""
    content = b"".join(map(_varint, values))
    return _message(field, content) if content else b""


def _delimited(content: bytes) -> bytes:
    """A message in a file of messages: after its length."""
    return _varint(len(content)) + content


FORMAT = Format("ASTRA-sim", ".et", write, per_rank=True)
"""Execution traces."""
