"""sley run --engine both: the table, the document, exit codes."""

from __future__ import annotations

import json
from statistics import geometric_mean, median

import pytest
from click.testing import CliRunner, Result

from sley.cli import main
from sley.engine.devices.measure import CheckedData
from sley.engine.measure import Sweep

QUICK = ("--ranks", "2", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "-w", "1")


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.cli.run.ROUNDS", 3)


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments), "--engine", "both"])


def test_bench_prints_a_row_for_each_size() -> None:
    result = bench("ring-allreduce", *QUICK, "--device", "threads")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "# ring-allreduce: allreduce on 2 ranks, Simple, 1 channel, 2 slots; proven before it runs",
        "# 2 ranks on threads of this machine (device 0), 2 thread blocks; time is the median of "
        "3 rounds of 2 runs",
    ]
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:2] for row in rows] == [["1024", "256"], ["4096", "1024"]]
    assert [(row[7], row[10]) for row in rows] == [("0", "0")] * 2
    for row in rows:
        generated_us, interpreted_us, ratio = float(row[5]), float(row[8]), float(row[11])
        rounding = 0.05 / generated_us + 0.05 / interpreted_us
        assert ratio == pytest.approx(interpreted_us / generated_us, rel=rounding, abs=0.001)
    assert lines[-2] == "# Out of bounds values : 0 OK"
    ratios = [float(row[11]) for row in rows]
    rounding = 0.0005 / min(ratios)
    mean = pytest.approx(geometric_mean(ratios), rel=rounding, abs=0.002)
    assert float(lines[-1].split(":")[1]) == mean
    widths = {len(line) for line in [*lines[3:5], *(x for x in lines if x[0] == " ")]}
    assert len(widths) == 1


def test_bench_prints_json_with_every_figure() -> None:
    result = bench("ring-allreduce", *QUICK, "--device", "threads", "--json")
    said = json.loads(result.stdout)
    assert said["ok"] is True
    assert said["where"] == "2 ranks on threads of this machine (device 0), 2 thread blocks"
    for row in said["rows"]:
        assert row["reduce_op"] == "sum"
        for engine in ("generated", "interpreted"):
            side = row[engine]
            assert side["wrong"] == 0
            assert len(side["times_us"]) == 3
            assert side["time_us"] == median(side["times_us"])
        ratio = row["interpreted"]["time_us"] / row["generated"]["time_us"]
        assert row["ratio"] == pytest.approx(ratio)
    assert said["mean_ratio"] == pytest.approx(geometric_mean(r["ratio"] for r in said["rows"]))


def test_library_algorithms_run_in_place_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bool] = []
    fill = CheckedData.fill

    def recorded(self: CheckedData, count: int, sweep: Sweep) -> None:
        places.append(self.plan.collective.in_place)
        fill(self, count, sweep)

    monkeypatch.setattr(CheckedData, "fill", recorded)
    assert bench("ring-allreduce", *QUICK, "--device", "threads").exit_code == 0
    assert set(places) == {True}
    places.clear()
    bench("ring-allreduce", *QUICK, "--device", "threads", "--out-of-place")
    assert set(places) == {False}


def test_wrong_elements_end_a_bench_in_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckedData, "count_wrong", lambda *_: 1)
    result = bench("ring-allreduce", *QUICK, "--device", "threads")
    assert result.exit_code == 1
    assert "# Out of bounds values : 4 FAILED" in result.stdout
    said = json.loads(bench("ring-allreduce", *QUICK, "--device", "threads", "--json").stdout)
    assert said["ok"] is False


def test_a_bench_without_a_check_says_so() -> None:
    result = bench("ring-allreduce", *QUICK, "--device", "threads", "-c", "0")
    assert result.exit_code == 0
    assert "# Out of bounds values : not checked" in result.stdout
    assert " N/A " in result.stdout


def test_engines_are_for_devices() -> None:
    result = bench("ring-allreduce", *QUICK)
    assert result.exit_code == 2
    assert "--engine needs --device cuda or --device threads" in result.stderr
