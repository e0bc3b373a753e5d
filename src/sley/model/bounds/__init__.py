"""Lower bounds on the time of a collective on a topology, for any algorithm.

Files: bounds (the result), needs (the data that must move), cuts and network (capacities of cuts),
groups (natural groups of GPUs), spread, allreduce, exchange, mixed (the bandwidth bound for each
kind of needs), trees (the fastest along paths), latency, loads (the busiest link of a program).
"""

from sley.model.bounds.bounds import Bound, Bounds, bound

__all__ = ["Bound", "Bounds", "bound"]
