"""With same_bits an element has the same bits in calls of all sizes, places, splits and engines."""

from __future__ import annotations

import ctypes
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Communicator, Copies, DeviceCommunicator, Settings
from sley.communicator.heap import empty
from sley.communicator.rendezvous.hosts import Hosts
from sley.engine.devices import Engine
from sley.engine.devices import Settings as KernelSettings
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.orders import BALANCED, SameBits
from sley.ir.words import ReduceOp
from support.devices.communicators import TIMEOUT_S, on_all, opened
from support.devices.device_calls import threads
from support.inputs.sum_terms import FLOATS, Tree, random_tree, terms, total, tree_of
from support.processes import rank_processes
from support.processes.threads_group import Ranks

OPS = (ReduceOp.SUM, ReduceOp.AVG)
LARGEST = 64 << 20
BYTES = (8, 12, 100, 1000, 4 << 10, 20_004, 64 << 10, 300_004, 1 << 20)
LARGE_BYTES = (1_800_004, 4 << 20, 20_000_004, LARGEST)
"""Sizes of calls, with counts that are no multiple of anything; the large ones for one type and
operation of each group."""


class Calls:
    """A rank's calls of one type and operation, and in how many elements their results differ from
    the promised ones, by kind of call. The terms repeat along the elements."""

    def __init__(self, comm: Any, tree: Tree, dtype: str, op: ReduceOp) -> None:
        self.comm, self.dtype, self.op = comm, dtype, op
        self.own = terms(dtype, comm.ranks)[comm.rank]
        self.expected = total(dtype, comm.ranks, tree, op)
        self.differing, self.elements = Counter[str](), 0
        self._options: dict[str, Any] = {"op": op, "dtype": dtype}
        if isinstance(comm, Communicator):
            self._late: dict[str, Any] = {"async_op": True}
        else:
            self._late = {"stream": comm.device.stream()}

    def see(self, kind: str, found: Any, first: int = 0) -> None:
        """Compares a result, whose first element is at a place in the whole."""
        wanted = np.resize(np.roll(self.expected, -first), len(found))
        self.differing[kind] += int((found.view(wanted.dtype) != wanted).sum())
        self.elements += len(found)

    def given(self, count: int, *, shared: bool = False) -> Any:
        if not shared or not isinstance(self.comm, Communicator):
            return np.resize(self.own, count)
        kind = DATA_TYPES[self.dtype]
        array = empty(count, kind.moved.name).view(kind.array)
        array[:] = np.resize(self.own, count)
        return array

    def make(self, count: int) -> None:
        """Calls of this many elements."""
        comm, ranks = self.comm, self.comm.ranks
        for in_place in (False, True):
            data = self.given(count, shared=in_place)
            out = data if in_place else np.zeros_like(data)
            comm.all_reduce(data, out, **self._options)
            self.see("all_reduce", out)
            part = -(-count // ranks)
            data = self.given(part * ranks, shared=not in_place)
            out = data[part * comm.rank :][:part] if in_place else np.zeros(part, data.dtype)
            comm.reduce_scatter(data, out, **self._options)
            self.see("reduce_scatter", out, part * comm.rank)
        root = count % ranks
        comm.reduce(data := self.given(count), root=root, **self._options)
        if comm.rank == root:
            self.see("reduce", data)

    def split(self, count: int) -> None:
        """Calls of the parts of a whole, all begun before one is waited for."""
        cuts = np.sort(np.random.default_rng(count).integers(0, count + 1, 4))
        data = self.given(count)
        begun = [
            self.comm.all_reduce(part, **self._options, **self._late)
            for part in np.split(data, cuts)
        ]
        if isinstance(self.comm, Communicator):
            for work in begun:
                work.wait()
        else:
            self.comm.synchronize()
        self.see("split", data)


def plans_of(comm: Any, sizes: Iterable[int]) -> int:
    """How many plans AllReduces of these sizes have."""
    place = comm.plans.places("all_reduce")[0] if isinstance(comm, DeviceCommunicator) else True
    table = comm.plans.table("all_reduce", in_place=place)
    return len({ready.digest for size in sizes for r, ready in table if r.covers(size)})


def differing(
    comm: Any, tree: Tree, types: Iterable[tuple[str, ReduceOp, int]], repeats: int = 1
) -> tuple[Counter[str], int, int]:
    """The elements that differ, of how many, and the fewest plans. types: with the
    largest size of a call in bytes. repeats: of calls of a type that has large ones."""
    found, elements, plans = Counter[str](), 0, []
    for dtype, op, most in types:
        calls, item = Calls(comm, tree, dtype, op), DATA_TYPES[dtype].size_bytes
        counts = [size // item for size in (*BYTES, *LARGE_BYTES) if size <= most]
        for count in counts:
            for _ in range(repeats if most > BYTES[-1] else 1):
                calls.make(count)
        calls.split(counts[-1])
        found += calls.differing
        elements += calls.elements
        plans.append(plans_of(comm, [item * count for count in counts]))
    return found, elements, min(plans)


def types_of(turn: int) -> list[tuple[str, ReduceOp, int]]:
    """All types and operations, in turn one of them with large calls."""
    every = [(dtype, op) for op in OPS for dtype in FLOATS]
    return [
        (*one, LARGEST if number == turn % len(every) else BYTES[-1])
        for number, one in enumerate(every)
    ]


@pytest.mark.parametrize("same_bits", [True, BALANCED])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_other_order_gives_other_bits(dtype: str, same_bits: SameBits) -> None:
    random, ranks = np.random.default_rng(1), 8
    promised = tree_of([range(ranks)], same_bits)
    expected = total(dtype, ranks, promised)
    for _ in range(1000):
        tree = random_tree(random, ranks)
        assert tree == promised or (total(dtype, ranks, tree) != expected).any(), tree


def in_other_order() -> sley.Plan:
    """The order of the ranks in the first chunk; in the second, ranks 1 and 2 have changed
    places."""

    @sley.program(sley.AllReduce(4, chunks=2, in_place=True))
    def swapped_subtree(p: sley.lang.ChunkProgram) -> None:
        for chunk, order in enumerate(([0, 1, 2, 3], [0, 2, 1, 3])):
            for rank, after in pairwise(order):
                p.chunk(after, "in", chunk).reduce(p.chunk(rank, "in", chunk))
            for rank in order[:-1]:
                p.chunk(3, "in", chunk).copy(rank, "in", chunk)

    return sley.compile(swapped_subtree)


def test_calls_of_all_sizes_have_the_same_bits() -> None:
    few, trees = [("float32", ReduceOp.SUM, BYTES[7])], {}
    for same_bits in (BALANCED, True):
        tree = trees[same_bits] = tree_of([range(4)], same_bits)
        with Ranks(4, Settings(timeout_s=30, same_bits=same_bits)) as four:
            for found, elements, plans in four.each(partial(differing, tree=tree, types=few)):
                assert not found.total()
                assert elements > 100_000
                assert plans == 2
    tree = trees[True]
    with Ranks(4, Settings(timeout_s=30, same_bits=True)) as four:
        other = in_other_order()
        with pytest.raises(SleyError, match="N658"):
            four.each(lambda comm: comm.plans.register(other))

        def run(comm: Communicator) -> int:
            calls = Calls(comm, tree, "float32", ReduceOp.SUM)
            comm.run(other, data := calls.given(1000))
            calls.see("run", data[:500])
            assert not calls.differing.total()
            calls.see("run", data[500:], 500)
            return calls.differing.total()

        assert min(four.each(run)) > 50
    with Ranks(4, Settings(timeout_s=30, same_bits=False)) as four:
        for found, *_ in four.each(partial(differing, tree=tree, types=few)):
            assert found["all_reduce"]


def test_sums_are_rounded_alike_whatever_a_thread_has_set() -> None:
    """A call computes in its caller's thread, which may round otherwise (fesetround); its own
    rounding stays as it was."""
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None:
        pytest.skip("fesetround's numbers of this processor are not known")
    libm = ctypes.CDLL(None)
    term = np.float32([1, 2.0**-25, 2.0**-26])

    def sums(comm: Communicator, count: int, late: bool) -> set[float]:
        data = np.full(count, term[comm.rank], np.float32)
        before = libm.fegetround()
        libm.fesetround(before if comm.rank else upward)
        try:
            if late:
                comm.all_reduce(data, async_op=True).wait()
            else:
                comm.all_reduce(data)
            assert libm.fegetround() == (before if comm.rank else upward)
        finally:
            libm.fesetround(before)
        return {float(value) for value in data}

    with Ranks(3, Settings(timeout_s=30, same_bits=True)) as three:
        for count, late in product((16, 400_000), (False, True)):
            assert three.each(partial(sums, count=count, late=late)) == [{1.0}] * 3


WAYS: dict[str, dict[str, Any]] = {
    **{copies.value: {"copies": copies} for copies in Copies},
    "own-memory": {"cma": False},
}
HOSTS = ("aabbbccc", "abaababb")
"""Of the first ranks of these; the second in another order than by host."""
_NAMES = {True: "one-order", BALANCED: "balanced", False: "any-order"}


def on_processors() -> Iterator[Any]:
    """The hosts of ranks, how data are copied, and their same_bits."""
    for ranks in range(2, 9):
        one_host = "a" * ranks, [(way, True) for way in WAYS]
        for hosts, ways in (one_host, *((names[:ranks], [("auto", True)]) for names in HOSTS)):
            for way, promised in [*ways, *((ways[0][0], other) for other in (BALANCED, False))]:
                name = f"{hosts}-{way}-{_NAMES[promised]}"
                yield pytest.param(Hosts.of(hosts), way, promised, id=name)


def check(
    ends: Iterable[tuple[Counter[str], int, int]], hosts: Hosts, *, promised: SameBits
) -> None:
    """Prints what differs of all ranks. promised: nothing may."""
    every = [*ends]
    found = sum((differ for differ, *_ in every), Counter[str]())
    print(promised, hosts.host, dict(found), "of", sum(elements for _, elements, _ in every))
    if promised:
        assert not found.total()
        assert min(plans for *_, plans in every) >= 2
    elif len(hosts.host) > 2:
        assert found.total()


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "way", "promised"), [*on_processors()])
def test_processes_have_the_same_bits(hosts: Hosts, way: str, promised: SameBits) -> None:
    ranks, in_turns = len(hosts.host), way == "auto" and hosts.count == 1 and promised is True
    ends = rank_processes.start(
        ranks,
        differing,
        tree_of(hosts.members, promised),
        types_of(ranks + len(way) + hosts.count),
        6 if in_turns else 1,
        settings=Settings(timeout_s=60, use_cache=False, same_bits=promised, **WAYS[way]),
        environ=lambda rank: {"SLEY_HOST_ID": f"{hosts.host[rank]}", "SLEY_NICS": "lo"},
    ).ends(within_s=600)
    assert [end.error for end in ends] == [""] * len(ends)
    check((end.value for end in ends), hosts, promised=promised)


def on_threads(
    ranks: int, engine: Engine, types: list[tuple[str, ReduceOp, int]], *, promised: SameBits
) -> list[tuple[Counter[str], int, int]]:
    """`differing` on each rank; devices of their own and one in turn."""
    apart = (ranks % 2 == 0) == (engine is Engine.GENERATED)
    comms = opened(
        [threads(rank if apart else 0) for rank in range(ranks)],
        settings=Settings(timeout_s=60, same_bits=promised),
        kernels=KernelSettings(engine, timeout_s=TIMEOUT_S),
        types=[*{dtype for dtype, *_ in types}],
        ops=[*{op for _, op, _ in types}],
    )
    tree, found = tree_of([range(ranks)], promised), []
    on_all(comms, lambda comm: found.append(differing(comm, tree, types)))
    on_all(comms, lambda comm: comm.close())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine, ids=lambda engine: engine.value)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_kernels_have_the_bits_of_processors(ranks: int, engine: Engine) -> None:
    """That is, those of the same terms."""
    types = [
        (dtype, op, LARGE_BYTES[1] if most == LARGEST else BYTES[6])
        for dtype, op, most in types_of(ranks)
    ]
    check(on_threads(ranks, engine, types, promised=True), Hosts.of("a" * ranks), promised=True)
    few = [("float32", ReduceOp.SUM, BYTES[6])]
    for other in (BALANCED, False):
        check(on_threads(ranks, engine, few, promised=other), Hosts.of("a" * ranks), promised=other)
