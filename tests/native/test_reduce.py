"""Every kernel that reduces or copies, in every variant that this CPU can run."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from support.devices.native_programs import NATIVE, check_test, link, run

PROGRAM = (NATIVE / "engine" / "reduce.cpp", NATIVE / "fabric" / "copy.cpp")
CPU = Path("/proc/cpuinfo")
NEEDS = {"avx2": {"avx2", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


LEVELS = ("-O2", "-O3")


def variants() -> list[str]:
    """The variants that this machine should run."""
    if platform.machine() != "x86_64":
        return ["baseline"]
    if not CPU.exists():
        pytest.skip("no list of the CPU's features")
    lines = CPU.read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    return ["baseline", *(name for name, needs in NEEDS.items() if needs <= flags)]


@pytest.mark.parametrize(
    "options",
    [("-O1", "-ffp-contract=fast"), *(pytest.param((o,), marks=pytest.mark.slow) for o in LEVELS)],
)
def test_all_variants_write_the_expected_bits(options: tuple[str, ...]) -> None:
    program = link(["reduce"], PROGRAM, *options)
    done = run(program, "reduce")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == variants()


def test_reductions_keep_to_their_memory() -> None:
    check_test("address", "reduce", "1")
