"""Lower bounds on the time of a collective on a topology, for any algorithm.

Files: bound (the value for one size), bounds (all sizes), needs (the data that must move), cuts and
network (capacities of cuts), groups (natural groups of GPUs), spread, allreduce, exchange, mixed
(the bandwidth bound for each kind of needs), latency.
"""

from sley.bounds.bound import Bound
from sley.bounds.bounds import Bounds, bound

__all__ = ["Bound", "Bounds", "bound"]
