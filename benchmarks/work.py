"""Work of compiling, proving and simulating six plans, counted so that noise doesn't move it.

    python benchmarks/work.py [--record REASON]

CI prints each count beside its record in `work.toml`, and fails if one has grown by more than a
tenth. To change the records, say why: --record REASON writes the new counts with it.

Two things are counted. Lines: how many lines of sley's own Python run. A loop over transfers costs
many lines for each of them; such loops in `channels` and `order` once made the compiler twice as
slow, and no test failed. Bytes: how much memory NumPy allocates for arrays. Work inside NumPy runs
no lines, but each result is an array; in each of its steps the verifier once computed an array as
long as the plan. Both counts are the same on every machine. Instructions of the processor need
valgrind, which is fifty times as slow, or a counter that virtual machines don't offer. Loops in C++
aren't counted; `against.py` measures their time.

The plans are smaller than those of which the time matters, so that the count takes seconds. They
are below `passes.loops.LARGE`: so Numba compiles no loop, and its lines count too. The counts
depend on the versions of Python and NumPy, and are compared only with records for the same.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy._core import multiarray

import sley
from sley.algorithms import build

RECORDS = Path(__file__).with_name("work.toml")
SOURCE = str(Path(sley.__file__).parent)
MOST_GROWTH = 1.1
STAGES = ("compile", "prove", "simulate")
UNITS = ("lines", "bytes")
_SET_HANDLER, _GET_HANDLER = 304, 305  # of NumPy's C interface, since 1.22


class Case(NamedTuple):
    """An algorithm of the library on a topology. options: of `compile`."""

    algorithm: str
    sizes: dict[str, Any]
    topology: str
    options: dict[str, Any]


CASES = {
    "ring of 128 ranks": Case("ring-allreduce", {"ranks": 128}, "ndv4:16", {}),
    "two-step AllToAll": Case("two-step-alltoall", {"nodes": 16, "gpus": 8}, "ndv4:16", {}),
    "hierarchical": Case("hierarchical-allreduce", {"nodes": 32, "gpus": 8}, "ndv4:32", {}),
    "HM by HPDS": Case(
        "hm-allreduce",
        {"nodes": 16, "gpus": 8},
        "ndv4:16",
        {"schedule": "hpds", "allocate": "state"},
    ),
    "multi-ring AllGather": Case("multi-ring-allgather", {"nodes": 4, "gpus": 8}, "p5:4", {}),
    "ring of 24 instances": Case("ring-allreduce", {"ranks": 16}, "ndv4:2", {"instances": 24}),
}
SMALL = Case("ring-allreduce", {"ranks": 8}, "ndv4", {"schedule": "hpds", "allocate": "state"})
"""A plan that loads every module and fills every cache before the count."""


class _Allocator(ctypes.Structure):
    """PyDataMemAllocator of NumPy's C interface."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")
    ]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C interface."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    ]


class Counter:
    """Counts lines of sley and bytes of NumPy's arrays. NumPy frees what it counted by itself, so
    that arrays may live longer than the counter."""

    def __init__(self) -> None:
        self.lines = self.bytes = 0
        api, size, pointer = ctypes.pythonapi, ctypes.c_size_t, ctypes.c_void_p
        address = api.PyCapsule_GetPointer
        address.restype, address.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
        table = ctypes.cast(address(multiarray._ARRAY_API, None), ctypes.POINTER(pointer))
        default = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])()
        self._handler = _Handler.from_buffer_copy(
            ctypes.cast(address(default, b"mem_handler"), ctypes.POINTER(_Handler)).contents
        )
        allocator = self._handler.allocator
        malloc_type = ctypes.PYFUNCTYPE(pointer, pointer, size)
        calloc_type = ctypes.PYFUNCTYPE(pointer, pointer, size, size)
        malloc, calloc = malloc_type(allocator.malloc), calloc_type(allocator.calloc)

        def counted_malloc(context: int, count: int) -> int:
            self.bytes += count
            return malloc(context, count)

        def counted_calloc(context: int, number: int, each: int) -> int:
            self.bytes += number * each
            return calloc(context, number, each)

        self._calls = malloc_type(counted_malloc), calloc_type(counted_calloc)
        allocator.malloc, allocator.calloc = (ctypes.cast(f, pointer) for f in self._calls)
        capsule = api.PyCapsule_New
        capsule.restype = ctypes.py_object
        capsule.argtypes = [pointer, ctypes.c_char_p, pointer]
        self._name = b"mem_handler"
        self._capsule = capsule(ctypes.addressof(self._handler), self._name, None)
        self._default = default
        self._set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])

    def run(self, work: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
        """The value of `work`, and the lines and bytes that it took."""
        self.lines, begin = 0, self.bytes

        def in_sley(frame: FrameType, event: str, _argument: Any) -> Any:
            self.lines += event == "line"
            return in_sley

        def enter(frame: FrameType, event: str, argument: Any) -> Any:
            return in_sley if frame.f_code.co_filename.startswith(SOURCE) else None

        self._set(self._capsule)
        sys.settrace(enter)
        try:
            value = work()
        finally:
            sys.settrace(None)
            self._set(self._default)
        return value, {"lines": self.lines, "bytes": self.bytes - begin}


def count(counter: Counter, case: Case) -> dict[str, dict[str, int]]:
    """The counts of the stages of a case."""
    program = build(case.algorithm, **case.sizes)
    topology = sley.topologies.find(case.topology)
    found: dict[str, dict[str, int]] = {}
    plan, found["compile"] = counter.run(
        lambda: sley.compile(program, verify=False, **case.options)
    )
    _, found["prove"] = counter.run(lambda: sley.verify(plan))
    _, found["simulate"] = counter.run(lambda: sley.simulate(plan, "1M", topology))
    return found


def versions() -> dict[str, str]:
    """The versions on which counts depend, without their last parts."""
    return {
        "python": "{}.{}".format(*sys.version_info),
        "numpy": ".".join(np.__version__.split(".")[:2]),
    }


def compare(
    found: dict[str, dict[str, dict[str, int]]], recorded: dict[str, Any], *, same: bool
) -> tuple[list[str], list[str]]:
    """The rows of the table, and the counts that have grown. same: whether the records are for
    these versions of Python and NumPy; without, none has grown."""
    rows, grown = [], []
    for name, stages in found.items():
        for stage, counts in stages.items():
            row = f"{name:22}{stage:10}"
            for unit, value in counts.items():
                before = recorded.get(name, {}).get(stage, {}).get(unit, 0)
                ratio = value / before if before else float("inf")
                row += f"{value:14,} {unit:6}{before:14,}{ratio:7.2f}"
                if same and ratio > MOST_GROWTH:
                    grown.append(f"{name}, {stage}: {value:,} {unit}, recorded {before:,}")
            rows.append(row)
    return rows, grown


def write(found: dict[str, dict[str, dict[str, int]]], reason: str) -> None:
    """Writes the records."""
    lines = ["# Written by work.py --record REASON.", f'reason = "{reason}"']
    lines += [f'{name} = "{version}"' for name, version in versions().items()]
    for name, stages in found.items():
        lines += ["", f'["{name}"]']
        for stage, counts in stages.items():
            pairs = ", ".join(f"{unit} = {value}" for unit, value in counts.items())
            lines.append(f"{stage} = {{ {pairs} }}")
    RECORDS.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", metavar="REASON", help="write the counts, and why they changed")
    options = parser.parse_args()
    counter = Counter()
    count(counter, SMALL)
    found = {name: count(counter, case) for name, case in CASES.items()}
    if options.record:
        write(found, options.record)
    recorded = tomllib.loads(RECORDS.read_text())
    same = all(recorded[name] == version for name, version in versions().items())
    rows, grown = compare(found, recorded, same=same)
    print(f"{'':32}" + f"{'now':>14}{'recorded':>21}{'ratio':>7}" * len(UNITS))
    print("\n".join(rows))
    if not same:
        print(
            f"Not compared: recorded with Python {recorded['python']} and NumPy {recorded['numpy']}"
        )
    if grown:
        print("Grown by more than a tenth; mend it, or say why: work.py --record REASON")
        print("\n".join(grown))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
