"""compile: from a Program to a proven Plan."""

from __future__ import annotations

from typing import Unpack

from sley.compiler.options import Options, OptionWords, check_flag
from sley.compiler.pipeline import Phase, build, check_kind, run_phase
from sley.compiler.search import choose
from sley.errors import without_inner_frames
from sley.errors.compiler import C309, C310
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Schedule
from sley.topologies import topology_of


@without_inner_frames
def compile(
    program: Program,
    options: Options | None = None,
    *,
    topology: Topology | str | None = None,
    size: int | str | None = None,
    verify: bool = True,
    **overrides: Unpack[OptionWords],
) -> Plan:
    """The plan for `program`, verified.

    options: how to compile it; by default all options are left open.
    topology: the cluster, whose links must carry all transfers, or its name, as for
        `sley.topologies.find`; by default the one that the program was written for, if any.
    size: for schedule auto, the size to optimize for, as nccl-tests counts it: a number of bytes,
        or a text such as "64M".
    verify: False skips the proof, for a caller that verifies the plan later.
    overrides: options by name, as in `Options`, which take precedence over `options`.

    Errors: C3xx for a program or options that can't be compiled, V2xx for a program that does not
    do what its collective promises, S702 for an invalid size, T604 for the name of no topology.
    """
    return compile_in_phases(
        program,
        Options.of(options, overrides),
        run_phase,
        topology=topology,
        size=size,
        verify=verify,
    )


def compile_in_phases(
    program: Program,
    options: Options,
    phase: Phase,
    *,
    topology: Topology | str | None = None,
    size: int | str | None = None,
    verify: bool = True,
) -> Plan:
    """`compile`, with each phase run by `phase`, for progress, times and the result of each pass.
    Errors: those of `compile`."""
    check_kind(program)
    cluster = None if topology is None else topology_of(topology)
    check_flag("verify", verify)
    if options.schedule is Schedule.AUTO:
        if size is None:
            raise C310.error(expected="size with schedule='auto'", found="none")
        choices = phase("choosing", lambda: choose(program, size, cluster, options))
        return choices.ranges[0].plan
    if size is not None:
        found = "left open" if options.schedule is None else repr(options.schedule.value)
        raise C309.error(
            expected="size with schedule='auto'",
            found=f"size={size!r} with schedule {found}",
            remedy="Ask for schedule='auto', or leave the size out: other plans are for all sizes.",
        )
    return build(program, options, topology=cluster, verify=verify, phase=phase)
