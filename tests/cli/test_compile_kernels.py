"""Kernels as files: `sley compile -o kernels.cu` and `sley.save`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.engine.kernels import KERNELS
from sley.errors import SleyError
from sley.ir.words import Op
from support.mutants.plan_edits import with_columns


def compile_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compile", *map(str, arguments)])


def ring(**options: Any) -> sley.Plan:
    return sley.compile(sley.algorithms.build("ring-allreduce", ranks=3, in_place=True), **options)


def code_of(call: Any) -> str:
    with pytest.raises(SleyError) as caught:
        call()
    return caught.value.code


def test_a_written_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from sley.engine.devices.cuda.compiler import compile_text

    path = tmp_path / "kernels.cu"
    result = compile_command(
        "ring-allreduce", "--ranks", 3, "--protocol", "Direct", "-o", path, "--op", "avg"
    )
    assert result.exit_code == 0, result.output
    assert f"{path} for float32 and avg" in result.stdout
    assert "per chunk              False" in result.stdout.splitlines()
    text = path.read_text()
    assert "#include" not in text
    assert set(KERNELS) <= set(compile_text(text, "sm_90").functions)


def test_a_written_kernel_compiles_for_a_cpu(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    path = tmp_path / "kernels.cpp"
    assert compile_command("hm-allreduce", "--nodes", 2, "--gpus", 2, "-o", path).exit_code == 0
    (line,) = [line for line in path.read_text().splitlines() if line.startswith("// Compile with")]
    words = line.removeprefix("// Compile with ").rstrip(".").split()
    assert words[0] == "g++"
    command = [path.name if word == "FILE" else word for word in words]
    subprocess.run([*command, "-o", "kernels.so"], check=True, cwd=tmp_path)
    library = ctypes.CDLL(str(tmp_path / "kernels.so"))
    assert all(hasattr(library, name) for name in KERNELS)


def test_the_head_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    options = ("-d", "half", "--op", "max", "--threads", 256)
    assert compile_command("ring-allreduce", "--ranks", 3, "-o", path, *options).exit_code == 0
    head = path.read_text().split("\n\n")[0]
    assert all(line.startswith("//") for line in head.splitlines())
    assert "Kernels of ring-allreduce: allreduce on 3 ranks, Simple, tile-major." in head
    assert "for float16 and max" in head
    assert "The 3 blocks of sley_run, of 256 threads each" in head
    assert "nvcc -std=c++17 -cubin -arch=sm_90" in head
    assert "sley::Call" in head
    assert "sley.engine.devices.Executor" in head
    assert "#define SLEY_THREADS 512" in path.read_text()


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("kernels.cu", "kernels.cpp", "KERNELS.CU"):
        sley.save(ring(), tmp_path / name)
        first = (tmp_path / name).read_bytes()
        sley.save(ring(), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
    small, large = (tmp_path / name for name in ("kernels.cu", "KERNELS.CU"))
    assert small.read_bytes() == large.read_bytes()


def test_a_name_from_elsewhere_stays_in_its_comment(tmp_path: Path) -> None:
    plan = replace(ring(), name="x\nint main() {}\\\r\u2028")
    sley.save(plan, tmp_path / "kernels.cu")
    first, second = (tmp_path / "kernels.cu").read_text("utf-8").splitlines()[:2]
    assert first.startswith("// Kernels of x?nint main() {}??r?u2028: allreduce")
    assert second.startswith("// Made by sley")
    sley.save(plan, tmp_path / "kernels.cu", name="mine")
    assert (tmp_path / "kernels.cu").read_text("utf-8").startswith("// Kernels of mine: ")


def test_an_unproven_plan_is_not_written(tmp_path: Path) -> None:
    plan = ring(fusion=False)
    row = int(np.flatnonzero(plan.instructions.op == Op.RECV_REDUCE_COPY)[0])
    damaged = with_columns(plan, row, op=int(Op.RECV), src_buffer=-1, src_index=-1)
    assert code_of(lambda: sley.save(damaged, tmp_path / "kernels.cu")).startswith("V2")
    assert list(tmp_path.iterdir()) == []


def test_options_that_a_kind_of_file_lacks_are_refused(tmp_path: Path) -> None:
    plan, kernels, xml = ring(), tmp_path / "kernels.cu", tmp_path / "plan.xml"
    assert code_of(lambda: sley.save(plan, kernels, target="rccl")) == "C309"
    assert code_of(lambda: sley.save(plan, kernels, min_bytes=4)) == "C309"
    assert code_of(lambda: sley.save(plan, kernels, max_bytes=4)) == "C309"
    assert code_of(lambda: sley.save(plan, xml, dtype="int8")) == "C309"
    assert code_of(lambda: sley.save(plan, xml, reduce_op=sley.ReduceOp.SUM)) == "C309"
    assert code_of(lambda: sley.save(plan, kernels, dtype="int3")) == "R504"
    for threads in (8, 33, 2048):  # the last warp of a block has a part of its own
        assert code_of(lambda threads=threads: sley.save(plan, kernels, threads=threads)) == "R514"
    assert code_of(lambda: sley.save(plan, tmp_path / "plan.cc")) == "F460"
    assert code_of(lambda: sley.save(plan, tmp_path / "none" / "kernels.cu")) == "F461"
    many = sley.compile(sley.algorithms.build("ring-allgather", ranks=130, in_place=True))
    assert code_of(lambda: sley.save(many, kernels)) == "K521"
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_what_a_file_of_kernels_has_no_place_for(tmp_path: Path) -> None:
    ring_of_3 = ("ring-allreduce", "--ranks", 3)
    kernels = tmp_path / "kernels.cu"
    refused = compile_command(*ring_of_3, "-o", kernels, "--target", "rccl")
    assert (refused.exit_code, "--target" in refused.stderr) == (2, True)
    refused = compile_command(*ring_of_3, "-o", tmp_path / "plan.xml", "-d", "half")
    assert (refused.exit_code, "--dtype" in refused.stderr) == (2, True)
    refused = compile_command(*ring_of_3, "-o", tmp_path / "plan.xml", "--op", "sum")
    assert (refused.exit_code, "--op" in refused.stderr) == (2, True)
    assert compile_command(*ring_of_3, "--op", "sum").exit_code == 2
    assert compile_command(*ring_of_3, "-o", kernels, "--threads", 48).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_kernels_are_written_of_orders_that_no_xml_has(tmp_path: Path) -> None:
    """Kernels are made of plans in instruction order, and of blocks with several connections."""
    path = tmp_path / "kernels.cu"
    options = ("--nodes", 2, "--gpus", 2, "--schedule", "hpds", "--allocate", "state")
    result = compile_command("hm-allreduce", *options, "-o", path)
    assert result.exit_code == 0, result.output
    assert "instruction-major" in path.read_text().splitlines()[0]
