"""Grids: meshes and tori, in which each GPU is linked to its neighbours."""

from __future__ import annotations

import math

import numpy as np

from sley.errors.compiler import C308
from sley.ir.cost_model import CostModel
from sley.ir.fabric import LinkKind
from sley.ir.topology import MAX_RANKS, Builder, Topology
from sley.ir.words import is_integer


def mesh(
    *sides: int,
    nominal_GBps: float = 25.0,  # noqa: N803 - a unit
    GBps: float = 20.0,  # noqa: N803
    model: CostModel | None = None,
) -> Topology:
    """A grid of GPUs in any number of dimensions, each linked to its neighbours in every
    dimension. Ranks count along the last dimension first: row by row in two dimensions.

    sides: number of GPUs along each dimension.
    nominal_GBps, GBps: nominal and reached rate of each link in each direction; by default those
        of one NVLink of a V100.
    Errors: C308, T602.
    """
    return _grid("mesh", sides, (nominal_GBps, GBps), model)


def torus(
    *sides: int,
    nominal_GBps: float = 25.0,  # noqa: N803 - a unit
    GBps: float = 20.0,  # noqa: N803
    model: CostModel | None = None,
) -> Topology:
    """A mesh whose last GPU along each dimension is also linked to the first; a side of two GPUs
    gets no second link.

    sides: number of GPUs along each dimension.
    nominal_GBps, GBps: nominal and reached rate of each link in each direction; by default those
        of one NVLink of a V100.
    Errors: C308, T602.
    """
    return _grid("torus", sides, (nominal_GBps, GBps), model)


def _grid(
    word: str, sides: tuple[int, ...], rate: tuple[float, float], model: CostModel | None
) -> Topology:
    right = bool(sides) and all(is_integer(s) and 1 <= s <= MAX_RANKS for s in sides)
    if not right or math.prod(sides) > MAX_RANKS:
        raise C308.error(
            expected=f"sides of at least 1, and at most {MAX_RANKS} GPUs",
            found=f"{word}({', '.join(map(repr, sides))})",
        )
    name = f"{word}:{'x'.join(map(str, sides))}"
    rank = np.arange(math.prod(sides)).reshape(sides)
    builder = Builder(name, np.zeros(rank.size, np.int32))
    for axis, side in enumerate(sides):
        along = np.moveaxis(rank, axis, 0)
        pairs = [(along[:-1], along[1:])]
        if word == "torus" and side > 2:
            pairs.append((along[-1:], along[:1]))
        for a, b in pairs:
            builder.both(a.ravel(), b.ravel(), LinkKind.NVLINK, *rate)
    return builder.topology(model)
