"""Exploration: how many calls of a size are used to explore (GC3, sections 12.4 and 12.7)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sley.ir.sizes import SizeRange
from sley.tuning.backends import SHARED
from sley.tuning.policy import Machine

SAMPLES = 50
"""The measurements of a size after which exploration narrows."""

CONSERVATIVE, NORMAL, AGGRESSIVE = 0.3, 0.7, 0.9
"""The shares of calls that explore: where the paper found little to gain, where it says nothing,
and where it found much. Each is below 1, so that a policy in training also meets the default."""

_KB, _MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class _Regime:
    """Calls of a collective on a range of nodes and sizes (the last included), and their share."""

    collective: str
    nodes: tuple[int, float]
    sizes: SizeRange
    share: float
    least_ranks: int = 1


_ONE, _SEVERAL, _ANY = (1, 1.0), (2, inf), (1, inf)

# The regimes of Fig 14 (GC3, section 12.4), without its clusters: those of one node and of several.
_REGIMES = (
    _Regime("allreduce", _ONE, SizeRange(32 * _MB + 1), CONSERVATIVE),
    _Regime("allreduce", _SEVERAL, SizeRange(1024 * _MB + 1), CONSERVATIVE),
    _Regime("alltonext", _ANY, SizeRange(0, 256 * _KB - 1), CONSERVATIVE),
    _Regime("alltoall", (16, inf), SizeRange(0, 256 * _KB - 1), CONSERVATIVE),
    _Regime("allreduce", _ONE, SizeRange(1 * _KB, 1 * _MB), AGGRESSIVE),
    _Regime("allreduce", _SEVERAL, SizeRange(0, 1 * _MB - 1), AGGRESSIVE),
    _Regime("alltoall", _ANY, SizeRange(256 * _MB), AGGRESSIVE, least_ranks=256),
    _Regime("alltonext", _SEVERAL, SizeRange(16 * _MB + 1), AGGRESSIVE),
)


def exploration(
    collective: str, machine: Machine, size_bytes: int, *, samples: int = 0, is_shared: bool = False
) -> float:
    """The share of calls that explore, 0 to 1.

    samples: measurements of this size so far; from SAMPLES on the share falls in proportion to
    their inverse. is_shared: the network is shared with others; then sizes of `backends.SHARED` are
    explored most, since their times vary most.
    """
    shares = [
        regime.share
        for regime in _REGIMES
        if collective == regime.collective
        and regime.nodes[0] <= machine.nodes <= regime.nodes[1]
        and regime.sizes.covers(size_bytes)
        and machine.ranks >= regime.least_ranks
    ]
    if is_shared and machine.nodes > 1 and SHARED.covers(size_bytes):
        shares = [AGGRESSIVE]
    # No two regimes overlap. Each further measurement tells less, so their number per call of a
    # size falls like its inverse: the total grows with the logarithm of the calls.
    return (shares or [NORMAL])[0] * min(1.0, SAMPLES / max(samples, 1))
