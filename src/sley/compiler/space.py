"""Space: the options that `choose` tries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product
from typing import Any

import numpy as np

from sley.compiler.options import Options
from sley.errors.compiler import C304
from sley.formats import FORMATS, Target
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.words import FIFO_PROTOCOLS, MAX_NUMBER, Allocation, LoopOrder, Protocol, Schedule

INSTANCES = (1, 2, 4, 8, 16, 24)
CHANNELS = (1, 2, 4)
"""The values of instances and channels to try."""

_WHOLE = (Schedule.HPDS, Schedule.ROUND_ROBIN)

SEARCHED = ("schedule", "allocate", "channels", "protocol", "instances")
"""The options that are tried if they are open. Of two candidates the simpler one has the earlier
value of the first of these options in which they differ."""


@dataclass(frozen=True)
class Space:
    """The combinations of the values of `tried`, with `fixed` for the other options.

    tried: values of options, the simplest first. fixed: options of `SEARCHED` that it leaves open
    get the values that fit the program (`series`).
    target: the runtime that must be able to run the plans, or None.
    most_blocks: of a rank, in plans that `max_blocks` doesn't limit; None for as many as a GPU has
        multiprocessors.
    """

    tried: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Options = field(default_factory=Options)
    target: Target | None = None
    most_blocks: int | None = None

    @classmethod
    def of(
        cls,
        options: Options | None,
        overrides: Mapping[str, Any],
        target: Target | None = None,
        most_blocks: int | None = None,
    ) -> Space:
        """The space of options, whose overrides may be lists of values. Errors: C304, C307."""
        lists = {
            word: list(value)
            for word, value in overrides.items()
            if isinstance(value, Iterable) and not isinstance(value, str)
        }
        fixed = Options.of(options, {w: v for w, v in overrides.items() if w not in lists})
        if fixed.schedule is Schedule.AUTO:
            fixed = replace(fixed, schedule=None)
        if target is not None:
            fixed = fixed.filled(FORMATS[target.suffix].needs)
        tried = {word: _values(word, values) for word, values in lists.items()}
        return cls(tried, fixed, target, most_blocks)

    def series(self, program: Program) -> Iterator[list[Options]]:
        """The options to try for a program, the simplest first: series of ascending instances."""
        further = [word for word in self.tried if word not in SEARCHED]
        for values in product(*(self.tried[word] for word in further)):
            fixed = replace(self.fixed, **dict(zip(further, values, strict=True)))
            axes = [self._axis(word, fixed, program) for word in SEARCHED]
            for chosen in product(*axes[:-1]):
                base = replace(fixed, **dict(zip(SEARCHED[:-1], chosen, strict=True)))
                # Only on request does a block move whole transfers, one peer after another.
                serial = base.allocate is Allocation.INSTANCE and base.schedule in _WHOLE
                if serial and fixed.allocate is None and "allocate" not in self.tried:
                    continue
                yield [replace(base, instances=instances) for instances in axes[-1]]

    def _axis(self, word: str, fixed: Options, program: Program) -> tuple[Any, ...]:
        """The values to try of a searched option."""
        if word in self.tried:
            return self.tried[word]
        given = getattr(fixed, word)
        return _fitting(fixed, program)[word] if given is None else (given,)


def _values(word: str, values: list[Any]) -> tuple[Any, ...]:
    """The distinct values in a list for an option: members in the order of their enumeration,
    numbers in ascending order, others in the order of the list. Errors: C304, C307."""
    checked = [getattr(Options.of(None, {word: value}), word) for value in values]
    if not checked or None in checked or Schedule.AUTO in checked:
        raise C304.error(
            expected=f"{word} as a list of one value or more to try", found=f"{word}={values!r}"
        )
    distinct = list(dict.fromkeys(checked))
    kind = type(distinct[0])
    if issubclass(kind, Enum):
        return tuple(one for one in kind if one in distinct)
    return tuple(sorted(distinct) if issubclass(kind, int) else distinct)


def _fitting(fixed: Options, program: Program) -> dict[str, tuple[Any, ...]]:
    """The values of each searched option that fit the fixed options and a program."""
    t = program.transfers
    # Whether switches make transfers together.
    has_groups = fixed.switches is not False and bool((t.group != NONE).any())
    schedules: tuple[Schedule, ...] = _WHOLE
    if fixed.fusion or has_groups:
        schedules = (Schedule.MSCCL,)
    elif fixed.loop_order is not LoopOrder.INSTRUCTION:
        schedules = (Schedule.MSCCL, *_WHOLE)
    by_connection = t.by_hand.any() or has_groups
    # Whether the compiler may choose the channel of any transfer.
    has_open_channel = ((t.channel == NONE) & t.remote & ~t.by_hand).any()
    # Others have DIRECT only on request: most runtimes have none.
    protocols = (Protocol.SIMPLE, Protocol.DIRECT) if has_groups else FIFO_PROTOCOLS
    parts = int(np.lcm.reduce(t.instances.astype(np.int64))) if len(t) else 1
    return {
        "schedule": schedules,
        "allocate": (Allocation.CONNECTION,) if by_connection else tuple(Allocation),
        "channels": CHANNELS if has_open_channel else (1,),
        "protocol": (program.protocol,) if program.protocol else protocols,
        "instances": tuple(i for i in INSTANCES if i * parts <= MAX_NUMBER) or (1,),
    }
