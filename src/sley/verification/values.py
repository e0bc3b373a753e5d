"""Values: what a chunk holds, as fingerprints of multisets of input chunks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from sley.ir.collective import Collective

LANES = 2
# Two of these add up to the least int64, so a sum with no data never wraps into a number.
NOTHING = np.int64(-(2**62))


@dataclass
class Values:
    """Values as columns. weight: uint64 (values, 2); number: int64 (values,), negative for no data,
    or for a result of no data.

    A value is a multiset of input chunks, represented by a fingerprint: every input chunk gets
    fresh random 64-bit weights, a value is the sum of its inputs' weights, in two lanes, together
    with their exact number. Different multisets of fewer than 2^31 inputs agree in number and both
    lanes with a probability below 2^-66 (a lane's difference is a non-zero combination with
    coefficients below 2^31, which vanishes modulo 2^64 for at most 2^31 of 2^64 weights).
    """

    weight: np.ndarray
    number: np.ndarray

    @classmethod
    def nothing(cls, size: int) -> Values:
        """Values of no data."""
        return cls(np.zeros((size, LANES), np.uint64), np.full(size, NOTHING))

    @classmethod
    def inputs(cls, collective: Collective) -> Values:
        """Fresh values of the input chunks of all ranks; no data for those without initial data."""
        values = cls.nothing(len(collective.initial))
        present = np.flatnonzero(collective.initial)
        fresh = np.frombuffer(secrets.token_bytes(8 * LANES * len(present)), np.uint64)
        values.weight[present] = fresh.reshape(-1, LANES)
        values.number[present] = 1
        return values

    def promised(self, collective: Collective) -> Values:
        """The values that a collective promises (`Collective.values`), if these are its inputs."""
        found = Values(
            np.zeros((len(collective.values.offset) - 1, LANES), np.uint64),
            np.diff(collective.values.offset),
        )
        np.add.at(found.weight, collective.values.source, self.weight[collective.values.target])
        return found

    def __getitem__(self, index: np.ndarray | slice) -> Values:
        return Values(self.weight[index], self.number[index])

    def __setitem__(self, index: np.ndarray | slice, values: Values) -> None:
        self.weight[index], self.number[index] = values.weight, values.number

    def __add__(self, other: Values) -> Values:
        # The number saturates instead of wrapping, so that absurd multiplicities stay absurd.
        number = np.minimum(self.number + other.number, 2**61)
        number[(self.number < 0) | (other.number < 0)] = NOTHING
        return Values(self.weight + other.weight, number)

    def differ(self, other: Values) -> np.ndarray:
        """bool (values,): whether each value differs from the other one."""
        return np.asarray((self.number != other.number) | (self.weight != other.weight).any(axis=1))
