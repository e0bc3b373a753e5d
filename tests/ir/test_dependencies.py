"""Dependencies: the order of accesses to memory, and the use of each value."""

from __future__ import annotations

from sley.ir.dependencies import dependencies
from support.inputs.written_programs import program_of


def edges(text: str, *, in_place: bool = False) -> list[str]:
    """The dependencies of a text's program in words: "0 write > 1 read" by value, "0 read ~ 1
    write" by reuse of the place."""
    words = ("read", "write")
    return [
        f"{d.before} {words[d.before_at_dst]} {'>' if d.true else '~'} "
        f"{d.after} {words[d.after_at_dst]}"
        for d in dependencies(program_of(text, in_place=in_place)).dependencies
    ]


def test_a_read_follows_the_write_that_it_reads() -> None:
    assert edges("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 out[1] -> 2 out[1]
    """) == ["0 write > 1 read"]


def test_a_write_follows_the_reads_before_it_and_through_them_the_write() -> None:
    assert edges("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 out[0] -> 2 out[1]
        0 in[1] -> 1 out[0]
    """) == [
        "0 write > 1 read",
        "0 write > 2 read",
        "1 read ~ 3 write",
        "2 read ~ 3 write",
    ]


def test_a_write_follows_the_write_that_nobody_reads() -> None:
    assert edges("""
        0 in[0] -> 1 out[0]
        2 in[0] -> 1 out[0]
    """) == ["0 write ~ 1 write"]


def test_a_reduction_reads_what_it_writes_over() -> None:
    assert edges("""
        0 in[0] -> 1 out[0]
        2 in[0] +> 1 out[0]
        3 in[0] +> 1 out[0]
    """) == ["0 write > 1 write", "1 write > 2 write"]


def test_a_reduction_waits_for_readers_of_the_sum_so_far_too() -> None:
    assert edges("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 3 out[0]
        2 in[0] +> 1 out[0]
    """) == ["0 write > 1 read", "0 write > 2 write", "1 read ~ 2 write"]


def test_ranges_depend_where_they_overlap() -> None:
    assert edges("""
        0 in[0:2] -> 1 out[0]
        0 in[2:4] -> 1 out[2]
        1 out[1:3] -> 2 out[0]
        1 out[4] -> 2 out[2]
    """) == ["0 write > 2 read", "1 write > 2 read"]


def test_both_kinds_between_the_same_accesses_are_kept() -> None:
    """Chunk 0 is written over unread, chunk 1 is added to."""
    assert edges("""
        0 in[0:2] -> 1 out[0]
        2 in[0:2] +> 1 out[0]
        0 in[0:2] -> 1 out[1]
    """) == ["0 write > 1 write", "1 write ~ 2 write"]


def test_buffers_and_ranks_are_told_apart_but_in_place_input_is_output() -> None:
    text = """
        0 in[0] -> 1 out[0]
        1 in[0] -> 2 out[0]
        2 scratch[0] -> 1 scratch[0]
    """
    assert edges(text) == []
    assert edges(text, in_place=True) == ["0 write > 1 read"]


def test_the_origin_is_the_one_transfer_that_wrote_exactly_this_range() -> None:
    dag = dependencies(
        program_of("""
            0 in[0:2] -> 1 out[0]
            1 out[0:2] -> 2 out[0]
            1 out[0] -> 2 out[4]
            0 in[2:4] -> 1 out[2]
            1 out[1:3] -> 2 out[6]
            1 in[0] -> 1 out[3]
            1 out[2:4] -> 2 out[2]
            1 out[3] -> 2 out[5]
            1 in[1] -> 2 out[7]
        """)
    )
    none = -1
    assert dag.origin.tolist() == [none, 0, none, none, none, none, none, 5, none]


def test_a_wide_write_is_not_the_origin_of_a_narrow_read_at_its_start() -> None:
    dag = dependencies(
        program_of("""
            0 in[0:2] -> 1 out[0]
            1 out[0] -> 2 out[0]
            0 in[0:2] -> 1 out[2]
            1 out[3] -> 2 out[1]
        """)
    )
    assert dag.origin.tolist() == [-1] * 4


def test_readers_are_counted_reductions_included() -> None:
    dag = dependencies(
        program_of("""
            0 in[0:2] -> 1 out[0]
            1 out[0] -> 2 out[0]
            1 out[0:2] -> 3 out[0]
            2 in[1] +> 1 out[1]
            2 in[1] -> 1 out[0]
        """)
    )
    assert dag.readers.tolist() == [3, 0, 0, 0, 0]


def test_kept_is_what_is_still_there_and_promised() -> None:
    program = program_of(
        """
            0 in[0] -> 1 out[0]
            0 in[0] -> 1 out[0]
            0 in[0] -> 1 out[1]
            0 in[0:2] -> 2 out[0]
            0 in[1] -> 2 out[0]
            0 in[0] -> 2 in[0]
            0 in[0] -> 2 scratch[0]
            1 out[0] -> 2 scratch[1]
        """,
        result="1 out[0], 2 out[0], 2 out[1]",
    )
    kept = dependencies(program).kept.tolist()
    assert kept == [False, True, False, True, True, False, False, False]


def test_kept_in_place_is_seen_by_either_name() -> None:
    program = program_of("0 in[0] -> 1 in[3]", result="1 out[3]", in_place=True)
    assert dependencies(program).kept.tolist() == [True]
