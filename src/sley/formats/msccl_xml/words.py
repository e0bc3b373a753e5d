"""Words: MSCCL XML's names of operations, buffers and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sley.formats.msccl_xml.targets import TARGETS, XmlTarget
from sley.ir.collective import Collective
from sley.ir.collectives import Standard, standard
from sley.ir.words import Buffer, Op

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
