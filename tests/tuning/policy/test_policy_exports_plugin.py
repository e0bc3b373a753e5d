"""The generated NCCL plug-in answers as the policy, in each interface, for any arguments."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import pytest

from sley.errors import SleyError
from sley.errors.disk_cache import cached
from sley.ir.sizes import SizeRange
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe
from sley.tuning.policy.exports import build_plugin, nccl_plugin
from sley.tuning.policy.exports.nccl_plugin import FLAGS
from support.devices.native_programs import SANITIZERS, run, sanitized
from support.generators.random_policies import expected_choice, random_policy

POLICIES = [random_policy(seed) for seed in (3, 8)]
DRIVEN = Policy(
    (
        PlanRow(
            Recipe("ring-allreduce", options={"instances": 2}, tile=0.5),
            SizeRange(0, None),
            "allreduce",
        ),
        PlanRow(Recipe("multi-ring-allgather", tile=0.25), SizeRange(4096, 1 << 20), "allgather"),
    ),
    machine=Machine("simulator", "ndv4", "f00d", 2, 4),
)
CALLS = 1000
COLLECTIVES = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"]
ALGORITHMS = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
PROTOCOLS = ["ll", "ll128", "simple"]
IGNORE = -1.0
UNTOUCHED = -5

LOGGER = ctypes.CFUNCTYPE(None, c_int, ctypes.c_ulong, c_char_p, c_int, c_char_p)
GET_COLL_INFO = CFUNCTYPE(
    c_int, c_void_p, c_int, c_size_t, c_int, c_void_p, c_int, c_int, c_int, POINTER(c_int)
)
GET_CHUNK_SIZE = CFUNCTYPE(c_int, c_void_p, c_int, c_size_t, c_int, c_int, c_int, POINTER(c_size_t))
INIT_V4 = CFUNCTYPE(c_int, c_size_t, c_size_t, c_void_p, POINTER(c_void_p))
INIT = CFUNCTYPE(
    c_int, POINTER(c_void_p), c_uint64, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p
)
FINALIZE = CFUNCTYPE(c_int, c_void_p)


class Tuner(ctypes.Structure):
    """The functions of ncclTuner_v5_t, and the further one of v6 and v7."""

    _fields_ = (
        ("name", c_char_p),
        ("init", INIT),
        ("get_coll_info", GET_COLL_INFO),
        ("finalize", FINALIZE),
        ("get_chunk_size", GET_CHUNK_SIZE),
    )


class TunerV4(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("init", INIT_V4),
        ("get_coll_info", GET_COLL_INFO),
        ("finalize", FINALIZE),
    )


@pytest.fixture(scope="session")
def compiler() -> str:
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.fixture(scope="session", params=range(len(POLICIES)))
def built(request, compiler: str) -> tuple[Policy, ctypes.CDLL]:
    policy = POLICIES[request.param]
    text = nccl_plugin(policy).text

    def build(path: Path) -> None:
        done = subprocess.run(
            [compiler, *FLAGS, "-Werror", "-x", "c", "-", "-o", path], input=text, text=True
        )
        assert done.returncode == 0

    version = subprocess.check_output([compiler, "--version"], text=True)
    return policy, ctypes.CDLL(str(cached([version, *FLAGS, text], ".so", build)))


def open_context(library, version, ranks, nodes, log=None):
    """The tuner of an interface, and the context of a communicator."""
    context = c_void_p(0xDEAD)
    if version == 4:
        tuner = TunerV4.in_dll(library, "ncclTunerPlugin_v4")
        assert tuner.init(ranks, nodes, log, byref(context)) == 0
    else:
        tuner = Tuner.in_dll(library, f"ncclTunerPlugin_v{version}")
        assert tuner.init(byref(context), 99, ranks, nodes, log, None, None) == 0
    assert tuner.name == b"sley"
    return tuner, context


def ask(tuner, context, collective, size_bytes, excluded=(), algorithms=7, protocols=3):
    """What changed: the cells that were set to 0, as words, and the channels."""
    cells = [IGNORE if cell in excluded else 1.0 + cell for cell in range(algorithms * protocols)]
    costs = (c_float * len(cells))(*cells)
    channels = c_int(UNTOUCHED)
    done = tuner.get_coll_info(
        context, collective, size_bytes, 1, costs, algorithms, protocols, 0, byref(channels)
    )
    assert done == 0
    changed = [cell for cell, cost in enumerate(costs) if cost != cells[cell]]
    assert all(costs[cell] == 0 and cells[cell] != IGNORE for cell in changed)
    if not changed:
        return None, channels.value
    (cell,) = changed
    return (cell // protocols, cell % protocols), channels.value


def sizes_of(policy, r):
    ends = [
        end
        for one in policy.rows
        for end in (one.sizes.begin_bytes, one.sizes.end_bytes)
        if end is not None
    ]
    return lambda: r.choice(
        (max(r.choice(ends) + r.randint(-1, 1), 0), int(2 ** r.uniform(0, 42)), (1 << 64) - 1)
    )


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_the_plug_in_answers_as_the_policy(built, version: int) -> None:
    policy, library = built
    m, r = policy.machine, random.Random(version)
    tuner, context = open_context(library, version, m.ranks, m.nodes)
    draw = sizes_of(policy, r)
    taken = 0
    for _ in range(CALLS):
        number, size_bytes = r.randrange(5), draw()
        algorithms = r.choice((7, 7, 8, 1))  # RCCL has 8
        excluded = {cell for cell in range(algorithms * 3) if r.random() < 0.2}
        answer = ask(tuner, context, number, size_bytes, excluded, algorithms)
        one = policy.find(COLLECTIVES[number], size_bytes)
        choice = one and expected_choice(one.recipe, m.gpus)
        wanted = (None, UNTOUCHED)
        if choice:
            cell = ALGORITHMS.index(choice[0]), PROTOCOLS.index(choice[1])
            if cell[0] < algorithms and cell[0] * 3 + cell[1] not in excluded:
                wanted = cell, choice[2]
                taken += 1
        assert answer == wanted, (COLLECTIVES[number], size_bytes)
    assert taken > CALLS / 20
    assert tuner.finalize(context) == 0


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_other_communicators_and_collectives_are_left_to_nccl(built, version: int) -> None:
    policy, library = built
    m, r = policy.machine, random.Random(version)
    draw = sizes_of(policy, r)
    for ranks, nodes in ((m.ranks + 1, m.nodes), (m.ranks, m.nodes + 1), (0, 0), (2**64 - 1, 1)):
        tuner, context = open_context(library, version, ranks, nodes)
        for _ in range(50):
            assert ask(tuner, context, r.randrange(5), draw()) == (None, UNTOUCHED)
    tuner, context = open_context(library, version, m.ranks, m.nodes)
    for collective in (5, 6, 7, 99, -1, -(2**31)):
        for _ in range(50):
            assert ask(tuner, context, collective, draw()) == (None, UNTOUCHED)
    assert tuner.get_coll_info(context, 4, 100, 1, None, 7, 3, 0, None) == 0


def test_init_logs_one_line(built) -> None:
    policy, library = built
    m, lines = policy.machine, []
    log = LOGGER(lambda level, flags, _file, _line, text: lines.append((level, flags, text)))
    address = ctypes.cast(log, c_void_p)
    for version in (4, 5, 6, 7):
        open_context(library, version, m.ranks, m.nodes, address)
    assert [line[:2] for line in lines] == [(3, 64)] * 4
    assert all(b"TUNER/sley" in text for _, _, text in lines)


@pytest.mark.parametrize("version", [6, 7])
def test_a_tile_divides_the_chunks_of_each_channels_part(compiler: str, version: int) -> None:
    machine = Machine("simulator", "ndv4", "f00d", 1, 4)
    half = Recipe("ring-allreduce", options={"protocol": "Simple", "instances": 4}, tile=0.5)
    eighth = Recipe("ring-allreduce", options={"protocol": "LL128", "instances": 2}, tile=0.125)
    whole = Recipe("ring-allreduce", options={"protocol": "Simple", "instances": 8})
    tree = Recipe("multi-tree-allreduce", options={"protocol": "Simple"}, tile=0.5)
    policy = Policy(
        (
            PlanRow(half, SizeRange(1000, 9999), "allreduce"),
            PlanRow(eighth, SizeRange(10000, 99999), "allreduce"),
            PlanRow(tree, SizeRange(100000, (1 << 20) - 1), "allreduce"),
            PlanRow(whole, SizeRange(1 << 20, None), "allreduce"),
            PlanRow(
                Recipe("ring-allgather", options=half.options, tile=0.5),
                SizeRange(1000, None),
                "allgather",
            ),
        ),
        machine=machine,
    )
    text = nccl_plugin(policy).text

    def build(path: Path) -> None:
        build_plugin(text, path)

    library = ctypes.CDLL(str(cached([*FLAGS, text], ".so", build)))
    tuner, context = open_context(library, version, 4, 1)

    def chunk(part, algorithm, protocol, own, channels=1, collective=4):
        value = c_size_t(own)
        where = (context, collective, part, algorithm, protocol, channels)
        assert tuner.get_chunk_size(*where, byref(value)) == 0
        return value.value

    ring, ll128, simple = 1, 1, 2
    assert chunk(500, ring, simple, 1 << 20) == 1 << 19, "4 channels of 500 bytes: a call of 2000"
    assert chunk(9999, ring, simple, 1 << 20, channels=4) == 1 << 19, "a call of 9996 bytes"
    assert chunk(2**62, ring, simple, 1 << 20, collective=2) == 1 << 19, "a call of 2^64 bytes"
    assert chunk(249, ring, simple, 1 << 20) == 1 << 20, "a call of 996 bytes has no decision"
    assert chunk(500, ring, simple, 5000) == 2048, "a multiple of 4 grains of 512 bytes"
    assert chunk(500, ring, simple, 4095) == 4095, "no chunk is smaller than a grain"
    assert chunk(5000, ring, ll128, 122880) == 15360
    assert chunk(500, 0, simple, 1 << 20) == 1 << 20, "a tree that NCCL chose itself"
    assert chunk(100000, 0, simple, 1 << 20) == 1 << 20, "the chunks of trees are NCCL's own"
    assert chunk(1 << 20, ring, simple, 1 << 20) == 1 << 20, "a decision for NCCL's own tile"
    assert chunk(1 << 20, ring, simple, 5000) == 5000, "a decision for NCCL's own tile"
    assert chunk(2**64 - 1, ring, simple, 4096) == 4096
    assert chunk(500, ring, simple, 4096, channels=0) == 4096


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_the_plug_in_is_clean(tmp_path: Path, sanitizers: str) -> None:
    driver = (Path(__file__).parent / "plugin_driver.c").read_text("utf-8")
    source = tmp_path / "driver.cpp"
    source.write_text(nccl_plugin(DRIVEN).text + driver)
    done = run(sanitized(sanitizers, source))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("standard", ["c99", "c17", "c++11"])
def test_any_compiler_takes_the_plug_in_without_a_warning(compiler: str, standard: str) -> None:
    language = "c++" if "+" in standard else "c"
    command = [compiler, f"-std={standard}", "-x", language, "-fsyntax-only", "-"]
    done = subprocess.run(
        [*command, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wshadow"],
        input=nccl_plugin(POLICIES[1]).text,
        text=True,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_or_failing_compiler_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "tuner.so"
    path.write_bytes(b"before")
    unrunnable, not_utf8 = tmp_path / "unrunnable", tmp_path / "not-utf8"
    unrunnable.write_bytes(b"\x7fELF")
    not_utf8.write_bytes(b"#!/bin/sh\nprintf '\\377\\n' >&2\nexit 1\n")
    for compiler in (unrunnable, not_utf8):
        compiler.chmod(0o755)
    text = nccl_plugin(POLICIES[0]).text
    for command, found in (
        ("missing-compiler -O1", "none of them"),
        ("false", "ended with 1"),
        ("cc -DA='", "quot"),
        (str(unrunnable), "Exec format"),
        (str(not_utf8), "ended with 1"),
    ):
        monkeypatch.setenv("CC", command)
        with pytest.raises(SleyError, match=found) as caught:
            build_plugin(text, path)
        assert caught.value.code == "D906"
        assert path.read_bytes() == b"before"


def test_a_policy_without_an_algorithm_of_nccl_has_no_plug_in() -> None:
    with pytest.raises(SleyError) as caught:
        nccl_plugin(Policy((), machine=DRIVEN.machine))
    assert caught.value.code == "D905"
