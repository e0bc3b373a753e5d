"""The simulator: predicts a plan's time on a cluster, and shows what limits it."""

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
