"""Scripts: the programs of scripts that are written for msccl-tools, compiled and proven."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sley.compiler import Options, compile
from sley.errors import without_inner_frames
from sley.formats import TARGETS, Format
from sley.formats.files import FORMATS, render
from sley.ir.plan import Plan
from sley.lang import msccl
from sley.lang.msccl import ScriptProgram

_TARGETS = {".xml": "msccl", ".json": "mscclpp"}
"""The runtimes for which scripts are written: msccl also runs their own collectives."""


@without_inner_frames
def load_msccl(
    path: str | os.PathLike[str], arguments: Sequence[str] = (), *, target: str | None = None
) -> tuple[ScriptProgram, ...]:
    """The programs of a script that is written for msccl-tools, which need not be installed.

    The script runs as `python path arguments...` would run it. What it prints appears on standard
    output; XML() prints the plan that sley compiles, proven.

    target: the runtime for which XML() prints plans; by default msccl, for which such scripts are
        written.
    Errors: L1xx with the script's line, and for XML() and Json() those of `compile` and `save`.
    """
    plans = ScriptPlans(Path(path), target)
    return msccl.run(path, arguments, plans.text)


@dataclass
class ScriptPlans:
    """The plans of a script's programs. Each is compiled once for a format.

    path: the script. target: the runtime to write plans for; None for the default of the format.
    """

    path: Path
    target: str | None = None
    _plans: dict[tuple[int, str], tuple[ScriptProgram, Plan]] = field(default_factory=dict)

    def plan(self, script: ScriptProgram, form: Format) -> Plan:
        """A program's plan for a format, not yet proven. Errors: C3xx."""
        key = (id(script), form.suffix)
        if key not in self._plans:
            options = Options(fusion=script.fusion).filled(form.needs)
            self._plans[key] = script, compile(script.program, options, verify=False)
        return self._plans[key][1]

    def target_of(self, suffix: str) -> str | None:
        """The runtime to write a file of a suffix for; None if files of the format have none."""
        if self.target is not None and TARGETS[self.target].suffix == suffix:
            return self.target
        return _TARGETS.get(suffix)

    def text(self, script: ScriptProgram, suffix: str) -> str:
        """The text of a program's plan in the format of a suffix, proven. Errors: those of
        `compile` and `save`."""
        plan = self.plan(script, FORMATS[suffix])
        file = self.path.with_suffix(suffix)
        return str(render(plan, file, target=self.target_of(suffix))[file])
