"""Text files: limits on size and keys, in time proportional to the text's length."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from sley.errors import SleyError, text_files
from sley.errors.text_files import text_of, toml_tables
from sley.errors.topology import T605

QUICKLY_S = 3.0


@pytest.mark.parametrize("part", ["a", '"a b"', "'a.b'", '"\\"."', "a ", "\t1"])
@pytest.mark.parametrize("before", ["", "x = 1\n", "[", "[[", "x = {", "x = {y = 1, ", "x = [{"])
def test_a_key_of_many_parts_is_refused_quickly(before: str, part: str) -> None:
    start = time.monotonic()
    with pytest.raises(SleyError, match="longer key") as caught:
        toml_tables("x.toml", before + ".".join([part] * 8000), T605)
    assert caught.value.code == "T605"
    assert time.monotonic() - start < QUICKLY_S


def test_a_key_of_32_parts_is_read() -> None:
    found = toml_tables("x.toml", ".".join("a" * 32) + " = 1", T605)
    for _ in range(32):
        found = found["a"]
    assert found == 1


@pytest.mark.parametrize("value", ["x" * 100_000, "[" * 100_000, ", " * 50_000, "a.b, " * 20_000])
def test_a_long_text_is_read_quickly(value: str) -> None:
    start = time.monotonic()
    assert toml_tables("x.toml", f'x = "{value}"', T605) == {"x": value}
    assert time.monotonic() - start < QUICKLY_S


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_FILE_BYTES", 4)
    path = tmp_path / "x.toml"
    path.write_text("a=12")
    assert text_of(path, T605) == "a=12"
    path.write_text("a=123")
    with pytest.raises(SleyError, match="at most 4 bytes"):
        text_of(path, T605)


def test_content_that_is_not_there_yet_is_no_end_of_a_file() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        with io.BufferedReader(text_files._Content(reader)) as stream:
            os.write(writer, b"abc")
            assert stream.read(3) == b"abc"
            with pytest.raises(BlockingIOError):
                stream.read(1)
    finally:
        os.close(writer)
