"""Program source: the text of a program traces to the same program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.formats import program_source
from sley.ir.collective import Collective
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, Edges
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.algorithm_cases import cases, few, label, program

WRITTEN = """\
import sley


@sley.program(sley.Broadcast(ranks=3, chunks=4, root=1), name="hand", protocol=sley.Protocol.LL)
def algorithm(p):
    p.chunk(1, "in", 0, 4).copy(1, "out", 0)
    with p.parallelize(2):
        p.chunk(1, "out", 1, 3).copy(0, "out", 1, channel=2)
        p.chunk(1, "out", 0).copy(0, "out", 0, send_block=1, recv_block=0)
    p.chunk(0, "out", 0, 4).copy(2, "scratch", 5)
    p.chunk(2, "scratch", 5, 4).copy(2, "out", 0)
    p.chunk(2, "scratch", 6).reduce(p.chunk(0, "out", 1), channel=0)
    with p.lane(3):
        p.chunk(2, "scratch", 6).copy(1, "scratch", 0)
    with p.parallelize(2), p.lane(1):
        p.chunk(2, "scratch", 6).copy(1, "scratch", 1)
"""


def read(text: str) -> Program:
    """The program that a text gives."""
    names: dict[str, Any] = {}
    exec(compile(text, "program.py", "exec"), names)
    found = names["algorithm"]
    assert isinstance(found, Program)
    return found


def assert_same(found: Program, origin: Program) -> None:
    """Equal up to sources and steps."""
    for name in Transfers.column_names():
        if name not in ("source", "step"):
            one, other = getattr(found.transfers, name), getattr(origin.transfers, name)
            assert one.tolist() == other.tolist(), name
    assert found.collective == origin.collective
    assert found.protocol is origin.protocol
    assert found.name == origin.name
    assert found.scratch_chunks.tolist() == origin.scratch_chunks.tolist()


def round_trip(origin: Program) -> str:
    text = program_source.write(origin)
    found = read(text)
    assert_same(found, origin)
    assert program_source.write(found) == text
    return text


def test_a_program_is_written_as_a_person_would() -> None:
    assert round_trip(read(WRITTEN)) == WRITTEN


@pytest.mark.parametrize(("name", "size"), few(cases()), ids=label)
def test_every_algorithm_comes_back_from_its_source(name: str, size: dict[str, Any]) -> None:
    text = round_trip(program(name, size))
    assert "Custom" not in text
    assert "Collective(" not in text


@examples(14)
@given(random_programs())
def test_random_programs_come_back_from_their_source(random: RandomProgram) -> None:
    text = round_trip(random.program)
    assert "Collective(" not in text


STANDARD = [
    sley.AllReduce(3, 2),
    sley.AllGather(3, 2),
    sley.ReduceScatter(3, 2),
    sley.AllToAll(3, 2),
    sley.AllToNext(3, 2),
    sley.Broadcast(3, 2, root=2),
    sley.Reduce(3, 2, root=2),
    sley.Gather(3, 2, root=2),
    sley.Scatter(3, 2, root=2),
    sley.SendRecv(3, 2, src=2, dst=1),
    sley.AllReduce(1),
    sley.AllToAllV(3, chunks=2),
    sley.AllGatherV(3, 100, chunks=2),
]


def said(collective: Collective) -> str:
    """The text of a program that does nothing."""
    return round_trip(sley.trace(collective, lambda p: None, name="nothing"))


@pytest.mark.parametrize("collective", STANDARD, ids=repr)
@pytest.mark.parametrize("parts", [1, 3])
def test_standard_collectives_are_called_by_name(collective: Collective, parts: int) -> None:
    places = [collective]
    if collective.name != "sendrecv" and not collective.varies:
        words: dict[str, Any] = {} if collective.root == NONE else {"root": collective.root}
        places.append(in_place(collective, words))
    for place in places:
        text = said(place.refine(parts))
        assert "Custom" not in text
        assert "Collective(" not in text


def in_place(collective: Collective, words: dict[str, Any]) -> Collective:
    """The same standard collective, in place."""
    by_name = {name.lower(): getattr(sley, name) for name in sley.__all__}
    made = by_name[collective.name](collective.ranks, collective.chunks, in_place=True, **words)
    assert isinstance(made, Collective)
    return made


@given(st.data())
def test_other_collectives_are_written_out(data: st.DataObject) -> None:
    ranks, chunks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    sizes = st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)
    inputs, outputs = ([n * chunks for n in data.draw(sizes)] for _ in range(2))

    def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
        own = [(r, i) for r in range(ranks) for i in range(index % chunks, inputs[r], chunks)]
        wanted = data.draw(st.lists(st.sampled_from(own), max_size=3)) if own else []
        return wanted or None

    custom = sley.Custom(
        'my "own"',
        ranks,
        inputs,
        outputs,
        expected,
        chunks=chunks,
        in_place=data.draw(st.booleans()),
    )
    text = said(custom)
    assert "Collective(" not in text
    # Custom has no root.
    assert "COLLECTIVE = sley.Collective(" in said(replace(custom, root=0))


def test_a_collective_that_no_constructor_makes_is_written_out() -> None:
    odd = replace(
        sley.AllGather(2, 1, in_place=True),
        name="odd",
        values=Edges(np.array([0, 1, 3]), np.array([0, 1, 1])),
        initial=[True, False],
    )
    assert "COLLECTIVE = sley.Collective(" in said(odd)


def test_a_program_of_transfers_keeps_its_order() -> None:
    @sley.program(sley.AllGather(4))
    def ring(p: sley.lang.ChunkProgram) -> None:
        rank = np.arange(4)
        for step in (2, 0, 1):
            p.transfer(rank, (rank + 1) % 4, step, (rank - step) % 4, "recv", channel=step % 2)

    assert (ring.transfers.step != NONE).any()
    round_trip(ring)


def test_a_long_program_comes_back_from_its_source() -> None:
    @sley.program(sley.AllReduce(2, 1), protocol="LL128")
    def long(p: sley.lang.ChunkProgram) -> None:
        for step in range(7_000):
            p.chunk(0, "in", 0).copy(1, "out", 0)
            if step % 7 == 0:
                with p.parallelize(2):
                    p.chunk(0, "in", 0).copy(1, "scratch", 0)
                    p.chunk(1, "out", 0).reduce(p.chunk(0, "in", 0))
        with p.parallelize(3):
            for _ in range(1_500):
                p.chunk(0, "in", 0).copy(1, "out", 0)

    text = round_trip(long)
    # Python is slow to find a line's number in a long function.
    assert max(len(block.splitlines()) for block in text.split("\n\n\n")) < 1_000


@pytest.mark.parametrize("name", ["", "it's", "both \" and '", "line\nbreak", "größer", "\udc80"])
def test_any_name_of_a_program_survives(name: str) -> None:
    round_trip(sley.trace(sley.AllReduce(2), lambda p: None, name=name))
