"""Options: how a program is compiled, checked, and as a value to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from sley.errors import did_you_mean
from sley.errors.compiler import C304, C307
from sley.ir.words import MAX_NUMBER, Allocation, LoopOrder, Protocol, Schedule, is_integer
from sley.passes.timeline import Costs

AUTO: Final = "auto"
"""The schedule, and what else is left open, that the simulator finds fastest."""

Auto: TypeAlias = Literal["auto"]

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Options:
    """What `compile` takes besides program and topology, and means the same there; names are taken
    for members.

    `sley.compile(program, topology=topology, **options.arguments())` is the plan of these options.
    Errors: C304, C307.
    """

    protocol: Protocol | None = None
    schedule: Schedule = Schedule.MSCCL
    allocate: Allocation = Allocation.CONNECTION
    channels: int = 1
    instances: int = 1
    fusion: bool | None = None
    loop_order: LoopOrder | None = None
    slots: int | None = None
    per_chunk: bool = False
    max_blocks: int | None = None
    costs: Costs | None = None

    def __post_init__(self) -> None:
        settled: dict[str, Enum | None] = {
            "protocol": protocol_named(self.protocol),
            "schedule": named(Schedule, "schedule", self.schedule),
            "allocate": named(Allocation, "allocate", self.allocate),
        }
        if self.loop_order is not None:
            settled["loop_order"] = named(LoopOrder, "loop_order", self.loop_order)
        for word, value in settled.items():
            object.__setattr__(self, word, value)
        if self.costs is not None and not isinstance(self.costs, Costs):
            raise C307.error(expected="Costs, such as sley.Costs(tiles=4)", found=repr(self.costs))
        check_flags(fusion=self.fusion, per_chunk=self.per_chunk)
        check_numbers(
            slots=self.slots,
            channels=self.channels,
            instances=self.instances,
            max_blocks=self.max_blocks,
        )

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Options:
        """Those that a dict names. Errors: C304, C307."""
        words = [f.name for f in fields(cls)]
        for word in said:
            if word not in words:
                near = did_you_mean(str(word), words)
                expected = f"options of {', '.join(words)}"
                raise C304.error(expected=expected, found=f"{word!r}", remedy=near)
        return cls(**said)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `compile` that are not what they are by default."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {word: value for word, (value, default) in values.items() if value != default}


def check_flags(**options: object) -> None:
    """Refuses what is no truth value where one is needed. Errors: C304."""
    for word, value in options.items():
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise C304.error(expected=f"{word} as True or False", found=f"{word}={value!r}")


def check_numbers(**options: object) -> None:
    """Refuses numbers that mean nothing. Errors: C304."""
    for word, value in options.items():
        if value is not None and not (is_integer(value) and 1 <= value <= MAX_NUMBER):  # type: ignore[operator]
            expected = f"{word} from 1 to {MAX_NUMBER}"
            raise C304.error(expected=expected, found=f"{word}={value!r}")


def named(kind: type[E], word: str, value: E | str) -> E:
    """The member of `kind` that a value is, or names in any case. Errors: C304."""
    name = value.lower() if isinstance(value, str) else None
    for member in kind:
        if value is member or name == str(member.value).lower():
            return member
    expected = "one of " + ", ".join(str(member.value) for member in kind)
    raise C304.error(expected=expected, found=f"{word}={value!r}")


def protocol_named(protocol: Protocol | str | None) -> Protocol | None:
    """The protocol asked for, by itself or by name. Errors: C304."""
    return None if protocol is None else named(Protocol, "protocol", protocol)
