"""The golden-file helper compares, and writes only when asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.checks.golden import Golden


def test_equal_text_and_bytes_pass(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\n")
    Golden(tmp_path, update=False)("a", "one\n")
    Golden(tmp_path, update=False)("a", b"one\n")


@pytest.mark.parametrize("actual", ["two\n", b"two\n", "one\r\n", "one"])
def test_any_difference_fails(tmp_path: Path, actual: str | bytes) -> None:
    (tmp_path / "a").write_bytes(b"one\n")
    with pytest.raises(AssertionError, match="differs from"):
        Golden(tmp_path, update=False)("a", actual)
    assert (tmp_path / "a").read_bytes() == b"one\n"


def test_a_missing_file_fails_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        Golden(tmp_path, update=False)("a", "one")


def test_updating_writes_the_golden_file(tmp_path: Path) -> None:
    Golden(tmp_path, update=True)("folder/a", "one\n")
    assert (tmp_path / "folder" / "a").read_bytes() == b"one\n"
