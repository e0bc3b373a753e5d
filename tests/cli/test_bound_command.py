"""sley bound."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

import sley as library
from sley.cli import main
from sley.ir.collectives import SIZED
from sley.model.bounds import Bounds
from sley.topologies import machine_names


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bound", *map(str, arguments)])


@pytest.mark.parametrize("spelled", ["allreduce", "all_reduce", "AllReduce"])
def test_the_bound_of_a_collective_is_told_with_its_reasons(spelled: str) -> None:
    bounds = Bounds.of(library.AllReduce(16), "ndv4:2")
    text = sley(spelled, "--topology", "ndv4:2", "-b", "1K", "-e", "64M", "-f", 65536).stdout
    assert f"{bounds.algbw_GBps:.2f} GB/s algbw" in text
    assert f"by {bounds.reason}" in text
    assert f"by {bounds.at(1).latency_reason}" in text
    small, large = (line.split() for line in text.splitlines()[-2:])
    assert (small[0], small[-1], large[0], large[-1]) == ("1K", "latency", "64M", "bandwidth")
    assert large[1] == f"{bounds.at('64M').time_us:.1f}"
    made = json.loads(sley(spelled, "--topology", "ndv4:2", "-b", "1M", "--json").stdout)
    assert made["sizes"][0]["time_us"] == bounds.at("1M").time_us
    assert made["algbw_GBps"] == bounds.algbw_GBps


def test_one_rank_has_no_bandwidth_to_limit() -> None:
    text = sley("allreduce", "--topology", "1x1").stdout
    assert (
        "bandwidth              without a limit\n                       by nothing has to" in text
    )
    every = sley("--topology", "1x1").stdout
    assert not re.search("inf|nan", text + every)
    made = json.loads(sley("allreduce", "--topology", "1x1", "--json").stdout)
    assert made["algbw_GBps"] is None


def test_a_root_counts() -> None:
    one, other = (
        json.loads(sley("broadcast", "--topology", "pcie-8", "--root", root, "--json").stdout)
        for root in (0, 7)
    )
    assert one["latency_reason"] != other["latency_reason"]


@pytest.mark.parametrize("name", machine_names()[::6])
def test_all_collectives_have_bounds_on_packaged_machines(name: str) -> None:
    made = json.loads(sley("--topology", name, "--json").stdout)
    assert [row["collective"] for row in made["bounds"]] == [one.name for one in SIZED.values()]
    lines = sley("--topology", name).stdout.splitlines()
    assert len(lines) == 2 + len(SIZED)


def test_one_rank_has_the_bounds_of_all_that_need_no_second() -> None:
    made = json.loads(sley("--topology", "1x1", "--json").stdout)
    names = [row["collective"] for row in made["bounds"]]
    assert names == [one.name for one in SIZED.values() if one.name != "sendrecv"]


def test_a_root_that_does_not_exist_is_wrong_usage() -> None:
    for words in (("allreduce", "--root", 0), ("broadcast", "--root", 8), ("--root", 8)):
        result = sley(*words, "--topology", "ndv4")
        assert (result.exit_code, "L101" in result.stderr) == (2, True), words


def test_a_mistyped_collective_gets_a_suggestion() -> None:
    result = sley("allredcue", "--topology", "ndv4")
    assert result.exit_code == 2
    assert "Did you mean allreduce" in result.stderr
