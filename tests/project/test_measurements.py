"""The functions behind docs/measurements.md: formulas, readers, and the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import sley
from sley import Protocol, topologies
from sley.ir.words import FIFO_PROTOCOLS
from sley.model.simulation.result import ERRORS, error_text, errors_text

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """The modules of benchmarks/, which are no package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("measured_rings", "measured_files", "measured_tables", "measurements")
        return {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_tuner_picks_by_size(modules: dict[str, ModuleType]) -> None:
    picked = {p.size: p.protocol for p in modules["measured_rings"].POINTS if "NDv4" in p.where}
    assert picked["1M"] is Protocol.LL
    assert picked["16M"] is Protocol.LL128
    assert all(picked[size] is Protocol.SIMPLE for size in ("64M", "256M", "1G", "8G"))


def test_a_point_knows_its_measured_time(modules: dict[str, ModuleType]) -> None:
    point = modules["measured_rings"].POINTS[0]
    assert point.size_bytes == 2**20
    assert point.time_us == pytest.approx(2**20 * 14 / 8 / 36.2e3)


def test_points_fit_their_machines_and_channels(modules: dict[str, ModuleType]) -> None:
    rings = modules["measured_rings"]
    for point in rings.POINTS:
        topology = point.topology()
        assert topology.ranks == point.nodes * point.gpus
        assert topology.nodes == point.nodes
        assert rings.CHANNELS % point.gpus == 0
    assert rings.ring_plan(2, 4, Protocol.SIMPLE).channels == rings.CHANNELS


def test_sley_choose_prints_the_errors_of_the_page() -> None:
    page = (BENCHMARKS.parent / "docs/measurements.md").read_text()
    for family, errors in ERRORS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {family} | "))
        cells = [re.match(r"([\d.]+) / ([\d.]+) %", cell.strip()) for cell in row.split("|")[3:6]]
        assert tuple(c and (round(float(c[1])), round(float(c[2]))) for c in cells) == errors


def test_a_machine_without_a_table_of_its_family_has_no_error() -> None:
    assert errors_text(topologies.mi250x()) == "not known for this machine"
    assert error_text(topologies.b200(), 4096) == "not known for this machine"
    assert error_text(topologies.b200(), 2**30).startswith("median 5 %")
    assert "by tables of MI300s" in errors_text(topologies.mi355x())


def test_a_point_has_an_error_for_each_protocol(modules: dict[str, ModuleType]) -> None:
    point = modules["measured_rings"].POINTS[0]
    found = modules["measured_rings"].predicted(point)
    assert set(found) == set(FIFO_PROTOCOLS)
    assert all(f.size_bytes == point.size_bytes and not f.interpreter for f in found.values())


LINES = """\
[1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)
[1,0]<stdout>:           0             0     float    none      -1    10.10    0.00    0.00      0    10.11    0.00    0.00      0
[1,0]<stdout>:        8192            64     float    none      -1    106.5    0.08    0.07      0mi200:1:1 [0] NCCL INFO
[1,0]<stdout>:     1048576          8192     float    none      -1    546.3    1.92    1.86      0    171.2    6.12    5.93      0
"""  # noqa: E501


def test_the_output_of_nccl_tests_is_read(modules: dict[str, ModuleType]) -> None:
    files = modules["measured_files"]
    assert files.read_nccl_tests(LINES) == [files.AmdRow(2**20, 171.2, 546.3)]


def test_a_fit_changes_only_its_rates(modules: dict[str, ModuleType]) -> None:
    files, base = modules["measured_files"], topologies.mi250x(2)
    fitted = files.Fit((files.Rate.BLOCKS, files.Rate.CARDS), (0.5, 0.25)).topology(base)
    assert fitted.model.nvlink_block_GBps == base.model.nvlink_block_GBps / 2
    assert fitted.model.memory_GBps == base.model.memory_GBps
    ratio = fitted.links.GBps / base.links.GBps
    assert sorted(set(ratio.tolist())) == [0.25, 1.0]
    assert np.count_nonzero(ratio == 0.25) == 2 * 2 * 2 * 8, "both sides of 16 cards, both ways"
    half = files.Fit((files.Rate.XGMI, files.Rate.PCIE), (0.5, 0.5)).topology(base)
    assert np.count_nonzero(half.links.GBps == base.links.GBps) == 2 * 2 * 2 * 8


def test_a_fit_finds_the_rates_that_made_the_times(modules: dict[str, ModuleType]) -> None:
    files = modules["measured_files"]
    program = sley.algorithms.multi_ring_allgather(2, 4, in_place=True)
    plan, base = sley.compile(program), topologies.cluster(2, 4)
    rates = (files.Rate.BLOCKS, files.Rate.CARDS)
    made = files.Fit(rates, (0.9, 0.3)).topology(base)
    sizes = [2**20, 2**24, 2**28]
    times = files.simulated(plan, made, sizes)
    rows = [files.AmdRow(size, time, time) for size, time in zip(sizes, times, strict=True)]
    found = files.simulated(plan, files.fit(plan, base, rows, rates).topology(base), sizes)
    assert found == pytest.approx(times, rel=0.02)


def test_measurements_of_mscclpp_are_read(modules: dict[str, ModuleType]) -> None:
    line = (
        '{"name":"allreduce", "kernel":2, "ranks":16,"ranksPerNode":8, "algBw":0.44, '
        '"busBw":0.83, "size":8192, "time":18.42, "target":"latency"}'
    )
    files = modules["measured_files"]
    (kernel,) = files.read_kernels("NDv5", line + "\n\n")
    assert (kernel.nodes, kernel.number, kernel.size_bytes, kernel.time_us) == (2, 2, 8192, 18.42)
    assert kernel.topology.ranks == 16
    sheet, reached = (files.bound_of(kernel, nominal=nominal) for nominal in (True, False))
    assert sheet.bandwidth_us < reached.bandwidth_us


LINE = '{{"table": "{}", "collective": "{}", "size_bytes": {}, "time_us": {}, "algbw": 1.0}}\n'


def test_points_of_published_tables_have_predictions(modules: dict[str, ModuleType]) -> None:
    tables = modules["measured_tables"]
    text = LINE.format("sb-ar", "allreduce", 4096, 30.0) + LINE.format("v100", "alltoall", 1, 1.0)
    first, second = map(tables.predict, tables.read_points(text))
    assert first.compared_with == "ring, LL, 1: ring-allreduce"
    assert first.error == first.simulation.time_us / 30 - 1
    assert second.compared_with == "p2p, LL, 1: no plan"
    assert (second.simulation, second.error) == (None, None)
    assert tables.spread([first, second]) == (1, abs(first.error), abs(first.error))
    assert tables.spread([second]) is None


def test_a_size_is_in_one_class(modules: dict[str, ModuleType]) -> None:
    tables = modules["measured_tables"]
    names = {
        size: tables.Point("allreduce", size, 1.0, "sb-ar").size_class.name
        for size in (1, 2**20 - 1, 2**20, 2**26, 2**26 + 1, 2**34)
    }
    assert list(names.values()) == [
        *("below 1M", "below 1M", "1M to 64M", "1M to 64M", "above 64M", "above 64M")
    ]


def test_the_section_on_tables_says_what_was_compared(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    page, tables = modules["measurements"], modules["measured_tables"]
    file = tmp_path / tables.TABLES[0]
    file.parent.mkdir()
    (tmp_path / tables.TABLES[1]).write_text(LINE.format("crusoe-a100", "allreduce", 4096, 36.0))
    file.write_text(
        LINE.format("sb-ar", "allreduce", 4096, 30.0)
        + LINE.format("v100", "alltoall", 1, 1.0)
        + LINE.format("mi300x", "allreduce", 4096, 30.0)
    )
    text = page.published(tmp_path)
    assert "- 1x8 MI300X: RCCL's own tuner" in text
    assert "1 of 2 times are nearer the simulation; in\ntables to which nothing was" in text
    assert "fitted, 0 of 1." in text
    fits = text.partition("### Fitted")[2]
    assert "| 1x8 A100 (NDv4) | allreduce | 4K | +14." in fits
    assert "V100" not in fits, "there is no plan to fit"
    points = page.points(file)
    assert "| 1x8 A100 (NDv4) | allreduce | 4K | ring, LL, 1: ring-allreduce | 30.0 |" in points
    assert "p2p, LL, 1: no plan" in points


def test_missing_files_are_named_on_the_page(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    page = modules["measurements"]
    text, errors, fitted = page.amd(tmp_path)
    assert "Not compared: no file msccl-xml/amd_32.xml" in text
    assert (errors, fitted) == ([], None)
    assert page.mscclpp(tmp_path).count("Not compared: no file") == 2
    assert "Not compared: no file measured/nccl-tests.jsonl" in page.published(tmp_path)


def test_tables_and_errors_are_written_as_markdown(modules: dict[str, ModuleType]) -> None:
    page = modules["measurements"]
    assert page.table(("a", "b"), [("x", "1.0")]) == "| a | b |\n| --- | ---: |\n| x | 1.0 |\n"
    assert page.error_cell(-0.31, 0.3) == "**-31.0 %**"
    assert page.error_cell(0.29, 0.3) == "+29.0 %"
    errors = page.Errors("what", 0.1)
    errors.values += [0.05, -0.2, 0.1]
    assert errors.row() == ("what", "10 %", "2 of 3", "10.0 %", "20.0 %")


def test_the_page_is_made_by_the_command_that_it_names() -> None:
    page = (BENCHMARKS.parent / "docs" / "measurements.md").read_text("utf-8")
    assert "python benchmarks/measurements.py" in page
    assert "NCCL's rings" in page
