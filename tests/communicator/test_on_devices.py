"""DeviceCommunicator: ranks on threads of the CPU, as threads and as processes."""

from __future__ import annotations

import os
import re
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Communicator, DeviceCommunicator, FolderStore, LocalStore, Settings
from sley.communicator.on_devices import Registration
from sley.communicator.rendezvous import bootstrap as bootstrapping
from sley.communicator.selection.kinds import BARRIER, CALLS, Request
from sley.engine.devices import Engine, ThreadsDevice
from sley.engine.devices import Settings as KernelSettings
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.errors.devices import K507
from sley.ir.words import ReduceOp
from support.devices.communicators import codes, on_all, opened
from support.devices.device_calls import threads
from support.processes.process_ranks import together
from support.processes.rank_processes import start

RANKS = 3
REDUCTIONS = [
    *(("int32", ReduceOp.SUM), ("int32", ReduceOp.MAX), ("bfloat16", ReduceOp.SUM)),
    *(("float64", ReduceOp.AVG), ("uint8", ReduceOp.BXOR), ("float8_e5m2", ReduceOp.PRODUCT)),
]
"""Each takes a second of a compiler for each protocol; tests of kernels have all."""
COUNTS = [0, 1, 2, 5, 17, 63, 255, 1000, 4099, 30_001]


@contextmanager
def ranks_of(ranks: int, **options: Any) -> Iterator[list[DeviceCommunicator]]:
    comms = opened([threads()] * ranks, **options)
    try:
        yield comms
    finally:
        on_all(comms, lambda comm: comm.close())


@pytest.fixture(scope="module")
def three() -> Iterator[list[DeviceCommunicator]]:
    with ranks_of(RANKS, types=["int32"], ops=["sum", "max"]) as comms:
        yield comms


@dataclass(frozen=True)
class Case:
    """A call, and what it makes of small numbers, whose sums all types hold."""

    kind: str
    in_place: bool
    root: int
    dtype: str
    op: ReduceOp
    count: int

    @classmethod
    def draw(cls, random: Random, kind: str, ranks: int) -> Case:
        dtype, op = random.choice(list(DATA_TYPES)), ReduceOp.SUM
        if CALLS[kind].reduces:
            dtype, op = random.choice(REDUCTIONS)
        place, root = random.random() < 0.5, random.randrange(ranks)
        return cls(kind, place, root, dtype, op, random.choice(COUNTS))

    def values(self, rank: int, ranks: int) -> Any:
        """A rank's input; in an average that of all."""
        seed = 0 if self.op is ReduceOp.AVG else rank
        parts = ranks if CALLS[self.kind].input_parts else 1
        return np.random.default_rng([seed, self.count]).integers(0, 3, (parts, self.count))

    def expected(self, ranks: int) -> list[Any]:
        """Each rank's output; None without one."""
        data = [self.values(rank, ranks) for rank in range(ranks)]
        row, root = CALLS[self.kind], [rank == self.root for rank in range(ranks)]
        if self.kind == "broadcast":
            return [data[self.root]] * ranks
        if self.kind == "scatter":
            return [data[self.root][rank] for rank in range(ranks)]
        if self.kind == "all_to_all":
            return [np.stack([own[rank] for own in data]) for rank in range(ranks)]
        if not row.reduces:
            return [np.concatenate(data) if is_root or not row.roles else None for is_root in root]
        total = _REDUCED[self.op](np.stack(data))
        if self.kind == "reduce_scatter":
            return list(total)
        return [total if is_root or not row.roles else None for is_root in root]

    def check(self, comm: DeviceCommunicator, **options: Any) -> None:
        kind, own = DATA_TYPES[self.dtype], CALLS[self.kind]
        size = comm.ranks * self.count if own.has_parts else self.count
        first = self.count * comm.rank
        has_place = self.in_place and comm.rank in ([self.root] if own.roles else range(comm.ranks))
        given = kind.bits(self.values(comm.rank, comm.ranks).ravel()).astype(kind.array)
        data = given.copy()
        out = np.zeros(size if own.output_parts else self.count, kind.array)
        if has_place and self.kind in ("all_gather", "gather"):
            data = out[first : first + self.count]
            data[:] = given
        if has_place and self.kind in ("reduce_scatter", "scatter"):
            out = data[first : first + self.count]
        if (self.in_place and self.kind in ("all_reduce", "all_to_all")) or self.kind in (
            "broadcast",
            "reduce",
        ):
            out = data
        arguments: dict[str, Any] = {"dtype": self.dtype} if kind.is_bits else {}
        if self.kind not in ("broadcast", "reduce"):
            arguments["out"] = out
        if own.reduces:
            arguments["op"] = self.op
        if own.roles:
            arguments["root"] = self.root
        getattr(comm, self.kind)(data, **arguments, **options)
        comm.synchronize()
        wanted = self.expected(comm.ranks)[comm.rank]
        if wanted is not None:
            found = kind.values(out) if kind.is_bits else out
            np.testing.assert_array_equal(found, wanted.ravel(), err_msg=str(self))
        if out is not data and not np.shares_memory(out, data):
            np.testing.assert_array_equal(data, given, err_msg=str(self))


_REDUCED: dict[ReduceOp, Callable[[Any], Any]] = {
    ReduceOp.SUM: lambda all_: all_.sum(0),
    ReduceOp.PRODUCT: lambda all_: all_.prod(0),
    ReduceOp.MIN: lambda all_: all_.min(0),
    ReduceOp.MAX: lambda all_: all_.max(0),
    ReduceOp.AVG: lambda all_: all_[0],
    ReduceOp.BAND: np.bitwise_and.reduce,
    ReduceOp.BOR: np.bitwise_or.reduce,
    ReduceOp.BXOR: np.bitwise_xor.reduce,
}

KINDS = [kind for kind, row in CALLS.items() if not row.varies and kind != BARRIER]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_give_what_numpy_gives(three: list[DeviceCommunicator], kind: str) -> None:
    random = Random(kind)
    for _ in range(12):
        case = Case.draw(random, kind, RANKS)
        on_all(three, case.check)


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "gather", "scatter"]
)
@pytest.mark.parametrize("count", [5, 3000, 50_000])  # with plans of their own
def test_each_rank_may_be_in_place_or_not(
    three: list[DeviceCommunicator], kind: str, count: int
) -> None:
    for places in range(1 << RANKS):

        def check(comm: DeviceCommunicator, places: int = places) -> None:
            in_place = bool(places >> comm.rank & 1)
            Case(kind, in_place, 1, "int32", ReduceOp.SUM, count).check(comm)

        on_all(three, check)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gather", "scatter")])
def test_calls_on_a_stream_need_no_python(
    three: list[DeviceCommunicator], kind: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once what they lack is there, and if their arrays need no closer look."""
    cases = [Case(kind, in_place, 1, dtype, ReduceOp.SUM, 999) for dtype in ("int32", "float16")]
    for attempt in range(2):
        for case in cases:
            on_all(three, lambda comm, case=case: case.check(comm, stream=comm.device.stream()))
        if attempt == 0 and not (in_place and kind == "all_to_all"):
            monkeypatch.delattr(DeviceCommunicator, "_start")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CALLS[kind].roles])
def test_every_rank_may_be_the_root(three: list[DeviceCommunicator], kind: str) -> None:
    for root in range(RANKS):
        on_all(three, Case(kind, False, root, "int32", ReduceOp.SUM, 1000).check)


def test_with_same_bits_sums_have_those_of_processors() -> None:
    """Of all sizes and roots; bfloat16 is rounded after each term."""
    settings, store = Settings(same_bits=True), LocalStore()
    kind, random = DATA_TYPES["bfloat16"], np.random.default_rng(5)
    values = random.standard_normal((RANKS, 50_001)) * 10.0 ** random.integers(-2, 3, (1, 50_001))
    data = np.stack([kind.bits(own.astype(np.float32)) for own in values])
    expected = data[0]
    for own in data[1:]:
        expected = kind.bits(kind.values(expected) + kind.values(own))

    def check(comm: Any) -> None:
        options = {"dtype": "bfloat16"}
        for count in (60, 3000, 50_001):
            for place in range(2):
                given = data[comm.rank][-count:].copy()
                out = given if place else np.zeros_like(given)
                comm.all_reduce(given, out=out, **options)
                np.testing.assert_array_equal(out, expected[-count:])
            part = count // RANKS
            out = np.zeros(part, np.uint16)
            comm.reduce_scatter(data[comm.rank][: part * RANKS].copy(), out, **options)
            np.testing.assert_array_equal(out, expected[part * comm.rank :][:part])
            for root in range(RANKS):
                given = data[comm.rank][:count].copy()
                comm.reduce(given, root=root, **options)
                if comm.rank == root:
                    np.testing.assert_array_equal(given, expected[:count])

    with ranks_of(RANKS, types=["bfloat16"], settings=settings) as comms:
        on_all(comms, check)

    def on_processors(rank: int) -> None:
        with Communicator(store, rank, RANKS, settings=settings) as comm:
            check(comm)

    together([lambda rank=rank: on_processors(rank) for rank in range(RANKS)])


def test_a_rank_alone_has_its_data() -> None:
    with ranks_of(1, types=["int32"]) as (comm,):
        for number, kind in enumerate(KINDS):
            Case(kind, bool(number % 2), 0, "int32", ReduceOp.SUM, 5).check(comm)
        comm.barrier()


def test_calls_on_streams_keep_their_order(three: list[DeviceCommunicator]) -> None:
    """Each rank has streams of its own, and doesn't wait for calls."""

    def sums(comm: DeviceCommunicator) -> None:
        streams = [comm.device.stream() for _ in range(2)]
        data, parts = np.full(700, comm.rank, np.int32), np.zeros(RANKS * 700, np.int32)
        for number in range(6):
            comm.all_reduce(data, stream=streams[number % 2])
        comm.barrier(stream=streams[0])
        comm.all_gather(data, parts, stream=streams[1])
        comm.synchronize()
        assert parts.tolist() == [3**6] * len(parts)

    on_all(three, sums)


def test_a_factor_multiplies_each_input_once(three: list[DeviceCommunicator]) -> None:
    def sums(comm: DeviceCommunicator) -> None:
        for factor in (3, np.array([3], np.int32)):
            data, part = np.full(30, comm.rank + 1, np.int32), np.zeros(10, np.int32)
            comm.reduce_scatter(data, part, factor=factor)
            assert part.tolist() == [18] * 10

    on_all(three, sums)
    assert (
        codes(three, lambda c: c.all_reduce(np.ones(3, np.int32), op="max", factor=2))
        == ["R503"] * 3
    )
    assert codes(three, lambda c: c.all_reduce(np.ones(3, np.int32), dtype=[])) == ["R504"] * 3


def test_a_factor_multiplies_the_input_of_a_single_rank() -> None:
    with ranks_of(1, types=["int32"]) as (comm,):
        for kind in ("all_reduce", "reduce_scatter", "reduce"):
            data, out = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)
            arrays = (data,) if kind == "reduce" else (data, out)
            getattr(comm, kind)(*arrays, factor=3, stream=comm.device.stream())
            getattr(comm, kind)(data, *arrays[:1] * (kind != "reduce"), factor=3)
            assert out.any() == (kind != "reduce")
            np.testing.assert_array_equal(data, np.arange(1000) * (9 if kind == "reduce" else 3))
            assert kind == "reduce" or (out == data).all()


def test_threads_of_a_rank_share_it(three: list[DeviceCommunicator]) -> None:
    """Whatever order their calls take, all ranks have the same number of equal calls."""

    def many(comm: DeviceCommunicator) -> None:
        data = [np.full(50, 1, np.int32) for _ in range(4)]
        together([lambda own=own: comm.all_reduce(own) for own in data])
        assert {int(value) for own in data for value in own} == {3}

    on_all(three, many)


def test_several_communicators_of_one_store() -> None:
    store = LocalStore()
    devices = [threads(0), threads(1)]
    first = opened(devices, store=store, name="first", types=["int32"])
    second = opened(devices, store=store, name="second", types=["int32"])
    for _ in range(3):
        for comms in (first, second):
            on_all(comms, Case("all_reduce", True, 0, "int32", ReduceOp.SUM, 900).check)
    for comms in (first, second):
        on_all(comms, lambda comm: comm.close())


def test_a_split_divides_the_ranks(three: list[DeviceCommunicator]) -> None:
    found: dict[int, tuple[int, int, list[int]]] = {}

    def divide(comm: DeviceCommunicator) -> None:
        part = comm.split(None if comm.rank == 1 else 7, key=-comm.rank)
        if part is None:
            return
        with part:
            data = np.zeros(2, np.int32)
            part.all_gather(np.full(1, comm.rank, np.int32), data)
            found[comm.rank] = part.rank, part.ranks, data.tolist()

    on_all(three, divide)
    assert found == {0: (1, 2, [2, 0]), 2: (0, 2, [2, 0])}
    assert codes(three, lambda comm: comm.split(-comm.rank)) == ["R514"] * RANKS
    on_all(three, lambda comm: comm.split(0).close())
    on_all(three, lambda comm: comm.barrier())


def test_arrays_that_all_can_read(three: list[DeviceCommunicator]) -> None:
    def sums(comm: DeviceCommunicator) -> None:
        data = comm.empty("int32", 50_000)
        data[:] = comm.rank
        comm.all_reduce(data[1:])
        assert data[1:].tolist() == [3] * 49_999

    on_all(three, sums)


def test_memory_that_one_rank_cannot_register_is_refused_on_all(
    three: list[DeviceCommunicator],
) -> None:
    data, found = np.zeros(60_000, np.int32), dict[int, Registration]()
    given = [data[::2] if comm.rank == 1 else data for comm in three]
    assert codes(three, lambda c: c.register(given[c.rank])) == ["K519"] * RANKS

    def register(comm: DeviceCommunicator) -> None:
        shared = comm.empty("int32", 9)
        found[comm.rank] = comm.register(shared if comm.rank else data[:0])

    on_all(three, register)
    assert [found[rank].readers for rank in range(3)] == [(), (0, 2), (0, 1)]
    for other in (Registration(found[0].number + 1, ()), None):
        ended: list[Any] = [other if comm.rank == 1 else found[0] for comm in three]

        def refused(comm: DeviceCommunicator, ended: list[Any] = ended) -> None:
            with pytest.raises(SleyError, match=r"R503[\s\S]*what `register` returned"):
                comm.deregister(ended[comm.rank])

        on_all(three, refused)
    for codes_found in ([""] * RANKS, ["R503"] * RANKS):
        assert codes(three, lambda c: c.deregister(found[c.rank])) == codes_found


def test_arrays_that_do_not_fit_are_refused_and_harm_nothing(
    three: list[DeviceCommunicator],
) -> None:
    data, frozen = np.zeros(6, np.int32), np.zeros(6, np.int32)
    frozen.flags.writeable = False
    refused: list[tuple[str, Callable[[DeviceCommunicator], Any]]] = [
        ("N627", lambda c: c.all_reduce(frozen)),
        ("N627", lambda c: c.all_gather(data, np.zeros(17, np.int32))),
        ("N627", lambda c: c.reduce_scatter(np.zeros(7, np.int32), data)),
        ("N627", lambda c: c.all_reduce(data, np.zeros(6, np.int64))),
        ("N627", lambda c: c.all_to_all(data, data[1:])),
        ("N627", lambda c: c.all_gather(data[1:3], data)),
        ("N627", lambda c: c.broadcast(data, 3)),
        ("N627", lambda c: c.broadcast(data, 2**31, stream=c.device.stream())),
        ("N627", lambda c: c.reduce(data, 1)),  # type: ignore[arg-type]
        ("N627", lambda c: c.all_reduce(np.zeros(25, np.uint8)[1:].view(np.int32))),
        ("R504", lambda c: c.all_reduce(np.zeros(2, np.uint16))),
        ("R504", lambda c: c.all_reduce(data, op="mean")),
        ("K504", lambda c: c.all_reduce([1, 2])),
        ("K517", lambda c: c.all_reduce(data, stream=5)),
        ("K519", lambda c: c.all_reduce(np.zeros(12, np.int32)[::2])),
    ]
    for code, call in refused:
        assert codes(three, call) == [code] * RANKS
        with pytest.raises(SleyError) as caught:
            call(three[0])
        named = f"{three[0].name}, rank 0: {code} "
        assert code == "K517" or str(caught.value).startswith(named)
    for told, call in (
        (r"Did you mean avg\?", lambda c: c.all_reduce(data, op="mean")),
        (r"view\(np.uint8\)", lambda c: c.broadcast(np.ones(3, np.bool_))),
    ):
        with pytest.raises(SleyError, match=told):
            call(three[0])
    on_all(three, Case("all_reduce", True, 0, "int32", ReduceOp.SUM, 10).check)


@pytest.fixture
def two() -> Iterator[list[DeviceCommunicator]]:
    """For a test in which calls fail."""
    with ranks_of(2, types=["int32"]) as comms:
        yield comms


def test_an_abort_ends_the_calls_of_all_ranks(two: list[DeviceCommunicator]) -> None:
    """Of a rank that waits for its call's end, and of one that waits on a stream."""
    data, waiting = np.zeros(8, np.int32), Event()

    def wait() -> None:
        stream = two[0].device.stream()
        two[0].all_reduce(data, stream=stream)
        assert two[0].error() is None
        waiting.set()
        with pytest.raises(SleyError) as caught:
            two[0].all_reduce(data)
        assert caught.value.code in ("N608", "N630")

    def end() -> None:
        waiting.wait()
        two[1].abort()

    together([wait, end])
    assert [found and found.code for found in (comm.error() for comm in two)] == ["N608", "N608"]
    for call in (lambda c: c.all_reduce(data), lambda c: c.barrier(), lambda c: c.split(0)):
        assert codes(two, call) == ["N630"] * 2
    on_all(two, lambda comm: comm.close())
    assert codes(two, lambda c: c.all_reduce(data)) == ["N623"] * 2


def test_an_abort_is_the_error_of_all_ranks(two: list[DeviceCommunicator]) -> None:
    two[1].abort()
    assert codes(two, lambda comm: comm.empty("int32", 8)) == ["N608", "N630"]
    assert [found and found.code for found in (comm.error() for comm in two)] == ["N608", "N608"]


@pytest.mark.parametrize("by", [0, 1])
def test_an_abort_ends_the_wait_for_what_a_call_lacks(
    two: list[DeviceCommunicator], by: int
) -> None:
    """Here kernels for a type that was not named."""
    waiting = Event()

    links = two[0]._core.links if two[0]._core else None
    assert links is not None
    settle = links.settle

    def wait() -> None:
        links.settle = lambda: (waiting.set(), settle())[1]  # type: ignore[method-assign]
        with pytest.raises(SleyError) as caught:
            two[0].all_reduce(np.zeros(8, np.int64))
        assert caught.value.code == "N608"

    def end() -> None:
        waiting.wait()
        two[by].abort()

    together([wait, end])
    assert codes(two, lambda c: c.barrier()) == ["N630", "N630" if by else "N608"]


def test_a_call_that_one_rank_does_not_make_ends_in_time() -> None:
    kernels = KernelSettings(Engine.INTERPRETED, timeout_s=0.3)
    with ranks_of(2, types=["int32"], kernels=kernels) as comms:
        data = np.zeros(8, np.int32)
        assert codes(comms[:1], lambda c: c.all_reduce(data)) == ["K508"]
        error = comms[0].error()
        assert error is not None
        named = (
            rf"{comms[0].name}, rank 0: K508 .*\n  also: .*\n  expected: no .* \d+ bytes a block"
        )
        assert re.match(named, str(error)), error
        assert codes(comms, lambda c: c.check()) == ["K508"] * 2
        assert codes(comms, lambda c: c.all_reduce(data)) == ["N630"] * 2


def test_calls_with_two_roots_end_in_time() -> None:
    """Nothing is compared in a call; but each message must be received."""
    kernels = KernelSettings(Engine.INTERPRETED, timeout_s=0.3)
    with ranks_of(2, types=["int32"], kernels=kernels) as comms:
        found = [codes(comms, lambda c: c.broadcast(np.zeros(8, np.int32), c.rank))]
        found.append(codes(comms, lambda c: c.broadcast(np.zeros(8, np.int32))))
        assert found[1] == ["K508"] * 2, found


def test_closing_twice_does_nothing(two: list[DeviceCommunicator]) -> None:
    for _ in range(2):
        on_all(two, lambda comm: comm.close())
    for comm in two:
        comm.abort()
        assert comm.error() is None
    assert codes(two, lambda c: c.barrier()) == ["N623"] * 2


def test_a_communicator_that_is_dropped_frees_its_memory() -> None:
    comms = opened([threads()] * 2, types=["int32"])
    links = [weakref.ref(comm._core.links) for comm in comms if comm._core]
    del comms
    assert [link() for link in links] == [None] * 2


@pytest.mark.parametrize(
    ("of_rank", "ranks", "found"),
    [
        ({"types": ["int32", "int8"]}, 3, "types int32 int8 on rank 1"),
        ({"kernels": KernelSettings(Engine.INTERPRETED, slots=4)}, 3, "slots 4 on rank 1"),
        ({"settings": Settings(plan_dir="plans")}, 2, "for calls of the user's plans, "),
        # To find plans for GPUs on PCIe, which no other test needs, takes seconds.
        pytest.param({"topology": "pcie-8"}, 2, "for all_reduce, of ", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_differ_are_refused_on_all(
    of_rank: dict[str, Any], ranks: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, errors = LocalStore(), dict[int, SleyError]()
    monkeypatch.chdir(tmp_path)
    Path("plans").mkdir()
    own = sley.algorithms.build("ring-allreduce", ranks=2, in_place=True)
    sley.save(sley.compile(own, slots=4), "plans/own.plan")

    def make(rank: int) -> None:
        options = {"types": ["int32"], "kernels": KernelSettings(Engine.INTERPRETED)}
        # On a busy machine one rank may search for plans for longer than others usually wait.
        options["settings"] = Settings(timeout_s=300)
        options |= of_rank if rank == 1 else {}
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, ranks, threads(), **options)
        errors[rank] = caught.value

    together([lambda rank=rank: make(rank) for rank in range(ranks)])
    assert {error.code for error in errors.values()} == {"N604"}
    assert {found in str(error) for error in errors.values()} == {True}, errors[0]


def test_the_memory_of_plans_takes_no_descriptors() -> None:
    """A rank has more than a hundred pieces, and a process may have 1,024 descriptors."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ranks_of(2, types=["int32"]):
        assert len(list(Path("/proc/self/fd").iterdir())) - before < 40


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *(({"device": device}, "K510") for device in (None, 0, "gpu")),
        *(({key: 5}, "R514") for key in ("name", "settings", "kernels", "types", "ops", "environ")),
        *(({"settings": KernelSettings()}, "R514"), ({"kernels": Settings()}, "R514")),
        *(({"types": [[]]}, "R504"), ({"ops": [[]]}, "R504"), ({"topology": 5}, "C307")),
    ],
    ids=str,
)
def test_arguments_of_a_wrong_class_are_refused(given: dict[str, Any], code: str) -> None:
    with pytest.raises(SleyError) as caught:
        DeviceCommunicator(LocalStore(), 0, 1, **{"device": threads(), **given})
    assert caught.value.code == code


def test_a_topology_of_one_rank_that_is_refused_is_so_on_all() -> None:
    store, found = LocalStore(), dict[int, str]()

    def make(rank: int) -> None:
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, 2, threads(), topology=5 if rank else None)  # type: ignore[arg-type]
        found[rank] = caught.value.code

    together([lambda rank=rank: make(rank) for rank in range(2)])
    assert found == {0: "N608", 1: "C307"}


def test_the_others_are_told_of_a_device_that_a_rank_does_not_see() -> None:
    store, errors = LocalStore(), dict[int, SleyError]()

    def make(rank: int) -> None:
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, 2, "gpu" if rank else threads())
        errors[rank] = caught.value

    together([lambda rank=rank: make(rank) for rank in range(2)])
    assert [errors[rank].code for rank in range(2)] == ["N608", "K510"]
    assert "'gpu'" in str(errors[0])


class Failing(ThreadsDevice):
    """Has no memory for a stream."""

    def default_stream(self) -> Any:
        if self.number:
            raise K507.error(expected="a stream", found="no memory")
        return super().default_stream()


@pytest.mark.parametrize("code", ["K507", "T604"])
def test_what_ends_the_opening_of_one_rank_ends_it_on_all(code: str) -> None:
    store, errors = LocalStore(), dict[int, SleyError]()

    def make(rank: int) -> None:
        device = Failing(rank if code == "K507" else 0)
        topology = "nowhere" if rank and code == "T604" else None
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, 2, device, types=["int32"], topology=topology)
        errors[rank] = caught.value

    together([lambda rank=rank: make(rank) for rank in range(2)])
    assert errors[1].code == code
    assert code in str(errors[0])


def test_a_communicator_of_processors_is_another_one() -> None:
    store = LocalStore()

    def make(kind: Callable[..., Any], *place: Any) -> None:
        with pytest.raises(SleyError) as caught:
            kind(store, *place)
        assert caught.value.code == "N604"
        assert "on processors" in str(caught.value)

    together(
        [
            lambda: make(DeviceCommunicator, 0, 2, threads()),
            lambda: make(Communicator, 1, 2),
        ]
    )


def test_ranks_on_several_hosts_are_refused() -> None:
    store = LocalStore()

    def make(rank: int) -> None:
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, 2, threads(), environ={"SLEY_HOST_ID": str(rank)})
        assert caught.value.code == "K514"
        assert "sley.Communicator" in caught.value.diagnostics[0].remedy

    together([lambda rank=rank: make(rank) for rank in range(2)])


PLAN = """\
import sley


@sley.program(sley.AllReduce(2, 2, in_place=True))
def own_pairs(p):
    for index in range(2):
        c = p.chunk(1 - index, "in", index).reduce(p.chunk(index, "in", index))
        c.copy(index, "in", index)
"""


def test_user_plans_of_a_folder_run(tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(PLAN)
    settings = Settings(plan_dir=tmp_path, plan_dir_strict=True)
    with ranks_of(2, types=["int32"], settings=settings) as comms:
        assert comms[1].stats() == []
        for _ in range(2):
            on_all(comms, Case("all_reduce", True, 0, "int32", ReduceOp.SUM, 1000).check)
        on_all(comms, Case("all_reduce", False, 0, "int32", ReduceOp.SUM, 2**20).check)
        other, one = comms[1].stats()
        assert (one.plan, one.origin, one.calls, one.size_bytes) == ("own-pairs", "user", 2, 8000)
        assert (other.in_place, other.origin, other.calls) == (False, "default", 1)
        assert other.begin_bytes <= 2**22 == other.size_bytes
        assert str(one) == (
            "CallStats(sley rank 1, all_reduce, all sizes: own-pairs, Simple, user, 2 calls)"
        )
        assert {one, other} <= {*sley.stats()}
        request = Request("all_reduce", comms[0].hosts, 4000, in_place=True)
        assert "own-pairs (Simple, registered)" in comms[0].plans.considered(request)[0]
    assert comms[1].stats() == []


UNEVEN = """
import sley


@sley.program(sley.AllReduce(2, 3, in_place=True))
def uneven(p):
    for rank, index, count in ((0, 0, 2), (1, 2, 1)):
        arrived = p.chunk(1 - rank, "in", index, count).copy(rank, "scratch", 0)
        p.chunk(rank, "in", index, count).reduce(arrived).copy(1 - rank, "in", index)
"""


def test_all_ranks_get_scratch_when_one_lacks_it(tmp_path: Path) -> None:
    """Rank 1 needs half as much as rank 0: in the second call it has enough."""
    (tmp_path / "uneven.py").write_text(UNEVEN)
    settings = Settings(plan_dir=tmp_path, plan_dir_strict=True)
    with ranks_of(2, types=["int32"], settings=settings) as two:
        for count in (1000, 1200):
            on_all(two, Case("all_reduce", True, 0, "int32", ReduceOp.SUM, count).check)
        links = two[0]._core.links if two[0]._core else None
        assert links is not None
        assert [2, 1] in [plan.scratch_chunks.tolist() for plan in links.plans]


def test_the_folder_of_one_rank_is_refused_on_all(tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(PLAN)
    store = LocalStore()

    def make(rank: int) -> None:
        settings = Settings(plan_dir=tmp_path if rank else None)
        with pytest.raises(SleyError) as caught:
            DeviceCommunicator(store, rank, 2, threads(), settings=settings)
        assert caught.value.code == "N604"
        assert "own-pairs" in str(caught.value)

    together([lambda rank=rank: make(rank) for rank in range(2)])


def of_process(folder: str, rank: int, ranks: int, settings: Settings) -> DeviceCommunicator:
    kernels = KernelSettings(Engine.INTERPRETED, timeout_s=100)
    return DeviceCommunicator(
        FolderStore(folder), rank, ranks, threads(), types=["int32"], kernels=kernels
    )


def some_calls(comm: DeviceCommunicator) -> str:
    random = Random(5)
    for kind in KINDS:
        Case.draw(random, kind, comm.ranks).check(comm)
    return "right"


def test_ranks_may_be_processes() -> None:
    ends = start(2, some_calls, join=of_process).ends()
    assert [end.value for end in ends] == ["right"] * 2, ends


def some_die(comm: DeviceCommunicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def some_die_unregistered(comm: DeviceCommunicator) -> None:
    data = np.full(200_000, comm.rank, np.int32)
    assert comm.register(data).readers == ()  # NumPy's memory, in another process
    comm.all_reduce(data)
    assert set(data.tolist()) == {1}
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.register(data)


def some_die_of_a_close(comm: DeviceCommunicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with comm:
        comm.barrier(stream=comm.device.stream())


@pytest.mark.parametrize("what", [some_die, some_die_unregistered, some_die_of_a_close])
def test_the_end_of_a_process_ends_the_calls_of_others(what: Callable[..., None]) -> None:
    lives, *dead = start(2, what, join=of_process).ends()
    assert "N620" in lives.error
    assert "rank 1 no longer has a process" in lives.error
    assert lives.seconds < 60
    assert [end.exit for end in dead] == [-signal.SIGKILL]


def another_version(rank: int) -> None:
    bootstrapping._VERSION = f"1.{rank}"


def test_ranks_of_several_versions_are_refused_on_all() -> None:
    ends = start(3, some_calls, join=of_process, enter=another_version).ends()
    assert [("N604" in end.error, "sley 1.1" in end.error) for end in ends] == [(True, True)] * 3
