"""Simulate: predicts a plan's time on a cluster, and shows what limits it.

`simulator` runs the compiled event loop on `inputs`, made of `routes` (links between the ends of
connections) and `moves` (the data that crosses them); `result` has the times. `at_once` simulates
calls of groups that share a cluster; `least` bounds times without a simulation.
"""

from sley.model.simulation.at_once import GroupRun, simulate_at_once
from sley.model.simulation.least import LeastTime
from sley.model.simulation.result import Cause, LinkLoad, Simulation, TileExecutions
from sley.model.simulation.simulator import Simulator, simulate

__all__ = [
    "Cause",
    "GroupRun",
    "LeastTime",
    "LinkLoad",
    "Simulation",
    "Simulator",
    "TileExecutions",
    "simulate",
    "simulate_at_once",
]
