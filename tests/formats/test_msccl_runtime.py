"""Files as their runtime reads them: what it would refuse, run wrongly, or never end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import sley
from sley.cli.main import main
from sley.errors import Diagnostic, SleyError
from sley.errors.catalog import all_rules
from sley.formats import msccl_xml
from sley.formats.msccl_xml.targets import TARGETS
from support.inputs.algorithm_cases import (
    SIZED,
    cases_in_a_place,
    in_turn,
    label,
    of_each_collective,
    program,
)
from support.inputs.xml_plans import VALID, broken, exchange, many_waits


def proven(text: str, target: str, **settings: object) -> list[sley.Proof]:
    """The proofs of a text for its target."""
    found = msccl_xml.executions(text, target, **settings)
    return [
        sley.verify(way.plan, way.slots, per_chunk=way.per_chunk).under(way.conditions)
        for way in found.executions
    ]


def codes(text: str, target: str, **settings: object) -> list[str]:
    """The codes with which a text is refused; none if it is proven."""
    try:
        proven(text, target, **settings)
    except SleyError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


def step(s: int, kind: str, src: str = "i0", dst: str = "o0", **other: object) -> str:
    """A <step>; src and dst are a buffer and an offset."""
    values = {"cnt": 1, "depid": -1, "deps": -1, "hasdep": 0, **other}
    rest = " ".join(f'{key}="{value}"' for key, value in values.items())
    return (
        f'<step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" '
        f'dstoff="{dst[1:]}" {rest}/>'
    )


def block(number: int, *steps: str, send: int = -1, recv: int = -1, chan: int = 0) -> str:
    return f'<tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">{"".join(steps)}</tb>'


def local(*blocks: str, chunks: int = 2, scratch: int = 8, **header: object) -> str:
    """A file with one GPU, whose AllReduce is a copy of its input to its output."""
    values = {
        "name": "x", "proto": "LL", "nchannels": 1, "nchunksperloop": chunks, "ngpus": 1,
        "coll": "allreduce", "inplace": 0, "outofplace": 1, "minBytes": 0, "maxBytes": 65536,
        **header,
    }  # fmt: skip
    text = " ".join(f'{key}="{value}"' for key, value in values.items() if value is not None)
    gpu = f'<gpu id="0" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">'
    return f"<algo {text}>\n{gpu}\n" + "\n".join(blocks) + "\n</gpu>\n</algo>\n"


WHOLE = step(0, "cpy", cnt=2)
COPIES = block(0, step(0, "cpy", "i0", "o0"), step(1, "cpy", "i1", "o1"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_unbroken_files_are_proven(target: str) -> None:
    assert codes(local(COPIES), target) == []
    assert codes(VALID, target) == (["F468"] if target == "rccl" else [])


def waiting(flag: int, **last: object) -> str:
    """Block 1 copies what block 0 has put into scratch, and waits for it."""
    fills = [step(0, "cpy", "i0", "s0", cnt=2, hasdep=flag)]
    return local(
        block(0, *fills, *([step(1, "cpy", "i0", "s4", **last)] if last else [])),
        block(1, step(0, "cpy", "s0", "o0", cnt=2, depid=0, deps=0)),
    )


def test_a_wait_ends_with_a_later_announcement_of_the_block_or_never() -> None:
    assert codes(waiting(1), "executor") == []
    assert codes(waiting(0), "executor") == ["F466"]
    assert codes(waiting(0, hasdep=0), "executor") == ["F466"]
    assert codes(waiting(0, hasdep=1), "executor") == []


def test_a_wait_for_the_own_block_needs_an_announcement_before_it() -> None:
    def own(flag: int, later: int) -> str:
        first = step(0, "cpy", "i0", "o0", hasdep=flag)
        return local(block(0, first, step(1, "cpy", "i1", "o1", depid=0, deps=0, hasdep=later)))

    assert codes(own(1, 0), "executor") == []
    assert codes(own(0, 0), "executor") == codes(own(0, 1), "executor") == ["F466"]


def test_a_chain_of_nops_ends_with_a_wait_of_the_step() -> None:
    fills = block(0, step(0, "cpy", "i0", "s0", hasdep=1), step(1, "cpy", "i1", "s1", hasdep=1))
    nop = step(0, "nop", "i-1", "o-1", cnt=0, depid=0, deps=0)
    takes = step(1, "cpy", "s0", "o0", cnt=2, depid=0, deps=1)
    assert codes(local(fills, block(1, nop, takes)), "executor") == []
    bare = step(1, "cpy", "s0", "o0", cnt=2)
    assert codes(local(fills, block(1, nop, bare)), "executor") == ["F465"]


def test_a_nop_without_a_wait_shifts_the_numbers_of_the_steps_after_it() -> None:
    """The kernel counts the copy as step 0, so the wait for step 1 never ends."""
    nop = step(0, "nop", "i-1", "o-1", cnt=0)
    fills = step(1, "cpy", "i0", "s0", cnt=2, hasdep=1)
    takes = step(0, "cpy", "s0", "o0", cnt=2, depid=0, deps=1)
    text = local(block(0, nop, fills), block(1, takes))
    assert codes(text, "executor") == ["F466"]
    assert msccl_xml.read(text).plan is not None


def test_the_wait_of_a_nop_between_merged_reductions_goes_to_the_step_after_them() -> None:
    """So the reductions don't wait for the copy that they read."""
    fills = block(0, step(0, "cpy", "i0", "s1", hasdep=1))
    runs = [
        step(0, "cpy", "i0", "o0", cnt=2),
        step(1, "re", "s0", "o0"),
        step(2, "nop", "i-1", "o-1", cnt=0, depid=0, deps=0),
        step(3, "re", "s1", "o0"),
    ]
    assert "V204" in codes(local(fills, block(1, *runs), scratch=2), "executor")


def merged(*reductions: tuple[str, int, int], in_place: bool = False) -> str:
    """Reductions of (source, count, hasdep) into the first output chunk."""
    steps = [step(0, "cpy", "i0", "o0", cnt=2)]
    steps += [
        step(1 + k, "re", source, "o0", cnt=count, hasdep=flag)
        for k, (source, count, flag) in enumerate(reductions)
    ]
    return local(block(0, *steps), inplace=int(in_place), outofplace=int(not in_place))


def test_reductions_that_the_parser_merges_have_one_count_and_sources_apart() -> None:
    assert "F467" not in codes(merged(("s0", 1, 0), ("s1", 1, 0)), "executor")
    assert codes(merged(("s0", 1, 0), ("s2", 2, 0)), "executor") == ["F467"]
    assert "F467" not in codes(merged(("s0", 1, 1), ("s2", 2, 0)), "executor")
    assert codes(merged(("o1", 1, 0), ("o0", 1, 0)), "executor") == ["F467"]
    assert codes(merged(("i1", 1, 0), ("i0", 1, 0), in_place=True), "executor") == ["F467"]


def test_the_parser_ends_a_run_of_reductions_at_the_sixteenth_of_the_block() -> None:
    sixteen = [("s0", 1, 0)] * 16
    assert "F467" not in codes(merged(*sixteen, ("s0", 2, 0)), "executor")
    assert codes(merged(*sixteen, *[("s0", 1, 0)] * 17), "executor") == ["F467"]


def test_a_merged_reduction_is_announced_with_the_number_of_its_last_step() -> None:
    run = [step(0, "cpy", "i0", "o0", cnt=2), step(1, "re", "s0", "o0")]
    run.append(step(2, "re", "s1", "o0", hasdep=1))

    def waits_for(deps: int) -> str:
        return local(block(0, *run), block(1, step(0, "cpy", "o0", "s4", depid=0, deps=deps)))

    assert "F466" not in codes(waits_for(2), "executor")
    assert "F466" not in codes(waits_for(1), "executor")
    bare = waits_for(2).replace('hasdep="1"', 'hasdep="0"')
    assert codes(bare, "executor") == ["F466"]


LEXER = [
    lambda text: '<?xml version="1.0"?>' + text,
    lambda text: "\ufeff" + text,
    lambda text: "\t" + text,
    lambda text: text.replace(" cnt", "\tcnt", 1),
    lambda text: text.replace(" cnt", "\ncnt", 1),
    lambda text: text.replace(" cnt", "  cnt", 1),
    lambda text: text.replace("cnt=", "cnt =", 1),
    lambda text: re.sub(r'cnt="(\d)"', r"cnt='\1'", text, count=1),
    lambda text: text.replace('cnt="1"', 'cnt="&#49;"', 1),
    lambda text: text.replace('cnt="1"', 'cnt="01"', 1),
    lambda text: text.replace('name="x"', f'name="{"x" * 256}"'),
    lambda text: text.replace("<step", "<step " + " ".join(f'a{k}="0"' for k in range(7)), 1),
    lambda text: text.replace("</tb>", "</tb >", 1),
    lambda text: text.replace("<tb", "<!--a=b--><tb", 1),
    lambda text: text.replace("<tb", "<!----><!--a=b--><tb", 1),
    lambda text: text.replace("<tb", "<!----><?pi?><!-- --><tb", 1),
    lambda text: text.replace("<tb", "<?pi?><tb", 1),
    lambda text: text.replace("<tb", "<![CDATA[ ]]><tb", 1),
]


@pytest.mark.parametrize("spoil", LEXER)
def test_text_that_only_xml_parsers_read_is_refused(spoil) -> None:
    text = spoil(local(COPIES))
    msccl_xml.read(text)
    assert codes(text, "executor") == ["F462"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("<tb", "<!-- by hand,\n\tnot = by a tool --><tb", 1),
        lambda text: text.replace("<tb", "<!----><!-- > --><!--a--><tb", 1),
        lambda text: text.replace("/>", " />"),
        lambda text: text.replace("</tb>", "\r\n </tb>"),
        lambda text: text.replace('name="x"', 'name="a &amp; b"'),
        lambda text: text.replace("/>", "></step>"),
        lambda text: text.replace("<step", "<step " + " ".join(f'a{k}="0"' for k in range(6)), 1),
    ],
)
def test_text_that_the_lexers_read_is_proven(change) -> None:
    assert codes(change(local(COPIES)), "executor") == []


def test_the_place_of_foreign_text_is_named() -> None:
    with pytest.raises(SleyError) as caught:
        proven(broken(8, 'cnt="2"', "cnt='2'"), "executor", file="x.xml")
    (place,) = caught.value.diagnostics[0].places
    assert (place.file, place.line, place.column) == ("x.xml", 8, 7)


@pytest.mark.parametrize(
    ("target", "header", "code"),
    [
        ("executor", {"inplace": None}, "F406"),
        ("executor", {"outofplace": None}, "F406"),
        ("executor", {"minBytes": None}, "F406"),
        ("executor", {"maxBytes": None}, "F406"),
        ("executor", {"name": None}, None),
        ("msccl", {"name": None}, "F406"),
        ("msccl", {"inplace": None}, "F406"),
        ("msccl", {"outofplace": None, "minBytes": None, "maxBytes": None}, None),
        ("executor", {"outofplace": 0}, "F463"),
        ("msccl", {"outofplace": 0}, None),
        ("executor", {"minBytes": 4096, "maxBytes": 4095}, "F463"),
        ("executor", {"minBytes": 4096, "maxBytes": 4096}, None),
        ("msccl", {"minBytes": 4096, "maxBytes": 4096}, "F463"),
        ("msccl", {"maxBytes": 0}, "F463"),
        ("msccl", {"nthreads": 100}, "F422"),
        ("executor", {"nthreads": 100}, None),
        ("executor", {"coll": "reduce_scatter"}, "F443"),
        ("msccl", {"coll": "reducescatter"}, "F443"),
        ("msccl", {"coll": "reduce_scatter"}, None),
        ("executor", {"coll": "custom"}, "F443"),
        ("executor", {"nchannels": 33}, "F444"),
        ("rccl", {"nchannels": 33}, None),
    ],
)
def test_the_header_is_read_by_the_targets_rules(target: str, header, code: str | None) -> None:
    found = codes(local(COPIES, **header), target)
    assert code in found if code else found == []


def test_declared_sizes_are_compared_as_the_parsers_do() -> None:
    small = local(COPIES).replace('i_chunks="2"', 'i_chunks="1"')
    assert codes(small, "executor") == ["F464"]
    large = local(COPIES).replace('i_chunks="2"', 'i_chunks="3"')
    assert codes(large, "executor") == []
    assert codes(large, "msccl") == ["F464"]


def test_idle_gpus_and_half_connections_are_refused() -> None:
    text = re.sub(r"<tb.*</tb>", "", local(COPIES), flags=re.DOTALL)
    assert codes(text, "executor") == ["F436"]
    half = VALID.replace('<tb id="1" send="-1"', '<tb id="1" send="1"').replace(
        'recv="-1" chan="0"', 'recv="-1" chan="1"'
    )
    assert codes(half, "executor") == ["F417"]


def test_two_blocks_on_a_connection_are_refused_even_if_one_sends_nothing() -> None:
    text = VALID.replace('<tb id="1" send="-1"', '<tb id="1" send="1"')
    assert codes(text, "executor") == ["V202"]
    msccl_xml.read(text)


def test_the_targets_limits_hold_for_files() -> None:
    steps = [step(k, "cpy", "i0", "o0", cnt=2) for k in range(65)]
    assert codes(local(block(0, *steps)), "executor") == ["F444"]
    assert codes(local(block(0, *steps)), "msccl") == []
    assert codes(local(COPIES, chunks=72).replace('cnt="1"', 'cnt="72"', 1), "executor") == ["F444"]


def test_both_places_are_proven_and_one_can_be_chosen() -> None:
    both = msccl_xml.write(exchange(False), "executor").replace('inplace="0"', 'inplace="1"')
    places = [proof.plan.collective.in_place for proof in proven(both, "executor")]
    assert places == [True, False]
    assert [p.plan.collective.in_place for p in proven(both, "executor", in_place=False)] == [False]
    assert codes(VALID, "executor", in_place=True) == ["F463"]


def test_a_file_that_is_right_in_one_of_its_places_only_is_refused() -> None:
    text = msccl_xml.write(exchange(), "executor")
    assert codes(text, "executor") == []
    assert codes(text.replace('outofplace="0"', 'outofplace="1"'), "executor") != []


def about(proof: sley.Proof, word: str) -> list[str]:
    return [c.text for c in proof.conditions if c.about == word]


def test_the_conditions_name_sizes_calls_and_roots() -> None:
    (proof,) = proven(msccl_xml.write(exchange(), "executor", max_bytes="1M"), "executor")
    assert about(proof, "sizes") == ["0 to 1M, in elements a multiple of 2"]
    assert about(proof, "calls") == ["sum, prod, min or max"]
    plan = sley.compile(sley.algorithms.build("flat-broadcast", ranks=3, root=1))
    (proof,) = proven(msccl_xml.write(plan, "executor"), "executor")
    assert about(proof, "root") == ["root 1"]
    assert about(proof, "calls") == ["no call with another root, which executor does not check"]


def deep(proto: str = "Simple", **header: object) -> str:
    """An AllGather of two ranks that send all before they receive: a message of 8 chunks each."""

    def rank(own: int) -> str:
        peer = 1 - own
        half = [step(0, "cpy", "i0", f"o{8 * own}", cnt=8), step(1, "s", "i0", "i0", cnt=8)]
        half.append(step(2, "r", f"o{8 * peer}", f"o{8 * peer}", cnt=8))
        sizes = 'i_chunks="8" o_chunks="16" s_chunks="0"'
        return f'<gpu id="{own}" {sizes}>{block(0, *half, send=peer, recv=peer)}</gpu>'

    text = local(COPIES, proto=proto, ngpus=2, coll="allgather", chunks=16, **header)
    return re.sub(r"<gpu.*</gpu>", rank(0) + rank(1), text, flags=re.DOTALL)


def test_messages_take_one_slot_while_the_sizes_keep_them_small() -> None:
    """A slot of Simple holds 2 MiB: 8 chunks of a 16th of 4 MiB."""
    (proof,) = proven(deep(maxBytes=4 << 20), "rccl")
    assert not proof.per_chunk
    assert about(proof, "slots") == ["2 slots or more, one for each message"]
    assert about(proof, "slot sizes") == ["slots of 2M bytes or more, for messages of 8 chunks"]
    assert codes(deep(maxBytes=(4 << 20) + 1), "rccl") == ["V203"]
    assert codes(deep(maxBytes=0), "rccl") == ["V203"]


def test_a_hang_of_large_calls_alone_names_the_size_and_the_slots(tmp_path: Path) -> None:
    def refusal(**header: object) -> Diagnostic:
        file = tmp_path / "deep.xml"
        file.write_text(deep(**header), "utf-8")
        with pytest.raises(SleyError) as caught:
            sley.verify_file(file, "rccl")
        (found,) = caught.value.diagnostics
        return found

    found = refusal(maxBytes=0)
    waits = "waits for a free slot"
    assert [note for note in found.notes if waits not in note and "comes after" not in note] == [
        "the plan does not hang with 8 slots or more",
        "it does not hang in calls up to 4M, where every message takes one slot",
    ]
    assert "--max-bytes 4M" in found.remedy
    assert codes(deep(maxBytes=0), "rccl", max_bytes=4 << 20) == []
    assert "in calls" not in refusal(minBytes=8 << 20, maxBytes=0).notes[-1]


def test_a_hang_of_what_a_file_means_names_the_targets_whose_calls_are_small(tmp_path) -> None:
    file = tmp_path / "deep.xml"

    def remedy(most: int) -> str:
        file.write_text(deep(minBytes=0, maxBytes=most), "utf-8")
        with pytest.raises(SleyError, match="V203") as caught:
            sley.verify_file(file)
        shown = CliRunner().invoke(main, ["verify", str(file)]).output
        assert caught.value.diagnostics[0].remedy in shown
        return caught.value.diagnostics[0].remedy

    assert "--target" not in remedy(0)
    command, _, names = remedy(4 << 20).partition(" --target ")
    assert command.endswith(f"sley verify {file}")
    assert names == "executor. With the sizes of its calls it is proven for executor, rccl, msccl."
    assert codes(file.read_text("utf-8"), "executor") == []


def test_the_user_can_name_the_sizes_of_calls_and_slots() -> None:
    (proof,) = proven(deep(maxBytes=0), "rccl", max_bytes=1 << 20)
    assert about(proof, "sizes") == ["0 to 1M, in elements a multiple of 16"]
    assert codes(deep(maxBytes=4 << 20), "rccl", slot_bytes=1 << 20) == ["V203"]
    assert codes(deep(maxBytes=8 << 20), "rccl", slot_bytes=4 << 20) == []
    assert codes(deep(maxBytes=0), "rccl", max_bytes=0) == ["F451"]
    assert codes(deep("LL", maxBytes=64 << 10), "executor", slots=2) == []
    assert codes(deep("LL", maxBytes=64 << 10), "rccl", slots=2) == ["V203"]


def test_a_range_without_a_size_that_the_chunks_divide_is_refused() -> None:
    assert codes(deep(minBytes=1001, maxBytes=1007), "rccl") == ["F463"]
    assert codes(deep(minBytes=1001, maxBytes=1008), "rccl") == []
    assert codes(deep(minBytes=1001, maxBytes=4096), "rccl", max_bytes=1007) == ["F463"]


@pytest.mark.parametrize("inplace", [0, 1])
def test_a_write_to_the_input_names_the_attribute_of_the_place(inplace: int) -> None:
    text = local(block(0, step(0, "cpy", "i0", "o0", cnt=2), step(1, "cpy", "o0", "i0")))
    with pytest.raises(SleyError) as caught:
        proven(text.replace('inplace="0"', f'inplace="{inplace}"'), "executor")
    (found,) = caught.value.diagnostics
    assert found.code == "F454"
    assert ('outofplace="0"' in found.remedy) == bool(inplace)


def test_a_custom_collective_must_be_that_of_the_file() -> None:
    wanted = sley.Custom("mine", 1, 2, 2, lambda r, i: [(r, i)], chunks=2)
    text = local(COPIES, coll="custom", inplace=0)
    assert codes(text, "msccl") == ["F409"]
    assert codes(text, "msccl", collective=wanted) == []
    other = sley.Custom("mine", 1, 2, 2, lambda r, i: [(r, i)])
    assert codes(text, "msccl", collective=other) == ["F424"]
    assert codes(local(COPIES), "msccl", collective=wanted) == ["F424"]


EXAMINED = {
    "hasdep.xml": ["F466"],
    "bad_hang_1.xml": ["F466"],
    "bad_hang(silent_wait)_1.xml": ["F466"],
    "mixed.xml": ["F467"],
    "chain.xml": ["F465"],
    "longblk.xml": ["F444"],
    "both.xml": ["F454"],
    "winput.xml": ["F454"],
    "selfcopy.xml": [],
}


@pytest.mark.parametrize("name", EXAMINED)
def test_what_a_runtime_hangs_at_or_computes_wrongly_is_refused(name: str, data_dir: Path) -> None:
    path = data_dir / "examined" / name
    try:
        sley.verify_file(path, "executor")
        found = []
    except SleyError as error:
        found = [diagnostic.code for diagnostic in error.diagnostics]
    assert list(dict.fromkeys(found)) == EXAMINED[name]
    msccl_xml.read(path)


def test_vendors_files_are_proven_for_their_runtimes(data_dir: Path) -> None:
    folder = data_dir / "msccl-xml"
    for path in sorted(folder.glob("*.xml")):
        for target in ("executor", "msccl", *(["rccl"] if path.name.startswith("rccl") else [])):
            sley.verify_file(path, target)


@pytest.mark.parametrize(
    ("name", "parameters", "target"),
    of_each_collective(in_turn(list(TARGETS), cases_in_a_place(SIZED))),
    ids=label,
)
def test_what_sley_writes_is_proven_for_its_target(name: str, parameters, target: str) -> None:
    plan = sley.compile(program(name, parameters), per_chunk=True, verify=False)
    if plan.collective.name not in TARGETS[target].collectives:
        target = "msccl"  # the only one with custom collectives
    is_custom = plan.collective.name not in TARGETS[target].collectives
    settings = {"collective": plan.collective} if is_custom else {}
    text = msccl_xml.write(plan, target)
    (proof,) = proven(text, target, **settings)
    assert proof.plan.collective == plan.collective


def test_many_waits_of_a_step_are_read_back() -> None:
    for target in TARGETS:
        (proof,) = proven(msccl_xml.write(many_waits(), target), target)
        assert len(proof.plan.waits) == len(many_waits().waits)


def test_every_rule_of_runtimes_is_tested() -> None:
    text = Path(__file__).read_text()
    rules = [code for code in all_rules() if code in ("F417", "F436") or "F462" <= code <= "F468"]
    assert [code for code in rules if f'"{code}"' not in text] == []
