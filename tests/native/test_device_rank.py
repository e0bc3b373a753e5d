"""Ranks on GPUs that open without Python, over the stand-in for NVIDIA's driver, under the
sanitizers."""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sley.communicator import link_tables
from sley.engine import native
from sley.engine.devices import Settings
from sley.ir.words import ReduceOp
from support.devices.made_ahead import stand_in, write_tables
from support.devices.native_programs import BASE, FEWER_SANITIZERS, RANK, run, sanitized

BLOCKS = 4
"""Of a rank, at most."""

DEVICES = "devices={} memory_bytes=4000000000 multiprocessors={}"


def made(folder: Path, keys: Sequence[tuple[int, bool, int]], *flags: str) -> Path:
    """The folder with tables of small slots, by ranks, whether on one device, and blocks, and
    with kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_tables, "Settings", lambda: Settings(slot_bytes=4096))
        for ranks, one_device, blocks in keys:
            key = native.LinkKey(ranks, True, one_device, blocks)
            write_tables(key, folder, ["float32"], [ReduceOp.SUM], flags)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, kernels and the stand-in; in it a folder with others, and damaged ones
    in this one."""
    every = [(2, False, BLOCKS), (3, False, BLOCKS // 2), (4, True, BLOCKS)]
    folder = made(tmp_path_factory.mktemp("ahead"), every)
    (folder / "other").mkdir()
    key = native.LinkKey(2, True, False, BLOCKS)
    write_tables(key, folder / "other", ["float32"], [ReduceOp.MAX])
    for name in ("cut", "swapped"):
        shutil.copytree(folder, folder / "other" / name, ignore=shutil.ignore_patterns("other"))
    for file in (folder / "other" / "cut").iterdir():
        if file.suffix in (".fatbin", ".tables"):
            file.write_bytes(file.read_bytes()[:-1])
    files = sorted((folder / "other" / "swapped").glob("*.fatbin"))
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def races(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Here the kernel of messages is under the sanitizer of threads, too."""
    folder, keys = tmp_path_factory.mktemp("races"), [(2, False, BLOCKS), (3, False, BLOCKS // 2)]
    return made(folder, keys, "-g1", "-fsanitize=thread", "-DSLEY_RELEASE_MAY_BREAK")


def run_ranks(
    sanitizers: str, small: Path, scenario: str, *arguments: str, **environment: str
) -> CompletedProcess[str]:
    unfreed = small / "unfreed"
    unfreed.write_text("leak:libcuda.so\n")  # the stand-in
    return run(
        sanitized(sanitizers, RANK, tests=["device_rank"], over=BASE),
        *("device_rank", scenario, str(small), version("sley"), *arguments),
        LD_LIBRARY_PATH=stand_in(small)["LD_LIBRARY_PATH"],
        LSAN_OPTIONS=f"suppressions={unfreed}:print_suppressions=0",
        **environment,
    )


def check(sanitizers: str, small: Path, scenario: str, *arguments: str, **environment: str) -> None:
    done = run_ranks(sanitizers, small, scenario, *arguments, **environment)
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


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [
        ("messages", ("2", "2", "3")),
        ("messages", ("3", "1", "2")),
        ("captured", ()),
        ("many_messages", ()),
        ("refused_messages", ()),
        ("stuck_messages", ()),
    ],
)
def test_messages(scenario: str, arguments: tuple[str, ...], races: Path) -> None:
    """`messages`: jobs of ranks that are threads, or processes, which group the same messages
    differently, on two streams, beside collectives. The others: a graph of messages, more than fit
    into a launch, and messages that are refused or find no partner."""
    check("thread", races, scenario, *arguments)


def test_messages_of_ranks_that_fill_their_device(small: Path) -> None:
    """A rank's lanes are more than its blocks."""
    check("thread", small, "messages", "4", "4", "1", SLEY_FAKE=DEVICES.format(1, BLOCKS * 4))


def test_a_lost_release_of_messages_is_noticed(races: Path) -> None:
    done = run_ranks("thread", races, "messages", "2", "2", "1", SLEY_BREAK_RELEASE="1")
    assert (done.returncode != 0, "data race" in done.stderr) == (True, True)


@pytest.mark.parametrize("scenario", ["calls", "processes"])
@pytest.mark.parametrize(
    ("ranks", "devices"),
    [(4, 1), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((3, 1), (8, 8)))],
)
def test_ranks_on_their_own_devices_or_on_one(
    scenario: str, ranks: int, devices: int, small: Path
) -> None:
    made(small, [(ranks, devices == 1, BLOCKS)])
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
