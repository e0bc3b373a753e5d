"""The C++ side of the comparison with peers: its buffers and its checks agree with Python's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

PROGRAM = """
#include "rank.hpp"

// An engine whose calls write what a file says; a rank without output needs no file.
struct Told {
    int rank, ranks;
    std::string folder;
    void barrier() const {}
    static std::string version() { return "told"; }
    void call(const peers::Cell& cell) const {
        const std::string name = folder + "/" + std::to_string(static_cast<int>(cell.collective));
        std::ifstream file(name, std::ios::binary | std::ios::ate);
        if (!file) return;
        const std::streamsize size = file.tellg();
        file.seekg(0);
        file.read(reinterpret_cast<char*>(cell.output), size);
    }
};

int main(int, char** argv) {
    Told engine{std::stoi(argv[2]), std::stoi(argv[3]), argv[1]};
    return peers::Rank<Told>(engine, argv[1], false).serve() ? 0 : 1;
}
"""


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("cells", "wheels", "worker")
        yield SimpleNamespace(**{name: import_module(f"cpu_peers.{name}") for name in names})
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def program(peers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    source = folder / "told.cpp"
    source.write_text(PROGRAM)
    command = [peers.wheels.compiler(), "-std=c++17", f"-I{BENCHMARKS / 'cpu_peers'}"]
    found: Path = peers.wheels.compiled(source, [], command, folder)
    return found


def answers(program: Path, folder: Path, rank: int, ranks: int, commands: list[str]) -> list[str]:
    """What a rank answers to commands, without its first line."""
    (folder / f"commands-{rank}").write_text("\n".join([*commands, "stop\n"]))
    (folder / "answers").write_text("")
    subprocess.run([str(program), str(folder), str(rank), str(ranks)], check=True, timeout=60)
    lines = (folder / "answers").read_text().splitlines()
    assert lines[0] == f"{rank} ready told"
    return [line.removeprefix(f"{rank} ") for line in lines[1:]]


@pytest.mark.parametrize(("rank", "ranks", "size_bytes"), [(3, 4, 8), (0, 3, 1488), (2, 3, 1488)])
@pytest.mark.parametrize("bias", [0, 1])
def test_the_check_in_cpp_wants_the_results_that_python_expects(
    peers: Any, program: Path, tmp_path: Path, rank: int, ranks: int, size_bytes: int, bias: int
) -> None:
    """Also where a size has no part for each rank, and where a rank has no result."""
    cells = peers.cells.cells(peers.cells.Collective, ranks, [size_bytes])
    commands, wanted = [], []
    for cell in cells:
        result = peers.worker.expected(cell.collective, rank, ranks, size_bytes // 4)
        if result is not None:
            number = list(peers.cells.Collective).index(cell.collective)
            (result + np.float32(bias)).tofile(tmp_path / str(number))
        commands += [f"prepare {cell.collective.value} {size_bytes}", "check"]
        wanted += ["ok", "wrong" if bias and result is not None else "right"]
    assert len(cells) >= 4
    assert answers(program, tmp_path, rank, ranks, commands) == wanted


def test_samples_in_cpp_have_the_layout_of_python(program: Path, tmp_path: Path) -> None:
    """Two float64 for each call: its beginning, and its seconds; rank 0 sleeps before each."""
    commands = ["prepare AllReduce 64", "sample 3 0.02"]
    assert float(answers(program, tmp_path, 0, 1, commands)[1]) >= 0
    begin_s, call_s = np.fromfile(tmp_path / "samples-0").reshape(3, 2).T
    assert (np.diff(begin_s) >= 0.02).all()
    assert ((call_s >= 0) & (call_s < 0.02)).all()
