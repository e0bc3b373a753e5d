"""Collective calls, sends and receives that sley's library with NCCL's interface runs itself, over
the stand-in for NVIDIA's driver: a client in C, also compiled with the headers that
test_nccl_library.py finds, against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from test_nccl_library import cuda_headers, headers, stand_in

from sley.engine import native
from sley.ir.words import ReduceOp
from support.devices import made_ahead, nccl_calls
from support.devices.nccl_calls import FEW, SIZES, TYPES, calls, client, run

__all__ = ["cuda_headers"]

OPS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG)


@cache
def tables(ranks: int, types: Sequence[str], folder: Path, is_one_device: bool = False) -> None:
    """Writes the tables of ranks on the stand-in's devices, one each or all on one."""
    key = native.LinkKey(ranks, True, is_one_device or ranks == 1, 4)
    made_ahead.write_tables(key, folder, types, OPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made_ahead.stand_in(tmp_path_factory.mktemp("driver"))


def over(folder: Path, driver: dict[str, str], ranks: int) -> dict[str, str]:
    """The settings of a client over the stand-in."""
    return {
        "SLEY_NCCL_TABLES": str(folder),
        "SLEY_NCCL_KERNELS": str(folder),
        "SLEY_TIMEOUT_S": "60",
        "SLEY_FAKE": f"devices={ranks} memory_bytes={1 << 30}",
        "LD_LIBRARY_PATH": driver["LD_LIBRARY_PATH"],
    }


@pytest.mark.parametrize(
    ("ranks", "way"),
    [
        *((1, "group"), (2, "processes"), (2, "threads"), (3, "group")),
        pytest.param(4, "threads", marks=pytest.mark.slow),
    ],
)
def test_every_function_gives_what_numpy_gives(
    ranks: int, way: str, folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(ranks, FEW, folder)
    made = calls(FEW, [17], ranks) + calls(FEW[:1], SIZES[::4], ranks)
    run(client(), made, ranks, way, tmp_path, over(folder, driver, ranks))


@pytest.mark.slow
def test_one_thread_with_eight_ranks(folder: Path, driver: dict[str, str], tmp_path: Path) -> None:
    tables(8, FEW[:1], folder)
    run(client(), calls(FEW[:1], [17, 100], 8), 8, "group", tmp_path, over(folder, driver, 8))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["group", "threads"])
def test_ranks_on_one_device(
    way: str, folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(2, FEW[:1], folder, True)
    settings = over(folder, driver, 2)
    settings["SLEY_FAKE"] = f"devices=1 multiprocessors=8 memory_bytes={1 << 30}"
    run(client(), calls(FEW[:1], [17, 100], 2), 2, way, tmp_path, settings)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "way"), [(2, "group"), (3, "threads"), (4, "processes")])
def test_all_types_and_sizes(
    ranks: int, way: str, folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(ranks, TYPES, folder)
    run(client(), calls(TYPES, SIZES, ranks), ranks, way, tmp_path, over(folder, driver, ranks))


def test_clients_of_each_version(
    folder: Path, driver: dict[str, str], cuda_headers: Path, tmp_path: Path
) -> None:
    tables(2, FEW, folder)
    for number, header in enumerate(headers()):
        out = tmp_path / str(number)
        out.mkdir()
        made = calls(FEW[:1], SIZES[:2], 2)
        run(client(header, cuda_headers), made, 2, "threads", out, over(folder, driver, 2))


@pytest.mark.parametrize("has_real", [False, True])
def test_wrong_calls_are_refused_before_they_begin(
    has_real: bool, folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(2, FEW, folder)
    after = calls(FEW[:1], [100], 2)  # the communicator is as it was
    real = stand_in() if has_real else "/none"
    settings = over(folder, driver, 2) | ({"SLEY_NCCL": "eager"} if has_real else {})
    told = run(client(), after, 2, "wrong", tmp_path, settings, real).splitlines()
    expected = [
        "N705: expected a type from 0 to 11 for ncclAllReduce, found 12",
        "N703: expected a reduction for ncclAllReduce of the communicator, found number -1",
        "found number 5",
        "N705: expected buffers of less than 2^63 bytes for ncclAllReduce, found 4611686018427387",
        "bytes, as what is sent for ncclAllReduce, found a null pointer",
        "bytes, as where it is received for ncclAllReduce, found a null pointer",
        "which is no multiple of that",
        "which is on device 1",
        "which the driver doesn't know",
        "N705: expected a root from 0 to 1 for ncclReduce, found 2",
        "N705: expected two buffers for ncclAlltoAll, found one",
        "K517: expected a stream of",
        "N705: expected a type from 0 to 11 for ncclRedOpCreatePreMulSum, found 12",
        "N705: expected a place of the reduction for ncclRedOpCreatePreMulSum, found a null",
        "N705: expected data of the reduction's type, 7 for ncclAllReduce, found type 2",
        *["N703: expected a reduction for ncclAllReduce of the communicator"] * 2,
        "N703: expected a reduction for ncclRedOpDestroy of the communicator",
        *["N705: expected a type from 0 to 11 for ncclAllReduce, found 12"] * 2,
        "N705: expected a type from 0 to 11 for ncclSend, found 12",
        "N705: expected a peer from 0 to 1 for ncclSend, found 2",
        "N705: expected a peer from 0 to 1 for ncclRecv, found -1",
        "N705: expected buffers of less than 2^63 bytes for ncclSend, found 4611686018427387",
        "for ncclSend, found a null pointer",
        "for ncclRecv, found a null pointer",
        "which is on device 1",
        "K517: expected a stream of",
        "N705: ",
        *["N705: expected a peer from 0 to 1 for ncclRecv, found 2"] * 2,
        "N705: ",
        "N705: expected a group's sends and receives in one graph, or in none",
    ]
    for line, words in zip(told, expected, strict=False):
        assert line.startswith("4 "), line
        assert words in line
    passed = told[len(expected) :]
    if has_real:  # it isn't told of calls that sley runs, or refuses
        assert [line[:2] for line in passed[:2]] == ["0 ", "0 "]
        words = [line.split() for line in passed if line.startswith("AllReduce") and "comm" in line]
        assert [(line[4], line[5], line[6]) for line in words] == [
            ("8", "op0", "comm0"),
            ("2", "op1002", "comm0"),
        ]
    else:
        assert all("N701: expected sley's kernels, or NVIDIA's NCCL" in line for line in passed)
        assert len(passed) == 2


def test_sums_have_one_order_or_are_refused(
    folder: Path, driver: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for same_bits in (False, True):
        key = native.LinkKey(3, True, False, 4, same_bits)
        made_ahead.write_tables(key, folder, FEW[:1], OPS[:1])
    number, random = TYPES.index("float32"), np.random.default_rng(1)
    scattered = random.standard_normal(16) * 10.0 ** random.integers(-3, 4, 16)
    table = nccl_calls.values().copy()
    table[:, number, :, :4] = scattered.astype(np.float32).view(np.uint8).reshape(16, 4)
    monkeypatch.setattr(nccl_calls, "values", lambda: table)
    monkeypatch.setattr(nccl_calls, "decoded", nccl_calls.decoded.__wrapped__)
    monkeypatch.setattr(
        nccl_calls, "reduced", lambda data, call: np.add.reduce(np.array(data, np.float32))
    )
    made = [
        nccl_calls.Call(nccl_calls.KINDS.index(kind), number, 0, count, root, 0, 0)
        for kind, root in (("all_reduce", 0), ("reduce_scatter", 0), ("reduce", 1), ("reduce", 2))
        for count in (17, 4097, 40001)
    ]
    settings = over(folder, driver, 3)
    run(client(), made, 3, "group", tmp_path, settings | {"SLEY_SAME_BITS": "1"})
    with pytest.raises(AssertionError, match="not equal"):
        run(client(), made, 3, "group", tmp_path, settings)


def test_nccl_is_made_for_calls_that_sley_has_no_kernels_for(
    folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(2, FEW, folder)
    settings = {**over(folder, driver, 2), "NCCL_DEBUG": "INFO"}
    made = calls(FEW[:1], [100], 2)  # of its own, before and afterwards
    told = run(client(), made, 2, "lacking", tmp_path, settings, stand_in()).splitlines()
    assert told[0] == (
        "5 N701: expected NVIDIA's NCCL for ncclAllReduce, found a stream that is captured on rank "
        "0. Mend it, or set SLEY_NCCL=eager on all ranks: NCCL is made with a communicator then."
    )
    assert [line[:2] for line in told[1:3]] == ["0 ", "0 "]
    passed = [line.split() for line in told[3:]]
    assert sum(line[0] == "CommInitRank" for line in passed) == 2
    # In the order of the calls, though the reduction is destroyed before the group's end.
    of_rank = [line for line in passed if "comm1" in line]
    one = ["RedOpCreatePreMulSum", "AllReduce", "RedOpDestroy"]
    assert [line[0] for line in of_rank] == ["AllReduceConfig", *one, *one]
    assert of_rank[0][-1] == "0", "the config was there for the call only"
    assert of_rank[2][5] == of_rank[3][1] == "op1002"


def test_a_call_ends_when_another_rank_aborts(
    folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(2, FEW, folder)
    settings = over(folder, driver, 2)
    state, line = run(client(), [], 2, "aborted", tmp_path, settings).splitlines()
    assert state == "6", "ncclRemoteError"
    assert line.startswith("6 N"), line


def test_the_cause_is_told_where_it_is_known(
    folder: Path, driver: dict[str, str], tmp_path: Path
) -> None:
    tables(2, FEW, folder)
    settings = over(folder, driver, 2)
    line = run(client(), [], 2, "unequal", tmp_path, settings)
    assert line.startswith("1 K508: expected a send and its receive of equal bytes"), line
    assert "rank 1 takes 2 bytes from rank 0, which sends 1 bytes" in line
