"""Targets: the runtimes that load MSCCL XML, with their limits and names; the format's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sley.formats.format import NO_LIMIT, Target
from sley.formats.rewriting import remove_nops, unfuse
from sley.ir.collective import Collective
from sley.ir.collectives import Standard, standard
from sley.ir.plan import Plan
from sley.ir.words import Buffer, Op, Protocol

SUFFIX = ".xml"


_COMMON = {name: name for name in ("allreduce", "allgather", "reduce", "broadcast", "alltoall")}
_MIB, _KIB = 1 << 20, 1 << 10


def _slots(ll: int, ll128: int) -> Mapping[Protocol, int]:
    return {Protocol.SIMPLE: 2 * _MIB, Protocol.LL: ll, Protocol.LL128: ll128}


@dataclass(frozen=True, repr=False, kw_only=True)
class XmlTarget(Target):
    """A runtime that loads MSCCL XML: its limits and its names, by default as most runtimes have
    them.

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

    suffix: str = SUFFIX
    steps_per_block: int = 64
    blocks: int
    channels: int
    count: int = 71
    peers_per_channel: int = 32
    waited_block: int = 127
    offset: int = 32767
    reduce_run: int = 16
    nodes: int | None = 4095
    children: int | None = 1024
    attribute_chars: int | None = 255
    operations: frozenset[Op] = frozenset(Op) - {Op.COPY_SEND}
    collectives: Mapping[str, str] = field(
        default_factory=lambda: {
            **_COMMON,
            "reducescatter": "reducescatter",
            "gather": "gather",
            "scatter": "scatter",
        }
    )
    custom_collective: str | None = None
    max_is_inclusive: bool = True
    no_limit_bytes: int = 0
    default_max_bytes: int | None = None
    takes_threads: bool = False
    reads_both_places: bool = True
    keeps_input: bool = True
    compares_sizes: bool = False
    slot_bytes: Mapping[Protocol, int] = field(
        default_factory=lambda: _slots(ll=32 * _KIB, ll128=576_000)
    )
    short_slots: frozenset[str] = frozenset({"broadcast", "reduce"})

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


EXECUTOR = XmlTarget(name="executor", blocks=1024, channels=32)
"""Azure's msccl-executor-nccl."""

RCCL = XmlTarget(
    name="rccl",
    blocks=64,
    channels=128,
    operations=frozenset({Op.NOP, Op.SEND, Op.RECV, Op.COPY, Op.REDUCE}),
    slot_bytes=_slots(ll=16 * _KIB, ll128=230_400),
)
"""AMD's RCCL in its MSCCL mode, which parses fused operations, but then fails the call."""

MSCCL = XmlTarget(
    name="msccl",
    steps_per_block=256,
    blocks=216,
    channels=32,
    count=72,
    nodes=None,
    children=None,
    attribute_chars=None,
    collectives={**_COMMON, "reducescatter": "reduce_scatter"},
    custom_collective="custom",
    max_is_inclusive=False,
    no_limit_bytes=1 << 40,
    default_max_bytes=128 * _MIB,
    takes_threads=True,
    reads_both_places=False,
    compares_sizes=True,
    short_slots=frozenset(),
)
"""Microsoft's original runtime."""

TARGETS: Mapping[str, XmlTarget] = MappingProxyType({t.name: t for t in (EXECUTOR, RCCL, MSCCL)})
"""All targets, by name; the first one is the default."""

OPERATIONS: Mapping[str, Op] = MappingProxyType(
    {
        "nop": Op.NOP,
        "s": Op.SEND,
        "r": Op.RECV,
        "cpy": Op.COPY,
        "re": Op.REDUCE,
        "rrc": Op.RECV_REDUCE_COPY,
        "rcs": Op.RECV_COPY_SEND,
        "rrs": Op.RECV_REDUCE_SEND,
        "rrcs": Op.RECV_REDUCE_COPY_SEND,
    }
)
OPERATION_WORDS: Mapping[Op, str] = MappingProxyType({op: w for w, op in OPERATIONS.items()})

BUFFERS: Mapping[str, Buffer] = MappingProxyType({buffer.word[0]: buffer for buffer in Buffer})

COLLECTIVE_NAMES: Mapping[str, str] = MappingProxyType(
    {word: name for target in TARGETS.values() for name, word in target.collectives.items()}
)
"""sley's name of each collective by its names in files, of all runtimes."""

CUSTOM = "custom"
"""msccl's name of all other collectives."""


def parts_per_loop(row: Standard, ranks: int) -> int:
    """The number of parts of a call's whole element count, which `nchunksperloop` divides: one for
    each rank, but only one for a rooted collective."""
    return ranks if row.has_parts and not row.roles else 1


def name_and_chunks(collective: Collective, target: XmlTarget) -> tuple[str | None, int]:
    """The target's name of a collective, None without one; and the number of chunks of a call's
    whole element count, which is `nchunksperloop`."""
    word, row = target.collectives.get(collective.name), standard(collective)
    if word is not None and row is not None:
        return word, collective.chunks * parts_per_loop(row, collective.ranks)
    return target.custom_collective, collective.chunks
