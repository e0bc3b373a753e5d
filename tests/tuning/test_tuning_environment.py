"""Environments of a tuner: state, reward, levels of a decision and their masks."""

from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sley import topologies
from sley.errors import SleyError
from sley.tuning.arms import Arms
from sley.tuning.backends import Simulated
from sley.tuning.exploration import AGGRESSIVE, CONSERVATIVE, NORMAL, SAMPLES, exploration
from sley.tuning.levels import KEEP, TUNE, DecisionLevel, DecisionStep, Levels, Vocabulary, words_of
from sley.tuning.policy import Machine
from sley.tuning.reward import AMPLIFIED, SMOOTHED, Reward
from sley.tuning.state import (
    NUMBERS,
    CallWindow,
    Fabric,
    Site,
    Stream,
    Variance,
    state_size,
)
from sley.tuning.sweeps import ArmTimes, sweep
from support.inputs.made_backends import DECISIONS, Made

gymnasium = pytest.importorskip("gymnasium", reason="environments need Gymnasium (extra tune)")

from sley.tuning.environment import BASELINE, ID, MASKED, Tuning  # noqa: E402

TIMES = [[40, 20, 10, 5, 50], [400, 100, 800, 600, 400]]


def action_of(environment, arm):
    """The actions that lead to an arm other than the default."""
    plan, knobs = words_of(DECISIONS[arm])
    vocabulary = environment.vocabulary
    return TUNE, vocabulary.plans.index(plan), vocabulary.knobs.index(knobs)


def call(environment, actions):
    for action in actions:
        result = environment.step(action)
    return result


def test_gymnasium_accepts_the_environment():
    from gymnasium.utils.env_checker import check_env

    environment = gymnasium.make(ID, sites=[Made(TIMES, sigma=0.1).site()], calls=3)
    check_env(environment.unwrapped, skip_render_check=True)


def test_a_tuned_call_is_rewarded_by_the_logarithm_of_its_speedup():
    environment = Tuning([Made([TIMES[1]], sizes=[1 << 22]).site()], calls=3)
    observation, _ = environment.reset(seed=1)
    assert (observation["chosen"][: len(DecisionLevel)] == (1, 0, 0)).all()
    observation, reward, *_ = environment.step(TUNE)
    assert reward == 0
    # The lower bound is 50 us, so the default (400 us) uses the links to 1/8, and arm 1 to 1/2.
    _, reward, ended, truncated, info = call(environment, action_of(environment, 1)[1:])
    assert reward == pytest.approx(AMPLIFIED * log(4))
    assert (ended, truncated) == (False, False)
    assert info == {
        "site": 0,
        "size_bytes": 1 << 22,
        "arm": 1,
        "time_us": pytest.approx(100),
        "default_us": pytest.approx(400),
        "is_masked": False,
    }
    _, reward, _, _, info = call(environment, action_of(environment, 2))
    assert reward == pytest.approx(log(400 / 800))
    _, reward, ended, truncated, info = call(environment, (KEEP, 0, 0))
    assert reward == pytest.approx(0)
    assert info["arm"] == 0
    assert (ended, truncated) == (False, True)


def test_a_masked_action_runs_the_default_and_is_punished():
    backend = Made([[4, 2]], sizes=[64])
    environment = Tuning([backend.site()], calls=2)
    environment.reset(seed=0)
    environment.step(TUNE)
    mask = environment.action_masks()
    assert not mask.all()
    _, reward, _, _, info = environment.step(int(np.flatnonzero(~mask)[0]))
    assert (reward, info["arm"], info["is_masked"]) == (MASKED, 0, True)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_allowed_actions_lead_to_every_feasible_arm_and_to_no_other(data):
    arms = data.draw(st.integers(1, len(DECISIONS)))
    mask = data.draw(st.lists(st.booleans(), min_size=arms, max_size=arms))
    mask[0] = True
    backend = Made([[1 + arm for arm in range(arms)]], sizes=[4096], mask=[mask])
    other = Made([[1] * len(DECISIONS)], sizes=[4096])
    environment = Tuning(
        [backend.site()], vocabulary=Vocabulary.of([backend, other]), calls=20, cells=1
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    observation, _ = environment.reset(seed=0)
    seen, truncated = set(), False
    while not truncated:
        assert environment.observation_space.contains(observation)
        assert (observation["mask"] == environment.action_masks()).all()
        action = rng.choice(np.flatnonzero(observation["mask"]))
        observation, _, _, truncated, info = environment.step(action)
        if info:
            assert not info["is_masked"]
            seen.add(info["arm"])
    assert seen <= set(np.flatnonzero(mask).tolist())
    levels = Levels(environment.vocabulary, backend)
    reached = {
        levels.arm(0, DecisionStep(DecisionLevel.KNOBS, TUNE, plan), knobs)
        for plan in np.flatnonzero(
            levels.mask(0, DecisionStep(DecisionLevel.PLAN, TUNE), backend.mask[0])
        )
        for knobs in np.flatnonzero(
            levels.mask(0, DecisionStep(DecisionLevel.KNOBS, TUNE, plan), backend.mask[0])
        )
    }
    assert reached == set(np.flatnonzero(mask).tolist())


def test_equal_seeds_give_equal_episodes():
    backends = Made(TIMES, sigma=0.2), Made(TIMES, sigma=0.2, nodes=2)
    environment = Tuning([backend.site() for backend in backends], calls=20)

    def episode(seed):
        rng = np.random.default_rng(0)
        rows, truncated = [], False
        observation, _ = environment.reset(seed=seed)
        while not truncated:
            action = rng.choice(np.flatnonzero(observation["mask"]))
            observation, reward, _, truncated, _ = environment.step(action)
            rows.append(np.concatenate([observation["state"], observation["window"], [reward]]))
        return np.array(rows)

    assert (episode(3) == episode(3)).all()
    assert not (episode(3) == episode(4)).all()


def test_the_noise_of_back_ends_begins_anew_with_a_seed():
    arms = Arms.of("alltonext", topologies.cluster(1, 2), actions="nccl")
    for times in (sweep(arms, [1 << 10]), ArmTimes.of(arms, [1 << 10])):
        backend = Simulated(times)
        times = []
        for seed in (1, 1, 2):
            backend.reseed(seed)
            times.append([backend.measure(0, int(backend.default[0])) for _ in range(3)])
        assert times[0] == times[1] != times[2]


def test_an_exploring_call_must_tune_if_an_arm_is_allowed():
    backend = Made([[1, 1]], sizes=[4096])
    levels = Levels(Vocabulary.of([backend]), backend)
    step = DecisionStep(explores=True)
    assert levels.mask(0, step, np.array([True, True]))[:2].tolist() == [0, 1]
    assert levels.mask(0, step, np.array([False, False]))[:2].tolist() == [1, 0]
    assert levels.mask(0, DecisionStep(), np.array([True, True]))[:2].tolist() == [1, 1]
    environment = Tuning([backend.site()], calls=200, explores=True)
    observation, truncated, forced = environment.reset(seed=0)[0], False, []
    while not truncated:
        if observation["chosen"][DecisionLevel.CALL]:
            forced.append(not observation["mask"][KEEP])
        action = np.flatnonzero(observation["mask"])[0]
        observation, _, _, truncated, _ = environment.step(action)
    # From 50 samples on the share falls from 0.9.
    assert sum(forced[:40]) > 30
    assert not all(forced[:40])
    assert sum(forced[-40:]) < 20


def test_an_observation_shows_the_level_and_the_plan_chosen_so_far():
    environment = Tuning([Made(TIMES).site()])
    observation, _ = environment.reset(seed=0)
    _, plan, _ = action_of(environment, 3)
    assert np.flatnonzero(observation["chosen"]).tolist() == [DecisionLevel.CALL]
    observation, *_ = environment.step(TUNE)
    assert np.flatnonzero(observation["chosen"]).tolist() == [DecisionLevel.PLAN]
    observation, *_ = environment.step(plan)
    assert np.flatnonzero(observation["chosen"]).tolist() == [
        DecisionLevel.KNOBS,
        len(DecisionLevel) + plan,
    ]


def test_settings_of_an_environment_out_of_range_are_refused():
    site = Made(TIMES).site()
    for sites, setting in (([], {}), ([site], {"calls": 0}), ([site], {"cells": 1.5})):
        with pytest.raises(SleyError) as caught:
            Tuning(sites, **setting)
        assert caught.value.code == "D923"


def test_the_window_shows_the_calls_and_their_speedups():
    environment = Tuning([Made(TIMES[:1], sizes=[1 << 12]).site()], calls=9)
    observation, _ = environment.reset(seed=0)
    assert not observation["window"].any()
    call(environment, action_of(environment, 3))
    observation, *_ = call(environment, (KEEP, 0, 0))
    rows = observation["window"].reshape(8, -1)
    assert rows[0] == pytest.approx([1, -8 / 5, 0, 0, 0, 1, 0, 0, 1, 0])
    assert rows[1] == pytest.approx([1, -8 / 5, 0, 0, 0, 0, 1, 0, 0, log(8)])
    assert not rows[2:].any()
    # The bound is 2.5 us: the default (40 us) has a utilisation of 1/16, the other arm of 1/2.
    utilisation = observation["state"][NUMBERS.index("utilisation")]
    assert utilisation == pytest.approx((1 / 16 + 1 / 2) / 2)


def test_hints_are_the_best_estimate_and_measurement_behind_each_action():
    backend = Made(TIMES)
    levels = Levels(Vocabulary.of([backend]), backend)
    speedup = np.array([0.0, 0.5, np.nan, np.nan, -0.25])
    allowed = np.array([True, True, True, False, True])
    hints = levels.hints(0, DecisionStep(DecisionLevel.PLAN, TUNE), speedup, allowed)
    plans = levels.vocabulary.plans
    simple = plans.index("ring-allreduce protocol=Simple")
    pairs = plans.index("all-pairs-allreduce protocol=LL")
    assert hints[simple] == pytest.approx([log(2), 0.5, 1])
    assert hints[plans.index("ring-allreduce protocol=LL")] == pytest.approx([log(4), 0, 0])
    assert hints[pairs] == pytest.approx([log(40 / 50), -0.25, 1])
    first = levels.hints(0, DecisionStep(), speedup, allowed)
    assert first[KEEP] == pytest.approx([0, 0, 1])
    assert first[TUNE] == pytest.approx([log(4), 0.5, 2 / 3])


def test_arms_outside_the_vocabulary_are_never_chosen():
    few, many = Made([[1, 1]], sizes=[64]), Made([[1] * 5], sizes=[64])
    levels = Levels(Vocabulary.of([few]), many)
    assert levels.plan.tolist()[2:] == [-1, -1, -1]
    mask = levels.mask(0, DecisionStep(DecisionLevel.PLAN, TUNE), many.mask[0])
    assert mask.tolist() == [1, 0]


def test_topologies_are_classed_by_their_links():
    wanted = {
        ("ndv4", 1): (Fabric.FLAT, 0.0),
        ("dgx2", 1): (Fabric.BOARDS, 0.0),
        ("ndv4", 2): (Fabric.NODES, 2.0),
        ("resccl", 4): (Fabric.NODES, 1.0),
    }
    for (name, nodes), fabric in wanted.items():
        site = Site.of(Made(TIMES), topologies.machine(name, nodes))
        assert (site.fabric, site.cards_per_pair) == fabric


@pytest.mark.parametrize(("congestion", "is_shared"), [(0.0, False), (0.5, True)])
def test_a_shared_network_is_detected_from_the_variance_of_times(congestion, is_shared):
    rng = np.random.default_rng(0)
    backend = Made([[100, 90]], sizes=[8 << 20], nodes=2)
    stream = Stream(backend.site(), Levels(Vocabulary.of([backend]), backend), CallWindow())
    assert not stream.is_shared
    for index in range(30):
        factor = np.exp(rng.normal(0, 0.03))
        if rng.random() < 0.5:
            factor *= 1 + rng.exponential(congestion)
        stream.record(0, index % 2, 100 * factor)
    assert stream.is_shared is is_shared
    state = stream.state(0)
    assert state[NUMBERS.index("is_shared")] == is_shared
    classes = state[len(NUMBERS) : len(NUMBERS) + len(Fabric)]
    assert classes.argmax() == (Fabric.SHARED if is_shared else Fabric.NODES)
    assert state.shape == (state_size(stream.levels.vocabulary),)


def test_a_sudden_change_of_the_cluster_is_no_shared_network():
    variance = Variance()
    for index in range(20):
        variance.add(8 << 20, 0, 0.0 if index < 10 else 0.7)
    assert not variance.is_shared
    for index in range(20):
        variance.add(1 << 10, 0, float(index))  # small calls don't count
    assert not variance.is_shared


def rewarded(reward, speedup, *, key=(0,), fans_out=True, of_default=0.6, is_shared=False):
    return reward(key, speedup, fans_out=fans_out, of_default=of_default, is_shared=is_shared)


def test_rewards_follow_the_rules_of_the_paper():
    reward = Reward()
    assert rewarded(reward, 2) == pytest.approx(log(2))
    assert rewarded(reward, 2, of_default=0.2) == pytest.approx(AMPLIFIED * log(2))
    assert rewarded(reward, 2, of_default=0.2, fans_out=False) == pytest.approx(log(2))
    assert rewarded(reward, 0.5, of_default=0.2, fans_out=False) == pytest.approx(-log(2))


def test_rewards_on_a_shared_network_are_means_of_equal_calls():
    reward = Reward()
    values = [log(100 / time) for time in range(50, 50 + SMOOTHED + 2)]
    for index, value in enumerate(values):
        rewarded(reward, 100.0, key=(1,), is_shared=True)  # another arm
        got = rewarded(reward, np.exp(value), is_shared=True)
        recent = values[max(0, index + 1 - SMOOTHED) : index + 1]
        assert got == pytest.approx(np.mean(recent))


def test_exploration_follows_the_regimes_of_the_paper_and_narrows():
    one, two = Machine("simulator", "", "", 1, 8), Machine("simulator", "", "", 2, 8)
    assert exploration("allreduce", one, 64 << 20) == CONSERVATIVE
    assert exploration("allreduce", one, 64 << 10) == AGGRESSIVE
    assert exploration("allreduce", two, 2 << 30) == CONSERVATIVE
    assert exploration("alltonext", two, 64 << 20) == AGGRESSIVE
    assert exploration("alltonext", one, 1 << 10) == CONSERVATIVE
    assert exploration("alltoall", one, 1 << 20) == NORMAL
    large = Machine("simulator", "", "", 32, 8)
    assert exploration("alltoall", large, 256 << 20) == AGGRESSIVE
    assert exploration("alltoall", large, 1 << 10) == CONSERVATIVE
    assert exploration("alltoall", two, 8 << 20, is_shared=True) == AGGRESSIVE
    assert exploration("alltoall", one, 8 << 20, is_shared=True) == NORMAL
    shares = [exploration("allgather", one, 64, samples=n) for n in (0, SAMPLES, 2 * SAMPLES)]
    assert shares == [NORMAL, NORMAL, NORMAL / 2]


def test_the_default_is_measured_when_an_episode_first_calls_a_size():
    backend = Made([[3, 2]], sizes=[64])
    environment = Tuning([backend.site()], calls=4)
    environment.reset(seed=0)
    assert backend.calls == BASELINE
    call(environment, (KEEP, 0, 0))
    assert backend.calls == BASELINE + 1


def test_a_site_of_alltonext_is_a_pipeline():
    backend = Made(TIMES)
    topology = topologies.machine("ndv4", 1)
    assert not Site.of(backend, topology).is_pipeline
    backend.collective = "alltonext"
    assert Site.of(backend, topology).is_pipeline
