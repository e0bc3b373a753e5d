"""Errors: diagnostics, the rules that they cite, and the exception that contains them.

A rule's first letter identifies the stage: L language, C compiler, V verifier, F formats and
deployment, R runtime, K kernels and devices, N communicator, B PyTorch's backend, T topologies, S
simulation, P pictures and reports. (click handles wrong usage of the command line, with exit code
2.)
Files: diagnostic (Rule, Diagnostic, Place, SleyError), frames (tracebacks), catalog (all rules),
remote (diagnostics of other processes), and a file of rules for each family.
"""

from sley.errors.diagnostic import (
    Diagnostic,
    Place,
    Rule,
    SleyError,
    counted,
    did_you_mean,
    printable,
    reason_of,
    shortened,
)
from sley.errors.frames import without_inner_frames

__all__ = [
    "Diagnostic",
    "Place",
    "Rule",
    "SleyError",
    "counted",
    "did_you_mean",
    "printable",
    "reason_of",
    "shortened",
    "without_inner_frames",
]
