"""The recurrent agent: training, checkpoints, and its choices behind the gate."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sley.errors import SleyError
from support.inputs.made_backends import Made

pytest.importorskip("sb3_contrib", reason="the recurrent agent needs sb3-contrib (extra tune)")

import torch

from sley import tuning
from sley.tuning.agents.checkpoint import Checkpoint, Hyperparameters
from sley.tuning.agents.recurrent import Recurrent, network_of, train
from sley.tuning.environment import Tuning, observe
from sley.tuning.gate import Gate
from sley.tuning.levels import DecisionStep

TIMES = [[100, 45, 50, 10, 60], [400, 100, 300, 500, 600]]
SIZES = (1 << 21, 1 << 25)
LARGE = Hyperparameters(
    seed=1, hidden=8, environments=32, calls=4, cells=2, rate=0.03, entropy=0.05
)
SMALL = Hyperparameters(hidden=4, environments=2, calls=3, cells=2, epochs=1)
ROUND = 2 * 3 * 3


def made(**settings):
    # Estimates that are all equal: what is fast has to be learned.
    backend = Made(TIMES, sizes=SIZES, sigma=0.02, **settings)
    backend.expected = np.zeros_like(backend.time_us)
    return backend


@pytest.fixture(scope="module")
def trained():
    return train([made().site()], 10 * 32 * 4 * 3, LARGE)


@pytest.fixture(scope="module")
def started():
    return train([made().site()], 2 * ROUND, SMALL)


def test_the_package_has_every_name_that_it_offers():
    assert [getattr(tuning, name).__name__ for name in tuning.__all__] == tuning.__all__


def test_a_trained_policy_knows_the_best_arm_of_each_size_without_measuring(trained):
    agent = Recurrent(made().site(), trained)
    assert [agent.best(0), agent.best(1)] == [3, 1]
    rewards = {}
    for name in ("trained", "random"):
        rewards[name] = 0.0
        environment = Tuning([made().site()], calls=32)
        rng = np.random.default_rng(1)
        observation, _ = environment.reset(seed=1)
        truncated = False
        player = Recurrent(made().site(), trained)
        while not truncated:
            action = rng.choice(np.flatnonzero(observation["mask"]))
            if name == "trained":
                action = player._probability(observation, None)[0].argmax()
            observation, reward, _, truncated, _ = environment.step(action)
            rewards[name] += reward / 32
    assert rewards["trained"] > rewards["random"] + 1


def test_behind_the_gate_it_finds_the_best_arms_with_few_samples(trained):
    backend = made()
    agent = Gate(Recurrent(backend.site(), trained, seed=1))
    for _ in range(12):
        for cell in (0, 1):
            arm = agent.choose(cell)
            agent.observe(cell, arm, backend.measure(cell, arm))
    assert [agent.best(0), agent.best(1)] == [3, 1]
    assert agent.predict(0) is None


def test_choices_are_reproducible_from_the_seed(started):
    def choices(seed):
        backend = made()
        agent = Recurrent(backend.site(), started, seed)
        chosen = []
        for call in range(30):
            chosen.append(agent.choose(call % 2))
            agent.observe(call % 2, chosen[-1], backend.measure(call % 2, chosen[-1]))
        return chosen

    assert choices(1) == choices(1)
    assert choices(1) != choices(2)


def test_a_resumed_training_has_the_result_of_an_uninterrupted_one(tmp_path):
    path, steps = tmp_path / "policy.npz", []
    whole = train([made().site()], 5 * ROUND, SMALL, progress=lambda *s: steps.append(s))
    assert steps[-1] == (5 * ROUND, 5 * ROUND)
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    train([made().site()], 2 * ROUND, SMALL, path=path)
    assert (np.random.get_state()[1] == before).all(), "the caller's random numbers were changed"
    threads = torch.get_num_threads()
    resumed = train([made().site()], 5 * ROUND, resume=Checkpoint.load(path))
    assert torch.get_num_threads() == threads
    assert resumed.rounds == whole.rounds == 5
    for name, array in whole.weights.items():
        assert (resumed.weights[name] == array).all(), name
    for name, array in whole.moments.items():
        assert (resumed.moments[name] == array).all(), name


@pytest.mark.parametrize("calls", [1, 2])
def test_rounds_of_a_single_call_give_finite_weights(calls):
    smallest = Hyperparameters(hidden=2, environments=1, calls=calls, cells=1)
    trained = train([made().site()], 2 * 3 * calls, smallest)
    assert trained.rounds == 2
    assert all(np.isfinite(array).all() for array in trained.weights.values())


def test_a_checkpoint_of_another_training_is_not_resumed(started):
    others = (
        ([made().site()], Hyperparameters(seed=1)),
        ([made(nodes=2).site()], None),
    )
    for sites, settings_ in others:
        with pytest.raises(SleyError) as caught:
            train(sites, ROUND, settings_, resume=started)
        assert caught.value.code == "D922"


def test_a_policy_that_knows_no_arm_of_the_back_end_is_refused(started):
    backend = made()
    backend.recipes = [replace(d, name="ring-allgather") for d in backend.recipes]
    with pytest.raises(SleyError) as caught:
        Recurrent(backend.site(), started)
    assert caught.value.code == "D922"


def test_settings_of_a_training_out_of_range_are_refused(started):
    for wrong in ({"hidden": 0}, {"rate": float("nan")}, {"seed": True}, {"calls": 2.0}):
        with pytest.raises(SleyError) as caught:
            Hyperparameters(**wrong)
        assert caught.value.code == "D923"
    for sites, steps in (([made().site()], 0), ([], 1)):
        with pytest.raises(SleyError) as caught:
            train(sites, steps, SMALL)
        assert caught.value.code == "D923"


@settings(max_examples=10, deadline=None)
@given(mask=st.lists(st.booleans(), min_size=5, max_size=5), cell=st.integers(0, 1))
def test_no_action_outside_the_mask_has_any_probability(started, mask, cell):
    backend = made()
    agent = Recurrent(backend.site(), started)
    allowed = np.array(mask)
    rng = np.random.default_rng(0)
    arms = {agent._decide(cell, allowed, None, rng)[0] for _ in range(8)}
    assert arms <= {0, *np.flatnonzero(allowed).tolist()}
    observation = observe(agent._stream, cell, DecisionStep(), allowed)
    probability, _ = agent._probability(observation, None)
    assert probability.sum() == pytest.approx(1)
    assert not probability[observation["mask"] == 0].any()


def test_every_arm_is_explored_at_most_once(started):
    backend = made()
    agent = Recurrent(backend.site(), started, seed=3)
    explored = []
    agent.rng = np.random.default_rng(3)
    for _ in range(60):
        best, arm = agent.best(0), agent.choose(0)
        if arm not in (best, 0):
            explored.append(arm)
        agent.observe(0, arm, backend.measure(0, arm))
    assert len(explored) == len(set(explored))
    assert set(explored) | {0} == set(range(5))


def test_a_checkpoint_is_read_back_as_it_was(tmp_path, started):
    path = tmp_path / "policy.npz"
    started.save(path)
    again = Checkpoint.load(path)
    assert (again.settings, again.vocabulary, again.sites, again.rounds) == (
        started.settings,
        started.vocabulary,
        started.sites,
        started.rounds,
    )
    weights = network_of(again).state_dict()
    assert all((weights[name].numpy() == array).all() for name, array in started.weights.items())


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def facts_with(content, **changes):
    facts = json.loads(str(content["facts"])) | changes
    return dict(content) | {"facts": np.array(json.dumps(facts))}


def hostile(content):
    """Checkpoints with something wrong, by what is wrong."""
    name = next(name for name in content if name.startswith("weights/"))
    step = next(name for name in content if name.endswith("/step"))
    without = dict(content)
    del without[name]
    return {
        "a pickle": dict(content) | {name: np.array(Trap(), object)},
        "pickled facts": dict(content) | {"facts": np.array(Trap(), object)},
        "no weight": without,
        "an unknown array": dict(content) | {"other": np.zeros(1)},
        "another shape": dict(content) | {name: np.zeros((2, 2), np.float32)},
        "not finite": dict(content) | {name: np.full_like(content[name], np.nan)},
        "texts": dict(content) | {name: np.array("text")},
        "moments without a step": {k: v for k, v in content.items() if k != step},
        "another format": facts_with(content, format=2),
        "a huge network": facts_with(content, settings=vars(SMALL) | {"hidden": 10**9}),
        "a missing setting": facts_with(content, settings={}),
        "no words": facts_with(content, plans=[]),
        "numbers as words": facts_with(content, knobs=[1]),
        "a negative round": facts_with(content, rounds=-1),
        "facts that are no object": dict(content) | {"facts": np.array("[1]")},
        "no JSON": dict(content) | {"facts": np.array("{")},
    }


def test_hostile_checkpoints_are_refused(tmp_path, started):
    path, bad = tmp_path / "policy.npz", tmp_path / "bad.npz"
    started.save(path)
    with np.load(path) as file:
        content = {name: file[name] for name in file.files}

    def refuse(what, words=""):
        with pytest.raises(SleyError) as caught:
            Checkpoint.load(bad)
        assert caught.value.code == "D922", what
        assert words in str(caught.value), what
        assert str(bad) in str(caught.value)

    for what, arrays in hostile(content).items():
        np.savez(bad, **arrays)
        refuse(what)
    for raw in (b"", b"\x80\x04.", path.read_bytes()[:2000]):
        bad.write_bytes(raw)
        refuse("damaged")
    bad.unlink()
    refuse("no file")


def test_it_runs_without_the_global_generators_of_the_caller(started):
    backend = made()
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    agent = Recurrent(backend.site(), started, 0)
    for _ in range(5):
        agent.observe(0, agent.choose(0), 10.0)
    assert (torch.random.get_rng_state() == state).all()
