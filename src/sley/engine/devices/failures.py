"""Failures: what the blocks of a failed call were waiting for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sley.engine import native
from sley.engine.kernels import Kernels
from sley.engine.outcomes import Outcome, Reason, Status, Stuck, describe
from sley.engine.program import Loaded
from sley.errors import Diagnostic, counted
from sley.errors.devices import K508
from sley.ir.plan import Plan


def failure(
    loaded: Loaded, kernels: Kernels, reports: Sequence[Mapping[str, int]], timeout_s: float
) -> Diagnostic:
    """K508 made of the reports of all devices' blocks."""
    loaded = _with_groups(loaded, kernels.plan)
    stuck: dict[int, list[tuple[Status, Stuck]]] = {}
    for report in reports:
        found = Status(report["status"]), _stuck(loaded, kernels, report)
        stuck.setdefault(report["rank"], []).append(found)
    outcomes = {rank: _outcome(found) for rank, found in stuck.items()}
    # Calls that differ do so for all blocks of two ranks; one block of each says it.
    differ = {
        rank: replace(one, stuck=calls[:1])
        for rank, one in outcomes.items()
        if (calls := tuple(s for s in one.stuck if s.reason is Reason.CALL))
    }
    places, lines = describe(loaded, differ or outcomes)
    first = min(reports, key=lambda one: one["ticks"])["call"]  # later calls end with it
    call = _in_words(first, first)
    return K508.diagnostic(
        at=places,
        expected="the same call on all ranks"
        if differ
        else f"no instruction to wait longer than {timeout_s:g} s in {call} of {loaded.plan.name}",
        found=lines[0],
        notes=lines[1:],
    )


def _with_groups(loaded: Loaded, plan: Plan) -> Loaded:
    """The same with the rows of the plan that kernels run, which may have groups."""
    first = plan.block_offset[plan.rank_block[:-1]].tolist()
    programs = tuple(
        replace(p, first_row=row) for p, row in zip(loaded.programs, first, strict=True)
    )
    return replace(loaded, plan=plan, programs=programs)


def _outcome(found: list[tuple[Status, Stuck]]) -> Outcome:
    """A rank's reports as one outcome: blocks that timed out, then those that were aborted."""
    ordered = sorted(found, key=lambda pair: pair[0])
    return Outcome(ordered[0][0], 0.0, -1, 0, tuple(s for _, s in ordered))


def _stuck(loaded: Loaded, kernels: Kernels, report: Mapping[str, int]) -> Stuck:
    plan, o, rank = loaded.plan, kernels.operands, report["rank"]
    first_block, first = int(plan.rank_block[rank]), loaded.programs[rank].first_row
    block = first_block + report["block"]
    reason, target = Reason(report["reason"]), report["target"]
    if reason is Reason.INSTRUCTION:
        target = int(plan.block_offset[first_block + target]) + report["number"] - first
    elif reason in (Reason.MESSAGE, Reason.CALL):
        target = int(o.receives.order[int(o.receives.offset[block]) + target])
    elif reason is Reason.SLOT:
        target = int(o.sends.order[int(o.sends.offset[block]) + target])
    else:
        target = int(o.sends.order[int(o.sends.offset[first_block]) + target])
    step = int(plan.block_offset[block]) + report["step"] - first
    calls = _in_words(report["call"], report["call"]), _in_words(report["other"], report["call"])
    return Stuck(step, report["tile"], reason, target, calls)


def _in_words(call: int, own: int) -> str:
    """A rank's call (`Setup::call`), if it is of the plan of one's own."""
    size_bytes, number = divmod(call, 1 << native.PLAN_BITS)
    if not call or number != own % (1 << native.PLAN_BITS):
        return "one of another plan"
    return f"a call of {counted(size_bytes, 'byte')} a block"
