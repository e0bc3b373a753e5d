"""Options: the compiler's options, as one validated value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, TypedDict, get_args, get_type_hints

import numpy as np

from sley.engine.limits import whole
from sley.errors import did_you_mean
from sley.errors.compiler import C304, C307
from sley.ir.words import MAX_NUMBER, Allocation, LoopOrder, Protocol, Schedule, member

WENT = {
    "costs": "Name a topology: its cost model (sley.CostModel, `topology.model`) has the costs."
}
"""What replaces the options that went, by name."""


def _option(line: str | None = None) -> Any:
    """An option that is left open by default.

    line: the help text of the command line; None for an option that it doesn't offer.
    """
    return field(default=None, metadata={"line": line})


@dataclass(frozen=True, repr=False)
class Options:
    """How to compile a program. None leaves an option open: `compile` then takes its default, and
    `choose` tries the values that fit.

    protocol: the protocol of the plan's connections (default: the program's, or Simple).
    schedule: msccl (the default) orders instructions by depth (MSCCLang 5.2), hpds and round-robin
        order whole transfers by sub-pipelines (ResCCL 4.3, 5.3). auto, with a size and a topology,
        takes the fastest values of all open options (`choose`).
    allocate: connection (the default) gives each connection its own thread blocks, state merges
        those that are never active at the same time (ResCCL 4.4), instance gives each parallel part
        of a rank one for all of its peers.
    channels: the number of channels for transfers that request none (default 1); fused chains that
        fit on none of them get further ones.
    instances: the number of parallel parts of the whole program (default 1).
    fusion: whether a receive and a send (only with msccl), or a copy within a rank and a send, may
        become one instruction (default: wherever they can).
    loop_order: tile or instruction. The default is instruction for hpds and round-robin, which is
        ResCCL's task level, and tile for msccl, which supports no other.
    max_blocks: the most thread blocks of a rank (default: no limit). If a rank would have more,
        those that are active at the same time for the shortest time are merged.
    slots: the number of messages that a connection holds at run time (default: the protocol's). The
        plan runs with this number or more.
    per_chunk: whether a message takes a slot for each of its chunks (default: no), as in MSCCL's
        kernels once a chunk fills a tile. A plan for them needs it.
    switches: whether switches make the transfers of a group together (default: yes); otherwise each
        has a message of its own, and any runtime can run the plan.

    Members of enumerations may be given by name. Errors: C304, C307.
    """

    protocol: Protocol | None = _option("Protocol. [the program's, or Simple]")
    schedule: Schedule | None = _option(
        "Order by depth (msccl), or by sub-pipelines of whole transfers; auto: the fastest for the "
        "size of a call, by simulation. A plan in a file is lifted and compiled again. [msccl]"
    )
    allocate: Allocation | None = _option(
        "One thread block for each connection, for several that are never active together (state), "
        "or for all connections of an instance. "
        "[connection]"
    )
    channels: int | None = _option("Number of channels. [1]")
    instances: int | None = _option("Number of parallel parts. [1]")
    fusion: bool | None = _option(
        "Fuse receives and copies with sends. [yes; hpds and round-robin fuse no receives, and "
        "refuse --fusion]"
    )
    loop_order: LoopOrder | None = _option(
        "Run tile by tile, or all tiles of an instruction at once. [instruction for hpds and "
        "round-robin]"
    )
    max_blocks: int | None = _option("Largest number of thread blocks of a rank.")
    slots: int | None = _option("Messages that a connection holds. [the protocol's number]")
    per_chunk: bool | None = _option()
    switches: bool | None = _option(
        "Let switches reduce and multicast where the program allows it. [yes]"
    )

    def __post_init__(self) -> None:
        for word, kind in kinds().items():
            value = getattr(self, word)
            if value is not None:
                object.__setattr__(self, word, _check(word, kind, value))

    def __repr__(self) -> str:
        words = {w: v.value if isinstance(v, Enum) else v for w, v in self.given().items()}
        return f"Options({', '.join(f'{word}={value!r}' for word, value in words.items())})"

    def given(self) -> dict[str, Any]:
        """The options that are not left open, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {word: value for word, value in values.items() if value is not None}

    def filled(self, others: Mapping[str, Any]) -> Options:
        """These options, with values from `others` for those that are left open."""
        return Options.of(None, {**others, **self.given()})

    @classmethod
    def of(cls, options: Options | None, overrides: Mapping[str, Any]) -> Options:
        """`options` (None: all left open) with some of them replaced. Errors: C304, C307."""
        if options is not None and not isinstance(options, Options):
            raise C307.error(
                expected="Options, such as sley.Options(instances=4)", found=repr(options)
            )
        if not isinstance(overrides, Mapping):
            expected = "options as sley.Options or a dict of them"
            raise C304.error(expected=expected, found=repr(overrides))
        for word in overrides:
            if word not in kinds():
                raise C304.error(
                    expected=f"options of {', '.join(kinds())}",
                    found=repr(word),
                    remedy=WENT.get(word) or did_you_mean(str(word), list(kinds())),
                )
        return replace(options or cls(), **overrides)


class OptionWords(TypedDict, total=False):
    """The fields of `Options` as arguments by name; members of enumerations may be words."""

    protocol: Protocol | str | None
    schedule: Schedule | str | None
    allocate: Allocation | str | None
    channels: int | None
    instances: int | None
    fusion: bool | None
    loop_order: LoopOrder | str | None
    max_blocks: int | None
    slots: int | None
    per_chunk: bool | None
    switches: bool | None


@cache
def kinds() -> dict[str, type]:
    """The types of the options by name, in order."""
    hints = get_type_hints(Options)
    return {f.name: get_args(hints[f.name])[0] for f in fields(Options)}


def check_flag(word: str, value: object) -> bool:
    """`value` as a bool. Errors: C304."""
    if not isinstance(value, (bool, np.bool_)):
        raise C304.error(expected=f"{word} as True or False", found=f"{word}={value!r}")
    return bool(value)


def _check(word: str, kind: type, value: object) -> object:
    """The value of an option, converted to its type. Errors: C304, C307."""
    if issubclass(kind, Enum):
        return member(kind, value, word, C304)
    if kind is bool:
        return check_flag(word, value)
    if kind is int:
        return whole(value, word, 1, MAX_NUMBER, C304)
    if not isinstance(value, kind):
        name = kind.__name__
        raise C307.error(expected=f"{name}, such as sley.{name}()", found=f"{word}={value!r}")
    return value
