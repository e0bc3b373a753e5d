"""Critical: the critical path of a simulation as steps, each with its source line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Place
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray
from sley.ir.words import Op
from sley.model.simulation.result import Cause, Simulation, TileExecutions

CAUSE_WORDS = {
    Cause.LAUNCH: "launch",
    Cause.TURN: "the instruction before it",
    Cause.WAIT: "another block",
    Cause.MESSAGE: "a message",
    Cause.SLOT: "a free slot",
}
"""The causes of waiting in words."""


@dataclass(frozen=True)
class CriticalStep:
    """Consecutive executions of the critical path with the same source line and callers.

    times: number of executions.
    start_us, end_us: from the end of the step before to the end of the step's last execution.
    moving_us: the part of this time in which data moves; the rest are hops, waits and overhead.
    causes: the last cause of waiting of each execution, each once.
    ops: names of the operations.
    ranks: the ranks of the executions, each once, in the order of the path.
    line: "ring.py:7", or "ring.py:7 from :3" if a function has the line and is called there;
        empty if the plan has no source lines.
    first: the first execution's instruction; `Plan.label` names it.
    """

    times: int
    start_us: float
    end_us: float
    moving_us: float
    causes: tuple[Cause, ...]
    ops: tuple[str, ...]
    ranks: tuple[int, ...]
    line: str
    first: int

    @property
    def duration_us(self) -> float:
        return self.end_us - self.start_us


def critical_steps(simulation: Simulation) -> list[CriticalStep]:
    """The critical path from the launch to the end, consecutive executions of a line merged."""
    plan, path = simulation.plan, simulation.critical
    if not len(path):
        return []
    line = _line_numbers(plan, path)
    first = np.flatnonzero(np.append(True, line[1:] != line[:-1]))
    end = np.maximum.accumulate(np.maximum(path.end_us, simulation.launch_us))
    begin = np.append(simulation.launch_us, end[:-1])
    moving = np.minimum(path.moving_us, end - begin)
    steps = []
    for a, b in zip(first.tolist(), [*first[1:].tolist(), len(path)], strict=True):
        rows = path.instruction[a:b]
        steps.append(
            CriticalStep(
                times=b - a,
                start_us=float(begin[a]),
                end_us=float(end[b - 1]),
                moving_us=float(moving[a:b].sum()),
                causes=tuple(Cause(int(c)) for c in np.unique(path.cause[a:b])),
                ops=tuple(op_name(op) for op in np.unique(plan.instructions.op[rows]).tolist()),
                ranks=tuple(dict.fromkeys(plan.rank[rows].tolist())),
                line=_line(plan.place(int(rows[0]))),
                first=int(rows[0]),
            )
        )
    return steps


def on_path(simulation: Simulation, executions: TileExecutions) -> BoolArray:
    """bool (executions,): whether each is on the critical path."""
    s = simulation
    keys = [e.instruction.astype(np.int64) * s.tiles + e.tile for e in (executions, s.critical)]
    return np.isin(keys[0], keys[1])


def longest_steps(steps: list[CriticalStep], most: int) -> list[int]:
    """The positions of the longest steps, ascending."""
    order = sorted(range(len(steps)), key=lambda n: (-steps[n].duration_us, n))
    return sorted(order[:most])


def _line(place: Place) -> str:
    """The place and its callers; a file that several have in turn is named once."""
    words, file = "", None
    for one in (place, *place.callers):
        own = one.short if one.file != file else f":{one.line}"
        words, file = f"{words} from {own}" if words else own, one.file
    return words


def _line_numbers(plan: Plan, path: TileExecutions) -> np.ndarray:
    """A number for the source line of each execution and its callers, or a negative one for its
    operation if it has no line."""
    source = plan.instructions.source[path.instruction].astype(np.int64)
    s = plan.sources
    _, number = np.unique(np.column_stack((s.file, s.line, s.caller)), axis=0, return_inverse=True)
    place = np.append(number, -1)[source]
    return np.where(source < 0, -2 - plan.instructions.op[path.instruction], place)


def op_name(op: int) -> str:
    """An operation's name in words: "recv reduce copy"."""
    return Op(op).name.lower().replace("_", " ")


def times_by_line(steps: list[CriticalStep]) -> dict[str, tuple[int, float]]:
    """The number of executions of each source line (or operation without a line) on the path, and
    their time; the longest first."""
    lines: dict[str, tuple[int, float]] = {}
    for step in steps:
        name = step.line or " and ".join(step.ops)
        times, time_us = lines.get(name, (0, 0.0))
        lines[name] = (times + step.times, time_us + step.duration_us)
    return dict(sorted(lines.items(), key=lambda item: (-item[1][1], item[0])))
