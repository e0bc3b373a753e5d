"""Lines of helper functions: messages also name the lines that called them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sley
from sley.errors import Diagnostic, Place
from sley.formats.plan_file import decode, encode
from sley.lang import ChunkProgram, msccl

HERE = __file__
GATHER = sley.AllGather(4)


def line(function: Callable[..., object], mark: str) -> int:
    """The line of a function that ends with a mark."""
    lines, first = inspect.getsourcelines(function)
    return next(first + k for k, text in enumerate(lines) if text.rstrip().endswith(mark))


def lines(place: Place) -> list[int]:
    assert {place.file, *(caller.file for caller in place.callers)} == {HERE}
    return [place.line, *(caller.line for caller in place.callers)]


def refused(function: Callable[[ChunkProgram], object]) -> Diagnostic:
    with pytest.raises(sley.SleyError) as caught:
        sley.compile(sley.trace(GATHER, function))
    return caught.value.diagnostics[0]


def send(p: ChunkProgram, rank: int, to: int) -> None:
    p.chunk(rank, "in", 0).copy(to, "out", rank)  # send


def spread(p: ChunkProgram, ranks: list[int]) -> None:
    for rank in ranks:
        [send(p, rank, to) for to in range(4)]  # spread


def generated(p: ChunkProgram, ranks: list[int]) -> Iterator[None]:
    yield from (
        send(p, rank, to)  # generated
        for rank in ranks
        for to in range(4)
    )


def wrong_rank(p: ChunkProgram) -> None:
    spread(p, [0])
    spread(p, [4])  # here


def wrong_rank_in_a_generator(p: ChunkProgram) -> None:
    list(generated(p, [4]))  # here


def wrong_result(p: ChunkProgram) -> None:
    spread(p, [0, 1])
    spread(p, [2, 3])
    send(p, 3, 0)
    p.chunk(2, "in", 0).copy(0, "out", 3)  # overwrites
    send(p, 2, 2)  # here


def stale(p: ChunkProgram) -> None:
    spread(p, [0, 1, 2, 3])
    old = p.chunk(1, "out", 0)
    send(p, 0, 1)  # overwrites
    old.copy(2, "out", 0)  # here


def test_a_wrong_rank_in_a_helper_names_the_calls_that_led_to_it() -> None:
    place = refused(wrong_rank).places[0]
    assert lines(place) == [
        line(send, "# send"),
        line(spread, "# spread"),
        line(wrong_rank, "here"),
    ]


def test_a_generator_counts_once() -> None:
    program = wrong_rank_in_a_generator
    expected = [line(send, "# send"), line(generated, "# generated"), line(program, "here")]
    assert lines(refused(program).places[0]) == expected


def executed(p: ChunkProgram) -> None:
    exec("send(p, 0, 9)")  # here


def test_code_that_exec_runs_names_the_line_that_runs_it() -> None:
    place = refused(executed).places[0]
    callers = [(caller.file, caller.line) for caller in place.callers]
    assert callers == [("<string>", 1), (HERE, line(executed, "here"))]


def test_text_and_json_of_a_diagnostic_have_the_callers() -> None:
    found = refused(wrong_rank)
    first, second, third, *_ = str(found).splitlines()
    assert first.startswith(f"{HERE}:{line(send, '# send')}: L101")
    assert second == f"  called from: {HERE}:{line(spread, '# spread')}"
    assert third == f"  called from: {HERE}:{line(wrong_rank, 'here')}"
    (place,) = found.to_json()["places"]  # type: ignore[misc]
    assert [c["line"] for c in place["called_from"]] == lines(found.places[0])[1:]


def test_a_second_place_in_a_helper_has_a_label_and_its_callers() -> None:
    found = refused(stale)
    assert lines(found.places[0]) == [line(stale, "here")]
    assert found.places[1].detail == "overwritten here"
    assert lines(found.places[1]) == [line(send, "# send"), line(stale, "# overwrites")]
    also = str(found).splitlines()[1]
    assert also.startswith(f"  also: {HERE}:{line(send, '# send')}, overwritten here, called from ")


def test_a_wrong_result_names_the_calls_of_the_wrong_write() -> None:
    found = refused(wrong_result)
    assert found.code == "V206"
    assert lines(found.places[0]) == [line(wrong_result, "# overwrites")]
    assert found.places[1].detail == "the program"


def wrong_sum(p: ChunkProgram) -> None:
    p.chunk(1, "in", 0).reduce(p.chunk(0, "in", 0))
    total = p.chunk(2, "in", 0).reduce(p.chunk(2, "in", 1))  # adds a wrong chunk
    for rank in (3, 0, 1):
        total = total.copy(rank, "in", 0)


def test_a_wrong_sum_that_was_copied_on_names_its_reduction() -> None:
    with pytest.raises(sley.SleyError) as caught:
        sley.compile(sley.trace(sley.AllReduce(4, 2, in_place=True), wrong_sum))
    (found,) = caught.value.diagnostics
    assert lines(found.places[0])[0] == line(wrong_sum, 'total = total.copy(rank, "in", 0)')
    assert found.places[1].detail.startswith("makes the value that arrives, rank 2")
    assert lines(found.places[1]) == [line(wrong_sum, "# adds a wrong chunk")]
    assert found.places[2].detail == "the program"
    assert found.expected == "rank 0 out[0] = in[0] of ranks 0-3"


def test_plans_keep_the_callers_when_they_are_stored() -> None:
    @sley.program(GATHER)
    def gather(p: ChunkProgram) -> None:
        spread(p, [0, 1])
        spread(p, [2, 3])

    plan = sley.compile(gather)
    places = {tuple(lines(plan.place(row))) for row in range(len(plan.instructions))}
    assert len(places) == 2
    assert all(len(stack) == 3 for stack in places)
    assert decode(encode(plan)).sources == plan.sources


def test_a_recursive_helper_ends_the_stack_and_not_the_program() -> None:
    def pass_on(p: ChunkProgram, rank: int) -> None:
        if rank < 100:
            p.chunk(rank - 1, "out", 0).copy(rank, "out", 0)
            pass_on(p, rank + 1)

    def chain(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(0, "out", 0)
        pass_on(p, 1)

    plan = sley.compile(sley.trace(sley.Broadcast(100), chain))
    stacks = [lines(plan.place(row)) for row in range(len(plan.instructions))]
    assert max(map(len, stacks)) == 8


def test_a_helper_in_a_script_of_msccl_tools_names_its_call(tmp_path: Path) -> None:
    path = tmp_path / "gather.py"
    path.write_text(
        "from msccl.language import *\n"
        "from msccl.language.collectives import AllGather\n"
        "from msccl.topologies import fully_connected\n"
        "def send(rank, to):\n"
        "    chunk(rank, Buffer.input, 0).copy(to, Buffer.output, rank)\n"
        "with MSCCLProgram('gather', fully_connected(2), AllGather(2, 1, False), 1):\n"
        "    send(0, 2)\n"
    )
    with pytest.raises(sley.SleyError) as caught:
        msccl.run(path)
    place = caught.value.diagnostics[0].places[0]
    assert [(place.file, place.line)] + [(c.file, c.line) for c in place.callers] == [
        (str(path), 5),
        (str(path), 7),
    ]
