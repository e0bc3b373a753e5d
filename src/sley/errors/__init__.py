"""Errors: diagnostics, the rules they cite, and the exception that carries them.

A rule's first letter says which stage speaks: L language, C compiler, V verifier, F formats,
R runtime, K kernels and devices, N communicator, B PyTorch's backend, T topologies, S simulation, P
pictures and reports. (Wrong usage of the command line is click's matter and ends in exit code 2.)
"""

from sley.errors.diagnostic import (
    Diagnostic,
    Place,
    Rule,
    SleyError,
    counted,
    did_you_mean,
    shortened,
)

__all__ = [
    "Diagnostic",
    "Place",
    "Rule",
    "SleyError",
    "counted",
    "did_you_mean",
    "shortened",
]
