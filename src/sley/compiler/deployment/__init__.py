"""Deployment: directories of files for runtimes.

`runtimes` are libraries that might read plans, by version. `folders` reads a directory as a runtime
does: its `candidates` are files of MSCCL XML or execution plans. `examination` finds what is wrong
in a directory, and `decisions` which file runs for a call. `packages` writes
directories, of the rows of a plan table, and `registration` is the program that registers plans
with MSCCL++.
"""

from sley.compiler.deployment.decisions import OPERATIONS as OPERATIONS
from sley.compiler.deployment.decisions import TYPES as TYPES
from sley.compiler.deployment.decisions import CallAction as CallAction
from sley.compiler.deployment.decisions import CallDecision as CallDecision
from sley.compiler.deployment.decisions import DeployedCall as DeployedCall
from sley.compiler.deployment.decisions import decide as decide
from sley.compiler.deployment.examination import Examination as Examination
from sley.compiler.deployment.examination import examine as examine
from sley.compiler.deployment.folders import check_path as check_path
from sley.compiler.deployment.packages import PackageFile as PackageFile
from sley.compiler.deployment.packages import copied_part as copied_part
from sley.compiler.deployment.packages import left_out as left_out
from sley.compiler.deployment.packages import naming as naming
from sley.compiler.deployment.packages import node_of as node_of
from sley.compiler.deployment.packages import plan_part as plan_part
from sley.compiler.deployment.packages import write_package as write_package
from sley.compiler.deployment.runtimes import RUNTIMES as RUNTIMES
from sley.compiler.deployment.runtimes import Runtime as Runtime
from sley.compiler.deployment.runtimes import names as names
from sley.compiler.deployment.runtimes import runtime_named as runtime_named
from sley.compiler.deployment.runtimes import runtime_of as runtime_of
