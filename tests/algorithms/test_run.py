"""Tests that every algorithm gives the result of its collective on the CPU runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sley
from sley.ir.words import ReduceOp
from support.inputs.algorithm_cases import cases_in_a_place, few, label, program
from support.processes.rank_threads import Limits, execute

Arrays = list[np.ndarray[Any, Any]]


def blocks_in(name: str, ranks: int) -> int:
    """The number of blocks of a rank's input."""
    return ranks if name in ("alltoall", "alltoallv", "reducescatter", "scatter") else 1


def expected(collective: sley.Collective, blocks: np.ndarray[Any, Any]) -> Arrays:
    """Each rank's output by the definition of the collective, for inputs (ranks, blocks, count)."""
    ranks = collective.ranks
    match collective.name:
        case "allreduce":
            return [blocks.sum(axis=0).ravel()] * ranks
        case "allgather" | "allgatherv":
            return [blocks.ravel()] * ranks
        case "reducescatter":
            return list(blocks.sum(axis=0))
        case "alltoall" | "alltoallv":
            return [blocks[:, rank].ravel() for rank in range(ranks)]
        case "alltonext":
            return [blocks[rank - 1].ravel() for rank in range(ranks)]
        case "broadcast":
            return [blocks[collective.root].ravel()] * ranks
        case "reduce":
            return [blocks.sum(axis=0).ravel()] * ranks
        case "gather":
            return [blocks.ravel()] * ranks
        case "scatter":
            return list(blocks[collective.root])
    raise AssertionError(f"{collective.name}: add what its outputs are, by its definition, here")


def memory(collective: sley.Collective, blocks: np.ndarray[Any, Any]) -> Arrays:
    """The arrays for the runtime: each rank's input, or in place its data."""
    own = [rank.ravel() for rank in blocks]
    root = collective.root
    if collective.name == "scatter" or (collective.name == "broadcast" and not collective.in_place):
        own = [a if r == root else a[:0] for r, a in enumerate(own)]
    if collective.name == "scatter" and collective.in_place:
        return [a if r == root else blocks[r, 0] for r, a in enumerate(own)]
    if collective.name == "gather" and collective.in_place:
        data = np.full((len(own), own[0].size), -(2**31), own[0].dtype)
        data[root] = own[root]
        return [data.ravel() if r == root else a for r, a in enumerate(own)]
    if collective.name == "allgather" and collective.in_place:
        data = np.full((len(own), len(own), own[0].size), -(2**31), own[0].dtype)
        data[np.arange(len(own)), np.arange(len(own))] = own
        return list(data.reshape(len(own), -1))
    return own


def promised(collective: sley.Collective, rank: int) -> bool:
    """Whether the collective defines the rank's output."""
    if collective.name == "alltonext":
        return rank > 0
    return collective.name not in ("reduce", "gather") or rank == collective.root


@pytest.mark.parametrize(("name", "parameters"), few(cases_in_a_place()), ids=label)
def test_an_algorithm_gives_the_result_of_its_collective(
    name: str, parameters: dict[str, Any]
) -> None:
    built = program(name, parameters)
    c = built.collective
    random = np.random.default_rng(0)
    # One element more than a multiple of the chunks, so that one tile has another size.
    shape = (c.ranks, blocks_in(c.name, c.ranks), 3 * c.chunks + 1)
    blocks = random.integers(-1000, 1000, shape).astype(np.int64)
    inputs = memory(c, blocks)
    before = [a.copy() for a in inputs]
    for slots, allocate in ((1, "connection"), (8, "connection"), (1, "instance")):
        plan = sley.compile(built, slots=slots, allocate=allocate)
        outputs = execute(
            plan,
            inputs,
            Limits(slots=slots),
            reduce_op=ReduceOp.SUM,
        )
        for rank, wanted in enumerate(expected(c, blocks)):
            if promised(c, rank):
                np.testing.assert_array_equal(outputs[rank], wanted, err_msg=f"rank {rank}")
    for array, was in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, was)
