"""Arms and sweeps: what may be chosen, NCCL's choice among it, and the oracle."""

from dataclasses import replace

import numpy as np
import pytest

import sley
from sley import Topology, topologies
from sley.communicator.selection.policy import program_of
from sley.compiler.synthesis import Synthesis
from sley.errors import SleyError
from sley.ir.sizes import SizeRange
from sley.model.nccl import choice as nccl
from sley.model.simulation import Simulator
from sley.tuning.arms import SIZES, Arms, grid_of
from sley.tuning.arrays import read_arrays, write_arrays
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe, read, write
from sley.tuning.sweeps import ArmTimes, sweep
from support.inputs.tuning import arms_among

SMALL = topologies.cluster(2, 2)
SLOW = replace(SMALL, links=replace(SMALL.links, GBps=SMALL.links.GBps / 4))


@pytest.fixture(scope="module")
def arms():
    return Arms.of("alltonext", SMALL)


@pytest.fixture(scope="module")
def swept(arms):
    return sweep(arms, [1 << 10, 1 << 20])


def test_the_choice_of_nccl_is_an_arm_at_every_size():
    collective = "allgather"
    arms = Arms.of(collective, SMALL, actions="nccl")
    for size in (*SIZES, 3000, 5 << 20):
        default = arms.default(size)
        assert arms.feasible(size)[default], "the default can't be chosen"
        if size in SIZES:
            wanted = nccl.default(collective, SMALL, size)
            recipe = arms.recipes[default]
            assert recipe.name == wanted.program
            assert recipe.options["protocol"] == wanted.protocol.value
            assert recipe.options["instances"] == wanted.instances
            assert recipe.tile == wanted.tile


def test_without_switches_arms_keep_to_the_links():
    """Four GPUs in a square: rings and chains along the links fit, all pairs don't."""
    square = Topology.from_links("square", 4, [(0, 1), (1, 3), (3, 2), (2, 0)])
    arms = Arms.of("allreduce", square, actions="nccl")
    along = topologies.link_rings(square).orders.tolist()
    assert sorted(along) == [[0, 1, 3, 2], [0, 2, 3, 1]]
    assert {d.name for d in arms.recipes} == {"multi-ring-allreduce", "multi-tree-allreduce"}
    default = arms.recipes[arms.default(1 << 20)]
    assert [list(order) for order in default.arguments["orders"]] == along
    assert arms.time_us(arms.default(1 << 20), 1 << 20) > 0


def test_swing_takes_the_sides_of_a_torus():
    arms = Arms.of("allreduce", topologies.torus(4, 2, routed=True))
    swing = {arm.recipe.arguments["sides"] for arm in arms.rows if "sides" in arm.recipe.arguments}
    assert swing == {(4, 2)}


def test_trees_for_the_cluster_are_arms_that_a_policy_may_have(tmp_path):
    square = Topology.from_links("square", 4, [(0, 1), (1, 3), (3, 2), (2, 0), (0, 1)])
    arms = Arms.of("allgather", square)
    trees = [arm for arm in arms.rows if arm.recipe.name == "forest-allgather"]
    made = Synthesis.of("allgather", square).arguments["trees"]
    assert {arm.recipe.arguments["trees"] for arm in trees} == {tuple(map(tuple, made))}
    row = PlanRow(trees[0].recipe, SizeRange(0, None), "allgather")
    policy = Policy((row,), machine=Machine("simulator", "square", "f00d", 1, 4))
    write(policy, tmp_path / "policy.toml")
    (again,) = read(tmp_path / "policy.toml").rows
    assert again.recipe == trees[0].recipe
    program = program_of(again.recipe, 1, 4, in_place=False)
    assert sley.compile(program, topology=square, **again.recipe.options) == trees[0].plan


def test_arms_are_distinct_and_fit_on_the_gpus(arms):
    assert len(set(arms.recipes)) == len(arms)
    assert all(arm.plan.blocks_per_rank <= 108 for arm in arms.rows)
    assert arms.features.shape[0] == len(arms)


def test_masked_arms_have_the_time_of_a_simpler_one(arms):
    size = 1 << 20
    mask = arms.feasible(size)
    assert 0 < mask.sum() < len(arms)
    for index in np.flatnonzero(~mask)[::8].tolist():
        same = [arm.index for arm in arms.rows if arm.plan is arms.rows[index].plan]
        time_us = arms.time_us(index, size)
        assert any(mask[i] and arms.time_us(i, size) == pytest.approx(time_us) for i in same)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_the_oracle_is_the_fastest_of_all_simulated_arms(arms, swept, every):
    for place, size in enumerate(swept.sizes.tolist()):
        others = np.flatnonzero(swept.mask[place])[place::every].tolist()
        times = [arms.time_us(index, size) for index in {*others, swept.best[place]}]
        assert swept.best_us[place] == pytest.approx(min(times))
        default = int(swept.default[place])
        assert swept.default_us[place] == arms.time_us(default, size)


def test_a_sweep_is_read_back_for_its_own_arms_only(tmp_path, arms, swept):
    path = tmp_path / "sweep.npz"
    swept.save(path)
    again = ArmTimes.load(path, arms)
    assert (again.time_us == swept.time_us).all()
    assert (again.best == swept.best).all()
    others = (
        Arms.of("alltonext", topologies.cluster(1, 2)),
        Arms.of("alltoall", topologies.cluster(1, 2), actions="nccl"),
        arms.in_world(SLOW),
    )
    for other in others:
        with pytest.raises(SleyError) as caught:
            ArmTimes.load(path, other)
        assert caught.value.code == "D922"
    facts, arrays = read_arrays(path)
    pairs = np.zeros(len(arrays["sizes"]), [("a", "i8"), ("b", "i8")])
    for wrong in (np.array(1024), arrays["sizes"][:, None], pairs):
        write_arrays(tmp_path / "bad.npz", facts, arrays | {"sizes": wrong})
        with pytest.raises(SleyError) as caught:
            ArmTimes.load(tmp_path / "bad.npz", arms)
        assert caught.value.code == "D922"
    for wrong in (
        {"mask": np.zeros_like(arrays["mask"])},
        {"sizes": arrays["sizes"] + 0.9},
        {"time_us": arrays["time_us"] + 0j},
    ):
        write_arrays(tmp_path / "bad.npz", facts, arrays | wrong)
        with pytest.raises(SleyError) as caught:
            ArmTimes.load(tmp_path / "bad.npz", arms)
        assert caught.value.code == "D922"
    for content in (b"", b"\x80\x04.", path.read_bytes()[:100]):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(SleyError) as caught:
            ArmTimes.load(tmp_path / "bad.npz", arms)
        assert caught.value.code == "D922"


def test_only_nccls_own_trees_share_blocks() -> None:
    size = 64 << 10
    choice = nccl.default("allreduce", topologies.ndv4(2), size)
    assert choice.algorithm is nccl.NcclAlgorithm.TREE
    own = Recipe(
        choice.program, options={"protocol": choice.protocol, "channels": 1, "instances": 3}
    )
    arms = arms_among("allreduce", topologies.ndv4(2), [own], [size])
    theirs = arms.rows[arms.default(size)]
    assert (arms.rows[0].recipe, arms.rows[0].block_shares) == (own, (1, 1))
    assert theirs.block_shares == choice.block_shares != (1, 1)
    whole = Simulator(theirs.plan, arms.topology)(size).time_us
    assert arms.time_us(theirs.index, size) > whole


def test_arms_on_slower_links_keep_their_plans_and_take_longer(arms, swept):
    changed = arms.in_world(SLOW)
    assert changed.recipes == arms.recipes
    default = int(swept.default[1])
    assert changed.time_us(default, 1 << 20) > 1.5 * swept.default_us[1]


def test_unknown_collectives_and_actions_are_refused():
    for collective, actions in (("allsum", "all"), ("broadcast", "all"), ("allreduce", "some")):
        with pytest.raises(SleyError) as caught:
            Arms.of(collective, SMALL, actions=actions)
        assert caught.value.code == "D921"
    small = topologies.cluster(1, 2)
    names = {d.name for d in Arms.of("allreduce", small, actions="nccl").recipes}
    assert "ring-allreduce" in names
    assert "all-pairs-allreduce" not in names
    assert grid_of(SMALL) == (2, 2)
