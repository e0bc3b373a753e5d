"""The chunk language: the transfers of programs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import sley
from sley.lang import ChunkProgram


def test_rows_carry_what_was_said() -> None:
    @sley.program(sley.AllReduce(3, 4, in_place=True), protocol="LL")
    def said(p: ChunkProgram) -> None:
        with p.parallelize(2), p.parallelize(3):
            p.chunk(1, "in", 2, 2).copy(2, "scratch", 5, channel=4, send_block=1, recv_block=0)

    row = said.transfers[0]
    assert (row.src, row.src_buffer, row.src_index) == (1, 0, 2)
    assert (row.dst, row.dst_buffer, row.dst_index, row.count) == (2, 2, 5, 2)
    assert (row.channel, row.instances, row.send_block, row.recv_block) == (4, 6, 1, 0)
    assert said.scratch_chunks.tolist() == [0, 0, 7]
    assert said.protocol is sley.Protocol.LL
    assert said.name == "said"
    assert said.sources.place(row.source).file == __file__


def test_lanes_end_with_their_block() -> None:
    def body(p: ChunkProgram) -> None:
        with p.lane(2):
            p.chunk(0, "in", 0).copy(1, "in", 0)
            with p.lane(1):
                p.chunk([0, 0], "in", [1, 2]).copy(1, "in", [1, 2])
        p.chunk(0, "in", 3).copy(1, "in", 3)

    assert sley.trace(sley.AllReduce(2, 4), body).transfers.lane.tolist() == [2, 1, 1, 0]


def test_arrays_say_what_scalars_say() -> None:
    n = 5

    def by_scalars(p: ChunkProgram) -> None:
        for rank in range(n):
            p.chunk(rank, "in", rank).copy((rank + 1) % n, "scratch", 2 * rank)
        for rank in range(n):
            p.chunk((rank + 1) % n, "in", rank).reduce(p.chunk((rank + 1) % n, "scratch", 2 * rank))

    def by_arrays(p: ChunkProgram) -> None:
        rank = np.arange(n)
        moved = p.chunk(rank, "in", rank).copy((rank + 1) % n, "scratch", 2 * rank)
        p.chunk((rank + 1) % n, "in", rank).reduce(moved)

    programs = [sley.trace(sley.AllReduce(n, n), body) for body in (by_scalars, by_arrays)]
    columns = [name for name in programs[0].transfers.column_names() if name != "source"]
    for name in columns:
        one, other = (getattr(p.transfers, name) for p in programs)
        assert one.tolist() == other.tolist(), name
    assert programs[0].scratch_chunks.tolist() == programs[1].scratch_chunks.tolist()


def test_scratch_that_grows_keeps_what_it_holds() -> None:
    def grows(p: ChunkProgram) -> None:
        first = p.chunk(0, "in", 0).copy(1, "scratch", 0)
        p.chunk(0, "in", 0).copy(1, "scratch", 99)
        first.copy(0, "out", 0)

    assert sley.trace(sley.AllReduce(2), grows).scratch_chunks.tolist() == [0, 100]


def test_an_empty_program_has_an_empty_plan() -> None:
    program = sley.trace(sley.Custom("nothing", 2, 1, 1, lambda r, i: None), lambda p: None)
    plan = sley.compile(program)
    assert len(program.transfers) == len(plan.instructions) == 0


def test_zero_dimensional_arrays_are_scalars() -> None:
    def body(p: ChunkProgram) -> None:
        p.chunk(np.array(0), "in", 0).copy(np.array(1), "out", np.array(0))

    assert sley.trace(sley.AllReduce(2), body).transfers.src.tolist() == [0]


def test_a_program_without_a_name_is_called_program() -> None:
    program = sley.trace(sley.AllReduce(2), functools.partial(lambda p: None))
    assert program.name == "program"


def test_empty_and_single_arrays_are_taken() -> None:
    def body(p: ChunkProgram) -> None:
        nobody = np.array([], int)
        p.chunk(nobody, "in", 0).copy(nobody, "out", 0)
        p.chunk(np.array([0]), "in", 0).copy(np.array([1]), "out", 0)
        p.chunk(np.array([0, 1]), "in", 0).copy(np.array([1, 0]), "scratch", 0)

    assert sley.trace(sley.AllReduce(2), body).transfers.dst.tolist() == [1, 1, 0]


@pytest.mark.parametrize("in_place", [False, True])
def test_transfers_bring_about_collectives_that_move_chunks_to_their_own_number(
    in_place: bool,
) -> None:
    chunks = np.arange(2)

    def send(p: sley.lang.ChunkProgram) -> None:
        p.transfer(2, 0, 0, chunks, "recv")

    def push(p: sley.lang.ChunkProgram) -> None:
        for step, rank in enumerate((1, 0)):  # in place from the end, before it is overwritten
            p.transfer(rank, rank + 1, step, chunks, "recv")

    for collective, body in (
        (sley.SendRecv(3, 2, src=2, dst=0, in_place=in_place), send),
        (sley.AllToNext(3, 2, in_place=in_place), push),
    ):
        assert sley.verify(sley.compile(sley.trace(collective, body)))
