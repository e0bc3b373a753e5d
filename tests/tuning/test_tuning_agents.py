"""Agents, their gate, and training: they find the best arms, and never deploy slower ones."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.errors import SleyError
from sley.tuning import Thompson, Training
from sley.tuning.agents import Agent
from sley.tuning.arrays import read_arrays, write_arrays
from sley.tuning.gate import Gate
from support.generators.examples import examples
from support.inputs.tuning import Known


class Table(Agent):
    """Chooses the arm with the least estimate, whatever is measured."""

    name = "table"

    def choose(self, cell):
        return self.best(cell)

    def best(self, cell):
        return int(np.where(self.mask(cell), self.backend.expected[cell], np.inf).argmin())


class Random(Agent):
    """Measures any arm; the fastest measured one is the best."""

    name = "random"

    def choose(self, cell):
        return int(self.rng.choice(np.flatnonzero(self.mask(cell))))


AGENTS = pytest.mark.parametrize("make", [Thompson, Random], ids=lambda make: make.name)


def regret(backend, agent):
    cells = range(len(backend.sizes))
    return np.array([backend.true_us[c, agent.best(c)] / backend.best_us[c] - 1 for c in cells])


def test_an_agent_comes_close_to_the_oracle_with_enough_samples():
    training = Training(Known())
    training.run(120)
    assert regret(training.backend, training.agent).mean() < 0.03


def test_context_needs_fewer_samples_than_arms():
    training = Training(Known())
    training.run(17)  # of 18 arms
    assert regret(training.backend, training.agent).mean() < 0.05


def test_context_predicts_sizes_that_were_never_measured():
    backend = Known(sizes=[1 << exponent for exponent in range(10, 25)])
    training = Training(backend, aside=(3, 7, 11))
    training.run(30)
    assert not training.agent.tally.count[[3, 7, 11]].any()
    assert regret(backend, training.agent)[[3, 7, 11]].max() < 0.1


@examples(14)
@given(st.sampled_from([Thompson, Random]), st.integers(0, 10**6), st.floats(0.0, 0.3), st.data())
def test_no_choice_behind_the_gate_is_slower_than_the_default(make, seed, sigma, data):
    count = len(Known().recipes)
    scale = np.array(data.draw(st.lists(st.floats(0.8, 3.0), min_size=count, max_size=count)))
    scale[7] = 1.0
    training = Training(Known(sigma, seed, scale), make, seed=seed)
    training.run(data.draw(st.integers(1, 25)))
    backend = training.backend
    for cell in range(len(backend.sizes)):
        slower = backend.true_us[cell, training.agent.best(cell)] / backend.true_us[cell, 7]
        assert slower < 1 + max(0.01, 2 * sigma), "the gate let a slower arm through"


def choices(training, counts):
    """What is deployed at each size after so many samples each."""
    chosen = []
    for samples in counts:
        training.run(samples)
        chosen += [training.agent.best(cell) for cell in range(len(training.backend.sizes))]
    return chosen


def test_the_gate_lets_hardly_any_slightly_slower_arm_through():
    chosen = []
    for seed in range(20):
        backend = Known(sigma=0.03, seed=seed)
        # All arms but the default are 1.1 to 4 % slower, so that noise often favours one of them.
        slower = np.linspace(1.011, 1.04, len(backend.recipes))
        backend.true_us[:] = backend.true_us[:, [7]] * slower
        backend.true_us[:, 7] /= slower[7]
        chosen += choices(Training(backend, Random, seed=seed), (20, 40, 60))
    assert sum(arm != 7 for arm in chosen) <= 0.002 * len(chosen)


def two_states(call):
    """1.4 times as slow for the first 60 calls of 120."""
    return 1.0 if call // 60 % 2 else 1.4


def drift(call):
    return 1 + 0.3 * np.cos(call / 40)


@pytest.mark.parametrize("state", [two_states, drift])
def test_the_gate_knows_the_state_of_the_machine_from_a_faster_arm(state):
    chosen = []
    for seed in range(6):
        backend = Known(sigma=0.01, seed=seed)
        backend.true_us[:] = backend.true_us[:, [7]] * np.linspace(1.05, 1.2, 18)
        backend.true_us[:, 7] /= np.linspace(1.05, 1.2, 18)[7]
        measure = backend.measure
        backend.measure = lambda cell, arm, b=backend, m=measure: m(cell, arm) * state(b.calls)
        chosen += choices(Training(backend, Random, seed=seed), (10, 20, 40))
    assert sum(arm != 7 for arm in chosen) <= 0.005 * len(chosen)


def test_the_gate_says_that_it_has_too_few_measurements():
    backend = Known(sigma=0.0)
    gate = Gate(Random(backend))
    for arm in (7, 0, 7, 0):
        gate.observe(2, arm, backend.true_us[2, 7] * (0.8 if arm == 0 else 1.0))
        assert (gate.best(2), gate.undecided(2)) == (7, None if gate.tally.count[2, 0] == 0 else 0)
    gate.observe(2, 7, backend.true_us[2, 7])
    gate.observe(2, 0, 0.8 * backend.true_us[2, 7])
    assert (gate.best(2), gate.undecided(2)) == (0, None)


def test_the_gate_deploys_a_faster_arm_though_the_agent_wants_one_that_was_never_measured():
    backend = Known(sigma=0.01)
    backend.expected = -backend.true_us  # it wants the slowest one
    gate = Gate(Table(backend))
    for cell, fastest in enumerate(backend.true_us.argmin(axis=1).tolist()):
        for arm in (fastest, 7) * 6:
            gate.observe(cell, arm, backend.measure(cell, arm))
        assert gate.best(cell) == fastest


def test_the_gate_stops_an_agent_that_is_always_wrong():
    backend = Known(sigma=0.01)
    backend.expected = -backend.true_us
    gate = Gate(Table(backend))
    for _ in range(30):
        for cell in range(len(backend.sizes)):
            arm = gate.choose(cell)
            gate.observe(cell, arm, backend.measure(cell, arm))
    assert [gate.best(c) for c in range(len(backend.sizes))] == backend.default.tolist()


def test_an_untrained_agent_deploys_the_default():
    backend = Known()
    agent = Training(backend).agent
    assert [agent.best(c) for c in range(len(backend.sizes))] == backend.default.tolist()


@AGENTS
def test_a_resumed_training_ends_like_one_without_a_break(tmp_path, make):
    whole = Training(Known(), make, seed=5)
    whole.run(8)
    first = Training(Known(), make, seed=5)
    first.run(4)
    first.save(tmp_path / "half.npz")
    second = Training(Known(), make, seed=5)
    second.resume(tmp_path / "half.npz")
    second.run(8)
    assert second.history == whole.history
    cells = range(len(whole.backend.sizes))
    assert [second.agent.best(c) for c in cells] == [whole.agent.best(c) for c in cells]


def test_checkpoints_of_other_trainings_and_damaged_ones_are_refused(tmp_path):
    training = Training(Known(), Random, seed=1)
    training.run(2)
    path = tmp_path / "checkpoint.npz"
    training.save(path)
    content = path.read_bytes()
    others = (
        Training(Known(), Random, seed=2),
        Training(Known(), Table, seed=1),
        Training(Known(sigma=0.1), Random, seed=1),
    )
    for other in others:
        with pytest.raises(SleyError) as caught:
            other.resume(path)
        assert caught.value.code == "D922"
    flipped = [
        content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
        for place in range(40, len(content), 97)
    ]
    for damaged in (b"", b"\x80\x04.", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(SleyError) as caught:
            Training(Known(), Random, seed=1).resume(path)
        assert caught.value.code == "D922"
    for damaged in flipped:  # some bytes mean nothing; no error is another than D922
        path.write_bytes(damaged)
        try:
            Training(Known(), Random, seed=1).resume(path)
        except SleyError as error:
            assert error.code == "D922"


def test_checkpoints_with_other_rows_than_whole_rounds_of_times_are_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    training = Training(Known(), Table, seed=1)
    training.run(2)
    training.save(path)
    facts, arrays = read_arrays(path)
    endless = arrays | {"time_us": np.full_like(arrays["time_us"], np.inf)}
    for rows in ({name: array[:-1] for name, array in arrays.items()}, endless):
        write_arrays(path, facts, rows)
        with pytest.raises(SleyError, match="whole") as caught:
            Training(Known(), Table, seed=1).resume(path)
        assert caught.value.code == "D922"


def test_ranges_have_no_gaps_and_only_what_is_not_the_default():
    training = Training(Known(sigma=0.01))
    training.run(40)
    ranges = training.rows()
    backend = training.backend
    for cell, size in enumerate(backend.sizes.tolist()):
        found = [r for r in ranges if r.sizes.covers(size)]
        arm = training.agent.best(cell)
        assert len(found) == (arm != 7)
        if found:
            assert found[0].recipe == backend.recipes[arm]
            assert size in [one.size_bytes for one in found[0].measured]
            assert found[0].speedup > 1
    for before, after in pairwise(ranges):
        end, begin = before.sizes.end_bytes, after.sizes.begin_bytes
        assert end < begin
        assert end + 1 == begin or before.recipe != after.recipe


@pytest.mark.parametrize("last_us", [160.0, 99.9])
def test_a_range_ends_where_its_arm_is_as_slow_as_the_default(last_us):
    """By the times at the two sizes around its end; half-way at most."""
    backend = Known(sizes=(1 << 10, 1 << 14, 1 << 18))
    training = Training(backend, Random)
    for cell, time_us in enumerate((500.0, 80.0, last_us)):
        for _ in range(5):
            training.agent.observe(cell, 0, time_us)
            training.agent.observe(cell, 7, 100.0)  # the default
    (found,) = training.rows()
    own, before = np.log(0.8), np.log(5)
    assert found.sizes.begin_bytes == pytest.approx(2 ** (14 - 4 * own / (own - before)), abs=1)
    share = 0.5 if last_us < 100 else own / (own - np.log(1.6))
    assert found.sizes.end_bytes == pytest.approx(2 ** (14 + 4 * share), abs=1)


def test_bad_settings_are_refused():
    backend = Known()
    for make in (
        lambda: Training(backend, seed=-1),
        lambda: Training(backend).run(0),
    ):
        with pytest.raises(SleyError) as caught:
            make()
        assert caught.value.code == "D923"
