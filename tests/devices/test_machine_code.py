"""The machine code of kernels for sm_90, held against a table: what a step costs, and resources.

Without a GPU this is what shows that a fence, a barrier or a load of a single element has come into
a path where none was. `--update-golden` writes the table; review it with git diff.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, product

import pytest

import sley
from sley.algorithms import build
from sley.codegen import KERNELS, Engine, Kernels, Platform, Variant
from sley.devices.cuda import compiler
from sley.devices.cuda.compiler import Compiled
from sley.engine.types import DATA_TYPES
from support.golden import Golden
from support.machine_code import Code, compiled_text, functions, skip_without_nvrtc

ARCHITECTURE, THREADS = "sm_90", 512
STEPS = ("send", "recv", "recv_reduce_copy_send", "copy", "reduce", "publish_step")
TABLE = "machine-code.txt"
HEAD = """\
Kernels of a ring of 8 ranks on 8 GPUs, for {architecture} with {threads} threads.

Behind "|" is what NVRTC {version} makes of them; what is before it holds for every version.
Instructions are counted once, however often they run. acquires: loads of counters that order what
follows; counters: other loads of counters. in flight: the most bytes of data that a thread loads
before it stores any. loads, stores: of data, "number x bytes".

"""
TITLE = "{:6} {:8} {:11} {:21} "
KERNEL, STEP = "{:>9} {:>5} | {:>9} {:>8}", "{:>6} {:>8} {:>8} {:>9} | {:>8}  {:24}  {}"

Case = tuple[sley.Protocol, str, Engine]
CASES: list[Case] = list(product(sley.Protocol, ("float32", "bfloat16"), Engine))
SAMPLE: list[Case] = [
    (sley.Protocol.SIMPLE, "bfloat16", Engine.GENERATED),
    (sley.Protocol.LL, "float32", Engine.GENERATED),
    (sley.Protocol.LL128, "bfloat16", Engine.GENERATED),
    (sley.Protocol.DIRECT, "float32", Engine.INTERPRETED),
]


def title(what: str) -> str:
    return TITLE.format("", "type", "engine", what)


KERNELS_TITLE = title("kernel") + KERNEL.format("spilled B", "stack", "registers", "shared B")
STEPS_TITLE = title("primitive") + STEP.format(
    "fences", "acquires", "barriers", "in flight", "counters", "loads", "stores"
)


def compile_case(case: Case) -> tuple[Compiled, dict[str, Code]]:
    protocol, dtype, engine = case
    plan = sley.compile(build("ring-allreduce", ranks=8, in_place=True), protocol=protocol)
    variant = Variant(Platform.CUDA, DATA_TYPES[dtype].number, sley.ReduceOp.SUM, THREADS)
    compiled = compiled_text(Kernels.of(plan).source(engine, variant), ARCHITECTURE)
    return compiled, functions(compiled.cubin)


def rows(case: Case) -> tuple[list[str], list[str]]:
    """The rows of the table for a case: its kernels, and those of STEPS that they contain."""
    protocol, dtype, engine = case
    start = partial(TITLE.format, protocol.value, dtype, engine.value)
    compiled, code = compile_case(case)
    kernels, steps = [], []
    for name in KERNELS:
        r = compiled.functions[name]
        spilled = r.spill_store_bytes + r.spill_load_bytes
        numbers = KERNEL.format(spilled, r.stack_bytes, r.registers, r.shared_bytes)
        kernels.append(start(name) + numbers)
    for name in filter(code.__contains__, STEPS):
        c = code[name]
        numbers = STEP.format(
            *(c.fences, c.acquires, c.barriers, c.in_flight, c.counters),
            *(by_width(c.loads), by_width(c.stores)),
        )
        steps.append((start(name) + numbers).rstrip())
    return kernels, steps


def whole_table(head: str) -> str:
    kernels, steps = map(list[str], map(chain.from_iterable, zip(*map(rows, CASES), strict=True)))
    lines = [KERNELS_TITLE, *kernels, "", STEPS_TITLE, *steps]
    return head + "".join(f"{line}\n" for line in lines)


def by_width(counts: Counter[int]) -> str:
    """20x16 4x4: the widest first."""
    return " ".join(f"{counts[width]}x{width}" for width in sorted(counts, reverse=True))


def same_for_every_compiler(row: str) -> str:
    return row.partition("|")[0]


def check(cases: list[Case], golden: Golden) -> None:
    """Compares the rows of `cases` with the table's. The numbers behind "|" depend on the compiler:
    with another one than the table's they are not compared."""
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


def test_a_fence_more_is_not_in_the_table(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Kernels.source

    def with_a_fence(self: Kernels, engine: Engine, variant: Variant) -> str:
        text = source(self, engine, variant)
        old = "SLEY_INLINE bool any_thread(bool flag) { "
        assert old in text
        return text.replace(old, f"{old}__threadfence_system(); ")

    if golden.update:
        pytest.skip("compares")
    monkeypatch.setattr(Kernels, "source", with_a_fence)
    with pytest.raises(AssertionError, match="send"):
        check(SAMPLE[:1], golden)
