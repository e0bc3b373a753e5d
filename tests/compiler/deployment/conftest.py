"""Deployment's tests prove each content of a file once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sley.formats import files

_PROVEN: dict[tuple[bytes, str, str], files.FileProof] = {}


@pytest.fixture(autouse=True)
def proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves files of one content once. Those with problems are proven every time, because
    messages name the file."""
    verify_file = files.verify_file

    def from_memory(path: Path, target: str, **settings: Any) -> files.FileProof:
        if settings:
            return verify_file(path, target, **settings)
        key = (path.read_bytes(), path.suffix, target)
        if key not in _PROVEN:
            _PROVEN[key] = verify_file(path, target)
        return _PROVEN[key]

    monkeypatch.setattr(files, "verify_file", from_memory)
