"""Agents: what learns from measured times, all behind the interface `Agent`.

Files: agent (the interface), simple (the default, tables, random search), bandits (each size by
itself), descent (coordinate descent), contextual (Gaussian processes).
"""

from sley.tuning.agents.agent import Agent as Agent
from sley.tuning.agents.agent import Prediction as Prediction
