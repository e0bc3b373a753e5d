"""The compiler: from a Program to a proven Plan, with the options given or with the fastest ones.

`pipeline` runs the passes; `search` chooses among the plans that they make, by simulation.
"""

from sley.compiler.choices import Choice, Choices, Prediction, RunnerUp
from sley.compiler.entry import compile
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
]
