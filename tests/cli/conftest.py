"""Plan files for tests of commands, which so don't compile the same plan again and again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import sley

A = sley.algorithms


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Plan files by name; those of rings and of two levels have a topology."""
    folder = tmp_path_factory.mktemp("plans")
    ring = A.ring_allreduce(8, in_place=True)
    made = {
        "ring": sley.compile(ring, instances=4, topology="ndv4"),
        "small-ring": sley.compile(A.ring_allreduce(2, in_place=True), topology="1x2"),
        "two-levels": sley.compile(A.build("hm-allreduce", nodes=2, gpus=2), topology="2x2"),
        "pairs": sley.compile(A.all_pairs_allgather(4)),
        "rooted": sley.compile(A.build("binomial-reduce", ranks=4, root=2)),
        "varying": sley.compile(A.build("all-pairs-alltoallv", ranks=2)),
    }
    for name, plan in made.items():
        sley.save(plan, folder / f"{name}.plan", recipe={"what": name})
    return {name: folder / f"{name}.plan" for name in made}
