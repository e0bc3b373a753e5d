"""benchmarks/hosts.py: the tables of given times."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MB = 2**20


@pytest.fixture(scope="module")
def hosts() -> Iterator[Any]:
    """The module, which is in no package."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("hosts")
    finally:
        sys.path.remove(str(BENCHMARKS))


def times(hosts: Any, what: str, engine: str, nics: int, ms: list[float]) -> Any:
    return hosts.Times(what, engine, nics, 64 * MB, ms)


def test_the_bound_is_that_of_all_interfaces(hosts: Any) -> None:
    # 2 (H-1)/H times 64 MB over so many Gbit/s.
    assert hosts.bound_ms(2, 64 * MB, 1.0) == pytest.approx(536.870912)
    assert hosts.bound_ms(4, 64 * MB, 1.0) == pytest.approx(1.5 * 536.870912)
    assert hosts.bound_ms(2, 64 * MB, 0.8) == pytest.approx(536.870912 / 0.8)


def test_the_report_has_a_row_for_each_size_and_engine(hosts: Any) -> None:
    rows = [
        times(hosts, "AllReduce", "gloo", 1, [900, 1100, 1000]),
        times(hosts, "AllReduce", "sley over TCP", 1, [560, 540, 550]),
        times(hosts, "AllReduce", "sley over TCP", 4, [140, 135, 150]),
        times(hosts, "AllToNext", "sley over TCP, alltonext", 4, [100, 200, 100]),
        times(hosts, "AllToNext", "sley over TCP, direct", 4, [390, 400, 370]),
    ]
    text = hosts.report(rows, 2, 1.0)
    assert "| 64M | gloo | 1 | 1000 | 537 | 1.86 |" in text
    assert "| 64M | sley over TCP | 4 | 140 | 134 | 1.04 |" in text
    assert "| AllReduce | 64M | sley over TCP, 4 | sley over TCP, 1 | 4.00 |" in text
    # The median of the rounds' ratios, not the ratio of the medians.
    assert "sley over TCP, alltonext, 4 | sley over TCP, direct, 4 | 3.70 |" in text
    assert text.count("gloo") == 1


@pytest.mark.parametrize(
    "words", [[], ["--gbps", "1"], ["--gbps", "1", "--nics", "a", "--sizes", "x"]]
)
def test_options_that_make_no_sense_are_wrong_usage(hosts: Any, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        hosts.parser().parse_args(words)
