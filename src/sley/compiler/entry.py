"""compile: from a Program to a proven Plan."""

from __future__ import annotations

from typing import Any

from sley.compiler.options import Options, check_flag
from sley.compiler.pipeline import Phase, build, check_kinds, run_phase
from sley.compiler.search import choose
from sley.errors.compiler import C309, C310
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Schedule


def compile(
    program: Program,
    options: Options | None = None,
    *,
    topology: Topology | None = None,
    size_bytes: int | str | None = None,
    verify: bool = True,
    phase: Phase = run_phase,
    **overrides: Any,
) -> Plan:
    """The plan for `program`, verified.

    options: how to compile it; by default all options are left open.
    topology: where given, every transfer must go over one of its links, and those that share one
        are told apart; by default the one that the program was written for, if any.
    size_bytes: for schedule auto: the size that it is chosen for, as nccl-tests counts it.
    verify: False leaves the proof out, for whoever proves the plan later.
    phase: runs each phase, for progress, times and what comes of each pass.
    overrides: options by name, as `Options` describes them, which go before those of `options`.

    Errors: C3xx for what cannot be compiled, V2xx for a program that does not do what its
    collective promises, S702 for what is no size.
    """
    check_kinds(program, topology)
    check_flag("verify", verify)
    options = Options.of(options, overrides)
    if options.schedule is Schedule.AUTO:
        if size_bytes is None:
            raise C310.error(expected="size_bytes with schedule='auto'", found="none")
        choices = phase("choosing", lambda: choose(program, size_bytes, topology, options))
        return choices.ranges[0].plan
    if size_bytes is not None:
        found = "left open" if options.schedule is None else repr(options.schedule.value)
        raise C309.error(
            expected="size_bytes with schedule='auto'",
            found=f"size_bytes={size_bytes!r} with schedule {found}",
            remedy="Ask for schedule='auto', or leave the size out: other plans are for all sizes.",
        )
    return build(program, options, topology=topology, verify=verify, phase=phase)
