"""Agents: what learns from measured times, all behind the interface `Agent`.

Files: agent (the interface), contextual (Thompson sampling of a Gaussian process), recurrent (a
trained policy, and its training), recurrent_policy (its network), checkpoint (its file).
"""

from sley.tuning.agents.agent import Agent as Agent
from sley.tuning.agents.agent import ArmPrediction as ArmPrediction
