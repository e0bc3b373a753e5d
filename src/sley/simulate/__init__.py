"""The simulator: how fast a plan is on a cluster, and why."""

from sley.simulate.equations import Estimates, LevelEstimate, estimate
from sley.simulate.result import Cause, Executions, LinkLoad, Simulation
from sley.simulate.simulator import Simulator, simulate

__all__ = [
    "Cause",
    "Estimates",
    "Executions",
    "LevelEstimate",
    "LinkLoad",
    "Simulation",
    "Simulator",
    "estimate",
    "simulate",
]
