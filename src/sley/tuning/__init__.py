"""Tuning: learns which plan and which options to use for a call (DynamICCL; GC3, section 12).

Arms are the choices for a collective; a back end measures their times: `Live` on this machine, or
`Simulated` in the simulator, where a `sweep` has all times. A `Training` lets an agent choose what
to measure (`Thompson`, or a `Recurrent` policy that `train` has trained in the environment
`Tuning`), and gives the rows of a policy. All but arms and sweeps need the extra `tune`.

Files: arms, sweeps (the times of all arms, and the oracle), arrays (files of sweeps and
checkpoints), backends (also their noise, and the tally of their times), live, agents, gate (keeps
agents from regressions), training, pictures; of the recurrent agent environment, levels (a decision
in three steps), state (what is observed), reward and exploration. NCCL's own choice, the baseline,
is in `sley.model.nccl`. policy: what a tuner has learned.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sley.tuning.agents.checkpoint import Checkpoint as Checkpoint
    from sley.tuning.agents.checkpoint import Hyperparameters as Hyperparameters
    from sley.tuning.agents.contextual import Thompson as Thompson
    from sley.tuning.agents.recurrent import Recurrent as Recurrent
    from sley.tuning.agents.recurrent import train as train
    from sley.tuning.arms import Arms as Arms
    from sley.tuning.backends import Noise as Noise
    from sley.tuning.backends import Simulated as Simulated
    from sley.tuning.environment import Tuning as Tuning
    from sley.tuning.live import Live as Live
    from sley.tuning.state import Site as Site
    from sley.tuning.sweeps import ArmTimes as ArmTimes
    from sley.tuning.sweeps import sweep as sweep
    from sley.tuning.training import Training as Training

_HOMES = {
    "agents.checkpoint": "Checkpoint Hyperparameters",
    "agents.contextual": "Thompson",
    "agents.recurrent": "Recurrent train",
    "arms": "Arms",
    "backends": "Noise Simulated",
    "environment": "Tuning",
    "live": "Live",
    "state": "Site",
    "sweeps": "ArmTimes sweep",
    "training": "Training",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: arms and sweeps work without the extra, and the recurrent
    agent's packages take seconds. Errors: R512 without the extra."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ImportError as error:
        from sley.errors.runtime import missing_extra

        raise missing_extra("the packages of sley[tune]", "tune", error) from error
