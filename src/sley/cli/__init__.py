"""The command line: a file for each command, in the group `main`, and what they share.

Commands: calibrate, catalogs (list, explain), choose, compare, compile, doctor, draw,
import_schedule, lift, package, run (with engines), simulate, topology, verify; tune_group: tune
(with tune_agent, tune_live, tune_tables, tune_trainings), sweep, policy.
Shared: options, measuring and simulating (options, and the values that commands get from them),
sources (programs and plans of WHAT, with collectives and nccl), output (JSON, diagnostics,
progress).
"""

from sley.cli.main import main

__all__ = ["main"]
