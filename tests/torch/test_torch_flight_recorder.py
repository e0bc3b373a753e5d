"""Files for PyTorch's flight-recorder tools, when a collective has failed."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import sley
from sley.communicator import Settings
from sley.torch import flight_recorder
from support.processes import rank_processes

TIMEOUT_S = 3.0  # busy ranks come to a call a second apart

tool = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")


@contextmanager
def group(folder: str, rank: int, ranks: int, settings: Settings) -> Iterator[None]:
    store = dist.FileStore(f"{folder}/store", ranks)
    timeout = timedelta(seconds=settings.timeout_s or 0)
    dist.init_process_group("sley", store=store, rank=rank, world_size=ranks, timeout=timeout)
    yield
    # No end of the group: the file is there before the error is raised, or soon after.


def hang(_: None, how: str) -> str:
    """Two calls of all ranks; then rank 2 is elsewhere, and the others meet its absence."""
    ones = torch.ones(6)
    dist.all_reduce(ones)
    dist.all_gather_into_tensor(torch.empty(18), ones)
    if dist.get_rank() < 2:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("sley").addHandler(handler)
        try:
            work = dist.all_reduce(torch.ones(5), async_op=how == "recv")
            if work is not None:
                work.wait()
        except sley.SleyError as error:
            return f"{error}\n{said}"
    elif how == "recv":
        dist.recv(torch.ones(3), src=1)
    elif how == "native":
        folder, end = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"]).parent, time.monotonic() + 60
        while len(list(folder.iterdir())) < 3 and time.monotonic() < end:
            ctypes.CDLL(None).usleep(int(1e6))
    else:
        time.sleep(3)
    return "went on"


def run(how: str, prefix: str, variable: str = "SLEY_DUMP") -> list[rank_processes.End]:
    started = rank_processes.start(
        3,
        hang,
        how,
        settings=Settings(timeout_s=TIMEOUT_S),
        environ=lambda _: {variable: prefix},
        join=group,
    )
    return started.ends()


@pytest.mark.parametrize(
    ("how", "variable"),
    [
        ("native", "TORCH_FR_DUMP_TEMP_FILE"),
        ("recv", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ],
)
def test_the_tool_names_the_rank_that_is_elsewhere(
    how: str, variable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = run(how, f"{tmp_path}/trace_", variable)
    assert all("N6" in end.value for end in ends[:2]), ends
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["trace_0", "trace_1", "trace_2"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    try:
        tool.main([str(tmp_path)])
    finally:
        gc.enable()  # the tool disables it
    said = caplog.text
    assert "Not all ranks joining collective, sequence number: 3" in said, said
    assert "missing ranks: {2}" in said, said
    assert "collective: gloo:all_reduce" in said, said
    with files[0].open("rb") as file:
        dump = pickle.load(file)
    assert [entry["state"] for entry in dump["entries"]] == ["completed", "completed", "started"]
    assert [entry["input_sizes"] for entry in dump["entries"]] == [[[6]], [[6]], [[5]]]
    assert [entry["output_sizes"] for entry in dump["entries"]] == [[[6]], [[18]], [[5]]]
    assert any(f["name"] == "hang" for f in dump["entries"][2]["frames"])
    assert dump["pg_status"]["0"]["last_completed_collective"] == 2


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    ends = run("sleep", f"{tmp_path}/missing/trace_")
    for rank, end in enumerate(ends[:2]):
        assert "N6" in end.value
        assert f"missing/trace_{rank} can't be written: No such file" in end.value
    assert not list(tmp_path.iterdir())


def test_without_a_variable_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in flight_recorder.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert flight_recorder.recorder() is None
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "anywhere")
    monkeypatch.setenv("SLEY_DUMP", "")
    assert flight_recorder.recorder() is None


class Group:
    """A group of one rank, which has failed."""

    class _endpoint:  # noqa: N801 - the name of a group's
        has_failed = True

    def getGroupName(self) -> str:  # noqa: N802
        return "mine"

    def getGroupDesc(self) -> str:  # noqa: N802
        return ""

    def size(self) -> int:
        return 1


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MOST_BYTES", 100_000)
    monkeypatch.setattr(flight_recorder.FlightRecorder, "_look", lambda self: None)
    recorder, mine = flight_recorder.FlightRecorder(f"{tmp_path}/r"), Group()
    log = recorder.add(mine)
    int8 = sley.engine.types.DATA_TYPES["int8"]
    call = sley.communicator.Call("all_reduce", 0, 0, 0, 0, 4, int8)
    for number in range(1, flight_recorder.MOST_ENTRIES + 50):
        log.begin(number, call).end()
    recorder.tell()
    (file,) = tmp_path.iterdir()
    assert file.name == "r0"
    assert 20_000 < file.stat().st_size <= 100_000
    with file.open("rb") as stream:
        dump = pickle.load(stream)
    numbers = [entry["collective_seq_id"] for entry in dump["entries"]]
    assert numbers[-1] == flight_recorder.MOST_ENTRIES + 49
    assert len(numbers) < flight_recorder.MOST_ENTRIES
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "the oldest are left out"
    recorder.tell()  # nothing new
    file.unlink()
    recorder.tell()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_writes_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEY_DUMP", f"{tmp_path}/r")
    assert flight_recorder.recorder() is flight_recorder.recorder() is not None
    child = os.fork()
    if child == 0:
        mine, until = Group(), time.monotonic() + 10
        flight_recorder.recorder().add(mine)  # type: ignore[union-attr]
        while time.monotonic() < until and not (tmp_path / "r0").exists():
            time.sleep(0.01)
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "r0").exists()


@pytest.mark.parametrize("problem", [OSError("full"), KeyError("send")])
def test_what_a_handler_of_the_log_calls_ends(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise problem

    monkeypatch.setattr(flight_recorder.FlightRecorder, "_look", lambda self: None)
    monkeypatch.setattr(flight_recorder, "_write", refuse)
    recorder, mine, said = flight_recorder.FlightRecorder(f"{tmp_path}/r"), Group(), list[str]()
    recorder.add(mine)

    def call_again(*told: object) -> None:
        said.append(str(told[-1]))
        recorder.tell()

    monkeypatch.setattr(flight_recorder.logger, "warning", call_again)
    call = threading.Thread(target=recorder.tell, daemon=True)
    call.start()
    call.join(10)
    assert not call.is_alive()
    assert said == [str(problem)]


def test_a_rank_that_has_ended_its_groups_keeps_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder.FlightRecorder, "_look", lambda self: None)
    recorder, mine = flight_recorder.FlightRecorder(f"{tmp_path}/r"), Group()
    log, int8 = recorder.add(mine), sley.engine.types.DATA_TYPES["int8"]
    with monkeypatch.context() as joined:
        joined.setattr(dist, "is_initialized", lambda: True)
        joined.setattr(dist, "get_rank", lambda: 3)
        log.begin(1, sley.communicator.Call("all_reduce", 0, 0, 0, 0, 4, int8))
    recorder.tell()
    assert [file.name for file in tmp_path.iterdir()] == ["r3"]


@pytest.mark.parametrize(
    ("variable", "kind", "name"),
    [
        ("SLEY_DUMP", "cpu:sley,cuda:nccl", "trace_0"),
        ("TORCH_FR_DUMP_TEMP_FILE", "cpu:sley,cuda:nccl", "sley_0"),
        ("TORCH_FR_DUMP_TEMP_FILE", "cpu:sley", "trace_0"),
    ],
)
def test_files_of_nccl_groups_are_not_overwritten(
    variable: str, kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder.FlightRecorder, "_look", lambda self: None)
    monkeypatch.delenv("SLEY_DUMP", raising=False)
    monkeypatch.setenv(variable, f"{tmp_path}/trace_")
    recorder, mine = flight_recorder.recorder(), Group()
    assert recorder is not None
    recorder.add(mine)
    with monkeypatch.context() as joined:
        joined.setattr(dist, "is_initialized", lambda: True)
        joined.setattr(dist, "get_rank", lambda: 0)
        joined.setitem(dist.distributed_c10d._world.pg_map, mine, (kind, None))  # type: ignore
        recorder.tell()
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("file", "is_kept"), [("_tools/a.py", True), ("/a.py", False)])
def test_frames_are_of_the_program_not_of_sley(file: str, is_kept: bool) -> None:
    path = str(Path(sley.__file__).parent) + file
    names = {"frames": flight_recorder._frames}
    exec(compile("found = frames()", path, "exec"), names)
    files = [code.co_filename for code, _ in names["found"]]
    assert (path in files) is is_kept
    assert __file__ in files


def test_threads_make_groups_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder.FlightRecorder, "_look", lambda self: None)
    recorder = flight_recorder.FlightRecorder(f"{tmp_path}/r")
    groups = [Group() for _ in range(800)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(recorder.add, groups))
    finally:
        sys.setswitchinterval(before)
    recorder.tell()
    with (tmp_path / "r0").open("rb") as file:
        assert len(pickle.load(file)["pg_status"]) == len(groups)
