"""Ranks on GPUs that open without Python, over the stand-in for NVIDIA's driver, under the
sanitizers."""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from sley.communicator import link_tables
from sley.engine import native
from sley.engine.devices import Settings
from sley.ir.words import ReduceOp
from support.devices.made_ahead import stand_in, write_tables
from support.devices.native_programs import FEWER_SANITIZERS, SOURCES, run, sanitized

PARTS = ("FABRIC", "DEVICES", "ENGINE", "MEETING", "CUDA")
BLOCKS = 4
"""Of a rank, at most."""

DEVICES = "devices={} memory_bytes=4000000000 multiprocessors={}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of small slots, kernels, and the stand-in."""
    folder = tmp_path_factory.mktemp("ahead")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_tables, "Settings", lambda: Settings(slot_bytes=4096))
        for ranks, one_device, blocks in (
            *((2, False, BLOCKS), (3, False, BLOCKS // 2)),
            *((3, True, BLOCKS), (8, False, BLOCKS), (8, True, BLOCKS)),
        ):
            key = native.LinkKey(ranks, True, one_device, blocks)
            write_tables(key, folder, ["float32"], [ReduceOp.SUM])
        (folder / "other").mkdir()
        key = native.LinkKey(2, True, False, BLOCKS)
        write_tables(key, folder / "other", ["float32"], [ReduceOp.MAX])
    return folder


def check(sanitizers: str, small: Path, scenario: str, *arguments: str, **environment: str) -> None:
    sources = [path for part in PARTS for path in SOURCES[part]]
    unfreed = small / "unfreed"
    unfreed.write_text("leak:libcuda.so\n")  # the stand-in
    done = run(
        sanitized(sanitizers, *sources, tests=["device_rank"]),
        *("device_rank", scenario, str(small), version("sley"), *arguments),
        LD_LIBRARY_PATH=stand_in(small)["LD_LIBRARY_PATH"],
        LSAN_OPTIONS=f"suppressions={unfreed}:print_suppressions=0",
        **environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture
def _no_litter() -> Iterator[None]:
    """Removes the sockets of processes that were killed."""
    yield
    for box in Path("/dev/shm").glob("sley-*/box"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            if end.connect_ex(str(box)) == errno.ECONNREFUSED:
                shutil.rmtree(box.parent)


@pytest.mark.usefixtures("_no_litter")
@pytest.mark.parametrize("sanitizers", FEWER_SANITIZERS)
@pytest.mark.parametrize(
    ("scenario", "argument"),
    [
        ("calls", "2"),
        ("processes", "3"),
        ("failed", ""),
        ("aborts", ""),
        ("deaths", ""),
        ("many", "2"),
    ],
)
def test_ranks_without_python(sanitizers: str, scenario: str, argument: str, small: Path) -> None:
    """`calls`: of threads; twice, the second time with what is loaded already. `processes`: the
    same of processes. `failed`: one is given up, and one waits too long. `aborts`, `deaths`: a
    thread aborts, or a process ends, at any time. `many`: communicators beside one another."""
    check(sanitizers, small, scenario, argument)


@pytest.mark.parametrize("scenario", ["calls", "processes"])
@pytest.mark.parametrize(("ranks", "devices"), [(3, 1), (8, 8), (8, 1)])
def test_ranks_on_their_own_devices_or_on_one(
    scenario: str, ranks: int, devices: int, small: Path
) -> None:
    settings = DEVICES.format(devices, BLOCKS * ranks // devices)
    check("thread", small, scenario, str(ranks), SLEY_FAKE=settings)


@pytest.mark.parametrize("sanitizers", FEWER_SANITIZERS)
def test_all_ranks_refuse_alike(sanitizers: str, small: Path) -> None:
    """Also what only one of them lacks: tables, the same ones, kernels, memory, peer access."""
    check(sanitizers, small, "refusals", str(small / "other"))


@pytest.mark.parametrize(
    ("words", "settings", "queues"),
    [
        ("K506: expected at most 0 blocks of 512 threads at once", "blocks_each=0", "8"),
        ("K506: expected at most 1 ranks of a process on Stand-in", "devices=1", "1"),
        ("N653: expected tables for 2 ranks", "native_atomics=0", "8"),
    ],
)
def test_what_devices_lack_is_refused(words: str, settings: str, queues: str, small: Path) -> None:
    environment = {"SLEY_FAKE": settings, "CUDA_DEVICE_MAX_CONNECTIONS": queues}
    check("thread", small, "refusal", words, **environment)
