"""Policy: which plan runs for a call, as a tuner has learned it; a lookup, without the learning.

Files: policy (the values), files (reads and writes it as a table of plans), nccl_names (decisions
in NCCL's words), exports/ (policies as files of other runtimes).
"""

from sley.ir.plan_table import Machine as Machine
from sley.ir.plan_table import Measured as Measured
from sley.tuning.policy.files import read as read
from sley.tuning.policy.files import table_of as table_of
from sley.tuning.policy.files import write as write
from sley.tuning.policy.policy import Change as Change
from sley.tuning.policy.policy import Decision as Decision
from sley.tuning.policy.policy import Policy as Policy
from sley.tuning.policy.policy import Range as Range
