"""A folder of user plans: matching plans are used; invalid ones are reported and affect no
others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sley
from sley.communicator.selection.kinds import Request
from sley.communicator.selection.plans import Plans
from sley.ir.words import Protocol
from support.inputs.schedule_files import taccl_schedule
from support.mutants.damage import swapped
from support.processes.call_cases import hosts_of

PROGRAM = """\
import sley


@sley.program(sley.AllReduce({ranks}, {ranks}, in_place=True))
def own_ring(p):
    for index in range({ranks}):
        c = p.chunk((index + 1) % {ranks}, "in", index)
        for step in range(1, {ranks}):
            c = p.chunk((index + 1 + step) % {ranks}, "in", index).reduce(c)
        for step in range(1, {ranks}):
            c = c.copy((index + step) % {ranks}, "in", index)
"""
TEXT = """\
ResCCLAlgo(nRanks={ranks}, AlgoName="own-text", OpType="Allgather"):
    for r in range(nRanks):
        for step in range(nRanks - 1):
            transfer(r, (r + 1) % nRanks, step, (r - step) % nRanks, recv)
"""


def plans(folder: Path) -> Plans:
    return Plans(hosts_of(4), slots=8, channels=8, plan_dir=folder, cache=False)


def name(found: Plans, kind: str, size: int = 1000, **options: Any) -> str:
    return found.find(kind, size, **options).plan.name


def codes(found: Plans) -> list[str]:
    return [problem.code for problem in found.problems]


def test_programs_texts_and_xml_are_registered(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    (tmp_path / "gather.resccl").write_text(TEXT.format(ranks=4))
    scatter = sley.compile(sley.algorithms.ring_reducescatter(4, in_place=True), per_chunk=True)
    sley.save(scatter, tmp_path / "scatter.xml", min_bytes=512, max_bytes=4096)
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "_module.py").write_text("this is no Python")
    found = plans(tmp_path)
    assert found.problems == ()
    assert name(found, "all_reduce", in_place=True) == "own-ring"
    assert name(found, "all_reduce") == "one-step-allreduce"
    assert name(found, "all_gather") == name(found, "all_gather", in_place=True) == "own-text"
    for size, own in ((511, False), (512, True), (4096, True), (4097, False)):
        is_own = name(found, "reduce_scatter", size, in_place=True) == "ring-reducescatter"
        assert is_own == own


def test_plan_files_are_for_the_place_and_the_ranks_of_their_plan(tmp_path: Path) -> None:
    for in_place in (True, False):
        plan = sley.compile(sley.algorithms.ring_allgather(4, in_place=in_place), topology="1x4")
        sley.save(plan, tmp_path / f"gather-{in_place}.plan")
    sley.save(sley.compile(sley.algorithms.ring_allgather(3)), tmp_path / "three.plan")
    data = (tmp_path / "three.plan").read_bytes()
    (tmp_path / "cut.plan").write_bytes(data[:-8])
    (tmp_path / "wrong.plan").write_bytes(
        swapped((tmp_path / "gather-True.plan").read_bytes(), *SWAPPED)
    )
    found = plans(tmp_path)
    assert name(found, "all_gather") == name(found, "all_gather", in_place=True) == "ring-allgather"
    assert [code[:2] for code in codes(found)] == ["F4", *["V2"] * (len(found.problems) - 1)]
    assert {str(one.places[0]) for one in found.problems[:1]} == {str(tmp_path / "cut.plan")}
    assert len(found.problems) > 1


SWAPPED = ("instructions.src_index", "instructions.channel")


def test_a_file_is_what_its_content_is(tmp_path: Path) -> None:
    (tmp_path / "gather.txt").write_text(TEXT.format(ranks=4))
    scatter = sley.compile(sley.algorithms.ring_reducescatter(4, in_place=True), per_chunk=True)
    sley.save(scatter, tmp_path / "scatter.xml")
    (tmp_path / "scatter.xml").rename(tmp_path / "scatter.json")
    pairs = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    sends = [[dst * 4 + src, src, dst, 0, 0] for src, dst in pairs]
    (tmp_path / "steps.sccl.json").write_text(taccl_schedule("Alltoall(n=4)", 4, [sends]))
    (tmp_path / "shapes.txt").write_text("import shapes\n\nraise OSError('it runs')\n")
    (tmp_path / "README.md").write_text(SCRIPT)
    (tmp_path / "machine.toml").write_text("gpus = 8\n")
    found = plans(tmp_path)
    assert found.problems == ()
    assert name(found, "all_gather") == name(found, "all_gather", in_place=True) == "own-text"
    assert name(found, "reduce_scatter", in_place=True) == "ring-reducescatter"
    assert name(found, "all_to_all") == "steps.sccl"
    (tmp_path / "empty").mkdir()
    made = plans(tmp_path / "empty")
    assert len(made.register(tmp_path / "steps.sccl.json")) == 1
    for file, code in (("machine.toml", "F550"), ("missing.txt", "F404")):
        with pytest.raises(sley.SleyError) as caught:
            made.register(tmp_path / file)
        assert caught.value.code == code


SCRIPT = "from msccl.language import *\nraise OSError('it runs')\n"


@pytest.mark.parametrize("text", [SCRIPT, "import shapes\nraise OSError('it runs')\n"])
def test_only_files_with_names_of_python_are_run(tmp_path: Path, text: str) -> None:
    for file in ("a.xml", "notes.txt"):
        (tmp_path / file).write_text(text)
    (tmp_path / "plans.toml").write_text('[[plans]]\nwhat = "notes.txt"\n')
    assert codes(plans(tmp_path)) == ["N653", "N653"]


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(f"import msccl\n{PROGRAM.format(ranks=4)}")
    (tmp_path / "machine.xml").write_text("<system version='1'></system>")
    (tmp_path / "damaged.xml").write_text("<alg")
    found = plans(tmp_path)
    assert codes(found) == ["F401", "F550", "L115"]
    assert found.problems[1].found == "a topology in NCCL's XML"


def test_the_table_gives_sizes_and_options(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    (tmp_path / "gather.resccl").write_text(TEXT.format(ranks=4))
    (tmp_path / "plans.toml").write_text(
        '[[plans]]\nwhat = "ring.py"\nmin_bytes = "1K"\nmax_bytes = 2048\n'
        'options = { protocol = "direct", instances = 2 }\n'
        '[[plans]]\nwhat = "gather.resccl"\nin_place = true\n'
    )
    found = plans(tmp_path)
    assert found.problems == ()
    sizes = (1023, 1024, 2048, 2049)
    names = [name(found, "all_reduce", size, in_place=True) == "own-ring" for size in sizes]
    assert names == [False, True, True, False]
    plan = found.find("all_reduce", 1024, in_place=True).plan
    assert plan.protocol is Protocol.DIRECT
    assert plan.channels == 2
    assert name(found, "all_gather", in_place=True) == "own-text"
    assert name(found, "all_gather") != "own-text"


def test_a_bad_file_does_not_disable_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "b.xml").write_text("<algo")
    (tmp_path / "c.resccl").write_text("what is this")
    (tmp_path / "d.py").write_text(PROGRAM.format(ranks=4).replace("(index + step)", "(index)"))
    (tmp_path / "e.py").write_text("x = 1")
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    found = plans(tmp_path)
    assert name(found, "all_reduce", in_place=True) == "own-ring"
    files = [Path(problem.places[0].file).name for problem in found.problems]
    assert sorted(set(files)) == ["a.py", "b.xml", "c.resccl", "d.py", "e.py"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ("SystemExit(3)", "L114", "sys.exit(3)"),
        ("type('Own', (BaseException,), {})('why')", "L114", "Own: why"),
        ("type('Mute', (Exception,), {'__str__': lambda error: 1 / 0})()", "L114", "Mute"),
    ],
)
def test_whatever_a_file_raises_is_reported(
    tmp_path: Path, error: str, code: str, words: str
) -> None:
    (tmp_path / "a.py").write_text(f"raise {error}")
    (problem,) = plans(tmp_path).problems
    assert (problem.code, problem.found) == (code, words)
    assert problem.places[0].line == 1


def test_ctrl_c_while_a_file_runs_is_not_a_problem_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        plans(tmp_path)


def test_plans_for_other_groups_are_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "eight.py").write_text(PROGRAM.format(ranks=8))
    found = plans(tmp_path)
    assert found.problems == ()
    lines = found.considered(Request("all_reduce", hosts_of(4), 10, True))
    assert "not eight.py: it is for allreduce(8 ranks, 8 chunks, in place)" in lines


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("min_byte = 1", "Did you mean min_bytes"),
        ('[[plans]]\nfile = "ring.py"', "Did you mean what, which names an algorithm or a file"),
        ('[[plans]]\nwhat = "rings.py"', "Did you mean ring.py"),
        ('min_bytes = "many"', "min_bytes = 'many'"),
        ("min_bytes = 2\nmax_bytes = 1", "max_bytes = 1"),
        ("in_place = 1", "plan 1.in_place"),
        ('root = "0"', "plan 1.root"),
        ("options = 3", "plan 1.options"),
        ('protocol = "LL"', "write options = { protocol = ... }"),
        ('["ring.py"]\nmin_bytes = 1', 'Write [[plans]], what = "ring.py"'),
        ("tile = 0.5", "no tile"),
        ("arguments = { in_place = true }", "an entry of the row"),
        ('collective = "allreduse"', "Did you mean allreduce"),
        ("plans = 3", "tables [[plans]]"),
        ("ring.py\n", "plans.toml:3:8"),
        ("a." * 16000 + "a = 1", "keys of up to 32 parts"),
        ("\xff", "a text file in UTF-8"),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path: Path, table: str, text: str) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    row = b'[[plans]]\nwhat = "ring.py"\n' * (not table.startswith(("[", "plans", "a.")))
    (tmp_path / "plans.toml").write_bytes(row + table.encode("latin-1"))
    found = plans(tmp_path)
    assert codes(found) == ["N653"]
    assert text in str(found.problems[0])
    assert name(found, "all_gather") == "all-pairs-allgather"


def test_without_a_readable_table_no_file_is_used(tmp_path: Path) -> None:
    """It may say that a plan is for some sizes alone."""
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    (tmp_path / "plans.toml").write_text('[[plans]]\nwhat = "ring.py"\nmin_bytes = "1M"')
    assert name(plans(tmp_path), "all_reduce", 1 << 20, in_place=True) == "own-ring"
    for broken in (
        '[[plans]\nwhat = "ring.py"',
        '[[plans]]\nwhat = "rings.py"',
        "a=" + "[" * 9999,
    ):
        (tmp_path / "plans.toml").write_text(broken)
        found = plans(tmp_path)
        assert codes(found) == ["N653"]
        assert "Correct plans.toml" in str(found.problems[0])
        assert name(found, "all_reduce", 1 << 20, in_place=True) != "own-ring"
    (tmp_path / "plans.toml").unlink()
    (tmp_path / "plans.toml").symlink_to(tmp_path / "elsewhere.toml")
    assert codes(plans(tmp_path)) == ["N653"]


def test_options_are_those_of_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    row = '[[plans]]\nwhat = "ring.py"\n'
    for options, code in (('protocol = "Simpel"', "C304"), ('protocoll = "Simple"', "C304")):
        (tmp_path / "plans.toml").write_text(f"{row}options = {{ {options} }}")
        found = plans(tmp_path)
        assert codes(found) == [code]
        assert "plans.toml, plan 1" in str(found.problems[0])


def test_a_row_may_name_an_algorithm(tmp_path: Path) -> None:
    """For the ranks of the communicator, and in both places, unless it says others."""
    rows = '[[plans]]\nwhat = "ring-allreduce"\nmin_bytes = "1M"\n'
    rows += '[[plans]]\nwhat = "binomial-broadcast"\nroot = 2\nin_place = true\n'
    rows += '[[plans]]\nwhat = "ring-allgather"\nranks = 8\n'
    rows += '[[plans]]\nwhat = "ring-allgathers"\n'
    (tmp_path / "plans.toml").write_text(rows)
    found = plans(tmp_path)
    assert codes(found) == ["L120"]
    for in_place in (True, False):
        assert name(found, "all_reduce", 1 << 20, in_place=in_place) == "ring-allreduce"
        assert name(found, "all_reduce", 1 << 10, in_place=in_place) != "ring-allreduce"
    roots = [name(found, "broadcast", in_place=True, root=root) for root in range(4)]
    assert roots == ["flat-broadcast"] * 2 + ["binomial-broadcast", "flat-broadcast"]
    assert name(found, "all_gather") != "ring-allgather"


def test_a_row_names_no_file_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "evil.py").write_text("raise OSError('it runs')")
    for outside in ("../evil.py", str(tmp_path / "evil.py"), "../evil.py:ring"):
        (tmp_path / "plans" / "plans.toml").write_text(f'[[plans]]\nwhat = "{outside}"\n')
        assert codes(plans(tmp_path / "plans")) == ["N653"], outside


def test_a_row_may_name_one_of_several_programs_of_a_file(tmp_path: Path) -> None:
    text = PROGRAM.format(ranks=4)
    (tmp_path / "two.py").write_text(text + text.replace("own_ring", "other_ring"))
    (tmp_path / "plans.toml").write_text('[[plans]]\nwhat = "two.py:other_ring"\n')
    found = plans(tmp_path)
    assert found.problems == ()
    assert name(found, "all_reduce", in_place=True) == "other-ring"


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "nowhere", tmp_path / "file", tmp_path / "empty"):
        found = plans(folder)
        assert codes(found) == ["N653"]
        assert name(found, "all_reduce") == "one-step-allreduce"


@pytest.mark.parametrize("folder", ["", "\0", b"plans", 5], ids=repr)
def test_a_path_that_names_no_folder_is_reported(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    monkeypatch.chdir(tmp_path)
    found = plans(folder)
    assert codes(found) == ["N653"]
    assert name(found, "all_reduce", in_place=True) != "own-ring"


def test_registered_plans_come_before_those_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(PROGRAM.format(ranks=4).replace("own_ring", "second"))
    (tmp_path / "a.py").write_text(PROGRAM.format(ranks=4).replace("own_ring", "first"))
    found = plans(tmp_path)
    assert name(found, "all_reduce", in_place=True) == "first"
    found.register(sley.algorithms.ring_allreduce(4, in_place=True))
    assert name(found, "all_reduce", in_place=True) == "ring-allreduce"


def test_a_file_of_a_users_program_is_registered(tmp_path: Path) -> None:
    (tmp_path / "ring.py").write_text(PROGRAM.format(ranks=4))
    found = Plans(hosts_of(4), cache=False)
    assert found.register(tmp_path / "ring.py", max_bytes="1K") == [
        "ring.py, allreduce(4 ranks, 4 chunks, in place), 0 to 1K"
    ]
    lines = found.register(f"{tmp_path / 'ring.py'}:own_ring")
    assert lines == ["ring.py:own_ring, allreduce(4 ranks, 4 chunks, in place), all sizes"]
    assert len(found.register("all-pairs-allreduce")) == 2, "in both places"


@pytest.mark.parametrize("arguments", ["foo = 1", "hosts = 3", "stage_channels = 3", "name = 'x'"])
def test_arguments_that_no_algorithm_has_are_a_problem_of_the_row(
    tmp_path: Path, arguments: str
) -> None:
    row = '[[plans]]\nwhat = "all-pairs-allreduce"\n'
    (tmp_path / "plans.toml").write_text(f"{row}arguments = {{ {arguments} }}\n")
    found = plans(tmp_path)
    assert codes(found) == ["L102" if "channels" in arguments else "L112"]
    assert name(found, "all_reduce") == "one-step-allreduce"
