"""NCCL as WHAT: its choices are compared with plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.compiler import nccl_plan
from sley.errors.tuning import D931
from sley.model.nccl import choice as nccl
from sley.model.nccl.runs import NcclRuns

CLUSTER = "1x4"


def run(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def test_each_size_is_simulated_with_nccls_choice() -> None:
    line = f"compare nccl-allreduce ring-allreduce --topology {CLUSTER} -b 4K -e 4M -f 32 --json"
    rows = json.loads(run(line).stdout)["simulations"]
    topology = sley.topologies.find(CLUSTER)
    theirs = {row["size_bytes"]: row for row in rows if row["what"] != "ring-allreduce"}
    assert list(theirs) == [4096, 131072, 4194304]
    runs = NcclRuns(topology, nccl_plan)
    for size, row in theirs.items():
        choice = nccl.default("allreduce", topology, size)
        words = f"{choice.algorithm.value}, {choice.protocol.value}, {choice.channels}"
        assert row["what"] == f"nccl-allreduce ({words})"
        assert row["time_us"] == runs("allreduce", size).time_us
    assert len({row["what"] for row in theirs.values()}) > 1


def test_simulate_tells_the_choice_of_each_size() -> None:
    result = run(f"simulate nccl-allgather --topology {CLUSTER} -b 4K -e 4M -f 32")
    assert result.exit_code == 0, result.output
    choices = [line for line in result.stdout.splitlines() if "nccl-allgather (ring, " in line]
    assert choices[0].startswith("4K ")
    assert choices[-1].partition("nccl")[0].split()[-1] == "4M"
    one = run(f"simulate nccl-allgather --topology {CLUSTER} -b 4K --what-if")
    assert one.exit_code == 0, one.output
    assert one.stdout.startswith("4K  ")


def test_choose_adds_nccls_times_where_ranges_begin_and_end() -> None:
    options = "--instances 1,4 --schedule msccl --protocol simple,ll -b 4K -e 4M -f 32 --json"
    line = f"choose ring-allreduce --topology {CLUSTER} {options}"
    found = json.loads(run(f"{line} --nccl").stdout)
    begins = [one["begin"]["size_bytes"] for one in found["ranges"]]
    assert [one["size_bytes"] for one in found["nccl"]] == [*begins, 4 << 20]
    runs = NcclRuns(sley.topologies.find(CLUSTER), nccl_plan)
    for one in found["nccl"]:
        assert one["nccl_us"] == runs("allreduce", one["size_bytes"]).time_us
    assert "nccl" not in json.loads(run(line).stdout)


def test_a_machine_without_its_switches_is_told() -> None:
    line = "simulate nccl-allreduce --topology dgx-h100 -b 4K"
    assert "dgx-h100-nvls has it" in run(line).stderr
    assert "NVLS" not in run(f"simulate nccl-allreduce --topology {CLUSTER} -b 4K").stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("simulate nccl-bcast --topology 1x4", "there is no nccl-bcast; there are nccl-allreduce"),
        ("simulate nccl-allreduce", "nccl-allreduce needs --topology"),
        ("simulate nccl-allreduce --topology 1x4 --instances 4", "--instances is not for"),
        ("simulate nccl-allreduce --topology 1x4 --ranks 4", "--ranks is not for"),
        (
            "simulate nccl-allreduce --topology 1x4 --interpreter",
            "code of NCCL's own",
        ),
        ("simulate nccl-allreduce --topology 1x4 --out-of-place", "in place"),
        ("simulate nccl-allreduce --topology 1x4 --target rccl", "--target is not for"),
        ("simulate nccl-allreduce --topology 1x4 --arg a=1", "--arg is for programs"),
        ("simulate nccl-allreduce --topology 1x4 -- more", "-- is for programs"),
        ("simulate nccl-allreduce --topology 1x4 --collective x.py", "--collective is for XML"),
        ("verify nccl-allreduce --ranks 4", "for sley simulate and sley compare"),
        ("choose flat-gather --topology 1x4 --nccl", "--nccl is for allreduce, allgather"),
        ("choose hier.py:hier --arg ranks=2 --topology 1x4 --nccl", "the programs have 2 ranks"),
    ],
)
def test_what_nccl_chooses_itself_is_refused(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = "import sley\ndef hier(ranks):\n    return sley.algorithms.ring_allreduce(ranks)\n"
    Path("hier.py").write_text(own)
    result = run(line)
    assert result.exit_code == 2, result.output
    assert told in result.stderr


def test_the_search_is_printed_if_nccls_choice_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_runs: NcclRuns, *_call: object) -> None:
        raise D931.error(expected="links", found="none")

    monkeypatch.setattr(NcclRuns, "__call__", refuse)
    options = "--instances 1 --schedule msccl --protocol simple -b 1M -e 1M --nccl"
    found = run(f"choose ring-allgather --topology {CLUSTER} {options}")
    assert found.exit_code == 0, found.output
    assert "ring-allgather" in found.stdout
    assert "note: D931" in found.stderr


def test_links_that_nccls_choice_lacks_are_told() -> None:
    found = run("simulate nccl-alltoall --topology torus:2x2x2")
    assert found.exit_code == 1
    assert "D931" in found.stderr


def test_where_nccls_own_estimate_is_another_both_are_told() -> None:
    told, silent = (
        run(f"simulate nccl-allreduce --topology {machines} -b 4K -e 4K").stderr
        for machines in ("p5:2", "ndv4")
    )
    assert "note: NCCL's own estimates differ more than 1.5 times: 4K" in told
    assert "are nearer the simulation" in told
    assert "estimates" not in silent


def test_a_broadcast_streams_and_several_sizes_are_told_by_their_choice() -> None:
    found = run("simulate nccl-broadcast --topology ndv4 -b 1M -e 1G -f 32")
    assert "32M to 1G              nccl-broadcast (ring, LL128, 24)" in found.stdout
    times = [float(line.split()[1]) for line in found.stdout.splitlines()[-5:-1] if line[0] == " "]
    # Along seven hops, only turns of the first pieces wait for one another.
    assert times[-1] < 1.1 * 2**30 / 230e3
