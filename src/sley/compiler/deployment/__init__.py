"""Deployment: directories of files for runtimes.

`runtimes` are libraries that might read plans, by version. `folders` reads a directory as a runtime
does: its `candidates` are files of MSCCL XML or execution plans. `examination` finds what is wrong
in a directory, and `decisions` which file runs for a call. `packages` writes
directories, of the rows of a plan table, and `registration` is the program that registers plans
with MSCCL++. `nccl_programs` puts sley in the place of NCCL.
"""

from sley.compiler.deployment.decisions import CallAction as CallAction
from sley.compiler.deployment.decisions import DeployedCall as DeployedCall
from sley.compiler.deployment.decisions import decide as decide
from sley.compiler.deployment.examination import examine as examine
from sley.compiler.deployment.runtimes import runtime_named as runtime_named
