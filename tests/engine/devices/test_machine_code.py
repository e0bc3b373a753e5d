"""The machine code of kernels for sm_90, held against a table: what a step costs, and resources.

Without a GPU this is what shows that a fence, a barrier or a load of a single element has come into
a path where none was, or that a poll has become a load that may get old bytes for ever.
`--update-golden` writes the table; review it with git diff.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain, product

import pytest

import sley
from sley.algorithms import build
from sley.engine.devices.cuda import compiler
from sley.engine.devices.cuda.compiler import Compiled
from sley.engine.kernels import KERNELS, Engine, Kernels, Platform, Variant, messages_source
from sley.engine.types import DATA_TYPES
from support.checks.golden import Golden
from support.devices.machine_code import Code, compiled_text, functions, skip_without_nvrtc

ARCHITECTURE, THREADS = "sm_90", 512
STEPS = (
    *("send", "recv", "recv_reduce_copy_send", "copy", "reduce"),
    *("run", "publish_step", "refresh", "give_up", "choose", "sley_messages"),
)
TABLE = "machine-code.txt"
HEAD = """\
Kernels of a ring of 8 ranks on 8 GPUs, for {architecture} with {threads} threads. Runs: kernels of
one-step-allreduce, with LL, each block of which is two runs. Switch: kernels of nvls-allreduce,
with Simple, whose recv_reduce_copy_send has groups at both sides. Sends: the kernel of messages,
which has no plan.

Behind "|" is what NVRTC {version} makes of them; what is before it holds for every version, except
the numbers of "number x bytes". Instructions are counted once, however often they run. acquires:
loads of counters that order what follows. in flight: the most bytes of data that a thread loads
before it stores any. named: barriers of some threads, "barrier:threads" (R: a register). strong:
loads, without acquires, and stores of what others write or read at the same time: counters, flags
and reports. Polls must be strong. Stores of 16 bytes through a switch are strong, too. switched:
loads through it. loads, stores: all others. rounds: before a kernel calls a primitive, loads of
which each waits for the one before, if every branch is another warp's. before B: the code until
then.

"""
TITLE = "{:6} {:13} {:11} {:21} "
KERNEL = "{:>9} {:>5} | {:>9} {:>8} {:>6} {:>8}"
STEP = "{:>6} {:>8} {:>8} {:>9} {:>6}  {:12} {:13} {:8} | {:17} {}"
COLUMNS = (
    *("fences", "acquires", "barriers", "in flight", "named", "strong loads", "strong stores"),
    "switched",
)

RUNS, SWITCH, SENDS, GROUPED = "Runs", "Switch", "Sends", "recv_reduce_copy_send"
Case = tuple[str, str, Engine]
"""A protocol's name, or RUNS, SWITCH or SENDS; a type; an engine."""
MESSAGES = SENDS, "int8", Engine.INTERPRETED
CASES: list[Case] = [
    *product(["Simple", "Direct"], ("float32", "bfloat16"), Engine),
    *product(["LL", "LL128", SWITCH], ["float32"], [Engine.GENERATED]),
    *product([RUNS], ("float32", "bfloat16", "float8_e4m3fn"), [Engine.GENERATED]),
    *product(["LL", "LL128"], ("float32", "bfloat16"), [Engine.INTERPRETED]),
    ("LL", "float8_e4m3fn", Engine.INTERPRETED),
    MESSAGES,
]
"""The interpreter of LL has runs. Types show what sums take, which generated code of flagged words
and switches shows in runs."""
WORDS, SWITCHED = (RUNS, "float32", Engine.GENERATED), (SWITCH, "float32", Engine.GENERATED)
SAMPLE: list[Case] = [
    ("Simple", "bfloat16", Engine.GENERATED),
    ("LL128", "float32", Engine.GENERATED),
    ("Direct", "float32", Engine.INTERPRETED),
    WORDS,
    SWITCHED,
    MESSAGES,
]


def title(what: str) -> str:
    return TITLE.format("", "type", "engine", what)


KERNELS_TITLE = title("kernel") + KERNEL.format(
    *("spilled B", "stack", "registers", "shared B", "rounds", "before B")
)
STEPS_TITLE = title("primitive") + STEP.format(*COLUMNS, "loads", "stores")


def text_of(case: Case) -> str:
    protocol, dtype, engine = case
    if protocol == SENDS:
        return messages_source(Platform.CUDA, THREADS)
    if protocol == SWITCH:
        plan = sley.compile(build("nvls-allreduce", ranks=8, in_place=True))
    elif protocol == RUNS:
        program = build("one-step-allreduce", ranks=8, in_place=True)
        plan = sley.compile(program, protocol="LL", allocate="instance")
    else:
        plan = sley.compile(build("ring-allreduce", ranks=8, in_place=True), protocol=protocol)
    variant = Variant(Platform.CUDA, DATA_TYPES[dtype].number, sley.ReduceOp.SUM, THREADS)
    return Kernels.of(plan, switches=protocol == SWITCH).source(engine, variant)


def compile_case(case: Case) -> tuple[Compiled, dict[str, Code]]:
    compiled = compiled_text(text_of(case), ARCHITECTURE)
    return compiled, functions(compiled.cubin)


def rows(case: Case) -> tuple[list[str], list[str]]:
    """The rows of the table for a case: its kernels, and those of STEPS that they contain."""
    protocol, dtype, engine = case
    start = partial(TITLE.format, protocol, dtype, engine.value)
    compiled, code = compile_case(case)
    kernels, steps = [], []
    for name in ["sley_messages"] if protocol == SENDS else KERNELS:
        r = compiled.functions[name]
        spilled = r.spill_store_bytes + r.spill_load_bytes
        c = code[name]
        numbers = KERNEL.format(
            *(spilled, r.stack_bytes, r.registers, r.shared_bytes, c.rounds, c.bytes_before)
        )
        kernels.append(start(name) + numbers)
    for name in filter(code.__contains__, STEPS):
        c = code[name]
        numbers = STEP.format(
            *(c.fences, c.acquires, c.barriers, c.in_flight, ",".join(c.named) or "-"),
            *map(by_width, (c.strong_loads, c.strong_stores, c.switched, c.loads, c.stores)),
        )
        steps.append((start(name) + numbers).rstrip())
    return kernels, steps


def whole_table(head: str) -> str:
    kernels, steps = map(list[str], map(chain.from_iterable, zip(*map(rows, CASES), strict=True)))
    lines = [KERNELS_TITLE, *kernels, "", STEPS_TITLE, *steps]
    return head + "".join(f"{line}\n" for line in lines)


def by_width(counts: Counter[int]) -> str:
    """20x16,4x4: the widest first; - if there are none."""
    return ",".join(f"{counts[width]}x{width}" for width in sorted(+counts, reverse=True)) or "-"


def same_for_every_compiler(row: str) -> str:
    return " ".join(re.sub(r"\d+x", "", row.partition("|")[0]).split())


def check(cases: list[Case], golden: Golden) -> None:
    """Compares the rows of `cases` with the table's. Some numbers depend on the compiler: with
    another one than the table's they are not compared."""
    skip_without_nvrtc()
    version = ".".join(map(str, compiler.version()))
    head = HEAD.format(architecture=ARCHITECTURE, threads=THREADS, version=version)
    if golden.update:
        golden(TABLE, whole_table(head))
        return
    table = (golden.folder / TABLE).read_text()
    expected = table.splitlines()
    found = [row for case in cases for part in rows(case) for row in part]
    if not table.startswith(head):
        expected, found = ([*map(same_for_every_compiler, t)] for t in (expected, found))
    different = [row for row in found if row not in expected]
    assert not different, f"not in {golden.folder / TABLE}:\n" + "\n".join(different)


def test_machine_code_is_that_of_the_table(golden: Golden) -> None:
    check(SAMPLE, golden)


@pytest.mark.slow
def test_machine_code_of_every_case_is_that_of_the_table(golden: Golden) -> None:
    check(CASES, golden)


FAULTS = {  # of a case: a text, what replaces it, and the column of the primitive that shows it
    WORDS: (
        ("bool any_thread(bool flag) { ", "{}__threadfence_system(); ", "run", "fences"),
        ('"st.relaxed." SLEY_SCOPE ".global.v2.u64', '"st.global.v2.u64', "run", "strong stores"),
        ('"ld.relaxed." SLEY_SCOPE ".global.v2.u64', '"ld.global.v2.u64', "run", "strong loads"),
        (
            '"st.relaxed." SLEY_SCOPE ".global.u64',
            '"st.global.u64',
            "publish_step",
            "strong stores",
        ),
        ('"r"(workers()) : "memory"', '"n"(SLEY_THREADS) : "memory"', "run", "named"),
        ("st.release.sys.", "st.relaxed.sys.", "give_up", "fences"),
    ),
    SWITCHED: (
        ('"fence.proxy.alias;"', '""', GROUPED, "fences"),
        ("multimem.st.relaxed.sys.", "multimem.st.weak.", GROUPED, "strong stores"),
        ("kSwitchReduces = SLEY_SWITCH_BYTES > 0", "kSwitchReduces = false", GROUPED, "switched"),
    ),
}


def cells(rows: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of each primitive the columns that hold for every compiler."""
    found = {}
    for row in rows:
        *_, name, numbers = same_for_every_compiler(row).split(maxsplit=4)
        found[name] = dict(zip(COLUMNS, numbers.split(), strict=True))
    return found


@pytest.mark.parametrize("case", [WORDS, pytest.param(SWITCHED, marks=pytest.mark.slow)])
def test_faults_in_the_primitives_are_not_in_the_table(
    case: Case, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    if golden.update:
        pytest.skip("compares")
    skip_without_nvrtc()
    sound = cells(rows(case)[1])
    source, faults = Kernels.source, FAULTS[case]

    def with_faults(self: Kernels, engine: Engine, variant: Variant) -> str:
        text = source(self, engine, variant)
        for old, new, *_ in faults:
            assert text.count(old) == 1, old
            text = text.replace(old, new.format(old))
        return text

    monkeypatch.setattr(Kernels, "source", with_faults)
    faulty = cells(rows(case)[1])
    unseen = [new for _, new, name, column in faults if sound[name][column] == faulty[name][column]]
    assert not unseen
    with pytest.raises(AssertionError, match=faults[-1][2]):
        check([case], golden)
