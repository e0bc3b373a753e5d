"""The transports between hosts: over TCP, and over UCX if its library is found.

`SLEY_TEST_UCX` may name a libucp.so.0, with UCX's headers in include/ beside its folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from support.devices.native_programs import (
    ALL_SANITIZERS,
    NATIVE,
    SANITIZERS,
    TESTS,
    check_lost_release,
    check_test,
    compiler,
)

CASES = (
    "exchange",
    "threads",
    "credits",
    "states",
    "ends",
    "wakes",
    "killed",
    "cut",
    "absentees",
    "garbage",
)
TCP_CASES = (*CASES, "busy", "strangers", "pieces", "recorded", "proofs")
WAITING = ("exchange", "killed", "cut", "absentees", "busy")
"""Cases that take seconds: the thread sanitizer alone runs them but for `make slow`."""
SHORT = tuple(case for case in TCP_CASES if case not in WAITING)
UCX_CASES = {"thread": ("exchange", "threads", "killed", "wakes"), "address": ("states", "garbage")}
"""The cases over UCX by sanitizer, but for `make slow`; what all wires share runs over TCP."""


@cache
def ucx_library() -> Path:
    """Path of libucp.so.0; skips where there is none."""
    if named := os.environ.get("SLEY_TEST_UCX"):
        return Path(named)
    wheel = importlib.util.find_spec("libucx")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        if (library := Path(folder) / "lib" / "libucp.so.0").exists():
            return library
    pytest.skip("no UCX")


def with_sanitizers(
    cases: Sequence[str], usual: Mapping[str, Sequence[str]]
) -> pytest.MarkDecorator:
    """Every case with every sanitizer; all but the usual ones are slow."""
    return pytest.mark.parametrize(
        ("sanitizers", "case"),
        [
            pytest.param(
                sanitizers,
                case,
                marks=[pytest.mark.slow] * (case not in usual.get(sanitizers, ())),
            )
            for sanitizers in (*SANITIZERS, ALL_SANITIZERS)
            for case in cases
        ],
    )


@with_sanitizers(TCP_CASES, {"thread": TCP_CASES, "address": SHORT})
def test_tcp_carries_messages_and_news(sanitizers: str, case: str) -> None:
    check_test(sanitizers, "network", case, "tcp")


@with_sanitizers(CASES, UCX_CASES)
def test_ucx_carries_messages_and_news(sanitizers: str, case: str) -> None:
    """UCX' hooks of memory calls, which only other networks need, don't bear sanitizers."""
    library = str(ucx_library())
    check_test(sanitizers, "network", case, "ucx", SLEY_TEST_UCX=library, UCX_MEM_EVENTS="n")


def test_a_lost_release_between_hosts_is_noticed() -> None:
    check_lost_release("network", "exchange", "tcp")


def test_declarations_of_ucx_equal_its_headers() -> None:
    """What ucx_abi.hpp declares is what UCX' own headers say."""
    headers = ucx_library().resolve().parent.parent / "include"
    if not (headers / "ucp" / "api" / "ucp.h").exists():
        pytest.skip("UCX without headers")
    command = [compiler(), "-std=c++17", "-fsyntax-only", f"-I{NATIVE}", "-isystem", str(headers)]
    done = subprocess.run(
        [*command, str(TESTS / "ucx_abi_test.cpp")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_false_declaration_of_ucx_is_noticed(tmp_path: Path) -> None:
    headers = ucx_library().resolve().parent.parent / "include"
    if not (headers / "ucp" / "api" / "ucp.h").exists():
        pytest.skip("UCX without headers")
    false = tmp_path / "network" / "ucx_abi.hpp"
    shutil.copytree(NATIVE / "network", false.parent)
    right = false.read_text()
    false.write_text(right.replace("int mt_workers_shared", "long mt_workers_shared[2]"))
    assert false.read_text() != right
    command = [compiler(), "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", "-isystem", str(headers)]
    done = subprocess.run(
        [*command, str(TESTS / "ucx_abi_test.cpp")], capture_output=True, text=True
    )
    assert "estimated_num_eps" in done.stderr
