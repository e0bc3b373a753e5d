"""Recurrent policy: the network of the recurrent agent, with an LSTM and masked actions."""

from __future__ import annotations

from typing import Any, cast

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableCategoricalDistribution
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from stable_baselines3.common.torch_layers import CombinedExtractor
from torch import nn

from sley.tuning.environment import space_of
from sley.tuning.levels import HINTS, Vocabulary

LAYER = 64
"""The width of the layers after the LSTM."""


class _Extractor(CombinedExtractor):
    """Flattens an observation. It keeps the last batch's mask and hints, which the distribution
    needs: sb3 gives that only what comes out of the LSTM.

    mask: (batch, actions). hints: (batch, actions, HINTS).
    """

    mask: Any
    hints: Any

    def forward(self, observations: Any) -> Any:
        self.mask, self.hints = observations["mask"], observations["hints"]
        return super().forward(observations)


class MaskedPolicy(RecurrentMultiInputActorCriticPolicy):
    """sb3-contrib's recurrent policy with two changes.

    Actions outside the observation's mask have no probability. The logit of an action has a second
    term: its hints (`Levels.hints`), weighted by numbers that depend on the state, so that what is
    known of one action counts in the same way for all of them.
    """

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.hint_net = nn.Linear(self.mlp_extractor.latent_dim_pi, HINTS)

    def _get_action_dist_from_latent(self, latent_pi: Any) -> MaskableCategoricalDistribution:
        extractor = cast(_Extractor, self.features_extractor)
        weighed = extractor.hints @ self.hint_net(latent_pi).unsqueeze(-1)
        logits = self.action_net(latent_pi) + weighed.squeeze(-1)
        distribution = MaskableCategoricalDistribution(logits.shape[-1])
        distribution.proba_distribution(logits)
        distribution.apply_masking(extractor.mask > 0.5)
        return distribution

    @staticmethod
    def _process_sequence(features: Any, lstm_states: Any, episode_starts: Any, lstm: Any) -> Any:
        # sb3-contrib runs a sequence step by step if an episode starts anywhere in it. In training
        # each episode starts at a sequence's first step, where zeros as the LSTM's state have the
        # same effect, and the whole sequence runs at once.
        count = lstm_states[0].shape[1]
        starts = episode_starts.reshape(count, -1)
        if not starts[:, 1:].any():
            goes_on = (1.0 - starts[:, 0]).view(1, count, 1)
            lstm_states = tuple(goes_on * state for state in lstm_states)
            episode_starts = torch.zeros_like(episode_starts)
        return RecurrentActorCriticPolicy._process_sequence(
            features, lstm_states, episode_starts, lstm
        )


def policy_arguments(hidden: int) -> dict[str, Any]:
    """The arguments of `MaskedPolicy`, apart from spaces and learning rate."""
    return {
        "features_extractor_class": _Extractor,
        "net_arch": [LAYER],
        "lstm_hidden_size": hidden,
        "enable_critic_lstm": False,
    }


def build_policy(vocabulary: Vocabulary, hidden: int) -> MaskedPolicy:
    """An untrained policy. hidden: the size of the LSTM's state."""
    return MaskedPolicy(
        space_of(vocabulary),
        spaces.Discrete(vocabulary.actions),
        lambda _: 0.0,
        **policy_arguments(hidden),
    )
