"""ResCCLang's text: the paper's program, refusals with their places, vectorised and plain
execution."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.errors.catalog import all_rules
from sley.ir.words import TransferKind
from sley.lang.rescclang import evaluate, load, parse
from sley.lang.rescclang.evaluate import flow, transfers
from sley.lang.rescclang.parser import SyntaxTree, syntax_tree
from sley.lang.rescclang.text import NUMBERS
from support.generators.examples import examples
from support.inputs.rescclang_cases import ANY_SIZE, BAD, FIGURE_16, HEAD, LOOPS, RANKS, programs


def algorithm(text: str) -> SyntaxTree:
    return syntax_tree(text, "text", NUMBERS)


def said(text: str, ranks: int = 4, **variables: int) -> list[tuple[int, ...]]:
    """What a text says: source, destination, step, chunk and number of each transfer."""
    columns = transfers(algorithm(text), variables, ranks)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def embedded(nodes: int, gpus: int, in_place: bool) -> sley.Program:
    """Figure 16 in the language that is embedded in Python."""
    ranks = nodes * gpus

    def hm(p):
        r = np.arange(ranks)
        node, local = np.divmod(r, gpus)
        for base in range(nodes):
            for offset in range(gpus - 1):
                dst = (local + offset + 1) % gpus + node * gpus
                p.transfer(r, dst, base * (gpus - 1) + offset, (dst + base * gpus) % ranks, "rrc")
                last = nodes * (gpus - 1) + 2 * nodes - 2 + base
                p.transfer(r, dst, last, (r + base * gpus) % ranks, "recv")
        for base in range(nodes - 1):
            dst, step = (r + gpus) % ranks, nodes * (gpus - 1) + base
            p.transfer(r, dst, step, (r - base * gpus) % ranks, "rrc")
            chunk = (r - (base + nodes - 1) * gpus) % ranks
            p.transfer(r, dst, step + nodes - 1, chunk, "recv")

    return sley.trace(sley.AllReduce(ranks, ranks, in_place), hm)


def rows(program: sley.Program) -> list[tuple[int, ...]]:
    """A program's transfers without order within a step, channels and sources."""
    names = (
        *("step", "kind", "src", "src_buffer", "src_index"),
        *("dst", "dst_buffer", "dst_index", "count"),
    )
    columns = (getattr(program.transfers, name).tolist() for name in names)
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("in_place", [True, False])
def test_figure_16_is_the_embedded_program_and_is_proven(in_place: bool) -> None:
    program = parse(FIGURE_16, in_place=in_place)
    assert program.name == "HM"
    assert program.collective == sley.AllReduce(32, 32, in_place)
    assert rows(program) == rows(embedded(4, 8, in_place))
    assert set(program.transfers.instances.tolist()) == {4}
    assert program.topology is not None
    assert program.topology.node.tolist() == [r // 8 for r in range(32)]
    assert len(set(program.topology.nic.tolist())) == 32
    plan = sley.compile(program)
    assert sley.verify(plan)


def test_one_text_serves_any_cluster() -> None:
    program = parse(ANY_SIZE, in_place=True, nRanks=6, GPUPerNode=2, NICPerNode=1, nChannels=1)
    assert rows(program) == rows(embedded(3, 2, True))
    assert program.topology is not None
    assert program.topology.nic.tolist() == [0, 0, 1, 1, 2, 2]
    sley.compile(program)


def test_transfers_point_at_their_call_sites() -> None:
    program = parse(FIGURE_16, file="hm.resccl", in_place=True)
    assert len(program.sources) == 4
    lines = FIGURE_16.split("\n")
    for row in range(4):
        place = program.sources.place(row)
        assert place.file == "hm.resccl"
        assert lines[place.line - 1][place.column - 1 :].startswith("transfer(")
    t = program.transfers
    assert set(t.kind[t.source < 2].tolist()) == {TransferKind.REDUCE}
    assert set(t.kind[t.source >= 2].tolist()) == {TransferKind.COPY}


@pytest.mark.parametrize("word", ["Allgather", "ALLGATHER", "AllGather"])
def test_operators_in_any_case(word: str) -> None:
    text = HEAD.replace("Allgather", word) + "    transfer(0, 1, 0, 0, recv)\n"
    assert parse(text).collective == sley.AllGather(4)
    text = text.replace(word, "ReduceScatter").replace("recv", "rrc")
    assert parse(text, in_place=True).collective == sley.ReduceScatter(4, in_place=True)


def test_allreduce_may_have_as_many_ranks_as_other_operators() -> None:
    text = HEAD.replace("Allgather", "Allreduce").replace("nRanks=4", "nRanks=2000")
    program = parse(text + "    transfer(0, 1, 0, 0, rrc)\n", in_place=True)
    assert program.collective == sley.AllReduce(2000, 2000, in_place=True)


def test_layout_is_free_where_it_says_nothing() -> None:
    text = (
        "\ufeff# a ring\r\n\r\ndef ResCCLAlgo(  # of four\r\n  nRanks=4,\r\n"
        "OpType='Allgather',\r\n):\r\n\r\n"
        "\tfor r in range(nRanks):\r\n\t\tfor s in range(3): transfer(r, (r + 1)\r\n"
        '  % 4, s, (r - s) % 4, "recv")  # all at once\r\n'
        "# shallower, and says nothing\r\n\r\n\tlast = 7"
    )
    program = parse(text)
    sley.compile(program)
    ring = [(r, (r + 1) % 4, s, (r - s) % 4, 0) for r in range(4) for s in range(3)]
    assert said(text, nRanks=4) == ring
    assert program.name == "rescclang"
    assert parse(text, file="some/ring.resccl").name == "ring"


def test_arithmetic_is_pythons_with_floor_division() -> None:
    for text in ("7 / 2", "-7 / 2", "-7 // 2", "-7 % 3", "7 % -3", "2 - 3 - 4", "2 + 3 * 4 % 5"):
        for outer in ("{}", "-({})", "--{}", "2 * -{}"):
            value = eval(outer.format(text).replace("/", "//").replace("////", "//"))
            # As a step, which takes any number from 0, alone and in lanes.
            line = f"transfer(0, 1, {outer.format(text)} + 100, 0, recv)"
            assert said(HEAD + f"    {line}\n")[0][2] == value + 100
            lanes = line.replace("7", "(7 + i - i)").replace("2", "(2 + i * 0)")
            assert said(HEAD + f"    for i in range(9):\n        {lanes}\n")[8][2] == value + 100


@pytest.mark.parametrize("name", BAD)
def test_refusals_name_line_and_column(name: str) -> None:
    text, code, line, column = BAD[name]
    start = time.process_time()
    with pytest.raises(SleyError) as caught:
        parse(text, file="bad.resccl")
    diagnostic = caught.value.diagnostics[0]
    place = diagnostic.places[0]
    assert (diagnostic.code, place.line, place.column) == (code, line, column)
    assert place.file == "bad.resccl"
    assert len(str(diagnostic)) < 2000
    assert time.process_time() - start < 5


def test_every_rule_is_tested() -> None:
    family = {code for code in all_rules() if "L140" <= code <= "L159"}
    assert family == {code for _, code, _, _ in BAD.values() if code >= "L140"}


def found(text: str) -> str:
    with pytest.raises(SleyError) as caught:
        parse(text)
    return caught.value.diagnostics[0].found


def test_messages_name_the_loops_variables() -> None:
    text = FIGURE_16.replace("(r + offset + 1) % nGpusperNode", "r + offset + 1", 1)
    assert found(text) == "dstRank = 32 with n = 3, r = 1, baseStep = 0, offset = 6"
    text = HEAD + "    for i in range(3):\n        x = 1 % (2 - i)\n"
    assert found(text) == "1 % 0 with i = 2"
    assert found(HEAD + "    nodes = 1\n    x = node\n") == "node, did you mean nodes?"
    assert found(HEAD + "    x += 1\n") == "'x += 1'"
    assert found(HEAD + "    x = 1 y = 2\n") == "invalid syntax: 'y'"
    assert found(HEAD.replace("=4", "+=4")) == "invalid syntax: '+='"
    assert found(HEAD + "    x =\n") == "invalid syntax: the end of the line"
    assert found(HEAD + "    (1)\n") == "'(1)'"
    assert found(HEAD + f"    x = {'9' * 5000}\n") == "Exceeds the limit (4300 digits)"
    assert found(HEAD.replace("4", "(5000\n+ 1)") + "    x = 1\n") == "nRanks=5000"
    assert found(HEAD + "    Transfer(0)\n") == "'Transfer', did you mean transfer?"


def test_the_first_mistake_is_told_wherever_it_is() -> None:
    # At once, the first statement fails in lane 3 before the second does in lane 1.
    text = HEAD + (
        "    for i in range(4):\n"
        "        x = 1 % (i - 3)\n"
        "        for j in range(2): transfer(i, 1 + j, 0, 0, recv)\n"
    )
    assert found(text) == "a transfer from rank 1 to itself with i = 1, j = 0"


def test_what_the_caller_gives_is_checked_like_the_header() -> None:
    for header, code in (
        ({"nRank": 4}, "L150"),
        ({"nRanks": "4"}, "L150"),
        ({"nRanks": True}, "L150"),
        ({"nRanks": 30}, "L150"),
        ({"OpType": "Alltoall"}, "L150"),
    ):
        with pytest.raises(SleyError) as caught:
            parse(FIGURE_16, **header)
        assert caught.value.code == code
        assert "given by the caller" in str(caught.value)


def test_files_are_read_as_texts_are(tmp_path: Path) -> None:
    good = tmp_path / "hm.resccl"
    good.write_bytes(FIGURE_16.encode())
    assert rows(load(good, in_place=True)) == rows(parse(FIGURE_16, in_place=True))
    assert load(str(good)).sources.files == (str(good),)
    bad = tmp_path / "bad.resccl"
    for data, line, column in ((b"# \xe4\n", 1, 3), (b"# ok\r\n# \xc3\xb6\xff", 2, 4)):
        bad.write_bytes(data)
        with pytest.raises(SleyError) as caught:
            load(bad)
        place = caught.value.diagnostics[0].places[0]
        assert (caught.value.code, place.line, place.column) == ("F404", line, column)
    bad.write_bytes(b"#" * (2**20 + 1))
    for path in (bad, tmp_path, tmp_path / "none", tmp_path / "a\0b"):
        with pytest.raises(SleyError) as caught:
            load(path)
        assert caught.value.code == "F404"
    with pytest.raises(SleyError) as caught:
        parse("#" * (2**20 + 1))
    assert caught.value.code == "F404"
    with pytest.raises(SleyError) as caught:
        parse(b"ResCCLAlgo")  # type: ignore[arg-type]
    assert caught.value.code == "L112"


def outcome(text: str, at_once: bool) -> object:
    """What a run says, or the mistake that it tells."""
    try:
        columns = transfers(algorithm(text), {}, RANKS, at_once=at_once)
    except SleyError as error:
        return str(error)
    return [c.tolist() for c in columns]


@examples(14)
@given(programs(), st.sampled_from([2, 7, evaluate.PIECE]))
def test_random_loops_at_once_give_what_plain_execution_gives(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "PIECE", piece)
        assert outcome(text, at_once=True) == outcome(text, at_once=False)


@pytest.mark.parametrize("piece", [1, 2, 7, evaluate.PIECE])
@pytest.mark.parametrize("name", LOOPS)
def test_chosen_loops_at_once_give_what_plain_execution_gives(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "PIECE", piece)
    text, independent = LOOPS[name]
    assert [loop.independent for loop in flow(algorithm(text))] == independent
    plain = outcome(text, at_once=False)
    assert isinstance(plain, str) == (" fault" in name)
    assert outcome(text, at_once=True) == plain


def test_the_search_for_a_mistake_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_ITERATIONS", 300)
    text = HEAD + (
        "    for n in range(10):\n        for m in range(20):\n            x = 1 / (n * m - 171)\n"
    )
    assert found(text) == "1 / 0 with n = 9, m = 19"


def test_values_carried_within_independent_loops_are_those_of_plain_execution() -> None:
    text = HEAD + (
        "    for r in range(500):\n"
        "        chunk = r % 4\n"
        "        for s in range(r % 5):\n"
        "            transfer(r % 4, (r + 1) % 4, s, chunk, recv)\n"
        "            chunk = (chunk + 3) % 4\n"
        "        transfer(r % 4, (r + 1) % 4, 9, chunk, rrc)\n"
    )
    program = algorithm(text)
    assert [loop.independent for loop in flow(program)] == [True, False]
    plain = transfers(program, {}, 4, at_once=False)
    for fast, column in zip(transfers(program, {}, 4), plain, strict=True):
        assert np.array_equal(fast, column)


def test_a_thousand_gpus_take_no_minutes() -> None:
    start = time.process_time()
    program = parse(ANY_SIZE, in_place=True, nRanks=1024)
    assert len(program.transfers) == 2 * 1024 * (127 + 128 * 7)
    assert time.process_time() - start < 10  # some 1.5 s; machines of testers differ


def refuses_or_reads(text: str) -> None:
    """Nothing but a program or a SleyError with a place."""
    try:
        parse(text)
    except SleyError as error:
        assert error.diagnostics[0].places[0].file or error.diagnostics[0].places[0].detail


_PIECES = st.sampled_from(
    [
        *("for ", "i", " in ", "range", "(", ")", ",", ":", "=", "\n", "    ", "\t", "#", '"', "'"),
        *("transfer", "recv", "1", "0", "99999999999", "+", "-", "/", "//", "%", "*", "nRanks"),
        *(
            "def ",
            "\0",
            "\r",
            "\f",
            "\u2028",
            "\ud800",
            "é",
            HEAD,
            "    transfer(0, 1, 0, 0, rrc)\n",
        ),
    ]
)


@given(
    st.one_of(
        st.text(),
        st.lists(_PIECES).map("".join),
        st.lists(_PIECES).map(lambda parts: HEAD + "    " + "".join(parts)),
    )
)
def test_garbage_is_refused(text: str) -> None:
    refuses_or_reads(text)


@given(st.data())
def test_mutations_of_figure_16_are_refused_or_read(data: st.DataObject) -> None:
    text = ANY_SIZE.replace("nRanks=32", "nRanks=8").replace("GPUPerNode=8", "GPUPerNode=4")
    text = text.replace("NICPerNode=8", "NICPerNode=2")
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 8)))
        text = (
            text[:start]
            + data.draw(st.one_of(_PIECES, st.just(""), st.text(max_size=2)))
            + text[end:]
        )
    refuses_or_reads(text)


@given(st.binary(max_size=60))
def test_files_of_any_bytes_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.resccl"
    path.write_bytes(HEAD.encode() + b"    x = " + data)
    try:
        load(path)
    except SleyError as error:
        assert error.diagnostics[0].places[0].line
