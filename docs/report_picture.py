"""The picture of a simulation's HTML report: assets/report.png, made by a headless Chromium.

The picture has a hash of the files that make the page look as it does, so that `is_current` needs
no browser and gives the same answer on every machine.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

import sley.report.html

PICTURE = Path(__file__).resolve().parent / "assets/report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIMULATION = (
    *("simulate", "hierarchical-allreduce", "--nodes", "2", "--gpus", "8", "--in-place"),
    *("--instances", "4", "--topology", "ndv4:2", "-b", "64M"),
)
WIDTH, HEIGHT = 1420, 915
KEY = "made from"


class NoBrowserError(Exception):
    """No Chromium is on the path."""


def source() -> str:
    """A hash of this file and of the files of the page."""
    page = Path(sley.report.html.__file__).parent
    files = sorted(path for path in page.iterdir() if path.is_file())
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in [Path(__file__), *files])
    ).hexdigest()


def is_current() -> bool:
    if not PICTURE.is_file():
        return False
    with Image.open(PICTURE) as image:
        return image.info.get(KEY) == source()


def write() -> None:
    """Write the picture. Raises NoBrowserError."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise NoBrowserError(f"none of {', '.join(BROWSERS)} is on the path")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page, shot = folder / "report.html", folder / "shot.png"
        sley_command = (sys.executable, "-c", "import sley.cli; sley.cli.main()")
        simulation = [*sley_command, *SIMULATION, "--html", str(page)]
        screenshot = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH},{HEIGHT}",
            "--virtual-time-budget=5000",
            f"--screenshot={shot}",
            f"{page.as_uri()}#light",
        ]
        for command in (simulation, screenshot):
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        information = PngInfo()
        information.add_text(KEY, source())
        with Image.open(shot) as image:
            small = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
            small.save(PICTURE, optimize=True, pnginfo=information)
