"""The declarations of PyTorch's C interfaces."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.devices.native_programs import NATIVE, TESTS, compiler


def syntax_errors(*folders: Path) -> str:
    torch = pytest.importorskip("torch")
    headers = Path(torch.__file__).parent / "include"
    if not (headers / "torch" / "csrc" / "stable" / "c" / "shim.h").exists():
        pytest.skip("this PyTorch has no headers of a stable C interface")
    includes = [f"-I{folder}" for folder in folders]
    command = [compiler(), "-std=c++17", "-fsyntax-only", *includes, "-isystem", str(headers)]
    test = str(TESTS / "torch_abi_test.cpp")
    return subprocess.run([*command, test], capture_output=True, text=True).stderr[-4000:]


def test_a_declaration_of_pytorch_differs_from_its_headers() -> None:
    assert syntax_errors(NATIVE) == ""


@pytest.mark.parametrize(
    ("file", "right", "false"),
    [
        ("dlpack.hpp", "std::int32_t ndim;", "std::int64_t ndim;"),
        ("libtorch.hpp", "(Tensor tensor, std::int64_t* numel)", "(Tensor tensor, long numel)"),
    ],
)
def test_a_false_declaration_of_pytorch_is_not_noticed(
    tmp_path: Path, file: str, right: str, false: str
) -> None:
    shutil.copytree(NATIVE / "torch", tmp_path / "torch")
    declared = (NATIVE / "torch" / file).read_text()
    assert right in declared
    (tmp_path / "torch" / file).write_text(declared.replace(right, false))
    assert "static assertion failed" in syntax_errors(tmp_path)
