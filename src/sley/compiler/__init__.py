"""Compiler: the proven Plan of a Program, with given options or the fastest ones.

entry.py         `compile`, also for callers that follow its phases
pipeline.py      runs the passes with options.py
passes/          the passes, and lift/, which goes back
search.py        finds the fastest plans of a space of options (space.py) by simulation
                 (candidates.py, comparison.py), and goes on from a file (search_record.py); the
                 result is a table of choices (choices.py)
interrupts.py    what Ctrl-C ends in the processes that compare plans, here and in tuning
synthesis.py     makes programs for topologies, of which tree_search.py finds the fastest
group_plans.py   plans for groups of ranks that share a cluster
opening.py       what a user brings, recognised and opened as a program or a plan
nccl_plans.py    the plans that NCCL chooses, compiled
deployment/      directories of files for runtimes: reads them as a runtime does, and writes them
"""

from sley.compiler.choices import Choice as Choice
from sley.compiler.choices import Choices as Choices
from sley.compiler.choices import Prediction as Prediction
from sley.compiler.choices import RunnerUp as RunnerUp
from sley.compiler.entry import compile as compile
from sley.compiler.entry import compile_in_phases as compile_in_phases
from sley.compiler.nccl_plans import nccl_plan as nccl_plan
from sley.compiler.options import Options as Options
from sley.compiler.search import choose as choose
