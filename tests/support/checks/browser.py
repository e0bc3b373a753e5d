"""Browser: pages in a headless Chromium, if one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Opened:
    """A page after its scripts have run.

    dom: its elements as text. console: Chromium's log of the page.
    """

    dom: str
    console: list[str]

    def attribute(self, id_: str, name: str) -> str | None:
        """An attribute of the element with an id; None if either is missing."""
        tag = re.search(rf'<[a-z]+ [^>]*\bid="{id_}"[^>]*>', self.dom)
        found = re.search(rf' {name}="([^"]*)"', tag[0]) if tag else None
        return unescape(found[1]) if found else None

    def hidden(self, id_: str) -> bool:
        tag = re.search(rf'<[a-z]+ [^>]*\bid="{id_}"[^>]*>', self.dom)
        return bool(tag and re.search(r" hidden(=|[ >])", tag[0]))

    def page(self, name: str) -> str | None:
        """An attribute of the page's root element."""
        found = re.search(rf'<html[^>]* {name}="([^"]*)"', self.dom)
        return unescape(found[1]) if found else None

    def text(self, id_: str) -> str:
        """The text of an element without nested elements of its kind."""
        found = re.search(rf'<([a-z]+)[^>]*\bid="{id_}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        return unescape(re.sub(r"<[^>]*>", " ", found[2])) if found else ""


def open_page(page: Path, folder: Path, fragment: str = "", width: int = 1366) -> Opened:
    """A page in a headless Chromium of this width in pixels after five seconds of virtual time;
    skips the test without Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    command = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--window-size={width},768",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
        f"{page.as_uri()}{fragment}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Opened(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])
