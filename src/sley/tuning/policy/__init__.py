"""Policy: which plan runs for a call, as a tuner has learned it; a lookup, without the learning.

Files: policy (a table of plans with a machine, as a value and a file), nccl_names (recipes in
NCCL's words), exports/ (policies as files of other runtimes).
"""

from sley.ir.plan_table import Machine as Machine
from sley.ir.plan_table import Measured as Measured
from sley.ir.plan_table import PlanRow as PlanRow
from sley.ir.plan_table import Recipe as Recipe
from sley.tuning.policy.policy import Policy as Policy
from sley.tuning.policy.policy import read as read
from sley.tuning.policy.policy import write as write
