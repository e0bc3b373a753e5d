"""Settings of the simulator on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import click

from sley.cli.options import standing_for
from sley.errors import did_you_mean
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.plan import Plan
from sley.ir.sizes import size_in_bytes
from sley.ir.topology import Topology
from sley.simulate import Simulator

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """How plans are simulated. values: parameters of the cost model that are given anew, as
    NAME=VALUE. interpreter: whether an interpreter runs the plans."""

    values: tuple[str, ...]
    interpreter: bool

    def model(self, topology: Topology | None) -> CostModel | None:
        """The cost model in place of a topology's; None where nothing is given anew. Errors: T602,
        click's for names that are no parameter."""
        if topology is None or not self.values:
            return None
        return _changed(topology.model, self.values)

    def simulator(self, plan: Plan, *, executions: bool = False) -> Simulator:
        """The simulator of a plan on the topology that it was compiled for. Errors: as
        `Simulator` and `model`."""
        return Simulator(
            plan,
            model=self.model(plan.topology),
            interpreter=self.interpreter,
            executions=executions,
        )


def simulation_options(command: F) -> F:
    """Adds --set and --interpreter; the command gets them as `settings`."""

    @click.option(
        "--set",
        "values",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the cost model: --set contention=0.1, "
        "--set nvlink_latency_us=0.6,1.9,3.4 (LL, LL128, Simple).",
    )
    @click.option(
        "--interpreter/--generated",
        default=False,
        help="An interpreter runs the plan (MSCCL), or code made for it.  [generated]",
    )
    def wrapper(*args: Any, values: tuple[str, ...], interpreter: bool, **others: Any) -> object:
        return command(*args, settings=Settings(values, interpreter), **others)

    return standing_for(command, wrapper)


def _changed(model: CostModel, values: tuple[str, ...]) -> CostModel:
    names = [f.name for f in fields(CostModel)]
    changes: dict[str, Any] = {}
    for value in values:
        name, _, text = value.partition("=")
        if name in changes:
            raise click.BadParameter(f"{name} is given twice", param_hint="--set")
        if name not in names:
            hint = did_you_mean(name, names) or f"There are {', '.join(names)}."
            raise click.BadParameter(f"{name!r} is no parameter. {hint}", param_hint="--set")
        numbers = [_number(name, part) for part in text.split(",")]
        split = isinstance(getattr(model, name), ByProtocol)
        if len(numbers) not in ((1, 3) if split else (1,)):
            wanted = "one number, or three" if split else "one number"
            raise click.BadParameter(f"{name} takes {wanted}", param_hint="--set")
        several = ByProtocol(*(numbers * 3)[:3]) if split else numbers[0]
        changes[name] = several
    return replace(model, **changes)


def _number(name: str, text: str) -> float:
    size = size_in_bytes(text) if name.endswith("_bytes") else None
    if size is None and not re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", text.strip()):
        raise click.BadParameter(f"{name}: {text[:40]!r} is no number", param_hint="--set")
    return float(text) if size is None else float(size)
