"""The C++ of this repository, for tests that compile it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NATIVE = ROOT / "native"
PRIMITIVES = ROOT / "src" / "sley" / "codegen" / "primitives"
"""Where half.hpp is."""

_TEXT = re.sub(r"#.*", "", (NATIVE / "sources.cmake").read_text())

SOURCES = {
    name: tuple(NATIVE / path for path in paths.split())
    for name, paths in re.findall(r"set\((\w+)([^)]*)\)", _TEXT)
}
"""The sources of each part, as native/sources.cmake lists them."""
