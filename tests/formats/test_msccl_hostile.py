"""Invalid and malicious files: a coded diagnostic at the right line, never a crash."""

import contextlib
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.errors import SleyError
from sley.errors.catalog import all_rules
from sley.formats import msccl_xml
from sley.formats.format import MOST_OF_A_KIND, MOST_REPORTED
from sley.formats.msccl_xml import checks, raw
from sley.verification import verify
from support.generators.examples import examples
from support.inputs.xml_plans import VALID, broken
from support.mutants.file_mutants import TARGETS, mutant


def refused(source: str, **options: object) -> SleyError:
    with pytest.raises(SleyError) as caught:
        msccl_xml.read(source, file="bad.xml", **options)
    return caught.value


def test_the_unbroken_file_is_right() -> None:
    sley.verify(msccl_xml.read(VALID).plan)


MISTAKES = [
    ("F401", 1, "<algo", "<!DOCTYPE algo><algo"),
    ("F405", 3, "<tb", "<block"),
    ("F405", 4, "<step", "<stepp"),
    ("F405", 4, "<step", "stray text <step"),
    ("F405", 2, '<gpu id="0"', '<tb id="0"'),
    ("F406", 4, ' cnt="2"', ""),
    ("F406", 4, ' hasdep="0"', ""),
    ("F406", 3, ' chan="0"', ""),
    ("F406", 2, ' s_chunks="2"', ""),
    ("F406", 1, ' proto="LL"', ""),
    ("F406", 1, ' coll="allreduce"', ""),
    ("F407", 4, 'cnt="2"', 'cnt="2.0"'),
    ("F407", 4, 'cnt="2"', 'cnt=""'),
    ("F407", 4, 'cnt="2"', 'cnt="0x2"'),
    ("F407", 4, 'cnt="2"', 'cnt="1_0"'),
    ("F407", 4, 'cnt="2"', 'cnt=" 2"'),
    ("F407", 4, 'cnt="2"', 'cnt="\u0662"'),
    ("F407", 4, 'srcoff="0"', 'srcoff="2147483648"'),
    ("F407", 4, 'srcoff="0"', f'srcoff="{"9" * 5000}"'),
    ("F407", 1, 'maxBytes="1024"', 'maxBytes="9223372036854775808"'),
    ("F408", 4, 'type="s"', 'type="send"'),
    ("F408", 4, 'type="s"', 'type="res_add"'),
    ("F408", 4, 'srcbuf="i"', 'srcbuf="x"'),
    ("F408", 1, 'proto="LL"', 'proto="ll"'),
    ("F409", 1, 'coll="allreduce"', 'coll="allredcue"'),
    ("F409", 1, 'coll="allreduce"', 'coll="alltoallv"'),
    ("F409", 1, 'coll="allreduce"', 'coll="custom"'),
    ("F411", 1, 'nchunksperloop="2"', 'nchunksperloop="0"'),
    ("F411", 1, 'nchunksperloop="2" ngpus="2" coll="allreduce"',
     'nchunksperloop="3" ngpus="2" coll="alltoall"'),
    ("F412", 12, 'id="1"', 'id="0"'),
    ("F412", 12, 'id="1"', 'id="2"'),
    ("F412", 12, 'id="1"', 'id="-1"'),
    ("F412", 1, 'ngpus="2"', 'ngpus="3"'),
    ("F412", 7, 'id="1"', 'id="0"'),
    ("F412", 7, 'id="1"', 'id="2"'),
    ("F414", 5, 's="1"', 's="0"'),
    ("F414", 5, 's="1"', 's="3"'),
    ("F415", 9, 'deps="1"', 'deps="2"'),
    ("F415", 9, 'deps="1"', 'deps="-1"'),
    ("F415", 9, 'depid="0"', 'depid="2"'),
    ("F415", 9, 'depid="0"', 'depid="-2"'),
    ("F415", 9, 'depid="0"', 'depid="1"'),
    ("F417", 3, 'send="1"', 'send="2"'),
    ("F417", 3, 'send="1"', 'send="0"'),
    ("F417", 3, 'recv="1"', 'recv="-2"'),
    ("F417", 4, None, None),
    ("F419", 3, 'chan="0"', 'chan="2"'),
    ("F419", 3, 'chan="0"', 'chan="-1"'),
    ("F420", 4, 'srcoff="0"', 'srcoff="1"'),
    ("F420", 4, 'srcoff="0"', 'srcoff="-1"'),
    ("F420", 9, 'srcoff="0"', 'srcoff="2147483647"'),
    ("F420", 8, 'dstoff="0"', 'dstoff="1"'),
    ("F421", 4, 'cnt="2"', 'cnt="0"'),
    ("F421", 4, 'cnt="2"', 'cnt="-1"'),
    ("F422", 4, 'hasdep="0"', 'hasdep="2"'),
    ("F422", 1, 'inplace="0"', 'inplace="2"'),
    ("F422", 1, 'minBytes="0"', 'minBytes="-1"'),
    ("F422", 2, 's_chunks="2"', 's_chunks="-1"'),
    ("F422", 1, 'nchannels="2"', 'nchannels="0"'),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "old", "new"), MISTAKES)
def test_a_mistake_is_named_at_its_line(code: str, line: int, old: str, new: str) -> None:
    text = broken(line, old, new) if old else broken(3, 'send="1"', 'send="-1"')
    found = refused(text).diagnostics
    assert [(d.code, d.places[0].file, d.places[0].line) for d in found][:1] == [
        (code, "bad.xml", line)
    ]
    assert found[0].places[0].column >= 1
    assert all([found[0].expected, found[0].found, found[0].remedy])


def test_every_rule_of_reading_is_tested() -> None:
    tested = {code for code, *_ in MISTAKES} | {"F401", "F403", "F404", "F424"}
    known = {code for code in all_rules() if "F401" <= code <= "F424"}
    assert known == tested


NOT_XML = [
    "<",
    "<algo",
    VALID[:-9],
    VALID + "<algo/>",
    "\n",
    "no xml\n",
    VALID.replace("</tb>", "\x00</tb>"),
    VALID.replace("</tb>", "\ud800</tb>"),
    '<?xml version="1.0" encoding="no-such"?><algo/>',
]


@pytest.mark.parametrize("text", NOT_XML)
def test_a_file_without_xml_is_refused(text: str) -> None:
    assert refused(text).code == "F401"


@pytest.mark.parametrize("text", ["<algo><gpu></algo>", "<algo>\ud800</algo>"])
def test_broken_xml_is_the_only_problem_named(text: str) -> None:
    assert [d.code for d in refused(text).diagnostics] == ["F401"]


@pytest.mark.parametrize("path", ["no-such-file.xml", "", "/", "a\0b"])
def test_a_path_that_cannot_be_opened_is_refused(path: str) -> None:
    assert refused(path).code == "F404"


@pytest.mark.parametrize("text", ["<gpu/>", "<a><algo/></a>"])
def test_another_root_element_is_refused(text: str) -> None:
    assert refused(text).code == "F405"


def test_several_mistakes_come_at_once_in_order() -> None:
    text = broken(3, 'send="1"', 'send="7"').replace('depid="0"', 'depid="5"')
    text = text.replace('type="cpy"', 'type="copy"')
    found = refused(text).diagnostics
    assert [(d.code, d.places[0].line) for d in found] == [("F417", 3), ("F408", 8), ("F415", 9)]


def test_swapped_ids_of_gpus_are_named() -> None:
    swapped = VALID.replace('id="0" i_', 'id="2" i_').replace('id="1" i_', 'id="0" i_')
    found = refused(swapped.replace('id="2" i_', 'id="1" i_')).diagnostics
    assert {d.code for d in found} == {"F417"}
    assert all("ids of GPUs 0 and 1" in d.remedy for d in found)
    alone = refused(broken(3, 'send="1"', 'send="0"')).diagnostics
    assert "swapped" not in alone[0].remedy


@pytest.mark.parametrize(("old", "new"), [('type="', 'type="x'), ('srcoff="', 'srcoff="9')])
def test_many_of_a_kind_are_folded(old: str, new: str) -> None:
    steps = VALID.splitlines()[13].replace(old, new)
    many = "\n".join(steps.replace('s="0"', f's="{2 + k}"') for k in range(50))
    text = VALID.replace("    </tb>\n  </gpu>\n</algo>", f"{many}\n    </tb>\n  </gpu>\n</algo>")
    said = refused(text).diagnostics
    assert len(said) == MOST_OF_A_KIND
    assert said[-1].notes == (f"and at least {MOST_REPORTED - MOST_OF_A_KIND} more like this",)


def test_nested_entities_never_expand() -> None:
    entities = "".join(
        f'<!ENTITY l{k} "{f"&l{k - 1};" * 10}">' if k else '<!ENTITY l0 "ha">' for k in range(10)
    )
    text = f'<!DOCTYPE algo [{entities}]><algo name="&l9;"/>'
    start = time.process_time()
    assert refused(text).code == "F401"
    assert time.process_time() - start < 1


def test_an_external_entity_is_not_fetched(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("<algo/>")
    text = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><algo name="&x;">&x;</algo>'
    assert refused(text).code == "F401"


def test_an_undeclared_entity_is_no_xml() -> None:
    assert refused(VALID.replace("pair", "&pair;")).code == "F401"


def test_too_much_text_is_refused_while_reading(monkeypatch) -> None:
    monkeypatch.setattr(raw, "MAX_TEXT_BYTES", len(VALID) - 1)
    assert refused(VALID).code == "F403"
    monkeypatch.setattr(raw, "MAX_TEXT_BYTES", len(VALID))
    msccl_xml.read(VALID)


def test_an_endless_tag_is_refused() -> None:
    attributes = " ".join(f'a{k}="1"' for k in range(500_000))
    assert refused(f"<algo {attributes}/>").code == "F403"
    assert refused(f"<!-- {attributes} -->").code == "F403"
    spaces = " " * (2 * raw.MAX_TAG_BYTES)
    msccl_xml.read(VALID.replace("</tb>", f"{spaces}</tb>", 1))


def test_too_many_elements_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(raw, "MAX_ELEMENTS", 11)
    assert refused(VALID).code == "F403"
    monkeypatch.setattr(raw, "MAX_ELEMENTS", VALID.count("<") - VALID.count("</"))
    msccl_xml.read(VALID)


def test_numbers_of_chunks_are_limited_before_anything_is_built(monkeypatch) -> None:
    text = broken(1, 'nchunksperloop="2"', 'nchunksperloop="2147483647"')
    assert refused(text).code == "F403"
    assert refused(broken(2, 's_chunks="2"', 's_chunks="2147483647"')).code == "F403"
    assert refused(broken(1, 'ngpus="2"', 'ngpus="2147483647"')).code in ("F403", "F412")
    monkeypatch.setattr(checks, "MAX_CHUNKS", 4)
    msccl_xml.read(VALID)


def test_a_collective_of_other_ranks_is_refused() -> None:
    assert refused(VALID, collective=sley.AllReduce(3, 2)).code == "F424"


def test_an_endless_file_is_refused() -> None:
    assert refused("/dev/zero").code in ("F401", "F404")


def test_wrong_files_take_no_longer_than_right_ones() -> None:
    step = VALID.splitlines()[7].replace("cpy", "nop")
    steps = "\n".join(step.replace('s="0"', f's="{k}"') for k in range(20_000))
    blocks = "".join(f'<tb id="{k}" send="-1" recv="-1" chan="0"/>' for k in range(1, 20_000))
    text = (
        VALID.splitlines()[0]
        + f'<gpu id="0" i_chunks="2" o_chunks="2" s_chunks="2">{VALID.splitlines()[6]}'.replace(
            'id="1"', 'id="0"'
        )
        + f'{steps}</tb>{blocks}</gpu><gpu id="1" i_chunks="2" o_chunks="2" s_chunks="2"/></algo>'
    )
    start = time.process_time()
    assert len(msccl_xml.read(text).plan.block_rank) == 20_000
    assert time.process_time() - start < 5


def test_wrong_files_take_no_longer_for_a_target() -> None:
    """Many waits, nops, reductions and announcements, long comments and values."""
    row = '<step s="{}" type="{}" srcbuf="s" srcoff="0" dstbuf="s" dstoff="1" cnt="1" {}/>'
    waits = ['depid="-1" deps="-1" hasdep="1"', 'depid="0" deps="7" hasdep="0"']
    steps = "".join(row.format(k, ("re", "nop", "cpy")[k % 3], waits[k % 2]) for k in range(5_000))
    comments = "<!-- " + " - " * 300_000 + "-->" + "<!---->" * 5_000
    text = VALID.replace("<gpu", f"{comments}<gpu", 1)
    text = text.replace("</tb>", f"</tb>{'<copy/>' * 5_000}", 1)
    gpu = '<gpu id="0" i_chunks="2" o_chunks="2" s_chunks="2"><tb id="0" send="-1" recv="-1" '
    one = f'{VALID.splitlines()[0]}{gpu}chan="0">{steps}</tb></gpu></algo>'
    start = time.process_time()
    for hostile in (text, one.replace('ngpus="2"', 'ngpus="1"')):
        for target in TARGETS:
            with contextlib.suppress(SleyError):
                msccl_xml.executions(hostile, target)
    assert time.process_time() - start < 20


TOKENS = st.sampled_from(
    ["<", ">", '"', "/>", "</tb>", "</gpu>", "-1", "0", "1", "2", "99999999999", "&amp;", "&x;",
     "<step/>", "<tb>", "<!--", "-->", "<![CDATA[", "]]>", "nop", "rrc", "re", "i", "o", "s",
     "\t", "\n", "\x00", "\u0660", "\ud800", "custom", "alltoall", "broadcast", "gather"]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str = VALID) -> str:
    """A text with a few cuts and pastes, half of them of whole numbers and words."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.sampled_from([0, 0, 1, 1, 2, 5, 40, 400]))
        if draw(st.booleans()):
            start = text.find('"', start) + 1
            length = max(text.find('"', start) - start, 0)
        text = text[:start] + draw(TOKENS | st.just("")) + text[start + length :]
    return text


@given(mutated())
def test_mutations_raise_nothing_but_coded_diagnostics(text: str) -> None:
    try:
        said = msccl_xml.read(text).notes
    except SleyError as error:
        said = error.diagnostics
        assert said
    assert all(d.code.startswith("F4") and str(d) for d in said)


@examples(14)
@given(st.data(), st.integers(0, 1 << 32))
def test_mutants_for_a_target_raise_nothing_but_coded_diagnostics(
    data: st.DataObject, seed: int
) -> None:
    text, target = mutant(random.Random(seed))
    text = data.draw(mutated(text) | st.just(text))
    try:
        for way in msccl_xml.executions(text, target).executions:
            verify(way.plan, way.slots, per_chunk=way.per_chunk)
    except SleyError as error:
        assert error.diagnostics
        assert all(d.code[:2] in ("F4", "V2") and str(d) for d in error.diagnostics)


@given(st.integers(0, len(VALID) - 2))
def test_every_truncation_is_refused(length: int) -> None:
    assert refused(VALID[:length] + "\n").code.startswith("F4")
