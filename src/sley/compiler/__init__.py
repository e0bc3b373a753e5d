"""Compiler: the proven Plan of a Program, with given options or the fastest ones.

`entry` is `compile`, also for callers that follow its phases; `pipeline` runs the passes with
`options`. `search` finds the fastest of the plans of a `space` of options by simulation; the result
is a table of `choices`. `nccl_plans` compiles what NCCL chooses.
"""

from sley.compiler.choices import Choice, Choices, Prediction, RunnerUp
from sley.compiler.entry import compile, compile_in_phases
from sley.compiler.nccl_plans import nccl_plan
from sley.compiler.options import Options
from sley.compiler.search import choose

__all__ = [
    "Choice",
    "Choices",
    "Options",
    "Prediction",
    "RunnerUp",
    "choose",
    "compile",
    "compile_in_phases",
    "nccl_plan",
]
