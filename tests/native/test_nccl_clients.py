"""How programs load NCCL, and which library answers: sley's, or the one that they find. What
`sley doctor` says of each is what happens.

Packages are taken from the folders in `SLEY_TEST_NCCL_CLIENTS`, separated by colons, or from this
Python's; no test needs a GPU.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_nccl_calls import driver, folder, tables

from sley.compiler.deployment import nccl_programs
from sley.compiler.deployment.nccl_programs import Reach
from support.devices.native_programs import TESTS
from support.devices.nccl_clients import compiled, needs_nm, output, stand_in, variables

__all__ = ["driver", "folder"]

PASSED_ON = 22907
"""The version of the stand-in, to which sley's library passes calls on."""
NCCL = """
int ncclGetVersion(int *version) { *version = 22809; return 0; }
const char *variable = "NCCL_COMM_ID";
"""
LINKED = """
#include <stdio.h>
int ncclGetVersion(int *version);
int main(void) { int v = 0; ncclGetVersion(&v); printf("%d\\n", v); return 0; }
"""
OPENS = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  int v = 0;
  void *nccl = dlopen(NAME, RTLD_NOW);
  int (*function)(int *) = (int (*)(int *))dlsym(nccl, "ncclGetVersion");
  if (function && dlsym(nccl, "ncclGetUniqueId")) function(&v);
  printf("%d\\n", v);
  return 0;
}
"""
LINK = ("-L{nccl}", "-l:libnccl.so.2")
PROGRAMS = {
    "linked, with an RPATH": (LINKED, (*LINK, "-Wl,-rpath,{nccl}"), Reach.PRELOAD),
    "linked, by LD_LIBRARY_PATH": (LINKED, LINK, Reach.PRELOAD),
    "opened by name": (OPENS, ('-DNAME="libnccl.so.2"',), Reach.PRELOAD),
    "among all that is loaded": (OPENS, ("-DNAME=NULL",), Reach.PRELOAD),
    "opened by another name": (OPENS, ('-DNAME="libnccl.so"',), Reach.PATH),
    "opened by path": (OPENS, ('-DNAME="{nccl}/libnccl.so.2"',), Reach.PATH),
    "opened by another path": (OPENS, ('-DNAME="{nccl}/libnccl.so.2.28.9"',), Reach.PATH),
    "linked into it": (LINKED + NCCL, (), Reach.NOT),
    "static": (LINKED + NCCL, ("-static",), Reach.NOT),
}
PYTHON = """
import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version))
print(version.value)
"""
# PyTorch's own answer is a constant. XLA has its functions for itself.
PACKAGES = {
    "PyTorch": (
        "torch/lib/libtorch_cuda.so",
        """
import ctypes, os, torch
torch.cuda.nccl.unique_id()
journal = ctypes.CDLL(os.environ["SLEY_NCCL_LIBRARY"]).stand_in_journal
journal.restype = ctypes.c_char_p
print(22907 if b"GetUniqueId" in journal() else 0)
""",
    ),
    "CuPy": (
        "cupy_backends/cuda/libs/nccl.*.so",
        "from cupy_backends.cuda.libs import nccl; print(nccl.get_version())",
    ),
    "nccl4py": (
        "nccl/bindings/_internal/nccl.*.so",
        "from nccl.bindings import nccl; print(nccl.get_version())",
    ),
    "JAX": (
        "jax_plugins/xla_cuda*/xla_cuda_plugin.so",
        """
import ctypes, re, subprocess, sys
file, version = sys.argv[1], ctypes.c_int()
symbols = subprocess.run(["nm", file], capture_output=True, text=True).stdout
place = int(re.findall(r"^(\\w+) t ncclGetVersion$", symbols, re.M)[0], 16)
ctypes.CDLL(file)
start = next(line for line in open("/proc/self/maps") if file in line)
place += int(start.split("-")[0], 16)
ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(place)(ctypes.addressof(version))
print(version.value)
""",
    ),
}

FOLDERS = os.environ.get("SLEY_TEST_NCCL_CLIENTS", sysconfig.get_paths()["purelib"]).split(":")
PROCESS_GROUP = TESTS / "nccl_process_group.cpp"
PYTORCH = {*re.findall(r"\bnccl[A-Z]\w+(?=\()", PROCESS_GROUP.read_text())}
ELSEWHERE = {
    f"nccl{name}"
    for name in (
        *("CommInitAll", "CommInitRank", "DevCommCreate", "DevCommDestroy"),
        *("GetLsaMultimemDevicePointer", "GetPeerDevicePointer"),
        *("PutSignal", "Signal", "WaitSignal"),
        *("CommMemStats", "CommResume", "CommSuspend"),
    )
}
"""Other parts of PyTorch call these, some in later releases only: torch.cuda.nccl, symmetric memory
and the suspension of a group's memory."""


REPLAYS = [("threads", "polling"), ("processes", "blocking")]


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an NCCL of version 22809, which clients find without sley."""
    folder = tmp_path_factory.mktemp("nccl")
    for name in ("libnccl.so", "libnccl.so.2", "libnccl.so.2.28.9"):
        (folder / name).symlink_to(stand_in(version=22809))
    return folder


def installed(pattern: str) -> Path:
    """A file of a package; skips the test without one."""
    found = [path for one in FOLDERS for path in sorted(Path(one).glob(pattern))]
    if not found:
        pytest.skip(f"no {pattern}: SLEY_TEST_NCCL_CLIENTS")
    return found[0]


def is_reached(command: list[str | Path], given: Mapping[str, str]) -> bool:
    """Whether a client's call comes to sley's library where it is preloaded; else to the NCCL that
    the client finds."""
    bare = {name: value for name, value in given.items() if name != "LD_PRELOAD"}
    answers = [output(command, one)[0].split()[-1] for one in (bare, dict(given))]
    assert answers[0] != str(PASSED_ON)
    return answers[1] == str(PASSED_ON)


@pytest.mark.parametrize("way", PROGRAMS)
def test_programs_in_c(way: str, nccl: Path, tmp_path: Path) -> None:
    text, flags, expected = PROGRAMS[way]
    (tmp_path / "client.c").write_text(text)
    program = compiled(tmp_path / "client.c", "", *(flag.format(nccl=nccl) for flag in flags))
    given = variables(stand_in(), LD_LIBRARY_PATH="" if "RPATH" in way else str(nccl))
    assert nccl_programs.reach_of(program)[0] is expected
    assert is_reached([program], given) is (expected is Reach.PRELOAD)


@pytest.mark.parametrize("variable", ["VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"])
def test_ctypes_by_name_by_path_and_by_the_variable_of_a_program(variable: str, nccl: Path) -> None:
    given = variables(stand_in(), LD_LIBRARY_PATH=str(nccl))
    command: list[str | Path] = [sys.executable, "-c", PYTHON]
    assert is_reached([*command, "libnccl.so.2"], given)
    path = nccl / "libnccl.so.2"
    assert not is_reached([*command, path], given)
    put = nccl_programs.environment({**given, "LD_PRELOAD": "", variable: str(path)})
    assert output([*command, put[variable]], put)[0] == f"{PASSED_ON}\n"


def process_group() -> Path:
    own = nccl_programs.library()
    flags = ("-std=c++17", "-pthread", str(own), f"-Wl,-rpath,{own.parent}", "-ldl")
    return compiled(PROCESS_GROUP, "", *flags)


@pytest.mark.parametrize(("ranks", "waits"), REPLAYS)
def test_the_calls_of_pytorchs_process_group(ranks: str, waits: str) -> None:
    journal = output([process_group(), "4", ranks, waits], variables(stand_in()))[0].splitlines()
    called = {f"nccl{line.split()[0]}" for line in journal}
    # NCCL estimates no group of communicators that don't block. sley's own text is the last error.
    assert PYTORCH - called <= {"ncclGroupSimulateEnd", "ncclGetLastError"}
    assert not [line for line in journal if "foreign" in line]


@pytest.mark.parametrize(("ranks", "waits"), REPLAYS)
def test_sley_runs_the_collectives_of_pytorchs_process_group(
    ranks: str, waits: str, folder: Path, driver: dict[str, str]
) -> None:
    for number in (2, 3, 4):
        tables(number, ("float32",), folder)
    settings = {
        "SLEY_NCCL_TABLES": str(folder),
        "SLEY_NCCL_KERNELS": str(folder),
        "LD_LIBRARY_PATH": driver["LD_LIBRARY_PATH"],
        "NCCL_DEBUG": "INFO",
    }
    command = [process_group(), "4", ranks, waits, "results"]
    journal, log = output(command, variables(stand_in(), **settings))
    # Two of all ranks, one of several ids, two of three ranks, and one of two.
    assert log.count("sley runs its collectives, sends and receives") == 4 * 3 + 3 * 2 + 2
    called = {line.split()[0] for line in journal.splitlines()}
    assert called.isdisjoint({"AllReduce", "AllGather", "Broadcast", "Send", "Recv"})
    assert "CommWindowRegister" in called
    assert "CommRegister" not in called, "sley's calls take any memory"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages(package: str, nccl: Path) -> None:
    needs_nm()
    pattern, script = PACKAGES[package]
    file = installed(pattern)
    given = variables(stand_in(), PYTHONPATH=":".join(FOLDERS), LD_LIBRARY_PATH=str(nccl))
    command: list[str | Path] = [sys.executable, "-c", script, file]
    assert nccl_programs.reach_of(file)[0] is Reach.PRELOAD
    assert is_reached(command, given)


def test_pytorch_serves_cuda_tensors_by_sley_where_it_calls_its_library() -> None:
    installed(PACKAGES["PyTorch"][0])
    script = """
import torch.distributed as dist
try:
    dist.init_process_group("cuda:sley", store=dist.HashStore(), rank=0, world_size=1)
except Exception as error:
    print(error)
"""
    preloaded = variables(None, PYTHONPATH=":".join(FOLDERS))
    bare = {name: value for name, value in preloaded.items() if name != "LD_PRELOAD"}
    first, second = (output([sys.executable, "-c", script], one)[0] for one in (bare, preloaded))
    assert "B909" in first
    assert re.search(r"another NCCL: /.*libnccl.so.2\n", first)
    assert second == "" or "no GPUs found" in second


def test_the_replayed_functions_are_those_that_pytorch_is_linked_with() -> None:
    file = installed(PACKAGES["PyTorch"][0])
    needs_nm()
    told = output(["nm", "-D", "--undefined-only", file], dict(os.environ))[0].split()
    needed = {word for word in told if word.startswith("nccl")}
    assert needed - ELSEWHERE == PYTORCH
