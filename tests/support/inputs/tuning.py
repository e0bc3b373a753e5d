"""A small back end with known times, and few arms, for tests of tuning."""

import numpy as np

from sley.communicator.selection.policy import program_of
from sley.compiler import compile
from sley.model.nccl import choice as nccl
from sley.model.simulation import Simulator
from sley.tuning import Arms, Noise
from sley.tuning.arms import IN_PLACE, Arm, grid_of, recipe_of
from sley.tuning.policy import Machine, Recipe

ALGORITHMS = ("ring-allreduce", "all-pairs-allreduce")
PROTOCOLS = ("LL", "LL128", "Simple")
INSTANCES = (1, 4, 16)
SIZES = tuple(1 << exponent for exponent in range(10, 31, 4))


class Known:
    """An AllReduce whose times are a formula: latency + size / rate, without a simulation.

    The best arm goes from all pairs with LL to the ring with Simple and many parallel parts. The
    default is the ring with Simple and 4 parts. scale: factors of the arms' times, (arms,).
    """

    collective = "allreduce"
    margin = 0.01
    machine = Machine("simulator", "known", "0" * 16, 1, 8)

    def __init__(self, sigma=0.03, seed=0, scale=None, sizes=SIZES):
        self.recipes = tuple(
            Recipe(algorithm, options={"protocol": protocol, "instances": instances})
            for algorithm in ALGORITHMS
            for protocol in PROTOCOLS
            for instances in INSTANCES
        )
        self.sizes = np.array(sizes, np.int64)
        self.mask = np.ones((len(sizes), len(self.recipes)), np.bool_)
        self.default = np.full(len(sizes), 7, np.int64)
        self.noise = Noise(sigma)
        self.sigma, self._seed, self.calls = sigma, seed, 0
        rows = []
        for d in self.recipes:
            protocol = PROTOCOLS.index(d.options["protocol"])
            pairs = d.name == "all-pairs-allreduce"
            latency = (5.0, 9.0, 14.0)[protocol] * (1 if pairs else 4) + d.options["instances"] / 4
            rate = (50e3, 90e3, 100e3)[protocol] * (0.7 if pairs else 1.0)
            rate *= 1 - 0.5 / d.options["instances"]
            rows.append(latency + self.sizes / rate)
        self.true_us = np.array(rows).T * (1 if scale is None else scale)
        self.features = np.array(
            [
                [
                    np.log2(d.options["instances"]),
                    float(d.name == ALGORITHMS[0]),
                    *(float(d.options["protocol"] == p) for p in PROTOCOLS),
                ]
                for d in self.recipes
            ]
        )
        self.expected = np.zeros_like(self.true_us)
        self.blocks = np.array([d.options["instances"] for d in self.recipes], np.int64)

    def reseed(self, seed):
        self.calls, self._seed = 0, seed

    def measure(self, cell, arm):
        self.calls += 1
        rng = np.random.default_rng((self._seed, self.calls))
        return float(self.true_us[cell, arm] * np.exp(rng.normal(0, self.sigma)))

    @property
    def best_us(self):
        return self.true_us.min(axis=1)


def arms_among(collective, topology, recipes, sizes):
    """These decisions alone as arms, and NCCL's own choices for sizes: few to compile."""
    choices = [nccl.default(collective, topology, size) for size in sizes]
    shares = dict.fromkeys(recipes, (1.0, 1.0))
    shares |= {recipe_of(choice): choice.block_shares for choice in choices}
    grid, rows = grid_of(topology), []
    for recipe, share in shares.items():
        program = program_of(recipe, *grid, in_place=IN_PLACE[collective])
        plan = compile(program, topology=topology, **recipe.options)
        least = Simulator(plan, topology).least
        rows.append(Arm(len(rows), recipe, plan, least, share))
    return Arms(collective, topology, topology, *grid, tuple(rows), "all")
