"""Noise: how measured times differ from those of an idle cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors.tuning import D923
from sley.ir.sizes import SizeRange
from sley.ir.words import is_real

SHARED = SizeRange(2 << 20, 64 << 20)
"""The sizes at which other tenants of a network disturb most (MSCCLang 7.3; GC3, section 10.3):
such calls meet congestion, but are too short to average it."""


@dataclass(frozen=True)
class Noise:
    """The noise of a single measured call.

    sigma: the standard deviation of the logarithm of any time.
    congestion: on a network that is shared, the mean share by which a call of SHARED sizes takes
        longer while it meets others; 0 for an own network.
    met: the share of such calls that meet others.

    Errors: D923 for numbers out of range.
    """

    sigma: float = 0.03
    congestion: float = 0.0
    met: float = 0.5

    def __post_init__(self) -> None:
        for name, most in (("sigma", 1.0), ("congestion", 10.0), ("met", 1.0)):
            value = getattr(self, name)
            if not is_real(value) or not 0 <= value <= most:
                expected = f"{name} from 0 to {most:g}"
                raise D923.error(expected=expected, found=f"{name}={value!r}")

    def factor(self, size_bytes: int, crosses_network: bool, rng: np.random.Generator) -> float:
        """Measured over true time of one call."""
        factor = float(np.exp(rng.normal(0, self.sigma)))
        shared = self.congestion and crosses_network and SHARED.covers(size_bytes)
        if shared and rng.random() < self.met:
            factor *= 1 + rng.exponential(self.congestion)
        return factor
