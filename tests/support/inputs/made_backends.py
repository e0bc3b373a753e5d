"""A back end with few arms and given times, for tests of environments and agents."""

import numpy as np

from sley.tuning.backends import Noise
from sley.tuning.policy import Machine, Recipe
from sley.tuning.state import Fabric, Site

DECISIONS = (
    Recipe("ring-allreduce", {}, {"protocol": "Simple", "channels": 1, "instances": 1}),
    Recipe("ring-allreduce", {}, {"protocol": "Simple", "channels": 4, "instances": 1}),
    Recipe("ring-allreduce", {}, {"protocol": "LL", "channels": 1, "instances": 2}, 0.25),
    Recipe("all-pairs-allreduce", {}, {"protocol": "LL", "channels": 1, "instances": 1}),
    Recipe("all-pairs-allreduce", {}, {"protocol": "LL", "channels": 1, "instances": 8}),
)


class Made:
    """A back end of the first arms of DECISIONS. time_us: (cells, arms); sigma: the noise. The
    default is arm 0."""

    margin = 0.01

    def __init__(self, time_us, *, sizes=(1 << 12, 1 << 22), sigma=0.0, mask=None, nodes=1):
        self.time_us = np.array(time_us, float)
        self.collective = "allreduce"
        self.machine = Machine("simulator", "made", f"{nodes:016x}", nodes, 4)
        self.sizes = np.array(sizes, np.int64)
        self.recipes = DECISIONS[: self.time_us.shape[1]]
        self.features = np.eye(len(self.recipes))
        self.expected = np.log(self.time_us / 2)
        self.mask = np.ones(self.time_us.shape, bool) if mask is None else np.array(mask, bool)
        self.default = np.zeros(len(sizes), np.int64)
        self.noise = Noise(sigma)
        self.reseed(0)

    def reseed(self, seed):
        self.calls, self._seed = 0, seed

    def measure(self, cell, arm):
        assert self.mask[cell, arm], "an arm outside the mask was run"
        self.calls += 1
        rng = np.random.default_rng((self._seed, self.calls))
        return float(self.time_us[cell, arm] * np.exp(rng.normal(0, self.noise.sigma)))

    def site(self, **flags):
        """Its site."""
        fabric = Fabric.FLAT if self.machine.nodes == 1 else Fabric.NODES
        return Site(self, fabric, 2.0, **flags)
