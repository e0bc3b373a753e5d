"""The plans of devices: for every call and size one, found by the model of the named machine."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sley
from sley.communicator.selection import device_rules
from sley.communicator.selection.device_rules import DeviceLimits
from sley.communicator.selection.kinds import CALLS, Request
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.ready_plans import ReadyPlan, check_input
from sley.communicator.selection.rules import default_rows
from sley.compiler.candidates import CandidateCompiler
from sley.compiler.search import search_ranges
from sley.errors import SleyError
from sley.ir.plan_table import PlanRow
from sley.ir.sizes import SizeRange
from sley.ir.words import Protocol
from support.processes.call_cases import hosts_of

KINDS = [kind for kind, row in CALLS.items() if not row.varies]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path))
    device_rules._rows.cache_clear()
    return tmp_path / "plans"


@cache
def plans(ranks: int = 3, **limits: Any) -> Plans:
    """Tests, also in other processes, share what is found for the same machine: each search takes
    most of a second."""
    return Plans(hosts_of(ranks), devices=DeviceLimits(**limits))


def rows(kind: str, ranks: int, **limits: Any) -> tuple[PlanRow, ...]:
    limits = DeviceLimits(**limits)
    return default_rows(kind, hosts_of(ranks), in_place=True, limits=limits, disk=True)


def protocols(kind: str, ranks: int, **limits: Any) -> list[str]:
    return [row.recipe.options["protocol"] for row in rows(kind, ranks, **limits)]


def check_table(table: list[tuple[SizeRange, ReadyPlan]]) -> None:
    """A table has a plan for every size."""
    assert table[0][0].begin_bytes == 0
    assert table[-1][0].end_bytes is None
    for (sizes, _), (after, _) in pairwise(table):
        assert sizes.end_bytes is not None
        assert sizes.begin_bytes <= sizes.end_bytes == after.begin_bytes - 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_size_of_every_call_has_a_proven_plan(kind: str) -> None:
    made = plans()
    for place in (True, False, None):
        for root in range(3 if CALLS[kind].roles else 1):
            table = made.table(kind, in_place=place, root=root)
            check_table(table)
            in_place = bool(place)
            for sizes, ready in table:
                last = sizes.end_bytes or sizes.begin_bytes
                if place in made.places(kind):
                    for size in (sizes.begin_bytes, last):
                        assert made.find(kind, size, in_place=in_place, root=root) is ready
                assert ready.is_for(kind, in_place=in_place, root=root)
                check_input(ready.plan, "")
                assert ready.plan.blocks_per_rank <= DeviceLimits.max_blocks
                assert "3 H100 around NVSwitches, not measured here" in ready.row.note


@pytest.mark.parametrize("devices", [None, DeviceLimits()])
def test_a_table_has_user_plans_in_their_place(
    devices: DeviceLimits | None, tmp_path: Path
) -> None:
    own = Plans(hosts_of(3), devices=devices).table("all_reduce", in_place=True)
    sizes = 'min_bytes = "100K"\nmax_bytes = "50M"\nranks = 3'
    (tmp_path / "plans.toml").write_text(
        f'[[plans]]\nwhat = "double-binary-tree-allreduce"\n{sizes}\n'
    )
    made = Plans(hosts_of(3), devices=devices, plan_dir=tmp_path)
    table = made.table("all_reduce", in_place=True)
    check_table(table)
    users = [sizes for sizes, ready in table if ready.origin == "registered"]
    assert users == [SizeRange(100 << 10, 50 << 20)]
    assert table[0][1].plan == own[0][1].plan
    assert table[-1][1].plan == own[-1][1].plan


def test_a_communicator_on_devices_registers_no_plan() -> None:
    with pytest.raises(SleyError, match=r"N651[^$]*SLEY_PLAN_DIR"):
        plans().register(sley.algorithms.ring_allreduce(3, in_place=True))


def test_what_is_small_has_few_blocks_and_flags_in_its_data() -> None:
    for kind in KINDS:
        first, second = plans().table(kind, in_place=True)[:2]
        assert first[0].end_bytes == 4 << 10
        assert first[1].plan.protocol is second[1].plan.protocol is Protocol.LL
        assert first[1].plan.blocks_per_rank <= second[1].plan.blocks_per_rank


@pytest.mark.parametrize("ranks", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_what_is_small_has_two_blocks_on_one_device(ranks: int) -> None:
    small = plans(ranks, is_one_device=True).table("all_reduce", in_place=True)[0][1].plan
    assert small.blocks_per_rank == 2


def test_the_protocol_follows_size_and_links() -> None:
    assert protocols("all_reduce", 4) == ["LL", "LL", "LL", "LL", "LL128", "Simple"]
    assert "LL128" not in protocols("all_gather", 4, topology="ndv5", has_lines=False)
    # Without lines there is no NVLink, so the borders are those of PCIe: far lower.
    without = rows("all_reduce", 4, has_lines=False)
    assert [row.recipe.options["protocol"] for row in without] == ["LL", "LL", "LL", "Simple"]
    assert without[-1].sizes.begin_bytes < 2 << 20
    assert "pcie-8" in without[0].note
    assert DeviceLimits(has_lines=False).machine(9).ranks == 9, "more GPUs than pcie-8 has"


def test_on_one_device_large_messages_are_read_in_place() -> None:
    found = rows("all_reduce", 4, is_one_device=True)
    made = {"protocol": "Direct", "instances": 32, "allocate": "instance"}
    assert (found[-1].recipe.name, found[-1].recipe.options) == ("all-pairs-allreduce", made)
    # Measured on an H100: LL at 256 KB, read in place at 4 MB.
    of_256k = next(row for row in found if row.sizes.covers(256 << 10))
    assert of_256k.recipe.options["protocol"] == "LL"
    of_4m = next(row for row in found if row.sizes.covers(4 << 20))
    assert of_4m.recipe.options["protocol"] == "Direct"
    assert protocols("gather", 3, is_one_device=True)[-1] == "Direct"


def test_the_topology_decides() -> None:
    """A ring or a chain along the links, where not all pairs are linked; and slower links lower the
    borders above which the protocol with the least on the wire wins."""
    loop = sley.Topology.from_links("loop", 5, [(rank, (rank + 1) % 5) for rank in range(5)])
    names = {row.recipe.name for row in rows("all_reduce", 5, topology=loop)}
    assert names == {"ring-allreduce", "chain-allreduce"}
    with pytest.raises(SleyError, match="C301"):
        rows("all_to_all", 5, topology=loop)
    fast, slow = (
        sley.Topology.cluster(1, 4, nvlink_GBps=(GBps, GBps), name=f"{GBps} GB/s")
        for GBps in (400, 40)
    )
    ends = [rows("all_gather", 4, topology=one)[-2].sizes.end_bytes or 0 for one in (fast, slow)]
    assert ends[1] < ends[0] / 2
    assert "the model of 40 GB/s, not measured" in rows("all_gather", 4, topology=slow)[-1].note
    assert rows("all_gather", 4, topology="ndv4") != rows("all_gather", 4, topology="ndv5")


@pytest.mark.parametrize(
    ("topology", "code"), [("resccl-4gpu", "C305"), ("nothing", "T604"), (4, "C307")]
)
def test_a_topology_that_does_not_serve_is_refused(topology: Any, code: str) -> None:
    with pytest.raises(SleyError) as caught:
        rows("all_reduce", 5, topology=topology)
    assert caught.value.code == code


def test_blocks_are_merged_where_every_plan_has_too_many() -> None:
    for kind, most in (("gather", 2), ("all_to_all", 3), ("all_reduce", 1)):
        table = [ready for _, ready in plans(4, max_blocks=most).table(kind)]
        assert max(ready.plan.blocks_per_rank for ready in table) <= most
        assert all(one.digest != after.digest for one, after in pairwise(table))


def test_a_search_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    search = search_ranges

    def counting(compiler: CandidateCompiler, *others: Any, **more: Any) -> sley.Choices:
        searched.append(compiler.contenders[0][0].collective.name)
        return search(compiler, *others, **more)

    monkeypatch.setattr("sley.compiler.search.search_ranges", counting)
    monkeypatch.setattr(device_rules, "_INSTANCES", (1,))  # fewer plans, in as many searches

    def table(**given: Any) -> list[str]:
        made = Plans(hosts_of(3), devices=DeviceLimits(**given)).table(
            "reduce", root=1, in_place=True
        )
        return [str(ready.row) for _, ready in made]

    first = table()
    assert Plans(hosts_of(3), devices=DeviceLimits()).find("barrier", 1).plan.protocol
    assert searched == [*["reduce"] * 2, *["allreduce"] * 2]
    assert any(folder.glob("*/*.json"))
    device_rules._rows.cache_clear()  # as in another process
    assert table() == first
    assert len(searched) == 4
    table(max_blocks=8)
    assert len(searched) == 6, "other limits may have other rows"


def test_it_tells_what_came_next() -> None:
    hosts = hosts_of(3)
    lines = plans().considered(Request("all_reduce", hosts, 64 << 20, in_place=True))
    assert "ring-allreduce" in lines[0]
    assert "by the model" in lines[1]
    assert "% faster at" in lines[1] or "% slower at" in lines[1]


def test_kinds_whose_counts_vary_have_the_rows_of_processors() -> None:
    for kind in set(CALLS) - set(KINDS):
        assert default_rows(kind, hosts_of(3), limits=DeviceLimits()) == default_rows(
            kind, hosts_of(3)
        )


def test_small_calls_in_either_place_take_one_step() -> None:
    """With a block for each connection the output could be written before the input is sent."""
    limits = DeviceLimits(is_one_device=True)
    small = device_rules.device_rows("all_reduce", 4, limits, disk=True, either_place=True)[
        0
    ].recipe
    assert small.name == "one-step-allreduce"
    assert small.options["allocate"] == "instance"
