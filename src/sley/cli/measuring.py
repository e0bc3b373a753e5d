"""How a plan is measured: the options of commands that run plans over sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from sley.cli.options import REDUCE_OPS, DType, SizeType, standing_for
from sley.engine.limits import TIMEOUT_S

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Measuring:
    """The values of `measuring_options`. reduce_op: nccl-tests' name."""

    iterations: int
    warmup: int
    check: bool
    dtype: str
    reduce_op: str
    slot_bytes: int | None
    timeout_s: float

    @property
    def settings(self) -> dict[str, Any]:
        """What functions that measure take; no slot_bytes where none were given."""
        found = {**vars(self), "reduce_op": REDUCE_OPS[self.reduce_op]}
        if self.slot_bytes is None:
            del found["slot_bytes"]
        return found


def measuring_options(iterations: str, slot_bytes: str) -> Callable[[F], F]:
    """Adds the options of nccl-tests for runs; the command gets them as `measuring`.

    iterations, slot_bytes: the texts of these options.
    """

    def decorate(command: F) -> F:
        @click.option(
            "-n",
            "--iterations",
            type=click.IntRange(min=1),
            default=20,
            show_default=True,
            help=iterations,
        )
        @click.option(
            "-w",
            "--warmup",
            type=click.IntRange(min=0),
            default=5,
            show_default=True,
            help="Runs before the timed ones.",
        )
        @click.option(
            "-c",
            "--check",
            type=click.IntRange(0, 1),
            default=1,
            show_default=True,
            help="Check results.",
        )
        @click.option(
            "-d", "--dtype", type=DType(), default="float32", show_default=True, help="Type."
        )
        @click.option(
            "-o",
            "--op",
            "reduce_op",
            type=click.Choice(list(REDUCE_OPS)),
            default="sum",
            show_default=True,
        )
        @click.option("--slot-bytes", type=SizeType(), help=slot_bytes)
        @click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0.1),
            default=TIMEOUT_S,
            help="Seconds.",
        )
        def wrapper(
            *args: Any,
            iterations: int,
            warmup: int,
            check: int,
            dtype: str,
            reduce_op: str,
            slot_bytes: int | None,
            timeout_s: float,
            **values: Any,
        ) -> object:
            measuring = Measuring(
                iterations, warmup, bool(check), dtype, reduce_op, slot_bytes, timeout_s
            )
            return command(*args, measuring=measuring, **values)

        return standing_for(command, wrapper)

    return decorate
