"""Failed and slow parts: the links that are left, and trees over them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import SleyError, Topology, topologies
from sley.cli import main
from sley.compiler import tree_search
from sley.model.bounds import Bounds
from sley.topologies import pack_forest
from support.generators.examples import examples


def labels(topology: Topology) -> set[str]:
    return {topology.link_label(row) for row in range(len(topology.links))}


@pytest.mark.parametrize(
    ("part", "gone"),
    [
        (
            "nic1@1",
            {"GPU 3 -> NIC 3", "NIC 3 -> GPU 3", "NIC 3 -> network 0", "network 0 -> NIC 3"},
        ),
        ("NIC1@1-network0", None),  # a network is outside of nodes
        ("gpu2-switch0@1", None),  # a node of two has no GPU 2
        ("gpu1-switch0@1", {"GPU 3 -> switch 1", "switch 1 -> GPU 3"}),
        ("gpu0-gpu1", None),  # not linked directly
        ("fan0", None),
        ("nic", None),
        ("nic9", None),
        ("nic0@2", None),
    ],
)
def test_a_part_is_its_links(part: str, gone: set[str] | None) -> None:
    topology = Topology.cluster(2, 2)
    if gone is None:
        for change in (topology.without, lambda p: topology.degraded(p, 0.5)):
            with pytest.raises(SleyError) as info:
                change(part)
            assert info.value.code == "T608"
        return
    left, slow = topology.without(part), topology.degraded(part, 0.25)
    assert labels(topology) - labels(left) == gone
    rates = {slow.link_label(row): slow.links.GBps[row] for row in range(len(slow.links))}
    for row, rate in enumerate(topology.links.GBps.tolist()):
        label = topology.link_label(row)
        assert rates[label] == rate * (0.25 if label in gone else 1)


@pytest.mark.parametrize("share", [0, -1.0, 50, float("nan"), "half"])
def test_a_share_of_rates_is_above_0(share: Any) -> None:
    with pytest.raises(SleyError, match="T602"):
        topologies.ndv4(2).degraded("nic0", share)


def test_a_topology_without_a_rank_is_refused() -> None:
    with pytest.raises(SleyError, match="T603"):
        topologies.ndv4().without("gpu3")


@examples(12)
@given(
    st.sampled_from(["ndv4:2", "dgx-h100:2", "dgx1:2", "dgx1"]),
    st.sampled_from(["nic", "gpu0-gpu"]),
    st.integers(0, 7),
    st.sampled_from([0.0, 0.5]),
)
def test_trees_go_around_failures(name: str, word: str, number: int, share: float) -> None:
    """Trees avoid links that are gone, and are within the bound of what is left."""
    topology = topologies.find(name)
    try:
        left = (
            topology.degraded(f"{word}{number}", share)
            if share
            else topology.without(f"{word}{number}")
        )
    except SleyError as error:
        assert error.code in ("T603", "T608")
        return
    forest = pack_forest(left)
    bound = Bounds.of(sley.AllGather(left.ranks), left).algbw_GBps
    assert 0.8 * bound <= forest.algbw_GBps <= bound * (1 + 1e-9)
    assert bound <= Bounds.of(sley.AllGather(left.ranks), topology).algbw_GBps * (1 + 1e-9)
    paths = left.paths(*np.divmod(np.arange(left.ranks**2), left.ranks))
    assert np.isin(np.flatnonzero(forest.loads), paths.target).all()


@pytest.mark.parametrize("algorithm", ["ring-allgather", "two-step-alltoall"])
def test_replan_compares_plans_before_and_after(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"schedule": "msccl", "instances": [1, 4]}
    monkeypatch.setattr(tree_search, "COMPARED", {**tree_search.COMPARED, **few})
    words = ("replan", algorithm, "--topology", "2x2", "--size", "64M", "--json")
    found = {}
    for option in (("--without", "nic1@1"), ("--degraded", "nic1@1=0.5")):
        result = CliRunner().invoke(main, [*words, *option])
        assert result.exit_code == 0, result.output
        found[option[0]] = json.loads(result.stdout)
    gone, slow = found.values()
    assert gone["plan_after_us"] is None  # the ring leaves node 1 by its card 1
    assert slow["plan_after_us"] > slow["plan_before_us"]
    for one in found.values():
        assert one["bound_before_us"] <= one["bound_after_us"] <= one["new_plan_us"]
    assert slow["new_plan_us"] < gone["new_plan_us"]
    assert slow["tile"] < 1, "as sley synthesize compares them"


def test_replan_says_that_a_plan_stays_the_fastest() -> None:
    words = ("--topology", "2x2", "--size", "1K", "--degraded", "nic1@1=0.99")
    result = CliRunner().invoke(main, ["replan", "two-level-one-step-allreduce", *words])
    assert result.exit_code == 0, result.output
    assert "faster than the new plan: keep it" in result.stdout


def test_a_plan_on_a_topology_without_its_links_is_refused_at_once(tmp_path: Path) -> None:
    plan = sley.compile(sley.algorithms.all_pairs_allreduce(8), topology=topologies.find("ndv4"))
    sley.save(replace(plan, topology=topologies.find("dgx1")), tmp_path / "bad.plan")
    words = ["replan", str(tmp_path / "bad.plan"), "--without", "gpu0-gpu1@0"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "C301" in result.stderr) == (1, True), result.output


def test_a_name_is_one_line() -> None:
    """Else a file could print lines of its own, such as proofs."""
    assert "\n" not in replace(topologies.find("1x2"), name="x\nproven: right values").name


def test_replan_writes_files_for_runtimes(tmp_path: Path) -> None:
    """Plans in instruction order, or with Direct, have none."""
    new = tmp_path / "new.xml"
    words = ("--topology", "1x4", "--degraded", "gpu1-switch0@0=0.5", "-o", str(new))
    result = CliRunner().invoke(main, ["replan", "ring-allgather", *words])
    assert result.exit_code == 0, result.output
    assert sley.load(new).protocol is not sley.Protocol.DIRECT


@pytest.mark.parametrize(
    ("topology", "part", "ranks"),
    [("2x2", "gpu0@1", "0-1,3"), ("2x2:1", "nic0@1", "0-1"), ("1x4", "gpu0", "1-3")],
)
def test_ranks_that_are_cut_off_leave_a_command_for_the_others(
    topology: str, part: str, ranks: str
) -> None:
    words = ["replan", "ring-allgather", "--topology", topology, "--without", part, "--size", "1M"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "T603" in result.stderr) == (2, True), result.stderr
    told = f"left, by all links of {topology}, failed ones too: sley "
    command = result.stderr.partition(told)[2].partition(" -o DIR")[0]
    assert command == f"groups {ranks}:allgather:1M --topology {topology}"
    assert CliRunner().invoke(main, command.split()).exit_code == 0


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("--topology", "2x2"), 2, "nothing has failed"),
        (("--topology", "2x2", "--degraded", "nic0"), 2, "not a part and a share"),
        (("--topology", "2x2", "--degraded", "nic0=1"), 2, "a share between 0 and 1"),
        (("--topology", "2x2", "--degraded", "nic0=0"), 2, "a share between 0 and 1"),
        (("--topology", "2x2", "--without", "nic7"), 2, "T608"),
        (("--ranks", "4", "--without", "nic0"), 2, "--topology"),
        (("--topology", "2x2", "--ranks", "2", "--without", "nic0"), 2, "is for 2 ranks"),
        (("--topology", "2x2", "--without", "nic0", "-o", "new.txt"), 2, "F460"),
        (("--topology", "ndv4:2.5", "--without", "nic0"), 2, "ndv4:2.\n"),
    ],
)
def test_wrong_failures_are_refused(words: tuple[str, ...], status: int, text: str) -> None:
    result = CliRunner().invoke(main, ["replan", "ring-allgather", *words])
    assert (result.exit_code, text in result.stderr) == (status, True), result.stderr
