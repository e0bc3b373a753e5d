"""Policy: which plan runs for a call, as a tuner has learned it; a lookup, without the learning.

The value and its file are in `communicator.selection.policy`, as communicators read them too.
Files: nccl_names (recipes in NCCL's words), exports/ (policies as files of other runtimes).
"""

from sley.communicator.selection.policy import Policy as Policy
from sley.communicator.selection.policy import read as read
from sley.communicator.selection.policy import write as write
from sley.ir.plan_table import Machine as Machine
from sley.ir.plan_table import Measured as Measured
from sley.ir.plan_table import PlanRow as PlanRow
from sley.ir.plan_table import Recipe as Recipe
