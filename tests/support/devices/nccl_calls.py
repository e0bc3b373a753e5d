"""The client in C that makes calls of NCCL's collectives, sends and receives
(tests/native/nccl_calls.c), and what it must get, by NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np

from sley.compiler.deployment import nccl_programs
from sley.engine.types import DATA_TYPES
from support.devices.native_programs import TESTS
from support.devices.nccl_clients import compiled, output, variables

KINDS = (
    *("all_reduce", "broadcast", "bcast", "reduce", "all_gather", "reduce_scatter"),
    *("all_to_all", "gather", "scatter", "shift", "exchange"),
)
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
ROOTED = {"broadcast", "bcast", "reduce", "gather", "scatter", "shift", "exchange"}
TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
"""By NCCL's numbers."""

SUM, PRODUCT, MAX, MIN, AVG, SCALED_BY_HOST, SCALED_BY_DEVICE = range(7)
SIZES = (
    *(0, 1, 2, 3, 7, 8, 15, 16, 17, 64, 100, 255, 256, 1000, 1024, 4097, 10000, 16384, 40001),
    65536,
)
FEW = ("float32", "int32")


@dataclass(frozen=True)
class Call:
    """A line of the client's CALLS; see nccl_calls.c."""

    kind: int
    type: int
    op: int
    count: int
    root: int
    stream: int
    config: int


@cache
def values() -> Any:
    """The client's VALUES. All sums, products and averages of 4 ranks are exact in their types, but
    for averages over 3. Sums before the division would be too large for float16."""
    tables = np.zeros((4, len(TYPES), 16, 8), np.uint8)
    for at, name in enumerate(TYPES):
        kind = DATA_TYPES[name]
        is_signed = not name.startswith("u")
        summed = [0, 1, -1] if name == "float8_e5m2" else [0, 1, -1, 2, -2]
        multiplied = [1, 2, -1, 0.5] if kind.is_float else [1, 2, -1, 3]
        is_wide = kind.is_float and not name.startswith("float8")
        averaged = [0, 61440, -61440, 61440] if is_wide else summed
        for table, of in enumerate((summed, multiplied, [2, 1], averaged)):
            own = [one if is_signed else abs(one) for one in islice(cycle(of), 16)]
            bits = kind.bits(np.array(own, np.float32 if kind.is_bits else kind.array))
            tables[table, at, :, : kind.size_bytes] = bits.view(np.uint8).reshape(16, -1)
    return tables


def mixed(call: int, rank: int) -> int:
    """As the client's."""
    x = (call * 2654435761 + rank * 40503 + 1) % 2**32
    x = (x ^ x >> 15) * 2246822519 % 2**32
    return x ^ x >> 13


@cache
def decoded(table: int, at: int) -> Any:
    """The 16 values of a type in float64, which has them all exactly."""
    kind = DATA_TYPES[TYPES[at]]
    bits = np.ascontiguousarray(values()[table, at, :, : kind.size_bytes]).view(kind.array)
    return kind.values(bits.ravel()).astype(np.float64)


def inputs(number: int, call: Call, ranks: int, elements: int) -> list[Any]:
    own = decoded({PRODUCT: 1, AVG: 3}.get(call.op, 0), call.type)
    places = np.arange(elements, dtype=np.uint32) * np.uint32(2654435761)
    return [
        own[(places + np.uint32(mixed(number, rank))) >> np.uint32(28)] for rank in range(ranks)
    ]


def reduced(data: Sequence[Any], call: Call) -> Any:
    if call.op >= SCALED_BY_HOST:
        data = [one * factor for one, factor in zip(data, decoded(2, call.type), strict=False)]
    if call.op == AVG:
        mean = sum(data) / len(data)
        return mean if DATA_TYPES[TYPES[call.type]].is_float else np.trunc(mean)
    of = {PRODUCT: np.multiply, MAX: np.maximum, MIN: np.minimum}.get(call.op, np.add)
    return of.reduce(data)


def promised(number: int, call: Call, ranks: int) -> dict[int, Any]:
    """Each rank's output, of those that have one."""
    kind, n, root = KINDS[call.kind], call.count, call.root
    divides = kind in ("reduce_scatter", "all_to_all", "scatter", "exchange")
    data = inputs(number, call, ranks, n * ranks if divides else n)
    every = range(ranks)
    if kind in REDUCING:
        whole = reduced(data, call)
        if kind == "reduce_scatter":
            return {rank: whole[rank * n :][:n] for rank in every}
        return {rank: whole for rank in every if kind == "all_reduce" or rank == root}
    if kind in ("all_gather", "gather"):
        return {r: np.concatenate(data) for r in every if kind == "all_gather" or r == root}
    if kind == "all_to_all":
        return {r: np.concatenate([one[r * n :][:n] for one in data]) for r in every}
    if kind == "shift":
        return {r: data[(r - root) % ranks] for r in every}
    if kind == "exchange":

        def part(source: int, to: int) -> Any:
            return data[source][to * n :][: n * (1 + (source + 2 * to + root) % 3) // 3]

        return {r: np.concatenate([part(source, r) for source in every]) for r in every}
    return {r: data[root][r * n :][:n] if kind == "scatter" else data[root] for r in every}


def check(number: int, call: Call, ranks: int, bits: Any, expected: Any) -> None:
    kind = DATA_TYPES[TYPES[call.type]]
    got = kind.values(bits).astype(np.float64)
    if call.op == AVG and kind.is_float and ranks & (ranks - 1):  # 1/n is rounded
        digits = {"float16": 10, "float32": 23, "float64": 52, "bfloat16": 7}
        close = ranks * 2.0 ** -digits.get(kind.name, 2) * abs(decoded(3, call.type)).max()
        np.testing.assert_allclose(got, expected, atol=close, rtol=0, err_msg=f"{number} {call}")
    else:
        np.testing.assert_array_equal(got, expected, f"{number} {call}")


def calls(types: Sequence[str], sizes: Sequence[int], ranks: int) -> list[Call]:
    """Every function with every type and operation, each with every size; roots, streams and forms
    in turn."""
    of = [
        (kind, TYPES.index(name), op)
        for kind, name in product(range(len(KINDS)), types)
        for op in range(ops_of(kind, name))
    ]
    made = []
    for turn, (at, k) in enumerate(product(range(len(sizes)), range(len(of)))):
        kind, element, op = of[k]
        root = turn % ranks if KINDS[kind] in ROOTED else 0
        size = sizes[(at + k) % len(sizes)]
        made.append(Call(kind, element, op, size, root, turn % 3, turn // 3 % 2))
    return made


def ops_of(kind: int, name: str) -> int:
    """sley scales floats only."""
    if KINDS[kind] not in REDUCING:
        return 1
    return 1 + (SCALED_BY_DEVICE if DATA_TYPES[name].is_float else AVG)


def client(header: Path | None = None, cuda: Path | None = None) -> Path:
    flags = ["-pthread", "-ldl", str(nccl_programs.library())]
    if header is not None:
        flags += ["-DWITH_HEADER", f"-I{header}", f"-I{cuda}"]
    return compiled(TESTS / "nccl_calls.c", "", *flags)


def run(
    program: Path,
    made: Sequence[Call],
    ranks: int,
    way: str,
    out: Path,
    settings: Mapping[str, str],
    real: Path | str = "/none",
    under: Sequence[str] = (),
) -> str:
    """Lets the client make calls, and checks what each rank got. settings: variables of its
    environment. under: the command that starts it."""
    (out / "calls").write_text("".join(" ".join(map(str, astuple(c))) + "\n" for c in made))
    (out / "values").write_bytes(values().tobytes())
    more = {**({"SLEY_NCCL": "only"} if real == "/none" else {}), **settings}
    command: list[str | Path] = [
        *under,
        program,
        out / "calls",
        out / "values",
        out,
        str(ranks),
        way,
    ]
    told, _ = output(command, variables(real, **more))
    files = [np.fromfile(out / str(rank), np.uint8) for rank in range(ranks)]
    for number, call in enumerate(made):
        kind = DATA_TYPES[TYPES[call.type]]
        for rank, expected in promised(number, call, ranks).items():
            size = len(expected) * kind.size_bytes
            own, files[rank] = files[rank][:size], files[rank][size:]
            check(number, call, ranks, own.view(kind.array), expected)
    assert not any(map(len, files))
    return told
