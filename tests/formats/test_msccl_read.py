"""Reading MSCCL XML: the plan of a file, and remarks on it."""

import time
from pathlib import Path

import numpy as np
import pytest

import sley
from sley.formats import msccl_xml
from sley.ir.tables import NONE
from sley.ir.words import Buffer, LoopOrder, Op, Protocol
from support.inputs.xml_plans import VALID, broken

REAL = {
    # file: ranks, blocks, instructions, waits, codes of the remarks
    "amd_32.xml": (32, 532, 3820, 1574, ["F431", "F431"]),
    "ncv4-ag_hier_4_LL.xml": (4, 48, 96, 0, []),
    "ncv4-ar_hier_12_Simple.xml": (4, 144, 336, 144, []),
    "ncv4-ar_tree_12_LL.xml": (4, 192, 192, 96, []),
    "ndv4-a2a2ll.xml": (8, 224, 240, 0, []),
    "ndv4-ag-16m.xml": (8, 448, 448, 0, []),
    "ndv4-ag-1k-512k.xml": (8, 224, 224, 0, []),
    "ndv4-ap2ll.xml": (8, 128, 1344, 1568, []),
    "rccl-alltoall-8n-0-9kb.xml": (8, 120, 120, 0, []),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_give_proven_plans(name: str, data_dir: Path) -> None:
    found = msccl_xml.read(data_dir / "msccl-xml" / name)
    plan = found.plan
    assert (
        plan.collective.ranks,
        len(plan.block_rank),
        len(plan.instructions),
        len(plan.waits),
        [note.code for note in found.notes],
    ) == REAL[name]
    sley.verify(plan)


@pytest.mark.parametrize("name", REAL)
def test_every_instruction_knows_its_line(name: str, data_dir: Path) -> None:
    path = data_dir / "msccl-xml" / name
    lines = path.read_text().splitlines()
    plan = msccl_xml.read(path).plan
    words = {v: k for k, v in msccl_xml.targets.OPERATIONS.items()}
    for row in range(0, len(plan.instructions), 7):
        place = plan.place(row)
        assert place.file == str(path)
        assert f'type="{words[Op(plan.instructions.op[row])]}"' in lines[place.line - 1]


def test_every_column_of_a_small_file_is_read() -> None:
    plan = msccl_xml.read(VALID, file="pair.xml").plan
    assert (plan.name, plan.protocol, plan.loop_order) == ("pair", Protocol.LL, LoopOrder.TILE)
    assert plan.slots == Protocol.LL.slots
    assert plan.collective == sley.AllReduce(2, 2)
    assert plan.scratch_chunks.tolist() == [2, 2]
    assert plan.block_rank.tolist() == [0, 0, 1]
    assert plan.block_offset.tolist() == [0, 2, 4, 6]
    t = plan.instructions
    assert t.op.tolist() == [
        Op.SEND, Op.RECV, Op.COPY, Op.REDUCE, Op.SEND, Op.RECV_REDUCE_COPY
    ]  # fmt: skip
    assert t.src_buffer.tolist() == [0, NONE, 0, 2, 0, 0]
    assert t.src_index.tolist() == [0, NONE, 0, 0, 0, 0]
    assert t.dst_buffer.tolist() == [NONE, 2, 1, 1, NONE, 1]
    assert t.dst_index.tolist() == [NONE, 0, 0, 0, NONE, 0]
    assert t.count.tolist() == [2] * 6
    assert t.send_peer.tolist() == [1, NONE, NONE, NONE, 0, NONE]
    assert t.recv_peer.tolist() == [NONE, 1, NONE, NONE, NONE, 0]
    assert t.channel.tolist() == [0, 0, NONE, NONE, 0, 0]
    assert set(t.transfer) == set(t.forward) == {NONE}
    assert [plan.place(row).line for row in range(6)] == [4, 5, 8, 9, 14, 15]
    assert (plan.waits.source.tolist(), plan.waits.target.tolist()) == ([3], [1])


def test_gpus_and_blocks_may_stand_in_any_order() -> None:
    lines = VALID.splitlines()
    moved = [lines[0], *lines[11:17], lines[1], *lines[6:10], *lines[2:6], lines[10], lines[-1]]
    a, b = msccl_xml.read(VALID).plan, msccl_xml.read("\n".join(moved)).plan
    for name in a.instructions.column_names():
        if name != "source":
            assert np.array_equal(getattr(a.instructions, name), getattr(b.instructions, name))
    assert a.waits == b.waits
    assert b.place(0).line == 14


def codes(text: str, **options: object) -> list[tuple[str, int]]:
    notes = msccl_xml.read(text, file="x.xml", **options).notes
    return [(note.code, note.places[0].line) for note in notes]


@pytest.mark.parametrize(
    ("line", "old", "new", "expected"),
    [
        (1, "<algo", '<algo redop="nop"', [("F431", 1)]),
        (1, "<algo", '<algo nthreads="256"', []),
        (1, "<algo", '<?xml version="1.0"?><!-- by hand --><algo', []),
        (4, "<step", '<step tag="x"', [("F431", 4)]),
        (2, ">", '><copy i_off="0" o_off="0"/><copy i_off="1" o_off="1"/>', [("F431", 2)]),
        (5, 'hasdep="1"', 'hasdep="0"', [("F430", 9)]),
        (9, 'depid="0" deps="1"', 'depid="1" deps="0"', [("F432", 9)]),
        (5, 'depid="-1" deps="-1"', 'depid="-1" deps="7"', [("F431", 5)]),
        (2, 'i_chunks="2"', 'i_chunks="3"', [("F433", 2)]),
        (2, 'o_chunks="2"', 'o_chunks="0"', [("F433", 2), ("F433", 8)]),
        (1, ' inplace="0"', "", [("F434", 1)]),
        (1, ' inplace="0" outofplace="1"', "", [("F434", 1)]),
        (1, ' outofplace="1"', "", []),
        (1, 'outofplace="1"', 'outofplace="0"', [("F434", 1)]),
        (1, 'name="pair" ', "", []),
        (1, ' minBytes="0" maxBytes="1024"', "", []),
    ],
)
def test_harmless_deviations_are_read_with_a_remark(
    line: int, old: str, new: str, expected: object
) -> None:
    assert codes(broken(line, old, new)) == expected


def test_the_size_range_and_name_of_the_file_are_read() -> None:
    found = msccl_xml.read(VALID)
    assert (found.min_bytes, found.max_bytes) == (0, 1024)
    bare = broken(1, 'name="pair" ', "").replace(' minBytes="0" maxBytes="1024"', "")
    found = msccl_xml.read(bare, file="some/ring.xml")
    assert (found.plan.name, found.min_bytes, found.max_bytes) == ("ring", None, None)


@pytest.mark.parametrize(
    ("inplace", "outofplace", "chosen", "expected"),
    [(1, 0, None, True), (0, 1, None, False), (1, 1, None, True), (1, 1, False, False),
     (0, 0, None, False), (1, 0, False, False)],
)  # fmt: skip
def test_the_file_or_the_caller_decides_whether_a_plan_is_in_place(
    inplace: int, outofplace: int, chosen: bool | None, expected: bool
) -> None:
    text = VALID.replace(
        'inplace="0" outofplace="1"', f'inplace="{inplace}" outofplace="{outofplace}"'
    )
    assert msccl_xml.read(text, in_place=chosen).plan.collective.in_place is expected


def test_custom_collectives_are_passed_by_the_caller() -> None:
    text = broken(1, 'coll="allreduce"', 'coll="custom"')
    collective = sley.AllReduce(2, 2)
    assert msccl_xml.read(text, collective=collective).plan.collective == collective


@pytest.mark.parametrize(
    ("coll", "chunks", "expected"),
    [
        ("allreduce", 4, sley.AllReduce(2, 4, True)),
        ("allgather", 4, sley.AllGather(2, 2, True)),
        ("alltoall", 4, sley.AllToAll(2, 2, True)),
        ("reduce_scatter", 4, sley.ReduceScatter(2, 2, True)),
        ("reducescatter", 4, sley.ReduceScatter(2, 2, True)),
        ("broadcast", 4, sley.Broadcast(2, 4, 1, True)),
        ("reduce", 4, sley.Reduce(2, 4, 1, True)),
        ("gather", 4, sley.Gather(2, 4, 1, True)),
        ("scatter", 4, sley.Scatter(2, 4, 1, True)),
    ],
)
def test_every_collective_is_read_by_its_name(
    coll: str, chunks: int, expected: sley.Collective
) -> None:
    empty = "".join(f'<gpu id="{k}" i_chunks="0" o_chunks="0" s_chunks="0"/>' for k in range(2))
    text = (
        f'<algo name="x" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="2" '
        f'coll="{coll}" inplace="1" outofplace="0">{empty}</algo>'
    )
    root = None if expected.root == NONE else 1
    assert msccl_xml.read(text, root=root).plan.collective == expected
    if root is None:
        with pytest.raises(sley.SleyError, match=r"L101(?s:.*)no root"):
            msccl_xml.read(text, root=1)


def test_the_root_is_read_from_the_sizes_or_assumed() -> None:
    gpus = '<gpu id="0" i_chunks="{}" o_chunks="2" s_chunks="0"/>'
    gpus += '<gpu id="1" i_chunks="{}" o_chunks="2" s_chunks="0"/>'
    text = (
        '<algo name="x" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="broadcast" '
        f'inplace="0" outofplace="1">{gpus}</algo>'
    )
    assert msccl_xml.read(text.format(0, 2)).plan.collective == sley.Broadcast(2, 2, root=1)
    assert codes(text.format(0, 2)) == []
    assert msccl_xml.read(text.format(2, 2)).plan.collective == sley.Broadcast(2, 2, root=0)
    assert ("F434", 1) in codes(text.format(2, 2))


def gather_in_place(buffer: str, offset: int) -> str:
    gpu = (
        '<gpu id="{}" i_chunks="{}" o_chunks="{}" s_chunks="0"><tb id="0" send="{}" recv="-1" '
        'chan="0"><step s="0" type="s" srcbuf="{}" srcoff="{}" dstbuf="o" dstoff="0" cnt="1" '
        'depid="-1" deps="-1" hasdep="0"/></tb></gpu>'
    )
    declared = (4, 0) if buffer == "i" else (0, 4)
    return (
        '<algo name="x" proto="LL" nchannels="1" nchunksperloop="4" ngpus="2" coll="allgather" '
        'inplace="1" outofplace="0">'
        + gpu.format(0, *declared, 1, buffer, 0)
        + gpu.format(1, *declared, 0, buffer, offset)
        + "</algo>"
    )


@pytest.mark.parametrize(
    ("buffer", "offset", "expected"),
    [("i", 0, (Buffer.INPUT, 0)), ("i", 1, (Buffer.INPUT, 1)), ("o", 3, (Buffer.OUTPUT, 3)),
     ("i", -2, (Buffer.OUTPUT, 0))],
)  # fmt: skip
def test_in_place_either_name_reaches_all_of_the_memory(
    buffer: str, offset: int, expected: tuple[int, int]
) -> None:
    plan = msccl_xml.read(gather_in_place(buffer, offset)).plan
    assert (plan.instructions.src_buffer[1], plan.instructions.src_index[1]) == expected


@pytest.mark.parametrize(
    ("i_chunks", "o_chunks", "expected"),
    [(2, 4, []), (0, 4, []), (4, 4, []), (2, 0, [("F433", 1)]), (3, 4, [("F433", 1)])],
)
def test_in_place_one_size_may_stand_for_both(
    i_chunks: int, o_chunks: int, expected: object
) -> None:
    text = gather_in_place("o", 1)
    text = text.replace('i_chunks="0" o_chunks="4"', f'i_chunks="{i_chunks}" o_chunks="{o_chunks}"')
    assert codes(text) == expected


@pytest.mark.parametrize(("buffer", "offset"), [("i", 2), ("o", 4), ("i", -3), ("o", -1)])
def test_in_place_nothing_outside_the_memory_is_accepted(buffer: str, offset: int) -> None:
    with pytest.raises(sley.SleyError, match="F420"):
        msccl_xml.read(gather_in_place(buffer, offset))


def test_in_place_a_range_that_begins_inside_the_memory_must_end_inside() -> None:
    assert msccl_xml.read(gather_in_place("i", -1).replace('cnt="1"', 'cnt="2"'))
    with pytest.raises(sley.SleyError, match="F420"):
        msccl_xml.read(gather_in_place("i", 1).replace('cnt="1"', 'cnt="2"'))


def step(s: int, kind: str, wait: tuple[int, int] = (-1, -1), hasdep: int = 1) -> str:
    return (
        f'<step s="{s}" type="{kind}" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" '
        f'depid="{wait[0]}" deps="{wait[1]}" hasdep="{hasdep}"/>'
    )


def blocks(*lists: list[str]) -> str:
    """A file of one rank; each step stands on a line of its own."""
    tbs = "\n".join(
        "\n".join([f'<tb id="{k}" send="-1" recv="-1" chan="0">', *steps, "</tb>"])
        for k, steps in enumerate(lists)
    )
    return (
        '<algo name="x" proto="LL" nchannels="1" nchunksperloop="1" ngpus="1" coll="allreduce" '
        'inplace="0" outofplace="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">\n'
        f"{tbs}</gpu></algo>"
    )


def waits_of(text: str) -> tuple[list[int], set[tuple[int, int]]]:
    plan = msccl_xml.read(text).plan
    pairs = zip(plan.waits.source.tolist(), plan.waits.target.tolist(), strict=True)
    return plan.instructions.op.tolist(), set(pairs)


def test_nop_chains_become_waits_of_the_step_that_follows() -> None:
    text = blocks(
        [step(0, "cpy"), step(1, "cpy")],
        [step(0, "cpy")],
        [step(0, "nop", (0, 0)), step(1, "nop", (1, 0)), step(2, "cpy", (0, 1)), step(3, "cpy")],
    )
    assert waits_of(text) == ([Op.COPY] * 5, {(3, 0), (3, 1), (3, 2)})
    assert codes(text) == []


def test_waits_within_a_block_are_left_out() -> None:
    text = blocks([step(0, "cpy"), step(1, "cpy", (0, 0)), step(2, "nop", (0, 1)), step(3, "re")])
    assert waits_of(text) == ([Op.COPY, Op.COPY, Op.REDUCE], set())
    assert codes(text) == [("F432", 4)]


@pytest.mark.parametrize("announced", [False, True])
def test_an_own_wait_that_a_runtime_may_never_end_is_named(announced: bool) -> None:
    text = blocks([step(0, "cpy", hasdep=int(announced)), step(1, "re", (0, 0))])
    found = msccl_xml.read(text).notes[0].found
    assert ("for ever" in found) is not announced


def test_a_nop_that_is_waited_for_stays() -> None:
    text = blocks(
        [step(0, "cpy")],
        [step(0, "cpy"), step(1, "nop", (0, 0)), step(2, "cpy")],
        [step(0, "nop", (1, 1)), step(1, "cpy", (0, 0))],
    )
    ops, waits = waits_of(text)
    assert ops == [Op.COPY, Op.COPY, Op.NOP, Op.COPY, Op.COPY]
    assert waits == {(2, 0), (4, 2), (4, 0)}


def test_a_nop_before_one_that_is_waited_for_gives_it_its_wait() -> None:
    text = blocks(
        [step(0, "cpy"), step(1, "cpy")],
        [step(0, "nop", (0, 0)), step(1, "nop", (0, 1)), step(2, "cpy", (0, 1))],
        [step(0, "cpy", (1, 1))],
    )
    ops, waits = waits_of(text)
    assert ops == [Op.COPY, Op.COPY, Op.NOP, Op.COPY, Op.COPY]
    assert waits == {(2, 0), (2, 1), (3, 1), (4, 2)}


@pytest.mark.parametrize(
    ("second", "line"),
    [
        ([step(0, "nop"), step(1, "cpy")], 6),
        ([step(0, "cpy"), step(1, "nop", (0, 0))], 7),
    ],
)
def test_nops_without_effect_are_left_out_and_remarked(second: list[str], line: int) -> None:
    text = blocks([step(0, "cpy")], second)
    assert waits_of(text) == ([Op.COPY] * 2, set())
    assert codes(text) == [("F432", line)]


def test_the_wait_of_a_last_nop_is_not_one_of_the_next_block() -> None:
    text = blocks([step(0, "cpy")], [step(0, "cpy"), step(1, "nop", (0, 0))], [step(0, "cpy")])
    assert waits_of(text) == ([Op.COPY] * 3, set())
    assert codes(text) == [("F432", 7)]


def test_six_thousand_steps_take_well_under_a_second() -> None:
    text = blocks(*[[step(s, "cpy") for s in range(60)] for _ in range(100)])
    start = time.process_time()
    assert len(msccl_xml.read(text).plan.instructions) == 6000
    assert time.process_time() - start < 1


def test_slots_of_the_caller_win() -> None:
    assert msccl_xml.read(VALID, slots=1).plan.slots == 1
