"""`sley verify --certificate`, and the program that checks what it writes, alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

import sley
import sley_check
from sley.cli import main


def verify(file: Path, certificate: Path, *words: str) -> str:
    result = CliRunner().invoke(
        main, ["verify", str(file), "--certificate", str(certificate), *words]
    )
    assert (result.exit_code == 0) == certificate.exists()
    return result.output


def test_a_certificate_is_checked_without_sley(plans: Mapping[str, Path], tmp_path: Path) -> None:
    certificate = tmp_path / "pairs"
    verify(plans["pairs"], certificate)
    # Without the folders of installed packages, and so without sley and NumPy.
    alone = [sys.executable, "-I", "-S", sley_check.__file__]
    ends = [
        subprocess.run([*alone, str(file), str(certificate)], capture_output=True, text=True)
        for file in (plans["pairs"], plans["ring"], tmp_path / "missing")
    ]
    assert [end.returncode for end in ends] == [0, 1, 2]
    assert ends[0].stdout.startswith("accepted: a correct allgather on 4 ranks; no race; no hang\n")
    assert ends[1].stdout.startswith(f"refused: {plans['ring']}: certificate: ")
    assert "missing" in ends[2].stderr
    unread, out = os.pipe()
    os.close(unread)
    end = subprocess.run(
        [*alone, str(plans["pairs"]), str(certificate)], stdout=out, stderr=subprocess.PIPE
    )
    os.close(out)
    assert (end.returncode, end.stderr) == (-signal.SIGPIPE, b"")
    with Path("/dev/full").open("w") as full:
        end = subprocess.run(
            [*alone, str(plans["pairs"]), str(certificate)], stdout=full, stderr=subprocess.PIPE
        )
    assert end.returncode == 2
    assert end.stderr == b"sley-check: [Errno 28] No space left on device\n"


def test_a_runtime_file_has_a_certificate_for_each_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, certificate = tmp_path / "plan.xml", tmp_path / "certificate"
    sley.save(sley.compile(sley.load("ring-allgather", ranks=2), per_chunk=True), file)
    file.write_text(file.read_text().replace('inplace="0"', 'inplace="1"'))
    assert "needs --target" in verify(file, certificate)
    text = file.read_text()
    for over in (file, tmp_path / "other.plan"):
        words = ["verify", str(file), "--target", "executor", "--certificate", str(over)]
        assert CliRunner().invoke(main, words).exit_code == 2
    assert file.read_text() == text
    with pytest.raises(SystemExit, match="2"):  # no runtime is named
        sley_check.main([str(file), str(file)])
    verify(file, certificate, "--target", "executor", "--max-bytes", "4M")
    words = [str(file), str(certificate), "--target", "executor"]
    assert sley_check.main([*words, "--max-bytes", str(4 << 20)]) == 0
    out = capsys.readouterr().out
    assert "for: in place" in out
    assert "for: out of place" in out
    assert "to 4194304 bytes" in out
    assert sley_check.main([*words, "--target", "rccl"]) == 0
    for text, why in (
        ("", "none of"),
        ("{}", "none of"),
        ('{"version": 2}', "version 2 isn't known"),
    ):
        certificate.write_text(text)
        assert sley_check.main(words) == 1
        assert why in capsys.readouterr().out


def test_what_has_no_certificate_is_refused(tmp_path: Path) -> None:
    plan = sley.compile(sley.load("nvls-allreduce", ranks=4), protocol="Direct")
    sley.save(plan, tmp_path / "switches.plan")
    assert "V223" in verify(tmp_path / "switches.plan", tmp_path / "certificate")
