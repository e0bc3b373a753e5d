"""A plugin of pytest: a line for each test that begins and ends, and a sample of all tests.

python -m pytest -p first_contact.outcomes --lines FILE --step tests --share 0.3 --seed 1
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from first_contact.lines import Lines

_TEXT = 3000
"""The most characters of a failure's text in a line; its end says most."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("first contact")
    group.addoption("--lines", type=Path, required=True, help="the file of results")
    group.addoption("--step", required=True, help="the step's name in the lines")
    group.addoption("--share", type=float, default=1.0, help="of the tests, drawn by chance")
    group.addoption("--seed", type=int, default=0, help="of the draw")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not a worker of xdist, whose tests the first tells
        config.pluginmanager.register(_Outcomes(config), "first-contact-outcomes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Draws the sample; the same one in each worker."""
    share = config.getoption("--share")
    if share < 1:
        chance = random.Random(config.getoption("--seed"))
        kept = set(chance.sample(range(len(items)), max(1, round(share * len(items)))))
        items[:] = [item for number, item in enumerate(items) if number in kept]


class _Outcomes:
    """Writes the lines."""

    def __init__(self, config: pytest.Config) -> None:
        self._lines = Lines(config.getoption("--lines"), config.getoption("--step"))
        self._seed, self._share = config.getoption("--seed"), config.getoption("--share")

    def pytest_sessionstart(self) -> None:
        self._lines.write(share=self._share, seed=self._seed)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._lines.write(begins=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            text = "" if report.passed else report.longreprtext[-_TEXT:]
            found = {"failure": text} if report.failed else {"skipped": text} if text else {}
            self._lines.write(test=report.nodeid, s=round(report.duration, 2), **found)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._lines.write(pytest_ended=int(exitstatus))
