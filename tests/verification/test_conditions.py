"""Conditions of proofs: a call meets all of them, or the file is refused."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.formats import msccl_xml, mscclpp
from sley.formats.format import Execution
from sley.formats.mscclpp.targets import MSCCLPP
from sley.ir import conditions
from sley.ir.collective import Collective
from sley.ir.collectives import SIZED
from sley.ir.conditions import (
    Choice,
    ChunkBytes,
    Condition,
    Offset,
    contradiction,
    place_condition,
)
from sley.ir.words import Buffer
from support.generators.examples import examples
from support.inputs import mscclpp_right as right
from support.inputs.mscclpp_plans import PORT, Made
from support.inputs.xml_plans import exchange

RANKS = 3


def pushing_allgather(pushers: Iterable[int] = (0, 1)) -> Made:
    """An AllGather in place in which ports of these ranks read the input, and others the output."""
    made = Made("allgather", 2, (1, 2, 0), inplace=True)
    for rank, gpu in enumerate(made.gpus):
        peer = 1 - rank
        source = ("i", 0, 1) if rank in pushers else ("o", rank, 1)
        block = gpu.block().on("signal", peer, word=PORT).on("wait", peer, word=PORT)
        block.move("pws", [source], [(peer, "o", rank, 1)], word=PORT)
        block.on("wait", peer, word=PORT).on("signal", peer).on("wait", peer)
    return made


def gathering(bytes_: int) -> Made:
    """A Gather on 8 ranks of calls of at least this size."""
    made = Made("gather", 8, (1, 8, 0), min_message_size=bytes_)
    for rank, gpu in enumerate(made.gpus):
        block = gpu.block()
        if not rank:
            block.move("copy", [("i", 0, 1)], [("o", 0, 1)])
            block.on("rlxsignal", *range(1, 8)).on("wait", *range(1, 8))
        else:
            block.on("rlxwait", 0).nop()
            block.move("put", [("i", 0, 1)], [(0, "o", rank, 1)]).nop().on("signal", 0)
    return made


def two_pipelines(**header: Any) -> Made:
    """Pipelines that both end with a chunk only if it has a multiple of 96 bytes."""
    made = Made("allreduce", 1, (2, 2, 0), **header)
    block = made.gpus[0].block()
    for chunk, unit in enumerate((32, 48)):
        block.pipeline(unit).move("copy", [("i", chunk, 1)], [("o", chunk, 1)]).done()
    return made


def prove(made: Made) -> list[sley.Proof]:
    found = mscclpp.executions(made.text, MSCCLPP, file="plan.json").executions
    return [sley.verify(way.plan).under(way.conditions) for way in found]


def texts(proof: sley.Proof) -> list[str]:
    return [one.text for one in proof.conditions]


def refusal(made: Made) -> str:
    with pytest.raises(SleyError) as error:
        prove(made)
    assert error.value.code == "V221"
    return error.value.diagnostics[0].found


def test_a_port_that_reads_the_input_of_an_allgather_in_place_is_proven() -> None:
    start = "the input at the start of its allocation"
    assert refusal(pushing_allgather()) == f'none: "in place", and "{start}"'
    assert refusal(pushing_allgather([1])) == f'none: "in place", and "{start} on rank 1"'
    # The input of rank 0 begins where its output does.
    (proof,) = prove(pushing_allgather([0]))
    assert f"{start} on rank 0" in texts(proof)


def test_the_file_of_a_writer_with_this_fault_is_proven(data_dir: Path) -> None:
    with pytest.raises(SleyError) as error:
        sley.verify_file(data_dir / "users-3" / "inplace_allgather_ports.json")
    assert error.value.code == "V221"
    assert "in place" in str(error.value)
    assert "the input at the start of its allocation" in str(error.value)


def test_sizes_that_no_allocation_or_scratch_has_are_proven() -> None:
    prove(gathering(1 << 28))
    assert '"allocations of less than 4 GiB"' in refusal(gathering(1 << 30))
    shared = right.allreduce_by_respkt(reuse_resources=True, buffer_alignment=1 << 26)
    assert refusal(shared) == 'none: "chunks of a multiple of 67108864 bytes, 64M to 0"'
    shared = right.allreduce_by_respkt(reuse_resources=True, min_message_size=1 << 30)
    assert "16 to 16M" in refusal(shared)
    assert "an input of 1G and more" in refusal(shared)


def test_a_plan_with_pipelines_is_proven_for_sizes_that_no_call_has() -> None:
    unit = 65536
    made = right.allreduce_in_pipeline(min_message_size=20 * unit)
    proofs = prove(made)
    assert [texts(proof)[1] for proof in proofs] == [
        f"chunks of a multiple of 16 bytes, {(k - 1) * unit + 16} to {k * 64}K"
        for k in (10, 11, 12)
    ]
    made = right.allreduce_in_pipeline(min_message_size=3 * unit, max_message_size=4 * unit)
    assert len(prove(made)) == 1
    made = two_pipelines(min_message_size=200, max_message_size=360)
    assert refusal(made) == 'none: "chunks of 192 bytes", and "an input of 200 to 360"'


def corpus() -> Iterator[Execution]:
    """Executions of files, which together have every kind of condition."""
    limits: dict[str, Any] = {"min_message_size": 1 << 20, "max_message_size": 1 << 24}
    plans = [
        *(make() for name, make in right.RIGHT.items() if "shares" not in name),
        *(right.allreduce_by_respkt(reuse_resources=reuse, **limits) for reuse in (False, True)),
        right.allreduce_by_rres(reuse_resources=True),
        gathering(1 << 20),
        two_pipelines(),
        pushing_allgather([0]),
    ]
    for made in plans:
        yield from mscclpp.executions(made.text, MSCCLPP).executions
    for plan in (exchange(), sley.compile(two_chunks_at_once, per_chunk=True)):
        text = msccl_xml.write(plan, "executor", min_bytes=1000, max_bytes=4096)
        yield from msccl_xml.executions(text, "executor").executions


@sley.program(sley.AllGather(2, chunks=2))
def two_chunks_at_once(p: sley.lang.ChunkProgram) -> None:
    for rank in range(2):
        for other in range(2):
            p.chunk(rank, "in", 0, 2).copy(other, "out", 2 * rank)


@sley.program(sley.Broadcast(2, root=1))
def overwriting_its_input(p: sley.lang.ChunkProgram) -> None:
    p.chunk(1, "in", 0).copy(0, "out", 0).copy(1, "out", 0).copy(1, "in", 0)


def sites() -> set[tuple[str, int]]:
    """The file and line of every call in sley that makes a condition."""
    found, root = set(), Path(sley.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        if "Condition(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Condition":
                found.add((str(path), node.lineno))
    return found


@pytest.fixture(scope="module")
def made() -> tuple[list[Condition], set[tuple[str, int]]]:
    """All conditions of the corpus's proofs, and where they were made."""
    places: set[tuple[str, int]] = set()
    known: dict[tuple[str, object], Condition] = {}
    usual = Condition.__init__

    def recorded(self: Condition, *given: Any, **named: Any) -> None:
        caller = sys._getframe(1)
        places.add((caller.f_code.co_filename, caller.f_lineno))
        usual(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Condition, "__init__", recorded)
        varying = sley.algorithms.build("all-pairs-alltoallv", ranks=2)
        proofs = [sley.verify(sley.compile(one)) for one in (varying, overwriting_its_input)]
        proofs += [sley.verify(way.plan).under(way.conditions) for way in corpus()]
    for proof in proofs:
        for one in proof.conditions:
            known[one.text, one.demand] = one
    return list(known.values()), places


def test_the_corpus_lacks_a_condition_that_sley_makes(made) -> None:
    constant = Path(conditions.__file__)
    lacking = sites() - made[1]
    assert [line for file, line in lacking if Path(file) != constant] == []
    assert len(lacking) == 1  # INPUT_KEPT


def is_met(conditions: Sequence[Condition], c: Collective) -> bool:
    """Whether a search over small calls finds one that meets all conditions."""
    demands = [one.demand for one in conditions]
    return any(all(_is_met_by(one, call) for one in demands) for call in _calls(demands, c))


def _calls(demands: Sequence[object], c: Collective) -> Iterator[dict[str, Any]]:
    """Calls with all values of choices, of all sizes around the limits, and in place with the
    ranks' data at all small offsets of their allocations."""
    words = {one.of: one.values for one in demands if isinstance(one, Choice)}
    of_chunks = [one for one in demands if isinstance(one, ChunkBytes)]
    edges = {1, *(one.least for one in of_chunks), *(one.most for one in of_chunks if one.most)}
    steps = {1, *(one.multiple for one in of_chunks)}
    sizes = {n for edge in edges for k in steps for n in (edge, edge - edge % k + k)} - {0}
    last = c.ranks * max(int(c.input_base.max()), int(c.output_base.max())) + 1
    # Out of place the bases are 0.
    starts = itertools.product(range(last), repeat=c.ranks)
    for begin in starts if any(isinstance(one, Offset) for one in demands) else [(0,) * c.ranks]:
        at = {
            (buffer, rank): begin[rank] + int(base[rank])
            for buffer, base in ((Buffer.INPUT, c.input_base), (Buffer.OUTPUT, c.output_base))
            for rank in range(c.ranks)
        }
        for size, *values in itertools.product(sorted(sizes), *words.values()):
            yield {"size": size, "at": at, **dict(zip(words, values, strict=True))}


def _is_met_by(demand: object, call: dict[str, Any]) -> bool:
    if isinstance(demand, Choice):
        return call[demand.of] in demand.values
    if isinstance(demand, ChunkBytes):
        most = call["size"] if demand.most is None else demand.most
        return demand.least <= call["size"] <= most and call["size"] % demand.multiple == 0
    if isinstance(demand, Offset):
        found = {call["at"][demand.buffer, rank] for rank in demand.ranks}
        return found == {0} if demand.zero else len(found) == 1
    return True


def for_more_ranks(one: Condition) -> Condition:
    """The condition on all RANKS ranks, if it is one on buffers of all ranks."""
    if isinstance(one.demand, Offset):
        demand = Offset(one.demand.buffer, tuple(range(RANKS)), one.demand.zero)
        return Condition(one.about, one.text.split(" on rank ")[0], demand)
    return one


SHIFTED = {
    "allgather": ("input", "output"),
    "gather": ("input", "output"),
    "reducescatter": ("output", "input"),
    "scatter": ("output", "input"),
}
"""The collectives in which in place a buffer begins inside of the other one, both in this order."""


def test_conditions_that_contradict_each_other_are_not_found(made) -> None:
    """All pairs of conditions that sley makes, for every collective, in place and out of place."""
    demanding = [for_more_ranks(one) for one in made[0] if one.demand and one.about != "place"]
    for (name, row), in_place in itertools.product(SIZED.items(), (True, False)):
        roles = dict.fromkeys(row.roles[:1], 2)
        c = row.build(RANKS, chunks=1, in_place=in_place, **roles)
        here, shifted = place_condition(in_place), set()
        for pair in itertools.combinations(demanding, 2):
            core = contradiction([here, *pair], c)
            assert bool(core) != is_met([here, *pair], c), (c, [str(one) for one in pair])
            if any(isinstance(one.demand, Offset) for one in core):
                shifted.add(frozenset(map(str, core)))
        if not in_place or name not in SHIFTED:
            assert not shifted, c
            continue
        part, whole = SHIFTED[name]
        start, common = "at the start of its allocation", "at the same offset of its allocation"
        assert shifted == {
            frozenset({"in place", f"the {part} {start}"}),
            frozenset({"in place", f"the {part} {common} on all ranks", f"the {whole} {start}"}),
            frozenset({"in place", *(f"the {one} {common} on all ranks" for one in (part, whole))}),
        }, c


@st.composite
def offsets(draw: st.DrawFn) -> list[Condition]:
    """Conditions on the offsets of buffers on any ranks."""
    ranks = st.sets(st.integers(0, RANKS - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    demand = st.builds(Offset, st.sampled_from([Buffer.INPUT, Buffer.OUTPUT]), ranks, st.booleans())
    return [Condition("buffers", str(one), one) for one in draw(st.lists(demand, max_size=5))]


@given(found=offsets(), name=st.sampled_from(sorted(SHIFTED)), in_place=st.booleans())
@examples(24)
def test_offsets_are_found_that_no_call_has(found, name, in_place) -> None:
    roles = dict.fromkeys(SIZED[name].roles[:1], 2)
    c = SIZED[name].build(RANKS, chunks=1, in_place=in_place, **roles)
    core = contradiction([place_condition(in_place), *found], c)
    assert bool(core) != is_met([place_condition(in_place), *found], c)
    assert not core or not is_met(core, c)
    for one in core[1:]:
        assert is_met([other for other in core if other is not one], c)
