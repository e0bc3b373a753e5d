"""Golden files: expected results as files that people read and review."""

from __future__ import annotations

from pathlib import Path

import pytest


class Golden:
    """Compares values with the files of one folder, or updates the files.

    A test calls ``golden("ring.xml", text)``; with ``--update-golden`` this writes the file
    instead, for review with git diff.
    """

    def __init__(self, folder: Path, update: bool) -> None:
        self.folder = folder
        self.update = update

    def __call__(self, name: str, actual: str | bytes) -> None:
        path = self.folder / name
        content = actual.encode() if isinstance(actual, str) else actual
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            return
        if not path.is_file():
            pytest.fail(f"there is no golden file {path}; write it with --update-golden")
        expected = path.read_bytes()
        if isinstance(actual, str):
            assert actual == expected.decode(), f"differs from {path}"
        assert content == expected, f"differs from {path}"
