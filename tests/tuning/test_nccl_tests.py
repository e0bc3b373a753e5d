"""Reading nccl-tests' output, and topologies that are fitted to it."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import topologies
from sley.cli import main
from sley.compiler import nccl_plan
from sley.errors import SleyError
from sley.model import table_fit
from sley.model.nccl import tables as nccl_tests
from sley.model.nccl.runs import NcclRuns
from sley.model.simulation.result import error_text, errors_text
from sley.model.table_fit import Changes, MeasuredTime, measured_of
from support.generators.examples import examples
from support.mutants.nccl_tests_mutants import mutated, output

TIMES = {4096: 21.3, 1 << 20: 50.0, 1 << 26: 705.25}


@pytest.mark.parametrize("old", [False, True])
def test_both_layouts_have_the_same_rows(old: bool) -> None:
    (table,) = nccl_tests.tables_of(output(TIMES, old=old))
    assert table.test == (None if old else "allreduce")
    assert (table.ranks, table.nodes) == (8, 1)
    assert {row.size_bytes: row.in_place_us for row in table.rows} == TIMES
    assert {row.size_bytes: row.out_of_place_us for row in table.rows} == TIMES


def test_prefixes_logs_and_sizes_of_zero_are_skipped() -> None:
    text = output({0: 9.5, **TIMES}).replace(" 0.00", " 0.00")
    lines = [f"[1,0]<stdout>:{line}" for line in text.split("\n")]
    lines.insert(15, "[1,3]<stdout>:host:1:1 [3] NCCL INFO Channel 00")
    lines.append("[1,0]<stdout>:  8192  2048  float  sum  -1  host:1:1 [0] NCCL INFO 1")
    (table,) = nccl_tests.tables_of("\n".join(lines))
    assert [row.size_bytes for row in table.rows] == list(TIMES)


def test_a_file_may_have_several_tables() -> None:
    text = output(TIMES) + output(TIMES, test="alltoall")
    assert [table.test for table in nccl_tests.tables_of(text)] == ["allreduce", "alltoall"]


def test_a_side_that_is_not_run_has_the_other_times() -> None:
    text = output({4096: 21.3}).replace("21.30 0.19 0.34 0\n", "N/A N/A N/A N/A\n")
    ((row,),) = (table.rows for table in nccl_tests.tables_of(text))
    assert (row.in_place_us, row.time_us(in_place=True)) == (None, 21.3)


def test_the_first_times_are_out_of_place_and_the_second_in_place() -> None:
    text = output({4096: 21.3}).replace("21.30 0.19 0.34 0 ", "42.60 0.10 0.17 0 ")
    ((row,),) = (table.rows for table in nccl_tests.tables_of(text))
    assert row.time_us(in_place=True) == 21.3
    assert row.time_us(in_place=False) == 42.6


def tagged(text: str) -> str:
    """A text as mpirun --tag-output splits its rows: with a tag before each of three pieces."""
    head = r"^ *(\d+ +\d+ \w+ \w+ -1)"
    side = r" ([\d.]+ [\d.]+ [\d.]+ \d+)"
    return re.sub(f"{head}{side}{side}$", r"[0]    \1[0]  \2[0]  \3", text, flags=re.MULTILINE)


def test_rows_in_three_tagged_pieces_are_read_with_and_without_column_names() -> None:
    text = tagged(output(TIMES))
    assert text.count("[0]") == 3 * len(TIMES)
    rows = "\n".join(line for line in text.split("\n") if line.startswith("[0]"))
    for one, test, ranks in ((text, "allreduce", 8), (rows, None, None)):
        (table,) = nccl_tests.tables_of(one)
        assert (table.test, table.ranks, table.rooted) == (test, ranks, False)
        assert {row.size_bytes: row.in_place_us for row in table.rows} == TIMES


def test_rows_may_leave_redop_empty() -> None:
    text = output({4096: 21.3}, old=True).replace("float sum", "float").replace("0.34", "0.17")
    wrong = text.replace(" 2e-07\n", " 1e+00\n")
    for one, in_place, is_wrong in ((text, 21.3, False), (wrong, None, True)):
        ((row,),) = (table.rows for table in nccl_tests.tables_of(one))
        assert (row.out_of_place_us, row.in_place_us) == (21.3, in_place)
        assert row.wrong_in_place == is_wrong
    tables = nccl_tests.tables_of(wrong)
    eight = sley.Topology.cluster(1, 8)
    (point,) = table_fit.measured_of(tables, eight, "alltoall", in_place=True, file="x")
    assert point.time_us == 21.3
    with pytest.raises(SleyError, match="S712"):
        table_fit.measured_of(tables, eight, "allgather", in_place=False, file="x")


def test_a_table_with_a_root_is_of_none_of_the_calibrated_collectives(tmp_path: Path) -> None:
    text = output({4096: 21.3}, old=True).replace("redop", "root").replace("float sum", "float 0")
    (table,) = nccl_tests.tables_of(text)
    assert table.rooted
    for words in ((), ("--collective", "allreduce")):
        code, said = calibrated(tmp_path, text, *words)
        assert code == 1
        assert "one of a collective with a root, such as broadcast" in said


SHAPES = {
    "tag-output": ("allreduce", 8, 3),
    "mpirun-tagged-split": (None, None, 7),
    "alltoall-no-redop": (None, None, 5),
    "2021-broadcast": (None, 2, 4),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tables_that_people_published_are_read(shape: str, data_dir: Path) -> None:
    (table,) = nccl_tests.read(data_dir / "users-3" / f"nccl-tests-{shape}.txt")
    test, ranks, rows = SHAPES[shape]
    assert (table.ranks or ranks, len(table.rows)) == (ranks, rows)
    assert table.test in (None, test)
    assert table.rooted == (shape == "2021-broadcast")


@pytest.mark.parametrize(
    ("shape", "name", "ranks"),
    [
        ("tag-output", "allreduce", 8),
        ("mpirun-tagged-split", "allreduce", 24),
        ("alltoall-no-redop", "alltoall", 16),
    ],
)
def test_bandwidths_tell_for_how_many_ranks_a_table_is(
    shape: str, name: str, ranks: int, data_dir: Path
) -> None:
    file = data_dir / "users-3" / f"nccl-tests-{shape}.txt"
    tables = [replace(table, ranks=None) for table in nccl_tests.read(file)]
    for nodes in (1, 2, 3, 4):
        base = topologies.find(f"ndv4:{nodes}")
        if base.ranks == ranks:
            assert measured_of(tables, base, name, in_place=False, file="t")
            continue
        with pytest.raises(SleyError, match=f"as on {ranks} ranks") as caught:
            measured_of(tables, base, name, in_place=False, file="t")
        assert caught.value.code == "S713"


MISTAKES = {
    "no table": ("S710", "hello"),
    "no columns": ("S710", "4096 1024 float sum -1 20 0.2 0.3 0"),
    "a word as root": ("S710", output(TIMES).replace("sum -1", "sum one", 1)),
    "unknown columns": ("S710", output(TIMES).replace("redop", "speed")),
    "cut row": ("S710", output(TIMES).replace("21.30 0.19 0.34 0\n", "21.30\n")),
    "contradiction": ("S710", output(TIMES).replace("50.00 20.97", "500.00 20.97")),
    "no number": ("S710", output(TIMES).replace("50.00 20.97", "fast 20.97")),
    "wrong results": ("S712", output(TIMES).replace("0.34 0\n", "0.34 3\n")),
    "failure": ("S712", output(TIMES) + "host: Test NCCL failure common.cu:958 'internal'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_damaged_output_is_refused(name: str) -> None:
    code, text = MISTAKES[name]
    with pytest.raises(SleyError) as caught:
        nccl_tests.tables_of(text, "out.txt")
    assert caught.value.code == code
    assert "out.txt" in str(caught.value)


@examples(81)
@given(st.randoms(use_true_random=False))
def test_any_damage_is_read_or_refused(rng: random.Random) -> None:
    try:
        tables = nccl_tests.tables_of(mutated(rng))
    except SleyError as error:
        assert error.code in ("S710", "S712")
    else:
        assert all(row.size_bytes > 0 for table in tables for row in table.rows)


SIZES = (4096, 65536, 1 << 20, 1 << 22, 1 << 24)


BASE = sley.Topology.cluster(1, 3, nvlink_GBps=(75.0, 60.0), name="three")


def measured(changes: Changes, base: sley.Topology = BASE) -> list[MeasuredTime]:
    runs, world = NcclRuns(base, nccl_plan), changes.topology(base)
    return [MeasuredTime("allreduce", n, runs("allreduce", n, world).time_us) for n in SIZES]


def test_a_fit_finds_the_changes_that_made_the_times() -> None:
    made = Changes(startup_us=12.0, rates=0.8, latencies=1.4)
    points = measured(made)
    found = table_fit.fit(BASE, points, points[::2], nccl_plan)
    assert found.told == ("startup_us", "rates", "latencies")
    assert found.changes.startup_us == pytest.approx(12.0, abs=0.2)
    assert found.changes.rates == pytest.approx(0.8, rel=0.01)
    assert found.changes.latencies == pytest.approx(1.4, rel=0.05)
    assert [point.size_bytes for point in found.held_out] == [1 << 16, 1 << 22]
    (before, _), (after, _) = found.stated(before=True), found.stated()
    assert after < 0.05 < 0.25 < before


def test_sizes_tell_only_what_they_depend_on() -> None:
    points = measured(Changes())
    assert table_fit.fit(BASE, points, points[:2], nccl_plan).told == ("startup_us",)
    assert table_fit.fit(BASE, points, points[-1:], nccl_plan).told == ("rates",)
    with pytest.raises(SleyError, match="S713"):
        table_fit.fit(BASE, points, points[2:3], nccl_plan)


def calibrated(tmp_path: Path, text: str, *words: str, topology: str = "ndv4") -> tuple[int, str]:
    file = tmp_path / "nccl-tests.txt"
    file.write_text(text, "utf-8")
    arguments = ["calibrate", "--from", str(file), "--topology", topology]
    done = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "here.toml"), *words])
    return done.exit_code, done.output


def test_the_command_writes_a_topology_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    times = {p.size_bytes: p.time_us for p in measured(Changes(startup_us=20.0))}
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    text = output(times, old=True, gpus=3)
    code, text = calibrated(tmp_path, text, "--fit", "4K", topology=base)
    assert code == 0, text
    assert re.search(r"start-up +(19.99|20.0)", text)
    assert "rates       not told by the sizes" in text
    assert "not fitted  slices, tiles, contention:" in text
    assert "error of the 4 sizes that were not fitted" in text
    fitted = topologies.load(tmp_path / "here.toml")
    assert fitted.model.launch_us.ll == pytest.approx(26.6, 0.05)
    own = r"fitted to allreduce of 4K, up to 0\.\d% off; 4 other sizes, median \d.*"
    assert re.fullmatch(own, fitted.accuracy)
    assert errors_text(fitted) == error_text(fitted, 4096) == fitted.accuracy
    text = output(times, gpus=3)
    code, text = calibrated(tmp_path, text, "--fit", "4K", "--json", topology=base)
    assert '"fitted": true' in text


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for text, words, code in (
        (output(TIMES), ("--fit", "8K"), "S713"),
        (output(TIMES, test="gather"), (), "one of gather"),
        (output(TIMES), ("--collective", "alltoall"), "--collective allreduce, which the table"),
        (output(TIMES).replace("#   Rank  7", "#"), (), "S713"),
        (output(TIMES, test="no").replace("1.75", "1"), ("--fit", "x"), "S702"),
    ):
        assert code in calibrated(tmp_path, text, *words)[1]
    lone = CliRunner().invoke(main, ["calibrate", "--from", "x", "-o", str(tmp_path / "y.toml")])
    assert "--from and --topology belong together" in lone.output


def test_without_scipy_a_fit_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert "S710" in calibrated(tmp_path, "no table")[1], "a wrong file is told first"
    code, text = calibrated(tmp_path, output(TIMES))
    assert code == 1
    assert "R512" in text
    assert 'pip install "sley[fit]"' in text


def test_a_fit_that_misses_half_of_the_times_writes_nothing(tmp_path: Path) -> None:
    """No machine like the base has such a table: all sizes take as long as the largest."""
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    times = {p.size_bytes: p.time_us for p in measured(Changes(latencies=4000.0))}
    code, text = calibrated(tmp_path, output(times, gpus=3), topology=base)
    assert code == 1
    assert "S713" in text
    assert "Is this the machine?" in text
    assert f"allreduce of 1M: {times[1 << 20]:.4g} us measured" in text
    assert not (tmp_path / "here.toml").exists()


def test_a_factor_beyond_the_range_of_machines_stays_at_its_limit() -> None:
    points = measured(Changes(startup_us=5.0, rates=0.3))
    found = table_fit.fit(BASE, points, table_fit.chosen_sizes(points), nccl_plan)
    assert found.changes.rates == pytest.approx(0.5, rel=0.01)
    assert "rates" in found.at_limits
    far = measured(Changes(rates=0.05))[-2:]
    with pytest.raises(SleyError, match="rates at their limit") as refused:
        table_fit.fit(BASE, far, far, nccl_plan).check("x")
    assert "NCCL ran otherwise" not in str(refused.value)


def test_the_latencies_of_all_hops_have_one_factor() -> None:
    """Also that of switches, the only one in times of NVLS."""
    model = Changes(latencies=1.5).topology(BASE).model
    names = [f.name for f in fields(model) if f.name.endswith("_latency_us")]
    assert len(names) == 4
    for name in names:
        assert getattr(model, name) == getattr(BASE.model, name) * 1.5


def test_rows_of_one_size_count_by_their_median(tmp_path: Path) -> None:
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    times = {p.size_bytes: p.time_us for p in measured(Changes())}
    cycles = [output({n: us * f for n, us in times.items()}, gpus=3) for f in (0.5, 1.0, 4.0)]
    code, text = calibrated(tmp_path, "".join(cycles), topology=base)
    assert code == 0, text
    assert "note: 5 sizes in several rows, of which the median counts" in text
    assert re.search(r"rates +(1.00|0.99)", text), text


def test_a_fit_that_does_not_help_keeps_the_machine(tmp_path: Path) -> None:
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    times = {p.size_bytes: p.time_us for p in measured(Changes())}
    one_is_slow = {**times, 4096: times[4096] * 3}
    for some, kept in ((one_is_slow, True), ({n: us + 5 for n, us in times.items()}, False)):
        code, text = calibrated(tmp_path, output(some, gpus=3), "--fit", "4K", topology=base)
        assert code == 0, text
        assert ("no fit makes the other sizes' errors smaller" in text) == kept, text
        if kept:
            assert topologies.load(tmp_path / "here.toml").model == BASE.model


def test_links_beyond_their_nominal_rate_are_named(tmp_path: Path) -> None:
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    for rates, told in ((1.2, False), (1.4, True)):  # 60 GB/s of 75 nominal
        times = {p.size_bytes: p.time_us for p in measured(Changes(rates=rates))}
        code, text = calibrated(tmp_path, output(times, gpus=3), topology=base)
        assert code == 0, text
        assert ("beyond what they can carry: GPU 0 -> switch 0 at 8" in text) == told


def test_a_long_fit_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = str(tmp_path / "three.toml")
    topologies.save(BASE, base)
    times = {p.size_bytes: p.time_us for p in measured(Changes())}
    text = output(times, gpus=3)
    assert "the fit takes" not in calibrated(tmp_path, text, topology=base)[1]
    monkeypatch.setattr("sley.cli.calibrate._LONG_S", 0)
    assert "the fit takes about" in calibrated(tmp_path, text, topology=base)[1]


def test_a_fitted_machine_has_short_numbers() -> None:
    points = measured(Changes(startup_us=1.23456789, rates=0.87654321, latencies=1.23456789))
    found = table_fit.fit(BASE, points, table_fit.chosen_sizes(points), nccl_plan)
    model = found.topology.model
    factor = model.nvlink_block_GBps / BASE.model.nvlink_block_GBps
    assert float(f"{factor:.4g}") == pytest.approx(factor, rel=1e-12)
