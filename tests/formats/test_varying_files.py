"""Plans of varying counts: every door to a file or a device refuses them, before any other work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sley
from sley import formats
from sley.cli import main
from sley.engine.devices import ThreadsDevice
from sley.engine.devices.measure import compare
from sley.engine.kernels import Kernels
from sley.engine.measure import Sweep
from sley.formats import TARGETS, chakra, files, msccl_xml, mscclpp
from sley.verification import verify

PROGRAM = """
import sley

@sley.program(sley.AllToAllV(2))
def exchange(p):
    for rank in range(2):
        for other in range(2):
            p.chunk(rank, "in", other).copy(other, "out", rank)
"""


def program_of(collective: sley.Collective) -> sley.Program:
    @sley.program(collective)
    def exchange(p: sley.lang.ChunkProgram) -> None:
        for rank in range(2):
            for other in range(2):
                p.chunk(rank, "in", other).copy(other, "out", rank)

    return exchange


@pytest.fixture(scope="module")
def plan() -> sley.Plan:
    return sley.compile(program_of(sley.AllToAllV(2)))


def fail(*_arguments: Any, **_words: Any) -> None:
    raise AssertionError("work before the refusal")


def refused(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(sley.SleyError) as caught:
        call()
    assert caught.value.code == code
    assert "alltoallv(2 ranks, 1 chunk, varying counts" in str(caught.value)


@pytest.mark.parametrize("suffix", [name for name, f in files.FORMATS.items() if not f.is_own])
def test_a_file_is_written(plan: sley.Plan, suffix: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "verify", fail)
    refused("F437", lambda: sley.save(plan, tmp_path / f"a{suffix}"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_a_plan(plan: sley.Plan, target: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "verify", fail)
    refused("F437", lambda: formats.check(plan, target))
    refused("F437", lambda: files.check(plan, target))


@pytest.mark.parametrize(
    "write",
    [
        lambda plan: msccl_xml.write(plan, "msccl"),
        lambda plan: mscclpp.write(plan, "mscclpp"),
        lambda plan: chakra.write(plan, size="1M"),
    ],
    ids=["msccl_xml", "mscclpp", "chakra"],
)
def test_a_writer_writes_a_plan(plan: sley.Plan, write: Callable[[sley.Plan], Any]) -> None:
    refused("F437", lambda: write(plan))


@pytest.mark.parametrize("target", ["msccl", "mscclpp"])
def test_a_runtime_is_said_to_execute_a_file_with_other_counts(target: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{TARGETS[target].suffix}"
    equal = sley.AllToAll(2)
    if target == "msccl":  # only a custom collective has the meaning that the caller gives it
        equal = sley.Custom("mine", 2, 2, 2, lambda rank, index: [(index, rank)])
    plan = sley.compile(program_of(equal), per_chunk=True, fusion=False)
    sley.save(plan, path, target=target)
    assert sley.verify_file(path, target, collective=equal).proofs
    varying = sley.AllToAllV(2)
    refused("F437", lambda: sley.verify_file(path, target, collective=varying))


def test_a_file_of_xml_may_be_read_as_a_varying_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    sley.save(sley.compile(program_of(sley.AllToAll(2)), per_chunk=True), path)
    read = sley.load(path, collective=sley.AllToAllV(2))
    assert isinstance(read, sley.Plan)
    assert read.collective.varies
    verify(read)


def test_choose_searches_for_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.compiler.candidates.build", fail)
    topology = sley.topologies.dgx1()
    program = program_of(sley.AllToAllV(2))
    refused("F437", lambda: sley.choose(program, "1M", topology, target="executor"))


@pytest.mark.parametrize(
    "command",
    [
        "compile -o a.xml",
        "compile -o a.cu",
        "compile -o a.et --size 1M",
        "compile --target mscclpp",
        "run --device threads",
        "run --device threads --engine both",
    ],
)
def test_a_command_refuses_late(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command.startswith("compile"):
        monkeypatch.setattr("sley.cli.sources.compile_in_phases", fail)
    monkeypatch.setattr("sley.cli.run.open_devices", fail)
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(PROGRAM)
    name, *options = command.split()
    result = CliRunner().invoke(main, [name, "a.py", *options])
    assert " F437 varying-counts" in result.stderr, result.output
    assert result.exit_code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py"]


@pytest.mark.parametrize(
    "use",
    [
        lambda plan, on: Kernels.of(plan),
        lambda plan, on: sley.execute(plan, [np.zeros(4)] * 2, devices=on),
        lambda plan, on: sley.run(plan, 64, devices=on),
        lambda plan, on: compare(plan, Sweep([64]), on),
    ],
    ids=["kernels", "execute", "run", "compare"],
)
def test_a_device_runs_a_plan(plan: sley.Plan, use: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(ThreadsDevice, "allocate", fail)
    monkeypatch.setattr("sley.communicator.running.verify", fail)
    refused("F437", lambda: use(plan, sley.engine.devices.open_devices("threads", 2)))


def test_a_device_ignores_counts() -> None:
    plan = sley.compile(program_of(sley.AllToAll(2)))
    with pytest.raises(sley.SleyError, match="R514 bad-setting"):
        sley.execute(plan, [np.zeros(2)] * 2, devices="threads", counts=[[1, 1], [1, 1]])
