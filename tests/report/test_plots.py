"""Tests of plots of simulations."""

import dataclasses
import errno
import os
import subprocess
import sys

import matplotlib as mpl
import pytest

from sley.errors import SleyError
from sley.report.plots import plot
from support.inputs.made_simulations import mesh_simulation, ring_simulation

SIZES = [ring_simulation(2**k) for k in (16, 20, 24)]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_simulations_give_the_same_bytes(tmp_path, suffix):
    pictures = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in pictures:
        plot(SIZES, path)
    first, second = (path.read_bytes() for path in pictures)
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])


def test_the_users_settings_of_matplotlib_stay_and_dont_change_a_plot(tmp_path):
    plot(SIZES, tmp_path / "a.svg")
    with mpl.rc_context({"font.size": 31.0, "svg.hashsalt": "mine"}):
        plot(SIZES, tmp_path / "b.svg")
        assert mpl.rcParams["font.size"] == 31.0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_plot_has_curves_operations_or_sums_of_time(tmp_path):
    """SVG files contain texts as comments: curves only for several simulations, operations only
    of one plan, with executions."""
    large = mesh_simulation(2, 4)
    cases = {
        "sizes": (SIZES, {"algbw, GB/s", "bound", "recv reduce send"}, {"overhead"}),
        "one": (SIZES[:1], {"recv reduce send"}, {"algbw, GB/s"}),
        "parts": (
            [dataclasses.replace(SIZES[0], executions=None)],
            {"waiting for messages"},
            {"recv reduce send"},
        ),
        "mesh": ([large], {"recv reduce copy", "7 . 7"}, {"algbw, GB/s"}),
        "bins": ([mesh_simulation(4, 6)], {"share of the time in which data moves"}, {"recv"}),
    }
    for name, (simulations, inside, outside) in cases.items():
        plot(simulations, tmp_path / f"{name}.svg")
        text = (tmp_path / f"{name}.svg").read_text()
        texts = {line.strip()[5:-4] for line in text.splitlines() if line.strip()[:4] == "<!--"}
        assert inside <= texts, name
        assert not outside & texts, name


def test_each_curve_has_its_name_in_the_legend(tmp_path):
    plot(SIZES[:2], tmp_path / "a.svg", names=["_fast", "$\\slow{$"])
    text = (tmp_path / "a.svg").read_text()
    assert "<!--  _fast -->" in text
    assert "<!-- $\\slow{$ -->" in text
    assert text.index("<!-- $\\slow{$ -->") < text.index("<!-- bound -->")
    assert "rank . thread block" not in text  # of which plan?


def test_wrong_calls_are_refused(tmp_path):
    for code, call in (
        ("P810", lambda: plot([], tmp_path / "a.png")),
        ("F460", lambda: plot(SIZES, tmp_path / "a.jpg")),
        ("P810", lambda: plot(SIZES, tmp_path / "a.png", names=["one"])),
    ):
        with pytest.raises(SleyError) as error:
            call()
        assert error.value.code == code
    assert not list(tmp_path.iterdir())


def test_matplotlib_is_imported_only_for_a_plot():
    code = "import sys, sley.report.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_plot_on_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SleyError, match="F461") as caught:
        plot(SIZES, tmp_path / "x.svg")
    assert "No space left" in str(caught.value)
    assert not list(tmp_path.iterdir())
