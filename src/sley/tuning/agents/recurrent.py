"""Recurrent agent: a policy with an LSTM, trained by PPO over many back ends (DynamICCL)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from sley.engine.limits import whole
from sley.errors.tuning import D922, D923
from sley.ir.tables import BoolArray, FloatArray
from sley.tuning.agents.agent import Agent
from sley.tuning.agents.checkpoint import Checkpoint, Hyperparameters
from sley.tuning.agents.recurrent_policy import MaskedPolicy, build_policy, policy_arguments
from sley.tuning.environment import Tuning, observe
from sley.tuning.levels import KEEP, DecisionLevel, DecisionStep, Levels, Vocabulary
from sley.tuning.policy import Machine
from sley.tuning.state import CallWindow, Site, Stream

STEPS = len(DecisionLevel)
"""The steps of a call."""

_BATCHES = 3
"""The minibatches of a round: few, so that the LSTM sees long pieces of each episode in order."""

_SAVED = 5
"""Rounds between two checkpoints."""

_TRACE = 0.9
"""The parameter lambda of generalized advantage estimation (Schulman et al. 2016, section 3): below
1, since the critic has no LSTM, and the noise of later calls would reach each action."""


class Recurrent(Agent):
    """A trained policy that acts recurrently: its LSTM follows the calls of the site.

    A part of the calls explores (`exploration`): the policy decides in its three levels, among arms
    that were not measured at this size. All other calls run the fastest measured arm. What is
    measured reaches the policy by the observation, and the LSTM's state begins anew after as many
    decisions as an episode of the training had.

    Errors: D922 for a policy that knows no arm of the back end.
    """

    name = "recurrent"
    DEFAULTS = 2
    """Measurements of the default at a size before any other arm."""

    def __init__(self, site: Site, trained: Checkpoint, seed: int = 0) -> None:
        super().__init__(site.backend, seed)
        levels = Levels(trained.vocabulary, site.backend)
        if not any(levels.plan >= 0):
            raise D922.error(
                expected=f"a policy trained with arms of {site.backend.collective}",
                found=f"one for {', '.join(trained.sites)}",
                remedy="Resume with the same settings and back ends, or train from the beginning.",
            )
        self._stream = Stream(site, levels, CallWindow())
        self.tally = self._stream.tally
        self._policy = network_of(trained)
        self._calls = trained.settings.calls
        self._done = 0
        self._lstm: Any = None

    def choose(self, cell: int) -> int:
        default, count = int(self.backend.default[cell]), self.tally.count[cell]
        if count[default] < self.DEFAULTS:
            return default
        if self.rng.random() >= self._stream.exploration(cell):
            return self.best(cell)
        # The LSTM has seen no longer episodes in training, so its state begins anew.
        if self._done % self._calls == 0:
            self._lstm = None
        self._done += 1
        arm, self._lstm = self._decide(cell, self.mask(cell) & (count == 0), self._lstm, self.rng)
        return self.best(cell) if arm == default else arm

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        self._stream.record(cell, arm, time_us)

    def best(self, cell: int) -> int:
        """The fastest measured arm; the policy's most probable one if nothing was measured."""
        if self.tally.count[cell].any():
            return super().best(cell)
        return self._decide(cell, self.mask(cell), self._lstm, None)[0]

    def _decide(
        self, cell: int, allowed: BoolArray, lstm: Any, rng: np.random.Generator | None
    ) -> tuple[int, Any]:
        """The arm of a decision and the LSTM's state after it. rng: the call explores, with
        actions drawn by their probabilities; without it they are the most probable ones."""
        step, action = DecisionStep(explores=rng is not None), KEEP
        for level in DecisionLevel:
            observation = observe(self._stream, cell, step, allowed)
            probability, lstm = self._probability(observation, lstm)
            action = int(
                probability.argmax() if rng is None else rng.choice(len(probability), p=probability)
            )
            step = step if level is DecisionLevel.KNOBS else step.after(action)
        return self._stream.levels.arm(cell, step, action), lstm

    def _probability(self, observation: Any, lstm: Any) -> tuple[FloatArray, Any]:
        """float64 (actions,): the policy's probabilities, zero outside the mask."""
        with _one_thread(), torch.no_grad():
            tensors, _ = self._policy.obs_to_tensor(observation)
            start = torch.zeros(1)
            if lstm is None:
                shape = self._policy.lstm_hidden_state_shape
                lstm = torch.zeros(shape), torch.zeros(shape)
            masked, lstm = self._policy.get_distribution(tensors, lstm, start)
            probability = cast(Any, masked.distribution).probs[0].double().numpy()
        # Torch's sums are of single precision; NumPy draws only from what sums to 1 more exactly.
        probability = np.where(observation["mask"] > 0, probability, 0.0)
        return probability / probability.sum(), lstm


def train(
    sites: Sequence[Site],
    steps: int,
    settings: Hyperparameters | None = None,
    *,
    resume: Checkpoint | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Checkpoint:
    """Trains a policy by recurrent PPO (sb3-contrib), one policy for all sites.

    steps: of all environments together, three a call, rounded up to whole rounds; with `resume`
    they count from the beginning. path: where a checkpoint is written now and then, and at the end.
    progress: is called with the steps done and all steps.

    A round is one episode of each environment and PPO's passes over it. Each begins from the seed
    and its own number, without any state but weights and the optimizer's moments. So a resumed
    training has the result of an uninterrupted one, bit for bit with the same version of PyTorch on
    the same kind of processor, if all back ends are `Seeded`. This thread's torch uses one thread.

    Errors: D923; D922 if `resume` is a checkpoint of other settings or sites; F461.
    """
    settings = settings or (resume.settings if resume else Hyperparameters())
    whole(steps, "steps", 1, 1 << 40, D923)
    vocabulary = Vocabulary.of(site.backend for site in sites)
    names = tuple(site_name(one.backend.collective, one.backend.machine) for one in sites)
    if resume is not None:
        _check_resumed(resume, (settings, vocabulary, names))
    begin = resume.rounds if resume else 0
    a_round = settings.environments * settings.calls * STEPS
    rounds = -(-steps // a_round)
    with _one_thread(), _own_seeds():
        model = _model(sites, vocabulary, settings)
        if resume is not None:
            _restore(model, resume)
        checkpoint = _checkpoint(model, settings, vocabulary, names, begin)
        # Each round has a seed of its own, so its result doesn't depend on where a training was
        # interrupted before.
        for done in range(begin + 1, rounds + 1):
            model.set_random_seed(_seed_of(settings.seed, done))
            model.learn(a_round)
            progress(done * a_round, rounds * a_round)
            if done == rounds or (path is not None and done % _SAVED == 0):
                checkpoint = _checkpoint(model, settings, vocabulary, names, done)
                if path is not None:
                    checkpoint.save(path)
    return checkpoint


def site_name(collective: str, machine: Machine) -> str:
    """A back end's name in checkpoints."""
    return f"{collective} {machine.fingerprint}"


def network_of(trained: Checkpoint) -> MaskedPolicy:
    """The network of a checkpoint."""
    with _own_seeds():
        policy = build_policy(trained.vocabulary, trained.settings.hidden)
    policy.load_state_dict({name: torch.from_numpy(a) for name, a in trained.weights.items()})
    policy.set_training_mode(False)
    return policy


def _model(
    sites: Sequence[Site], vocabulary: Vocabulary, settings: Hyperparameters
) -> RecurrentPPO:
    make = partial(
        Tuning,
        sites,
        vocabulary=vocabulary,
        calls=settings.calls,
        cells=settings.cells,
        explores=True,
    )
    length = settings.calls * STEPS
    model = RecurrentPPO(
        MaskedPolicy,
        DummyVecEnv([make] * settings.environments),
        learning_rate=settings.rate,
        n_steps=length,
        # PPO normalises the advantages of a batch to deviation 1, so that rewards of 1 % and of a
        # factor of 2 give equal steps; a batch of a single step would give NaN.
        batch_size=max(length * settings.environments // _BATCHES, STEPS),
        n_epochs=settings.epochs,
        gamma=settings.discount,
        gae_lambda=_TRACE,
        # The ratio of new to old probabilities is clipped at 1 +- 0.2, PPO's best (Schulman et al.
        # 2017, section 6.1): the passes over one round can't leave the policy that played it.
        clip_range=0.2,
        ent_coef=settings.entropy,
        policy_kwargs=policy_arguments(settings.hidden),
        seed=_seed_of(settings.seed, 0),
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    return model


def _checkpoint(
    model: RecurrentPPO,
    settings: Hyperparameters,
    vocabulary: Vocabulary,
    names: tuple[str, ...],
    rounds: int,
) -> Checkpoint:
    policy = model.policy
    weights = {name: one.numpy().copy() for name, one in policy.state_dict().items()}
    moments = {
        f"{name}/{kind}": state.numpy().copy()
        for name, parameter in policy.named_parameters()
        for kind, state in policy.optimizer.state.get(parameter, {}).items()
    }
    return Checkpoint(settings, vocabulary, names, rounds, weights, moments)


def _restore(model: RecurrentPPO, resume: Checkpoint) -> None:
    """Gives a model the weights and moments of a checkpoint."""
    policy = model.policy
    policy.load_state_dict({name: torch.from_numpy(a) for name, a in resume.weights.items()})
    # Without moments, of a checkpoint before the first round, Adam begins with its own zeros.
    for name, parameter in policy.named_parameters():
        if resume.moments:
            policy.optimizer.state[parameter] = {
                kind: torch.from_numpy(resume.moments[f"{name}/{kind}"].copy())
                for kind in ("step", "exp_avg", "exp_avg_sq")
            }


def _check_resumed(resume: Checkpoint, wanted: tuple[Any, ...]) -> None:
    """Refuses a checkpoint of another training. Errors: D922."""
    words = ("settings", "actions", "back ends")
    have = (resume.settings, resume.vocabulary, resume.sites)
    for word, one, other in zip(words, have, wanted, strict=True):
        if one != other:
            raise D922.error(
                expected="a checkpoint of this training",
                found=f"other {word}",
                remedy="Resume with the same settings and back ends, or train from the beginning.",
            )


def _seed_of(seed: int, number: int) -> int:
    """The seed of a round; 0 is that of the first weights."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch with one thread: the networks are too small for more, and sums don't depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _own_seeds() -> Iterator[None]:
    """Keeps the caller's random generators: sb3 seeds and uses the global ones."""
    numpy, python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        np.random.set_state(numpy)
        random.setstate(python)
