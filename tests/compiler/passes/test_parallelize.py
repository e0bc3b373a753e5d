"""Parallelize: the parts of transfers."""

from __future__ import annotations

import pytest

import sley
from sley.compiler.passes.parallelize import parallelize
from sley.ir.program import Program
from support.inputs.written_programs import program_of


def parts(program: Program) -> list[tuple[int, ...]]:
    """Source line, lane, first chunk read, first chunk written and number of chunks of each
    transfer."""
    t = program.transfers
    return [(r.source, r.lane, r.src_index, r.dst_index, r.count) for r in t]


def test_a_transfer_becomes_neighbouring_parts_of_equal_size() -> None:
    cut = parallelize(program_of("0 in[1:3] -> 1 out[3]"), 2)
    assert parts(cut) == [(0, 0, 2, 6, 2), (0, 1, 4, 8, 2)]


def test_parts_differ_where_the_numbers_of_instances_do() -> None:
    program = program_of("""
        0 in[0] -> 1 out[0]    instances 2
        0 in[1] -> 1 out[1]    instances 3
        0 in[2] -> 1 out[2]
    """)
    assert parts(parallelize(program)) == [
        (0, 0, 0, 0, 3),
        (0, 1, 3, 3, 3),
        (1, 0, 6, 6, 2),
        (1, 1, 8, 8, 2),
        (1, 2, 10, 10, 2),
        (2, 0, 12, 12, 6),
    ]
    twice = parallelize(program, 2)
    assert [(line, lane, count) for line, lane, _, _, count in parts(twice)] == [
        *((0, lane, 3) for lane in range(4)),
        *((1, lane, 2) for lane in range(6)),
        *((2, lane, 6) for lane in range(2)),
    ]


def test_lanes_of_a_program_are_cut_into_lanes_of_their_own() -> None:
    def body(p: sley.lang.ChunkProgram) -> None:
        for lane in range(2):
            with p.lane(lane):
                p.chunk(0, "in", lane).copy(1, "out", lane)

    program = sley.trace(sley.AllGather(2, 2), body)
    assert [row.lane for row in parallelize(program).transfers] == [0, 1]
    assert [row.lane for row in parallelize(program, 3).transfers] == [0, 1, 2, 3, 4, 5]


def test_all_memory_is_cut_as_finely() -> None:
    program = program_of("0 in[0] -> 1 scratch[2]  instances 3")
    cut = parallelize(program, 2)
    assert cut.scratch_chunks.tolist() == [0, 18]
    assert cut.collective.input_chunks.tolist() == [48, 48]
    assert cut.collective.ranks == 2


def test_every_part_keeps_the_options_of_its_transfer() -> None:
    asked = "channel 3 send_block 1 recv_block 2 step 5"
    cut = parallelize(program_of(f"0 in[0] +> 1 out[0]  instances 2 {asked}"))
    for row in cut.transfers:
        assert (row.kind, row.src, row.dst) == (1, 0, 1)
        assert (row.channel, row.send_block, row.recv_block, row.step) == (3, 1, 2, 5)
        assert row.instances == 1, "a part is cut no further"


def test_a_program_without_instances_is_returned_unchanged() -> None:
    program = program_of("0 in[0] -> 1 out[0]")
    assert parallelize(program) is program


def test_parts_that_cut_chunks_too_finely_are_refused() -> None:
    program = program_of("""
        0 in[0] -> 1 out[0]    instances 7
        0 in[1] -> 1 out[1]    instances 11
        0 in[2] -> 1 out[2]    instances 13
        0 in[3] -> 1 out[3]    instances 17
    """)
    with pytest.raises(sley.SleyError, match=r"C304[^E]*7, 11, 13, 17"):
        parallelize(program)
    just_fits = program_of("0 in[0] -> 1 out[0]  instances 64")
    assert len(parallelize(just_fits, 64).transfers) == 4096
    with pytest.raises(sley.SleyError, match="C304"):
        parallelize(just_fits, 65)
