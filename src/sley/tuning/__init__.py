"""Tuning: learns which plan and which options to use for a call (DynamICCL; GC3, section 12).

Arms are the choices for a collective; a back end measures their times: `Live` on this machine,
`Simulated` in the simulator, `Recorded` in a `sweep` of it. A `Training` lets an agent choose what
to measure (`Thompson`, or a `Recurrent` policy that `train` has trained in the environment
`Tuning`), and gives the ranges of a policy. All but arms and sweeps need the extra `tune`.

Files: arms, tally (what was measured of them), sweeps (the times of all arms, and the oracle),
arrays (files of sweeps and checkpoints), noise, backends, live, agents, gate (keeps agents from
regressions), training, pictures; of the recurrent agent environment, levels (a decision in three
steps), state (what is observed), reward and exploration. NCCL's own choice, the baseline, is in
`sley.model.nccl`. policy: what a tuner has learned.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sley.tuning.agents.checkpoint import Checkpoint, Hyperparameters
    from sley.tuning.agents.contextual import Thompson
    from sley.tuning.agents.recurrent import Recurrent, train
    from sley.tuning.arms import Arms
    from sley.tuning.backends import Recorded, Simulated
    from sley.tuning.environment import Tuning
    from sley.tuning.live import Live
    from sley.tuning.noise import Noise
    from sley.tuning.state import Site
    from sley.tuning.sweeps import Sweep, sweep
    from sley.tuning.training import Training

_MODULES = {
    "Arms": "arms",
    "Checkpoint": "agents.checkpoint",
    "Hyperparameters": "agents.checkpoint",
    "Live": "live",
    "Noise": "noise",
    "Recorded": "backends",
    "Recurrent": "agents.recurrent",
    "Simulated": "backends",
    "Site": "state",
    "Sweep": "sweeps",
    "Thompson": "agents.contextual",
    "Training": "training",
    "Tuning": "environment",
    "sweep": "sweeps",
    "train": "agents.recurrent",
}

__all__ = [
    "Arms",
    "Checkpoint",
    "Hyperparameters",
    "Live",
    "Noise",
    "Recorded",
    "Recurrent",
    "Simulated",
    "Site",
    "Sweep",
    "Thompson",
    "Training",
    "Tuning",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: arms and sweeps work without the extra, and the recurrent
    agent's packages take seconds. Errors: R512 without the extra."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as error:
        from sley.errors.runtime import R512

        raise R512.error(
            expected="the packages of sley[tune]",
            found=str(error),
            remedy='Install the extra: pip install "sley[tune]".',
        ) from error
