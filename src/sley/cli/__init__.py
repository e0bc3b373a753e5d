"""The command line: a file for each command, in the group `main`, and what they share.

compile, verify, lift, draw, import_schedule   programs and plans (catalogs: algorithms and rules)
synthesize, groups, replan                     programs and plans made for a topology
run                                            plans on this machine
exec                                           programs that call NCCL
package, doctor                                directories of plans for runtimes; programs
simulate, bound, compare, choose, calibrate,
topology                                       times
tune (with policy)                             tuners
main                                           the group of commands

sources: the programs and plans that WHAT stands for; nccl: NCCL's choices. options, simulating:
options, and the values that commands get from them. output: JSON, diagnostics, progress; examples:
for the help of commands;
annotations: diagnostics for services for code review.
"""

from sley.cli.main import main

__all__ = ["main"]
