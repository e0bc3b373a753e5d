"""Compiler: the proven Plan of a Program, with given options or the fastest ones.

`opening` recognises what a user brings, and opens it as a program or a plan. `entry` is `compile`,
also for callers that follow its phases; `pipeline` runs the passes with `options`. `search` finds
the fastest of the plans of a `space` of options by simulation; the result is a table of `choices`.
"""

from sley.compiler.choices import Choice, Choices, Prediction, RunnerUp
from sley.compiler.entry import compile, compile_in_phases
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
]
