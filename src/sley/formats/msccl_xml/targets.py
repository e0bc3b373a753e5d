"""Targets: the runtimes that load MSCCL XML, with their limits and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sley.formats.format import NO_LIMIT, Target
from sley.formats.rewriting import remove_nops, unfuse
from sley.ir.plan import Plan
from sley.ir.words import Op, Protocol

SUFFIX = ".xml"


@dataclass(frozen=True, repr=False)
class XmlTarget(Target):
    """A runtime that loads MSCCL XML: its limits and its names.

    steps_per_block, blocks, channels, count: limits of steps in a block, blocks on a GPU, channels,
        and chunks in a step.
    peers_per_channel: limit of blocks of a GPU that send on a channel, and that receive on it.
    waited_block: the highest block id in a wait.
    offset: the highest offset in a step.
    reduce_run: limit of consecutive reductions into one place, which the runtime runs at once.
    nodes, children, attribute_chars: limits of XML elements for a GPU, children of an element and
        characters of a value; None without a known limit.
    operations: the operations that the runtime runs; others must be split.
    collectives: its names of the collectives, by sley's name; `custom_collective` is its name of
        all others, None if it runs no others.
    max_is_inclusive: whether the algorithm is used for a call of exactly maxBytes.
    no_limit_bytes: the value of maxBytes that means no upper limit.
    default_max_bytes: the value of maxBytes in a file without one; None if the attribute is
        required.
    takes_threads: whether it reads the attribute `nthreads`.
    reads_both_places: whether it reads `outofplace`; otherwise `inplace` says both.
    keeps_input: whether a call out of place must not change its input.
    compares_sizes: whether it refuses a file of a collective with a name whose i_chunks or o_chunks
        contradict nchunksperloop.
    slot_bytes: by protocol, the bytes of data that a slot holds by default. Simple's are a quarter
        for `short_slots`, the collectives with shorter chunks.
    """

    steps_per_block: int
    blocks: int
    channels: int
    count: int
    peers_per_channel: int
    waited_block: int
    offset: int
    reduce_run: int
    nodes: int | None
    children: int | None
    attribute_chars: int | None
    operations: frozenset[Op]
    collectives: Mapping[str, str]
    custom_collective: str | None
    max_is_inclusive: bool
    no_limit_bytes: int
    default_max_bytes: int | None
    takes_threads: bool
    reads_both_places: bool
    keeps_input: bool
    compares_sizes: bool
    slot_bytes: Mapping[Protocol, int]
    short_slots: frozenset[str]

    def last_size(self, max_bytes: int | None) -> int | None:
        """The last size of calls for which it chooses a file with this maxBytes; None for no limit.
        max_bytes: None for a file without the attribute."""
        most = self.default_max_bytes if max_bytes is None else max_bytes
        if most is None or most >= NO_LIMIT or (most == 0 and self.no_limit_bytes == 0):
            return None
        return most if self.max_is_inclusive else most - 1

    def simulated(self, plan: Plan) -> Plan:
        """See `Target`."""
        return unfuse(remove_nops(plan), self.operations)


_COMMON = {name: name for name in ("allreduce", "allgather", "reduce", "broadcast", "alltoall")}
_FUSED = frozenset(Op) - {Op.COPY_SEND}
_UNFUSED = frozenset({Op.NOP, Op.SEND, Op.RECV, Op.COPY, Op.REDUCE})
_PEERS_PER_CHANNEL = 32
_INT8_MAX = 127
_INT16_MAX = 32767
_REDUCE_RUN = 16
_TIB = 1 << 40
_MIB = 1 << 20
_KIB = 1 << 10
_MSCCL_DEFAULT_MAX = 128 * _MIB
_SLOTS = {Protocol.SIMPLE: 2 * _MIB, Protocol.LL: 32 * _KIB, Protocol.LL128: 576_000}
_RCCL_SLOTS = {Protocol.SIMPLE: 2 * _MIB, Protocol.LL: 16 * _KIB, Protocol.LL128: 230_400}

MSCCL = XmlTarget(
    name="msccl",
    suffix=SUFFIX,
    steps_per_block=256,
    blocks=216,
    channels=32,
    count=72,
    peers_per_channel=_PEERS_PER_CHANNEL,
    waited_block=_INT8_MAX,
    offset=_INT16_MAX,
    reduce_run=_REDUCE_RUN,
    nodes=None,
    children=None,
    attribute_chars=None,
    operations=_FUSED,
    collectives={**_COMMON, "reducescatter": "reduce_scatter"},
    custom_collective="custom",
    max_is_inclusive=False,
    no_limit_bytes=_TIB,
    default_max_bytes=_MSCCL_DEFAULT_MAX,
    takes_threads=True,
    reads_both_places=False,
    keeps_input=True,
    compares_sizes=True,
    slot_bytes=_SLOTS,
    short_slots=frozenset(),
)
"""Microsoft's original runtime."""

EXECUTOR = XmlTarget(
    name="executor",
    suffix=SUFFIX,
    steps_per_block=64,
    blocks=1024,
    channels=32,
    count=71,
    peers_per_channel=_PEERS_PER_CHANNEL,
    waited_block=_INT8_MAX,
    offset=_INT16_MAX,
    reduce_run=_REDUCE_RUN,
    nodes=4095,
    children=1024,
    attribute_chars=255,
    operations=_FUSED,
    collectives={
        **_COMMON,
        "reducescatter": "reducescatter",
        "gather": "gather",
        "scatter": "scatter",
    },
    custom_collective=None,
    max_is_inclusive=True,
    no_limit_bytes=0,
    default_max_bytes=None,
    takes_threads=False,
    reads_both_places=True,
    keeps_input=True,
    compares_sizes=False,
    slot_bytes=_SLOTS,
    short_slots=frozenset({"broadcast", "reduce"}),
)
"""Azure's msccl-executor-nccl."""

RCCL = replace(
    EXECUTOR,
    name="rccl",
    blocks=64,
    channels=128,
    operations=_UNFUSED,
    slot_bytes=_RCCL_SLOTS,
)
"""AMD's RCCL in its MSCCL mode, which parses fused operations, but then fails the call."""

TARGETS: Mapping[str, XmlTarget] = MappingProxyType({t.name: t for t in (EXECUTOR, RCCL, MSCCL)})
"""All targets, by name; the first one is the default."""
