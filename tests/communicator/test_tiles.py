"""Sizes of slots and tiles: the messages in flight on a host fit its caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sley
from sley.communicator import Settings
from sley.communicator.memory import IN_FLIGHT_BYTES, check_slots, slot_bytes, tile_bytes
from sley.engine.program import load
from support.processes.call_cases import hosts_of

KB = 1 << 10


@pytest.mark.parametrize(("ranks", "room"), [(2, 512), (3, 256), (4, 128), (64, 128)])
def test_slots_are_as_large_as_fits_the_caches_or_a_network_needs(ranks: int, room: int) -> None:
    assert slot_bytes(ranks, Settings()) == room * KB
    under_way = ranks * (ranks - 1) * 2 * room * KB
    assert under_way <= IN_FLIGHT_BYTES or room == 128, "which is the least"


def test_slots_are_as_large_as_asked_for() -> None:
    settings = replace(Settings(), slot_bytes=12345)
    loaded = load(sley.compile(sley.algorithms.ring_allreduce(4)), 2, 1 << 20)
    assert slot_bytes(4, settings) == tile_bytes(loaded, hosts_of(4), settings) == 12345


def test_slots_too_small_for_a_network_are_refused_between_hosts() -> None:
    small = replace(Settings(), slot_bytes=4095)
    check_slots(small, hosts_of(4))
    check_slots(replace(small, slot_bytes=4096), hosts_of(2, 2))
    with pytest.raises(sley.SleyError) as caught:
        check_slots(small, hosts_of(2, 2))
    assert caught.value.code == "R506"


def test_tiles_shrink_with_the_connections_of_a_host() -> None:
    def tile(plan: sley.Plan, *hosts: int) -> int:
        return tile_bytes(load(plan, 2, 1 << 20), hosts_of(*hosts), Settings())

    ring, pairs = (
        sley.compile(build(8), slots=2)
        for build in (sley.algorithms.ring_allgather, sley.algorithms.all_pairs_allgather)
    )
    assert (tile(ring, 8), tile(pairs, 8)) == (256 * KB, 32 * KB), "8 and 56 connections"
    assert tile(pairs, 4, 4) == 128 * KB, "across hosts, large messages"


@pytest.mark.parametrize(("slots", "tile"), [(2, 128), (8, 256), (16, 512)])
def test_large_tiles_leave_as_many_slots_as_the_plan_needs_for_payloads_of_several_ranks(
    slots: int, tile: int
) -> None:
    loaded = load(sley.compile(sley.algorithms.flat_broadcast(4), slots=2), 2, 1 << 20)
    settings = replace(Settings(), slots=slots)
    assert tile_bytes(loaded, hosts_of(4), settings) == tile * KB
