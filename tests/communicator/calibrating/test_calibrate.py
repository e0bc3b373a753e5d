"""Calibration: its parameters from given measurements, and measurements on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sley
from sley import topologies
from sley.cli import main
from sley.communicator.calibrating import (
    LARGE_BYTES,
    MESSAGES,
    SMALL_BYTES,
    Calibration,
    calibrate,
)


def per_message_us(topology: sley.Topology, peers: int, size: int) -> float:
    """What the simulator says of a microbenchmark that the topology was made from: the time of
    all over the number of messages of a rank to a peer."""
    ranks = topology.ranks

    def body(p: Any) -> None:
        rank = np.arange(ranks)
        for index in range(peers * MESSAGES):
            peer = (rank + index // MESSAGES + 1) % ranks
            p.chunk(rank, "in", index).copy(peer, "out", index)

    chunks = peers * MESSAGES
    collective = sley.Custom(
        "exchange", ranks, chunks, chunks, lambda r, i: [((r - i // MESSAGES - 1) % ranks, i)]
    )
    plan = sley.compile(sley.trace(collective, body))
    simulation = sley.simulate(plan, size * chunks, topology)
    return (simulation.time_us - simulation.launch_us) / MESSAGES


def test_the_topology_explains_what_it_was_made_from() -> None:
    topology = Calibration(
        4,
        2**18,
        launch_us=3.0,
        copy_us=2.0,
        round_us=12.0,
        small_us=0.5,
        large_us=8.0,
        alone_us=10.0,
    ).topology
    assert per_message_us(topology, 1, SMALL_BYTES) == pytest.approx(12.0, rel=0.2)
    assert per_message_us(topology, 3, LARGE_BYTES) == pytest.approx(12 * 8.0, rel=0.2)
    assert topology.shared_memory
    assert topology.model.launch_us.ll == 3.0


def test_a_topology_of_this_machine_simulates_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    done = CliRunner().invoke(main, ["calibrate", "--ranks", "2", "-n", "1", "-o", str(path)])
    assert done.exit_code == 0, done.output
    topology = topologies.load(path)
    assert topology.ranks == 2
    plan = sley.compile(sley.algorithms.ring_allreduce(2), topology=topology)
    assert sley.simulate(plan, "1M").time_us > 0


@pytest.mark.parametrize("arguments", [{"ranks": 1}, {"ranks": 10**6}, {"ranks": 2, "repeats": 0}])
def test_numbers_out_of_range_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(sley.SleyError) as caught:
        calibrate(**arguments)
    assert caught.value.code == "R514"
