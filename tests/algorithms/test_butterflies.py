"""Butterflies: whose exchanges are how far apart, and on numbers of ranks of all kinds."""

from __future__ import annotations

from math import ceil, log2, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_theory import sent, steps

import sley
from sley.algorithms import build
from sley.algorithms.butterflies import Butterfly, hypercube_peers, swing_peers
from sley.errors import SleyError

SIDES = st.lists(st.sampled_from([1, 2, 4, 6, 8, 10]), min_size=1, max_size=3)


def distances(program: sley.Program) -> np.ndarray:
    """The hops of each chunk that a transfer of a program takes on a ring."""
    t, ranks = program.transfers, program.collective.ranks
    apart = np.abs(t.src - t.dst)
    return np.repeat(np.minimum(apart, ranks - apart), t.count)


def link_loads(program: sley.Program, sides: tuple[int, ...]) -> np.ndarray:
    """(axes, ranks, 2): the chunks on the link from each rank along each axis, up and down, where
    transfers take the shorter way along their one axis."""
    t = program.transfers
    loads = np.zeros((len(sides), prod(sides), 2), np.int64)
    for src, dst, count in zip(t.src.tolist(), t.dst.tolist(), t.count.tolist(), strict=True):
        at, to = (np.array(np.unravel_index(rank, sides)) for rank in (src, dst))
        for axis in np.flatnonzero(at != to):
            up = (to - at)[axis] % sides[axis] < (at - to)[axis] % sides[axis]
            while at[axis] != to[axis]:
                loads[axis, np.ravel_multi_index(tuple(at), sides), int(up)] += count
                at[axis] = (at[axis] + (1 if up else -1)) % sides[axis]
    return loads


@given(SIDES, st.integers(0, 2), st.booleans())
def test_a_rank_sends_each_block_once_and_after_it_has_all_of_it(
    sides: list[int], first: int, mirrored: bool
) -> None:
    ranks = prod(sides)
    peers = swing_peers(sides, first, mirrored=mirrored)
    assert len(peers) == sum(ceil(log2(side)) for side in sides)
    for peer in peers:
        np.testing.assert_array_equal(peer[peer], np.arange(ranks))
    sent_in = np.full((ranks, ranks), len(peers))
    for step, messages in enumerate(Butterfly(peers).steps if ranks > 1 else []):
        sender, receiver, block = messages.T
        assert (sent_in[sender, block] == len(peers)).all()
        sent_in[sender, block] = step
        np.testing.assert_array_equal(peers[step][sender], receiver)
    for step, messages in enumerate(Butterfly(peers).steps if ranks > 1 else []):
        assert (sent_in[messages[:, 1], messages[:, 2]] > step).all()
    assert (sent_in == len(peers)).sum() == ranks, "a rank keeps its own block"


@pytest.mark.parametrize("ranks", [6, 10, 12, 14, 20, 22, 7, 9, 13, 21])
@pytest.mark.parametrize("in_place", [False, True])
def test_swing_on_ranks_that_are_no_power_of_two(ranks: int, in_place: bool) -> None:
    built = build("swing-allreduce", ranks=ranks, in_place=in_place)
    sley.verify(sley.compile(built))
    even = ranks - ranks % 2
    assert steps(built) <= 2 * ceil(log2(even)) + ranks % 2
    whole = built.transfers
    moved = whole.count[whole.src != whole.dst].sum() / built.collective.chunks
    assert moved == pytest.approx(2 * (ranks - 1)), "as little as a ring moves"


@pytest.mark.parametrize("sides", [(16,), (4, 4), (2, 8), (6, 4), (2, 2, 4), (1, 6), (7,)])
def test_swing_on_a_torus(sides: tuple[int, ...]) -> None:
    built = build("swing-allreduce", ranks=prod(sides), sides=sides, in_place=True)
    plan = sley.compile(built, topology=sley.topologies.torus(*sides, routed=True))
    assert plan.channels == 2 * len(sides)
    if max(sides) <= 4:  # neighbours alone
        sley.compile(built, topology=sley.topologies.torus(*sides))
    if len(set(sides)) == 1 and sides[0] % 2 == 0:
        loads = link_loads(built, sides)
        assert (loads == loads.flat[0]).all(), "every link has an equal load"


@pytest.mark.parametrize("ranks", [8, 16, 64, 256])
def test_swing_is_closer_than_recursive_halving(ranks: int) -> None:
    """By a third at most (Swing, section 3.1), of the farthest step."""
    far = np.abs(swing_peers([ranks])[-1] - np.arange(ranks))
    far = np.minimum(far, ranks - far)
    assert set(far.tolist()) == {round(ranks / 3)}
    assert abs(hypercube_peers(ranks)[0] - np.arange(ranks)).max() == ranks // 2
    both = [
        distances(build(name, ranks=ranks, in_place=True)).sum()
        for name in ("swing-allreduce", "recursive-halving-doubling-allreduce")
    ]
    assert both[0] < both[1]


def test_a_ring_in_both_directions_uses_its_links_alike() -> None:
    for ranks in (2, 3, 6, 7):
        built = build("bidirectional-ring-allreduce", ranks=ranks, in_place=True)
        assert (distances(built)[built.transfers.src != built.transfers.dst] == 1).all()
        t = built.transfers
        rows = t.src != t.dst
        loads = np.bincount(t.src[rows] * ranks + t.dst[rows])
        assert set(loads[loads > 0].tolist()) == {2 if ranks == 2 else ranks - 1}


@pytest.mark.parametrize("name", ["swing-doubling-allreduce", "bidirectional-ring-allreduce"])
@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 11])
def test_all_ranks_add_in_one_order(name: str, ranks: int) -> None:
    order = sley.verification.SumOrder.of(sley.compile(build(name, ranks=ranks)))
    assert repr(order).startswith(f"SumOrder({name}: order of ")
    by_place: dict[int, set[int]] = {}
    chunks = order.plan.collective.chunks
    for place, tree in zip(order.place.tolist(), order.tree.tolist(), strict=True):
        by_place.setdefault(place % chunks, set()).add(tree)
    assert all(len(trees) == 1 for trees in by_place.values())


@pytest.mark.parametrize("ranks", [2, 3, 6, 7, 12])
@pytest.mark.parametrize("root", [0, 1])
def test_bine_trees_reach_all_ranks(ranks: int, root: int) -> None:
    down = build("bine-broadcast", ranks=ranks, root=root)
    up = build("bine-reduce", ranks=ranks, root=root)
    most = ceil(log2(ranks - ranks % 2)) + ranks % 2
    assert steps(down) <= most
    assert steps(up) <= most
    assert sent(up) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "code", "text"),
    [
        ("swing-allgather", {"ranks": 6 + 1}, "L121", "an even number of ranks"),
        ("swing-reducescatter", {"ranks": 5}, "L121", "an even number of ranks"),
        ("swing-allreduce", {"ranks": 9, "sides": (3, 3)}, "L121", "sides=(3, 3)"),
        ("swing-allreduce", {"ranks": 8, "sides": (4, 4)}, "L121", "a product of 8"),
        ("swing-allreduce", {"ranks": 8, "sides": (8, 0)}, "L102", "sides=(8, 0)"),
        ("swing-allreduce", {"ranks": 8, "sides": 8}, "L112", "sides=8"),
    ],
)
def test_other_sizes_are_refused(
    name: str, arguments: dict[str, object], code: str, text: str
) -> None:
    with pytest.raises(SleyError) as caught:
        build(name, **arguments)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert text in str(caught.value)
