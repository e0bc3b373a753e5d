"""Plans whose sums have one order: elements have the same bits at every size and place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import TwoLevel
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.device_rules import DeviceLimits
from sley.communicator.selection.kinds import CALLS
from sley.communicator.selection.plans import Plans
from sley.errors import SleyError
from sley.ir.orders import BALANCED, SameBits, wanted_order
from sley.ir.sizes import SizeRange
from sley.verification import SumOrder
from support.generators.examples import examples
from support.generators.sampling import each_value
from support.inputs.policies import policy_of
from support.processes.call_cases import hosts_of, some_hosts
from support.processes.rank_threads import execute

COUNTS = (16, 50, 40_000)
"""Elements of a block, for plans of small and of large calls."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path / "cache"))


@given(
    hosts=some_hosts() | st.sampled_from([hosts_of(4, 4), hosts_of(2, 2, 2), Hosts.of("abab")]),
    same_bits=st.sampled_from([True, BALANCED]),
    in_place=st.booleans(),
    data=st.data(),
)
@examples(25)
def test_all_plans_sum_in_one_order(
    hosts: Hosts, same_bits: SameBits, in_place: bool, data: st.DataObject
) -> None:
    wanted = wanted_order(same_bits, hosts.members)
    assert wanted is not None
    kind = data.draw(st.sampled_from([kind for kind, row in CALLS.items() if not row.varies]))
    root = data.draw(st.integers(0, len(hosts.host) - 1)) if CALLS[kind].roles else 0
    made = Plans(hosts, cache=False, same_bits=same_bits)
    for _, ready in made.table(kind, in_place=in_place, root=root):
        order = SumOrder.of(ready.plan)
        assert order.follows(wanted)
        assert order.is_one


@pytest.mark.parametrize("hosts", [hosts_of(5), hosts_of(3, 2), Hosts.of("abaab")], ids=str)
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "reduce"])
def test_an_element_has_the_same_bits_in_calls_of_all_sizes(kind: str, hosts: Hosts) -> None:
    ranks, random = 5, np.random.default_rng(3)
    parts = ranks if kind == "reduce_scatter" else 1
    values = random.standard_normal((ranks, parts, max(COUNTS)))
    values *= 10.0 ** random.integers(-4, 5, values.shape)
    found: dict[bool, list[bytes]] = {}
    names = set()
    for same_bits in (True, False):
        made, found[same_bits] = Plans(hosts, cache=False, same_bits=same_bits), []
        for count in COUNTS:
            plan = made.find(kind, 4 * parts * count).plan
            # A call's last elements are those of the largest one.
            given = values[:, :, -count:].astype(np.float32).reshape(ranks, -1)
            results = execute(plan, list(given), count=count, reduce_op=sley.ReduceOp.SUM)
            found[same_bits].append(results[0][-min(COUNTS) :].tobytes())
            names |= {plan.name} if same_bits else set()
    assert len(set(found[True])) == 1
    assert len(names) == (1 if kind != "all_reduce" else 2)
    assert kind != "all_reduce" or len(set(found[False])) > 1


def own_sum(parts: Any) -> Any:
    """The balanced sum of a power of two of parts: neighbours are added until one is left."""
    while len(parts) > 1:
        parts = parts[0::2] + parts[1::2]
    return parts[0]


@pytest.mark.parametrize(
    ("parts", "kind", "op"),
    each_value(
        [8, 12],
        ["all_reduce", "reduce_scatter", "reduce"],
        [sley.ReduceOp.SUM, sley.ReduceOp.AVG],
    ),
)
def test_any_number_of_ranks_that_share_parts_has_the_same_bits(
    parts: int, kind: str, op: sley.ReduceOp
) -> None:
    random, count = np.random.default_rng(7), 24 * 50
    given = (random.standard_normal((parts, count)) * 2.0 ** random.integers(-4, 5, count)).astype(
        np.float32
    )
    groups = {8: [(1,), (2,), (4,), (2, 2), (8,), (4, 4), (3, 5)], 12: [(3,), (2, 4), (4, 4, 4)]}
    found: dict[SameBits, set[bytes]] = {True: set(), BALANCED: set()}
    for same_bits, bits in found.items():
        for hosts in (hosts_of(*sizes) for sizes in groups[parts]):
            ranks = len(hosts.host)
            own = [own_sum(mine) for mine in np.split(given, ranks)]
            if op is sley.ReduceOp.AVG:
                own = [one / np.float32(parts // ranks) for one in own]
            made = Plans(hosts, cache=False, same_bits=same_bits)
            for size in (1, 4 << 20):  # whichever plan is for it
                plan = made.find(kind, size).plan
                block = count // ranks if kind == "reduce_scatter" else count
                results = execute(plan, own, count=block, reduce_op=op)
                bits.add(np.concatenate(results)[:count].tobytes())
    assert len(found[BALANCED]) == 1
    assert len(found[True]) > 1


def test_other_orders_are_refused(tmp_path: Path) -> None:
    hosts = hosts_of(3, 1)
    program = TwoLevel([[0, 2, 1], [3]]).one_step_allreduce(in_place=True)
    made = Plans(hosts, cache=False, same_bits=True)
    with pytest.raises(SleyError, match=r"N658.*\n.*order of every sum: \(\(0\+1\)\+2\)\+3"):
        made.register(program)
    assert made.find("all_reduce", 100, in_place=True).plan.name == "two-level-one-step-allreduce"
    made.register(TwoLevel(hosts.members).one_step_allreduce(in_place=True), min_bytes="1M")
    assert made.find("all_reduce", 1 << 20, in_place=True).origin == "registered"
    sley.save(sley.compile(program), tmp_path / "x.plan")
    read = Plans(hosts, cache=False, same_bits=True, plan_dir=tmp_path)
    assert [problem.code for problem in read.folder_problems] == ["N658"]
    tuned = Plans(hosts_of(4), cache=False, same_bits=True, policy=policy_of(4))
    assert tuned.find("all_reduce", 1 << 20).plan.name == "rank-order-allreduce"
    assert "N658" in str(tuned.problems[0])
    made = Plans(hosts_of(4), cache=False, same_bits=BALANCED)
    with pytest.raises(SleyError, match=r"N658.*\n.*: \(0\+1\)\+\(2\+3\)\n.*: \(\(0\+1\)\+2\)\+3"):
        made.register(TwoLevel([range(4)]).one_step_allreduce())


@pytest.mark.parametrize("hosts", [hosts_of(40), hosts_of(*[1] * 17), hosts_of(20, 3)], ids=str)
def test_any_number_of_ranks_has_plans(hosts: Hosts) -> None:
    made = Plans(hosts, cache=False, same_bits=True)
    for kind in ("all_reduce", "reduce_scatter", "reduce"):
        for _, ready in made.table(kind):
            assert SumOrder.of(ready.plan).follows(hosts.members)
    assert made.find("all_gather", 1 << 20).plan.name == "ring-allgather"


@pytest.mark.parametrize(
    ("kind", "ranks", "same_bits"),
    [
        ("all_reduce", 4, BALANCED),
        pytest.param("reduce_scatter", 3, True, marks=pytest.mark.slow),
        pytest.param("reduce_scatter", 4, BALANCED, marks=pytest.mark.slow),
        ("reduce", 3, True),
    ],
)
def test_plans_on_devices_sum_in_one_order(kind: str, ranks: int, same_bits: SameBits) -> None:
    limits, order = DeviceLimits(is_one_device=True), wanted_order(same_bits, [range(ranks)])
    assert order is not None
    made = Plans(hosts_of(ranks), devices=limits, cache=False, same_bits=same_bits)
    for root in range(ranks if CALLS[kind].roles else 1):
        for place in made.places(kind):
            found = made.table(kind, in_place=place, root=root)
            assert found[-1][0] == SizeRange(found[-1][0].begin_bytes, None)
            assert all(SumOrder.of(ready.plan).follows(order) for _, ready in found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "reduce"])
def test_the_order_costs_little_on_devices(kind: str) -> None:
    """By the model, from 1 MB on, for a Reduce to rank 0."""
    limits = DeviceLimits(topology="dgx-h100")
    without, ordered = (
        Plans(hosts_of(8), devices=limits, same_bits=same_bits) for same_bits in (False, True)
    )
    machine = limits.machine(8)
    for size in (1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30):
        times = [
            sley.simulate(
                made.find(kind, size, in_place=True).plan,
                size,
                machine,
                interpreter=True,
            ).time_us
            for made in (without, ordered)
        ]
        assert times[1] <= times[0] * 1.1, (size, times)


@pytest.mark.slow
def test_a_root_in_the_middle_gets_no_chain() -> None:
    """The last rank would send it the sum, beside the part that it adds to."""
    limits = DeviceLimits(topology="dgx-h100")
    made = Plans(hosts_of(8), devices=limits, same_bits=True)
    names = [
        made.find("reduce", 1 << 30, in_place=True, root=root).plan.name for root in (0, 1, 6, 7)
    ]
    assert names == ["ring-reduce", "all-pairs-reduce", "all-pairs-reduce", "ring-reduce"]
