"""The crossovers of GC3, section 12.5: a trained policy's decision map shows both."""

from itertools import pairwise

import pytest

from sley import compile, topologies
from sley.algorithms import build
from sley.compiler import Options
from sley.model.simulation import Simulator
from sley.tuning import ArmTimes, Noise, Simulated, Training
from sley.tuning.policy import Policy, Recipe
from support.inputs.tuning import arms_among

SIZES = tuple(1 << exponent for exponent in range(10, 27, 2))


def decision_map(topology, parts):
    """What a policy decides at each size: a policy trained on the paper's algorithms, parallel
    parts by algorithm."""
    recipes = [
        Recipe(f"{name}-allreduce", {}, {"protocol": protocol, "channels": 1, "instances": count})
        for name, counts in parts.items()
        for protocol in ("LL", "LL128", "Simple")
        for count in counts
    ]
    arms = arms_among("allreduce", topology, recipes, SIZES)
    training = Training(Simulated(ArmTimes.of(arms, SIZES), Noise(0.01), seed=1), seed=1)
    training.run(25)
    policy = Policy(training.rows(), machine=training.backend.machine)
    found = []
    for cell, size in enumerate(SIZES):
        chosen = policy.find("allreduce", size)
        found.append(chosen.recipe if chosen else arms.recipes[arms.default(SIZES[cell])])
    return found


def runs(words):
    """The words without repetitions beside one another."""
    return [words[0], *(b for a, b in pairwise(words) if a != b)]


@pytest.fixture(scope="module")
def one_node():
    parts = {"all-pairs": (1, 4, 8), "ring": (1, 4, 8, 24), "hierarchical": (8,)}
    return decision_map(topologies.ndv4(), parts)


def test_all_pairs_give_way_to_rings_on_one_node(one_node):
    assert runs([recipe.name for recipe in one_node]) == [
        "all-pairs-allreduce",
        "ring-allreduce",
    ]


def test_parallel_parts_and_protocols_grow_with_the_size(one_node):
    parts = [recipe.options["instances"] for recipe in one_node]
    assert parts[0] <= 4
    assert parts[-1] == 24
    assert parts == sorted(parts)
    protocols = runs([recipe.options["protocol"] for recipe in one_node])
    assert protocols[0] == "LL"
    assert protocols[1] == "LL128"


def test_hierarchical_goes_from_one_part_with_ll_to_many_with_simple_on_two_nodes():
    """Section 8.3 (MSCCLang 7.2): LL with one instance for small sizes, Simple with several for
    large ones."""
    topology = topologies.ndv4(2)
    simulators = {
        (protocol, count): Simulator(
            compile(
                build("hierarchical-allreduce", nodes=2, gpus=8),
                Options(protocol=protocol, channels=1, instances=count),
                topology=topology,
                verify=False,
            )
        )
        for protocol in ("LL", "LL128", "Simple")
        for count in (1, 24)
    }

    def best(size):
        return min(simulators, key=lambda way: simulators[way](size).time_us)

    assert best(2**14) == ("LL", 1)
    assert best(2**26) == ("Simple", 24)
