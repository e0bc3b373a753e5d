"""Errors: diagnostics, the rules that they cite, and what must end in one whatever the system does.

A rule's first letter identifies the stage: L language, C compiler, V verifier, D policies and
tuning, F formats, schedules and deployment, R runtime, K kernels and devices, N communicator, B
PyTorch's backend, T topologies, S simulation, P pictures and reports. (click handles wrong usage of
the command line, with exit code 2.)

diagnostic.py     Rule, Diagnostic, Place, SleyError
frames.py         tracebacks without sley's own frames
catalog.py        all rules; each family has a file: language, rescclang, schedules, compiler,
                  verifier, formats, mscclpp, deployment, runtime, devices, communicator, calls,
                  selection, policy, tuning, torch, topology, simulation, report
remote.py         diagnostics of other processes
successors.py     what replaces the commands, options and names that went
recognition.py    what kind of file a path names, by its content
text_files.py     text and TOML, read within limits
disk_cache.py     compiled files on disk, by their inputs
aside.py          system calls that may never return, in a thread of their own
"""

from sley.errors.diagnostic import (
    Diagnostic,
    Place,
    Rule,
    SleyError,
    check_name,
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
    "check_name",
    "counted",
    "did_you_mean",
    "printable",
    "reason_of",
    "shortened",
    "without_inner_frames",
]
