"""sley's library with NCCL's interface: over a stand-in for NVIDIA's NCCL, and over NVIDIA's as far
as it goes without a GPU.

NVIDIA's is the package nvidia-nccl of this Python, or the file that `SLEY_TEST_NCCL` names, with
its headers in include/ beside its folder. `SLEY_TEST_NCCL_HEADERS` may name other folders of
headers, separated by colons.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from sley.cli import main
from sley.compiler.deployment import nccl_programs
from sley.errors import SleyError
from support.devices.native_programs import (
    BASE,
    NATIVE,
    ROOT,
    SOURCES,
    TESTS,
    compiler,
    run,
    sanitized,
)
from support.devices.nccl_clients import compiled, needs_nm, output, stand_in, variables

CASES = TESTS / "nccl_cases.py"
OF_FORKS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:report_thread_leaks=0:atexit_sleep_ms=0",
}
"""Who is forked has what other threads of its parent had; by default each sleeps for a second."""

NOT_EXPORTED = {"CftBarrierCreateRequirement"}
"""Declared by NCCL 2.31, but not among its library's exports."""


def check_case(case: str, real: Path | str, *arguments: str | Path, **more: str) -> str:
    command = [sys.executable, CASES, case, *(arguments or (real,))]
    return output(command, variables(real, **more))[1]


@cache
def nvidias() -> Path:
    """NVIDIA's library; skips the test without one."""
    given = os.environ.get("SLEY_TEST_NCCL")
    spec = find_spec("nvidia.nccl") if given is None and find_spec("nvidia") else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [Path(given)] if given else [Path(one) / "lib" / "libnccl.so.2" for one in folders]
    real = next((path for path in found if path.is_file()), None)
    if real is None:
        pytest.skip("no NCCL: the package nvidia-nccl-cu13, or SLEY_TEST_NCCL")
    return real


def headers() -> list[Path]:
    """Folders with nccl.h; skips the test without one."""
    named = os.environ.get("SLEY_TEST_NCCL_HEADERS", "").split(":")
    found = [path for one in named if (path := Path(one, "nccl.h")).is_file() and one]
    if not found:
        found = [path for path in [nvidias().parents[1] / "include" / "nccl.h"] if path.is_file()]
    if not found:
        pytest.skip("no headers of NCCL")
    return [path.parent for path in found]


@pytest.fixture
def cuda_headers(tmp_path: Path) -> Path:
    """As much of CUDA's headers as NCCL's need."""
    for name, text in (("fp16", "struct half;\n"), ("bf16", ""), ("fp8", "")):
        (tmp_path / f"cuda_{name}.h").write_text(text)
    types = ["CUresult", "CUdeviceptr", "CUlogicalEndpointId", "CUmemLocationType", "cuuint64_t"]
    (tmp_path / "cuda.h").write_text("".join(f"typedef void *{one};\n" for one in types))
    (tmp_path / "cuda_runtime.h").write_text(
        "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t;\n"
        "typedef struct CUevent_st *cudaEvent_t;\n#define __host__\n#define __device__\n"
    )
    return tmp_path


def rows() -> dict[str, tuple[str, tuple[int, ...], str]]:
    """The functions of the table: result, version, parameters as it spells them."""
    text = re.sub(r"\n +", " ", (NATIVE / "nccl" / "functions.def").read_text())
    found = re.findall(
        r"^(?:PASSED|OWN|RUN|ALONE)\((.*?), (\w+), ([\d.]+), \((.*?)\), \(.*\)\)$", text, re.M
    )
    return {
        name: (result, tuple(map(int, since.split("."))), parameters)
        for result, name, since, parameters in found
    }


@pytest.mark.parametrize(
    "case",
    [
        "every_function",
        "handles",
        "all_ranks",
        "reductions",
        "groups",
        "in_progress",
        "errors",
        "threads",
        "forked",
    ],
)
def test_calls_over_the_stand_in(case: str) -> None:
    check_case(case, stand_in())


def check_ranks(sanitizers: str, *arguments: str, **more: str) -> str:
    """A test of nccl_threads.cpp passes; returns its log. Its ranks on devices are stand-ins."""

    own = [path for path in SOURCES["NCCL"] if path.name != "gpu.cpp"]
    program = sanitized(sanitizers, *own, TESTS / "nccl_threads.cpp", over=BASE)
    done = run(program, *arguments, SLEY_NCCL_LIBRARY=str(stand_in()), **more)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


@pytest.mark.parametrize(
    "test", ["passed_on", "life", "one_thread", "agreement", "aborts", "few_threads", "lazy"]
)
@pytest.mark.parametrize("sanitizers", ["thread", pytest.param("address", marks=pytest.mark.slow)])
def test_communicators_of_threads(sanitizers: str, test: str) -> None:
    """Addresses only in slow runs, as for mixes of what they do. Not all
    undefined behaviour: the device that nobody looks into has no type."""
    check_ranks(sanitizers, test)


def test_the_log_says_why_a_rank_has_nccl_alone() -> None:
    log = check_ranks("thread", "agreement", NCCL_DEBUG="INFO")
    for rank, why in (
        ("2 of 3", "sley runs its collectives, sends and receives, NCCL 2.29.7 other calls"),
        (
            "2 of 3",
            "all calls go to NCCL 2.29.7: K506: expected room on a device, found too little",
        ),
        ("1 of 3", "all calls go to NCCL 2.29.7: no driver on rank 0"),
        ("1 of 2", "all calls go to NCCL 2.29.7: SLEY_NCCL=off on rank 0"),
        ("0 of 2", "all calls go to NCCL 2.29.7: N601: expected 2 ranks in time, found no sign of"),
        (
            "0 of 1",
            "sley runs its collectives, sends and receives; "
            "other calls are refused: SLEY_NCCL=only",
        ),
    ):
        assert f"sley INFO ncclCommInitRank of rank {rank}: {why}" in log


def test_communicators_after_a_fork_and_an_exit() -> None:
    # AddressSanitizer forks with locks that other threads hold.
    check_ranks("thread", "processes", **OF_FORKS)


def test_a_fork_while_another_thread_holds_a_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libnccl.so.2")
    check_case("forked_in_a_search", tmp_path / "libnccl.so.2")


@pytest.mark.parametrize(
    ("sanitizers", "mixes"),
    [("thread", 100), pytest.param("address", 5000, marks=pytest.mark.slow)],
)
def test_ranks_never_disagree_whatever_each_of_them_can_and_does(
    sanitizers: str, mixes: int
) -> None:
    check_ranks(sanitizers, "mixes", "0", str(mixes), **OF_FORKS)


def test_a_function_that_the_real_library_lacks_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "exports.map"
    script.write_text("{ global: *; local: pncclCommGrow; };")
    log = check_case("lacking", stand_in(f"-Wl,--version-script={script}"), NCCL_DEBUG="WARN")
    assert " sley WARN N702: expected ncclCommGrow" in log
    assert log.count("\n") == 1


def test_without_the_real_library_each_call_says_where_it_was_sought(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").symlink_to(nccl_programs.library())
    (tmp_path / "text.so").write_text("")
    for path, why in (
        ("libnccl.so.2", "no absolute path"),
        (str(tmp_path / "none.so"), "No such file or directory"),
        (str(tmp_path / "libnccl.so.2"), "sley's own library"),
        (str(tmp_path / "text.so"), f"{tmp_path / 'text.so'}: file too short"),
        (str(compiled_empty(tmp_path)), "no NCCL: it has no pncclGetVersion"),
    ):
        check_case("nowhere", path, why)
    # One that stands alone, beside a package with a file that is no library.
    alone, beside = (tmp_path / f"{of}/libnccl.so.2" for of in ("sley/nccl", "nvidia/nccl/lib"))
    for path in (alone, beside):
        path.parent.mkdir(parents=True)
    shutil.copy(nccl_programs.library(), alone)
    code = "from ctypes import *; f = CDLL('libnccl.so.2').ncclGetLastError; f.restype = c_char_p"
    command = [sys.executable, "-c", f"{code}; print(f(None))"]
    for end in ("found ", "; else "):
        told, _ = output(command, variables(None, LD_PRELOAD=str(alone)))
        if "N701" in told:  # else this machine's own has been found
            assert told.partition("none in SLEY_NCCL_LIBRARY, for libraries")[0].endswith(end)
            assert "nvidia-nccl-cu13 beside sley, or by ldconfig" in told
        beside.write_text("")


def compiled_empty(folder: Path) -> Path:
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    return compiled(source, ".so", "-shared", "-fPIC")


def test_a_line_for_each_communicator_says_what_runs_its_calls() -> None:
    log = check_case("all_ranks", stand_in(), NCCL_DEBUG="INFO", SLEY_NCCL="off").splitlines()
    assert [line.partition(" ")[2] for line in log] == [
        f"sley INFO NCCL 2.29.7 is {stand_in()} (SLEY_NCCL_LIBRARY)",
        "sley INFO ncclCommInitAll of 3 ranks: all calls go to NCCL 2.29.7: SLEY_NCCL=off",
    ]
    # The config of this client ends before its name.
    log = check_case("groups", stand_in(), NCCL_DEBUG="INFO")
    assert "sley INFO ncclCommInitRankConfig of rank 0 of 2: all calls go to" in log


VERSION = "from ctypes import *; print(CDLL('libnccl.so.2').ncclGetVersion(byref(c_int())))"


def test_a_log_is_as_nccls_beside_its_file(tmp_path: Path) -> None:
    """A pipe is no file that NCCL overwrites."""
    folder = tmp_path / "%h 100%"
    folder.mkdir()
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{tmp_path}/%%h 100%/%h.%p"}
    command = [sys.executable, "-c", VERSION]
    assert output(command, variables(stand_in(), **settings)) == ("0\n", "")
    host = socket.gethostname().partition(".")[0]
    (log,) = folder.iterdir()
    found = re.fullmatch(
        r"(.+):(\d+):(\d+) sley INFO NCCL 2.29.7 is .* \(SLEY_NCCL_LIBRARY\)\n", log.read_text()
    )
    assert found
    assert (found[1], found[2]) == (host, found[3]), "of the main thread"
    assert log.name == f"{host}.{found[2]}.sley"
    for file in ("/dev/stderr", str(tmp_path / "none" / "file")):
        settings["NCCL_DEBUG_FILE"] = file
        assert "sley INFO NCCL 2.29.7" in output(command, variables(stand_in(), **settings))[1]


def test_a_wrong_setting_is_told_once_and_refused_by_exec() -> None:
    """Both know the same words."""
    known = re.findall(r'\{"(\w+)", ', (NATIVE / "nccl" / "settings.hpp").read_text())
    assert {one.lower() for one in known} == {one.lower() for one in nccl_programs.FUNCTIONS}
    code = f"{VERSION}; {VERSION}"
    for text, is_right in (
        *((word, True) for word in ("", "off", "only", "all_reduce,ALL-GATHER")),
        ("eager", True),
        (",".join(nccl_programs.FUNCTIONS), True),
        *((word, False) for word in ("AllReduce,AllGater", "Off", "only,AllReduce")),
    ):
        log = output([sys.executable, "-c", code], variables(stand_in(), SLEY_NCCL=text))[1]
        lines = [] if is_right else [f"found SLEY_NCCL={text}. NCCL runs all calls."]
        assert [line.partition("AllGather, ")[2] for line in log.splitlines()] == lines
        if is_right:
            nccl_programs.environment({"SLEY_NCCL": text})
            continue
        with pytest.raises(SleyError) as caught:
            nccl_programs.environment({"SLEY_NCCL": text})
        assert caught.value.code == "R514"
        assert log.split()[3] == "R514:"


def test_a_program_that_is_linked_with_nccl_gets_sleys_and_the_real_one_by_its_rpath(
    tmp_path: Path,
) -> None:
    shutil.copy(stand_in(), tmp_path / "libnccl.so.2")
    source = tmp_path / "program.c"
    source.write_text(
        "#include <stdio.h>\nint ncclGetVersion(int *);\n"
        'int main() { int v; ncclGetVersion(&v); printf("%d\\n", v); }\n'
    )
    program = compiled(
        source,
        "",
        f"-L{tmp_path}",
        "-l:libnccl.so.2",
        f"-Wl,-rpath,{tmp_path}",
        "-Wl,--no-as-needed",
    )
    told, log = output([program], variables(None, NCCL_DEBUG="INFO"))
    assert told == "22907\n"
    assert log.endswith(
        f" sley INFO NCCL 2.29.7 is {tmp_path}/libnccl.so.2 (the search path of the program)\n"
    )
    assert nccl_programs.reach_of(program)[0] is nccl_programs.Reach.PRELOAD


def test_the_preloaded_library_disturbs_no_other_program() -> None:
    told, log = output(["bash", "-c", "echo $(echo told)"], variables("/none", NCCL_DEBUG="INFO"))
    assert (told, log) == ("told\n", "")


def exported(library: Path) -> dict[str, str]:
    """The names that a library exports, with nm's letter."""
    lines = output(["nm", "-D", "--defined-only", library], dict(os.environ))[0].splitlines()
    return {line.split()[2]: line.split()[1] for line in lines}


def test_the_library_exports_nothing_but_nccls_pairs() -> None:
    needs_nm()
    pairs = {f"nccl{name}": "W" for name in rows()} | {f"pnccl{name}": "T" for name in rows()}
    assert exported(nccl_programs.library()) == pairs
    told = output(["readelf", "-dV", nccl_programs.library()], dict(os.environ))[0]
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", told))
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"} | {
        one for one in needed if one.startswith("ld-linux")
    }
    assert "SONAME" in told
    assert "Version definition" not in told
    assert "NODELETE" in told, "its threads run until the process ends"


def test_the_table_has_the_functions_of_nvidias_library() -> None:
    needs_nm()
    real = nvidias()
    told = output(
        [
            sys.executable,
            "-c",
            "import ctypes, sys; v = ctypes.c_int(); "
            "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)",
            real,
        ],
        dict(os.environ),
    )[0]
    number = int(told)
    version = (number // 10000, number // 100 % 100, number % 100)
    pairs = {
        f"{p}nccl{name}" for name, row in rows().items() if row[1] <= version for p in ("", "p")
    }
    names = {*exported(real)} - {"ncclResetDebugInitInternal"}  # for NCCL itself
    if version < (2, 33):
        assert names == pairs


def test_each_function_that_sley_runs_is_called_by_the_client_that_the_table_names() -> None:
    needs_nm()
    text = (NATIVE / "nccl" / "functions.def").read_text()
    client = ROOT / re.findall(r"(tests/[\w/]+\.c) calls each", text)[0]
    told = output(["nm", "-u", compiled(client, ".o", "-c")], dict(os.environ))[0].split()
    run_by_sley = {f"nccl{name}" for name in re.findall(r"^RUN\(\w+, (\w+)", text, re.M)}
    assert run_by_sley
    assert run_by_sley - {*told} == set()


def test_nvidias_library_without_a_gpu_and_with_an_allocator_that_is_preloaded() -> None:
    rank = {"SLEY_NCCL_TABLES": "/none", "SLEY_NCCL_KERNELS": "/none"}
    check_case("real_library", nvidias(), **rank)
    allocator = compiled(TESTS / "nccl_malloc.c", ".so", "-shared", "-fPIC", "-fno-builtin")
    preload = f"{allocator}:{nccl_programs.library()}"
    check_case("real_library", nvidias(), **rank, LD_PRELOAD=preload)


def version_of(folder: Path) -> tuple[int, ...]:
    text = (folder / "nccl.h").read_text()
    return tuple(
        int(re.findall(rf"#define NCCL_{part} +(\d+)", text)[0])
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def test_functions_and_configs_are_those_of_the_headers(cuda_headers: Path) -> None:
    for folder in headers():
        version = version_of(folder)
        files = [folder / "nccl.h", *sorted(folder.glob("nccl_device/*.h"))]
        declared = {
            name
            for path in files
            for words, name in DECLARED.findall(path.read_text())
            if "INLINE" not in words
        }
        known = {name for name, row in rows().items() if row[1] <= version}
        assert declared - NOT_EXPORTED - known == set(), folder
        checks = []
        for name in sorted(known & declared):
            if name.startswith(("Team", "GinInbox", "GinOutbox")):
                continue  # overloaded for code on devices, and in a header that isn't included
            result, _, parameters = rows()[name]
            own = f"static_cast<{result} (*)({parameters})>(nullptr)"
            checks.append(f"static_assert(alike(&::nccl{name}, {own}));")
        for name, offset, since in FIELD.findall((NATIVE / "nccl" / "config.def").read_text()):
            if tuple(map(int, since.split("."))) <= version:
                checks.append(f"static_assert(offsetof(ncclConfig_t, {name}) == {offset});")
        source = cuda_headers / "check.cpp"
        source.write_text("\n".join((CHECK, *checks)))
        folders = (f"-I{one}" for one in (cuda_headers, folder, NATIVE))
        command = [compiler(), "-std=c++17", "-w", "-fsyntax-only", *folders, str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]


DECLARED = re.compile(
    r"^((?:NCCL_EXTERN_C .*?)?(?:ncclResult_t|ncclTeam_t|int|void|const char\*) +)nccl([A-Z]\w*)\(",
    re.MULTILINE,
)
FIELD = re.compile(r"^FIELD\(.*?, (\w+), (\d+), ([\d.]+)\)", re.MULTILINE)
CHECK = """
#include <cstddef>
#include <type_traits>
#include <nccl.h>
#include <nccl_device.h>
#include "nccl/abi.hpp"
using namespace sley::nccl;
template <class A, class B>
constexpr bool same = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                      std::is_class_v<A> == std::is_class_v<B>;
template <> constexpr bool same<void, void> = true;
template <class A, class... As, class B, class... Bs>
constexpr bool alike(A (*)(As...), B (*)(Bs...)) {
    if constexpr (sizeof...(As) != sizeof...(Bs)) return false;
    else return (same<A, B> && ... && same<As, Bs>);
}
static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
static_assert(offsetof(ncclSimInfo_t, estimatedTime) == offsetof(Estimate, us));
#if NCCL_VERSION_CODE >= 22900
static_assert(offsetof(ncclCommProperties_t, nvmlDev) == offsetof(Properties, nvml_device));
#endif
"""


def test_a_client_in_c_with_each_header(cuda_headers: Path) -> None:
    for folder in headers():
        own = nccl_programs.library()
        flags = (f"-I{folder}", f"-I{cuda_headers}", str(own), f"-Wl,-rpath,{own.parent}")
        client = compiled(TESTS / "nccl_client.c", "", *flags)
        a, b, c = version_of(folder)
        told, log = output([client], variables(stand_in(), NCCL_DEBUG="INFO"))
        assert "CommInitRankConfig of rank 1 of 2, client: all calls go to NCCL 2.29.7: " in log
        assert told == f"22907 compiled with {a * 10000 + b * 100 + c}, last 101\n"


def test_exec_puts_the_library_in_place(tmp_path: Path) -> None:
    names = ("LD_PRELOAD", "SLEY_NCCL_LIBRARY", "VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")
    script = f"import os; print(*map(os.environ.get, {names}))"
    command = [sys.executable, "-m", "sley", "exec", "--", sys.executable, "-c", script]
    real, own = stand_in(), nccl_programs.library()
    bare = {k: v for k, v in variables(None).items() if k != "LD_PRELOAD"}
    assert output(command, bare)[0] == f"{own} None None None\n"
    given = {**bare, "LD_PRELOAD": str(real), "VLLM_NCCL_SO_PATH": str(real)}
    assert output(command, given)[0] == f"{own}:{real} {real} {own} None\n"
    given = {**bare, "SGLANG_NCCL_SO_PATH": str(CASES), "SLEY_NCCL_LIBRARY": str(real)}
    assert output(command, given)[0] == f"{own} {real} None {own}\n"
    # As if they were unset: what is empty, and the name by which a preload is found.
    given = {
        "SLEY_NCCL_LIBRARY": "",
        "VLLM_NCCL_SO_PATH": "libnccl.so.2",
        "SGLANG_NCCL_SO_PATH": "",
    }
    put = nccl_programs.environment(given)
    assert put == {**given, "LD_PRELOAD": str(own)}


def test_exec_refuses_what_it_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def told(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["exec", *words])
        return result.exit_code, result.output

    assert told("--", "no-such-program")[0] == 2
    monkeypatch.setenv("SLEY_NCCL_LIBRARY", "libnccl.so.2")
    code, text = told("true")
    assert code == 1
    assert "N701" in text
    monkeypatch.delenv("SLEY_NCCL_LIBRARY")
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", "lib/libnccl.so.2")
    assert "found:    VLLM_NCCL_SO_PATH=lib/libnccl.so.2\n" in told("true")[1]
    monkeypatch.setattr(nccl_programs, "find_spec", lambda name: None)
    code, text = told("true")
    assert code == 1
    assert "N704" in text


def test_the_doctor_says_how_a_program_is_reached(tmp_path: Path) -> None:
    def told(text: str, *flags: str) -> tuple[int, str]:
        source = tmp_path / "program.c"
        source.write_text(text)
        result = CliRunner().invoke(main, ["doctor", str(compiled(source, "", *flags))])
        return result.exit_code, result.output

    opens = '#include <stdio.h>\nint main() {{ puts("{}"); return 0; }}\n'
    assert told(opens.format("libnccl.so.2"))[1].startswith(
        "reached                by preload: sley"
    )
    assert told(opens.format("/opt/libnccl.so.2"))[1].startswith(
        "reached                by its path"
    )
    # What NCCL says of itself, beside the name of a library that it doesn't open; its functions.
    inside = 'const char *own = "NCCL version 2.28.9+cuda13.0", *other = "libnccl.so.2";\n'
    defined = "int ncclGetUniqueId(void *id) { return !id; }\n"
    taken = "int main() { int (*volatile f)(void *) = ncclGetUniqueId; return f(0); }\n"
    for text, flags in (
        (inside + opens.format("else"), ()),
        (defined + taken, ()),
        (defined + taken, ("-fPIE", "-pie", "-rdynamic")),
        (defined + taken, ("-fPIC", "-no-pie", "-rdynamic")),
    ):
        code, words = told(text, *flags)
        assert (code, "not at all" in words, "linked into it" in words) == (1, True, True)
    assert "looks NCCL's functions up" in told(defined + taken, "-shared", "-fPIC")[1]
    assert told(opens.format("else"))[1].startswith("reached                by preload, if")
    code, text = told(opens.format("libnccl.so.2"), "-static")
    assert (code, "statically" in text) == (1, True)
    plugin = "int ncclGetVersion(int *);\nint f(int *v) { return ncclGetVersion(v); }\n"
    assert "looks NCCL's functions up" in told(plugin, "-shared", "-fPIC")[1]
    assert "it is an NCCL" in CliRunner().invoke(main, ["doctor", str(stand_in())]).output
    for name, start, program in (
        ("train.py", "import torch\n", sys.executable),
        ("train.sh", "#!/bin/sh -e\n", "/bin/sh"),
        ("train", "#!/usr/bin/env -S A=1 sh\n", shutil.which("sh")),
        ("train", "#!/none/python3", "/none/python3"),
    ):
        (tmp_path / name).write_text(start)
        asked = CliRunner().invoke(main, ["doctor", str(tmp_path / name)])
        assert f"{program} runs it, a script: " in asked.output
        assert asked.exit_code == ("there is no /none/python3" in asked.output)
