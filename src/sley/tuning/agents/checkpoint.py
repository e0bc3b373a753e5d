"""Checkpoint: a recurrent policy in training, as a file of arrays and JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sley.errors import Place, SleyError
from sley.errors.tuning import D922, D923
from sley.ir.tables import FloatArray
from sley.ir.words import is_integer, is_real
from sley.tuning.arrays import columns_of, read_arrays, write_arrays
from sley.tuning.levels import Vocabulary

FORMAT = 1
"""The number of the file format."""

_MOST_WORDS = 4096
_MOST_LENGTH = 200


def _within(default: float, least: float, most: float) -> Any:
    """A setting with its limits."""
    return field(default=default, metadata={"limits": (least, most)})


@dataclass(frozen=True)
class Hyperparameters:
    """The settings of a training.

    hidden: the size of the LSTM's state. environments: episodes side by side. calls, cells: see
    `Tuning`. epochs: passes of PPO over each round. rate: the learning rate. entropy: the weight of
    the policy's entropy. discount: for each step, of which a call has three.

    Errors: D923.
    """

    # A call has three steps, and the next one is often of another size: what it earns tells little
    # of this call's actions. So the discount reaches about ten steps, where 0.99 (Schulman et al.
    # 2017, appendix A) reaches a hundred. The entropy is theirs for discrete actions.
    seed: int = _within(0, 0, (1 << 31) - 1)
    hidden: int = _within(64, 1, 512)
    environments: int = _within(32, 1, 256)
    calls: int = _within(32, 1, 1024)
    cells: int = _within(4, 1, 1024)
    epochs: int = _within(4, 1, 100)
    rate: float = _within(1e-3, 1e-6, 1.0)
    entropy: float = _within(0.01, 0.0, 1.0)
    discount: float = _within(0.9, 0.0, 1.0)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, (least, most) = getattr(self, one.name), one.metadata["limits"]
            is_kind = is_integer(value) if isinstance(one.default, int) else is_real(value)
            if not is_kind or not least <= value <= most:
                expected = f"{one.name} from {least:g} to {most:g}"
                raise D923.error(expected=expected, found=f"{one.name}={value!r}")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A policy after some rounds of training.

    sites: "collective fingerprint" of each back end it was trained on. rounds: how many are done.
    weights: the policy's arrays by their names in PyTorch. moments: the optimizer's arrays, by
    "name/exp_avg", "name/exp_avg_sq" and "name/step"; empty before the first round.
    """

    settings: Hyperparameters
    vocabulary: Vocabulary
    sites: tuple[str, ...]
    rounds: int
    weights: Mapping[str, FloatArray]
    moments: Mapping[str, FloatArray]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .npz file of NumPy, without pickle. Errors: F461."""
        facts = {
            "format": FORMAT,
            "settings": asdict(self.settings),
            "plans": self.vocabulary.plans,
            "knobs": self.vocabulary.knobs,
            "sites": self.sites,
            "rounds": self.rounds,
        }
        arrays = {f"weights/{name}": a for name, a in self.weights.items()}
        arrays |= {f"moments/{name}": a for name, a in self.moments.items()}
        write_arrays(path, facts, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Reads a file of `save`. Nothing in it is executed; the arrays' shapes are those of the
        network that the settings describe. Errors: D922."""
        place = Place(os.fspath(path))
        try:
            facts, arrays = read_arrays(path)
            checkpoint = cls(
                _settings(facts["settings"]),
                Vocabulary(_words(facts["plans"]), _words(facts["knobs"])),
                _words(facts["sites"]),
                facts["rounds"],
                _part(arrays, "weights/"),
                _part(arrays, "moments/"),
            )
            checkpoint._check(facts["format"], arrays)
        except (KeyError, TypeError, ValueError, SleyError) as error:
            found = error.diagnostics[0].found if isinstance(error, SleyError) else str(error)
            raise D922.error(
                at=place,
                expected="a checkpoint of the recurrent agent, with settings in range",
                found=found[:_MOST_LENGTH],
                remedy="Train again, or give the file that the training wrote.",
            ) from error
        return checkpoint

    def _check(self, format_: Any, arrays: Mapping[str, Any]) -> None:
        """Raises ValueError for what `save` doesn't write."""
        from sley.tuning.agents.recurrent_policy import build_policy

        if not is_integer(format_) or format_ != FORMAT:
            raise ValueError(f"format {format_!r}")
        if not is_integer(self.rounds) or not 0 <= self.rounds < 1 << 31:
            raise ValueError(f"rounds {self.rounds!r}")
        own = len(self.weights) + len(self.moments)
        if own != len(arrays):
            raise ValueError(f"{len(arrays) - own} unknown arrays")
        network = build_policy(self.vocabulary, self.settings.hidden)
        shapes = {name: tuple(one.shape) for name, one in network.state_dict().items()}
        moments = {
            f"{name}/{kind}": () if kind == "step" else tuple(one.shape)
            for name, one in network.named_parameters()
            for kind in ("exp_avg", "exp_avg_sq", "step")
        }
        for wanted, found in ((shapes, self.weights), (moments, self.moments)):
            if found is self.moments and not found:  # before the first round
                continue
            if wanted != {name: array.shape for name, array in found.items()}:
                raise ValueError("arrays of other shapes than the settings describe")
            if not all(np.isfinite(array).all() for array in found.values()):
                raise ValueError("numbers that are not finite")


def _settings(value: Any) -> Hyperparameters:
    names = {one.name for one in fields(Hyperparameters)}
    if not isinstance(value, dict) or set(value) != names:
        raise ValueError(f"settings other than {', '.join(sorted(names))}")
    return Hyperparameters(**value)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_WORDS:
        raise ValueError(f"a list of 1 to {_MOST_WORDS} texts is missing")
    if not all(isinstance(word, str) and len(word) <= _MOST_LENGTH for word in value):
        raise ValueError(f"words that are not texts of at most {_MOST_LENGTH} characters")
    return tuple(value)


def _part(arrays: Mapping[str, Any], prefix: str) -> dict[str, FloatArray]:
    """The arrays whose names begin with a prefix, without it."""
    names = [name for name in arrays if name.startswith(prefix)]
    columns = columns_of(arrays, dict.fromkeys(names, np.float32))
    return {name.removeprefix(prefix): array for name, array in columns.items()}
