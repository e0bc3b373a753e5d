"""Plan files: equal plans on any Python, codes for damaged files, and no trust in their proofs."""

from __future__ import annotations

import random
import resource
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.cli.main import main
from sley.errors import Place
from sley.formats import read
from sley.formats.plan_file import decode, encode
from sley.ir.plan import Estimate, Plan
from sley.ir.plan_digest import columns_of, digest
from sley.ir.tables import Edges, Table
from sley.report.pictures import block_picture
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.mutants.damage import columns_at, damaged, header, sealed, swapped, with_header

A = sley.algorithms
VERSION_1 = Path(__file__).parent / "golden" / "version-1.0.plan"
"""A file that sley wrote on Python 3.11, see `test_files_of_version_1_stay_readable`."""


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, column by column, types included."""
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, (Table, Edges)) or not hasattr(one, "__dataclass_fields__"):
        return bool(one == two)
    return all(same(getattr(one, f), getattr(two, f)) for f in one.__dataclass_fields__)


def content_of(plan: Plan) -> bytes:
    """A file of a plan, which may be wrong."""
    return sealed(encode(plan))


def hm() -> Plan:
    """A plan with a topology, an estimate and sub-pipelines."""
    program = A.build("hm-allreduce", nodes=2, gpus=2)
    topology = replace(sley.Topology.cluster(2, 2), accuracy="fitted")
    return sley.compile(program, schedule="hpds", allocate="state", topology=topology)


PLANS: dict[str, Callable[[], Plan]] = {
    "ring": lambda: sley.compile(A.ring_allreduce(4, in_place=True)),
    "with a topology and an estimate": hm,
    "with groups": lambda: sley.compile(A.build("nvls-allreduce", nodes=1, gpus=3)),
    "with a root and scratch": lambda: sley.compile(A.build("binomial-reduce", ranks=5, root=3)),
    "of varying counts": lambda: sley.compile(A.build("all-pairs-alltoallv", ranks=3)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_loaded_plan_equals_the_saved_one(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    sley.save(plan, tmp_path / "x.plan", recipe={"what": name})
    loaded = sley.load(tmp_path / "x.plan")
    assert loaded == plan
    assert same(loaded, plan)
    assert digest(loaded) == digest(plan)
    assert read(tmp_path / "x.plan").recipe == {"what": name}
    assert str(sley.verify(loaded)) == str(sley.verify(plan))


@given(
    random=random_programs(directives=False),
    options=st.sampled_from([{}, {"schedule": "hpds", "allocate": "state"}]),
)
@examples(10)
def test_a_plan_comes_back_from_its_bytes(random: RandomProgram, options: dict[str, Any]) -> None:
    plan = sley.compile(random.program, **options, verify=False)
    again = decode(encode(plan))
    assert same(plan, again)
    assert encode(again) == encode(plan)
    assert digest(again) == digest(plan)


def test_digests_tell_plans_apart_by_what_they_do() -> None:
    def make(**options: Any) -> Plan:
        return sley.compile(A.all_pairs_allreduce(4, in_place=True), **options)

    plan = make()
    assert digest(plan) == digest(replace(plan, name="another name"))
    assert digest(plan) == digest(make(topology="1x4"))
    t = plan.instructions
    moved = replace(t, src_index=np.where(np.arange(len(t)) == 3, 1, t.src_index))
    others = [
        make(protocol="Direct"),
        make(slots=4),
        replace(plan, instructions=moved),
        replace(plan, waits=Edges.empty(len(t))),
        sley.compile(A.all_pairs_allreduce(4)),
    ]
    assert len({digest(p) for p in (plan, *others)}) == len(others) + 1


def test_files_say_whether_counts_vary() -> None:
    def pairs(p: sley.lang.ChunkProgram) -> None:
        rank = np.arange(2)
        p.chunk(rank, "in", rank).copy(rank, "out", rank)
        p.chunk(rank, "in", 1 - rank).copy(1 - rank, "out", rank)

    makes = [sley.AllToAll(2), sley.AllToAllV(2), sley.AllToAllV(2, max_count=10)]
    plans = [sley.compile(sley.trace(make, pairs, name="pairs")) for make in makes]
    for plan in plans:
        assert same(decode(encode(plan)), plan)
    assert len(set(map(digest, plans))) == len(plans)


def test_files_of_version_1_stay_readable(tmp_path: Path) -> None:
    """The file is a plan of HM AllReduce of version 1.0, which lacks the GPUs' architecture, and
    has one least slice for all protocols."""
    cluster = sley.Topology.cluster(2, 2)
    model = replace(cluster.model, least_slice_bytes=16 << 10)
    plan = sley.load(VERSION_1)
    assert isinstance(plan, Plan)
    assert (plan.name, plan.topology, plan.sources.files) == (
        "hm-allreduce",
        replace(cluster, model=model),
        ("hm.py",),
    )
    assert plan.estimate is not None
    sley.save(plan, tmp_path / "x.plan", recipe=read(VERSION_1).recipe)
    assert sley.load(tmp_path / "x.plan") == plan
    assert sley.verify(plan).slots == plan.slots
    assert sley.simulate(plan, "1M").time_us > 0
    assert b"<svg" in block_picture(plan).svg()
    assert sley.lift(plan).collective == plan.collective
    out = sley.execute(plan, [np.full(8, rank, np.float32) for rank in range(4)])
    assert all((one == 6).all() for one in out)


# Paths.


def test_files_name_no_folder_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "ring.py").write_text("")
    monkeypatch.chdir(here)
    package = Path(sley.__file__).parent / "algorithms" / "rings.py"
    names = [str(here / "ring.py"), str(package), "own.py", "<stdin>"]
    hidden = [str(elsewhere / "a.py"), "../elsewhere/b.py"]
    plan = sley.compile(A.ring_allreduce(2))

    def with_files(files: list[str]) -> Plan:
        caller = Place(files[0], 3)
        whole = Place(files[0], 1, caller=caller)
        sources = replace(plan.sources, files=tuple(files * 2), whole=whole)
        return replace(plan, sources=sources)

    data = encode(with_files([*names, *hidden]))
    for folder in (str(tmp_path), "elsewhere", str(package.parents[2])):
        assert folder.encode() not in data
    loaded = decode(encode(with_files(names)))
    assert loaded == with_files(names)
    assert decode(data).sources.files[4:6] == ("a.py", "b.py")
    monkeypatch.chdir(elsewhere)  # on another machine the folder is not there
    assert decode(data).sources.files[:4] == ("ring.py", *names[1:])
    monkeypatch.chdir("/")
    assert str(tmp_path).encode() not in encode(with_files(names))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.py", "<sley>/../../x.py", "a\nb", 3])
def test_files_cannot_name_other_places(refusal: Callable[[bytes], str], name: object) -> None:
    data = content_of(PLANS["ring"]())
    head = header(data)
    head["files"][0] = name
    assert refusal(with_header(data, head)) == "F425"


# Versions and recognition.


def test_a_newer_major_version_is_refused(refusal: Callable[[bytes], str]) -> None:
    data = content_of(PLANS["ring"]())
    newer = sealed(data[:8] + b"\2\0" + data[10:])
    assert refusal(newer) == "F426"
    assert refusal(data[:9] + b"\1" + data[10:]) == "F426"  # whatever else the file has
    assert refusal(sealed(data[:8] + b"\0\0" + data[10:])) == "F425"


def test_a_newer_minor_version_may_add_what_is_ignored(
    loaded_of: Callable[[bytes], Plan],
) -> None:
    plan = hm()
    data = content_of(plan)
    head = header(data)
    head["note"] = head["plan"]["note"] = head["topology"]["model"]["note"] = [1]
    head["columns"].append(["instructions.note", "<i4", 2])
    newer = with_header(data, head, bytes(8))
    assert loaded_of(sealed(newer[:10] + b"\7\0" + newer[12:])) == plan


def test_parameters_that_an_earlier_version_did_not_write_are_told(tmp_path: Path) -> None:
    data, file = content_of(hm()), tmp_path / "old.plan"
    head = header(data)
    del head["topology"]["model"]["multiprocessors"]
    for content, told in ((with_header(data, head), ["F434"]), (data, [])):
        file.write_bytes(content)
        notes = read(file).notes
        assert [note.code for note in notes] == told
        assert all("without multiprocessors: defaults" in note.found for note in notes)


def test_a_file_is_recognised_by_its_content(tmp_path: Path) -> None:
    plan = PLANS["ring"]()
    sley.save(plan, tmp_path / "x.plan")
    (tmp_path / "x.xml").write_bytes((tmp_path / "x.plan").read_bytes())
    assert sley.load(tmp_path / "x.xml") == plan
    for content, code, found in (
        (b"", "F550", "an empty file"),
        (b"hello\n" * 9, "F550", "a text of another kind"),
        (b"\0\1", "F425", "another beginning"),
        (b"sley", "F425", "another beginning"),
        (b"<algo", "F401", ""),
    ):
        (tmp_path / "x.plan").write_bytes(content)
        with pytest.raises(sley.SleyError) as error:
            sley.load(tmp_path / "x.plan")
        assert error.value.code == code
        assert found in str(error.value)
    with pytest.raises(sley.SleyError, match="F404"):
        sley.load(tmp_path / "missing.plan")


def test_other_settings_and_values_are_refused(tmp_path: Path) -> None:
    sley.save(PLANS["ring"](), tmp_path / "x.plan")
    for settings in ({"in_place": True}, {"slots": 3}):
        with pytest.raises(sley.SleyError, match="C309"):
            sley.load(tmp_path / "x.plan", **settings)
    with pytest.raises(sley.SleyError, match="C307"):
        sley.save(A.ring_allreduce(2), tmp_path / "y.plan")
    wrong = replace(PLANS["ring"](), estimate=Estimate(1.0, 1.0, np.zeros(1), 1))
    with pytest.raises(sley.SleyError, match="V201"):
        sley.save(wrong, tmp_path / "y.plan")
    assert not (tmp_path / "y.plan").exists()


# Damage.


@pytest.fixture
def loaded_of(tmp_path: Path) -> Callable[[bytes], Plan]:
    """Loads a file with these bytes."""

    def load(data: bytes) -> Plan:
        (tmp_path / "bytes.plan").write_bytes(data)
        loaded = sley.load(tmp_path / "bytes.plan")
        assert isinstance(loaded, Plan)
        return loaded

    return load


@pytest.fixture
def refusal(loaded_of: Callable[[bytes], Plan]) -> Callable[[bytes], str]:
    """The code that refuses a file with these bytes; "" for none."""

    def code(data: bytes) -> str:
        try:
            loaded_of(data)
        except sley.SleyError as error:
            return error.code
        return ""

    return code


def check_damage(loaded_of: Callable[[bytes], Plan], files: int, seed: int) -> Counter[str]:
    """What becomes of damaged files: each is refused with a code when it is read or proven, or has
    an equal plan, or one that is right too, as after a change of its name."""
    plans = [make() for make in PLANS.values()]
    data = [content_of(plan) for plan in plans]
    chance, found = random.Random(seed), Counter[str]()
    for _ in range(files):
        one, other = chance.sample(data, 2)
        try:
            plan = loaded_of(damaged(one, other, chance))
        except sley.SleyError as error:
            assert str(error)
            found[error.code] += 1
            continue
        try:
            sley.verify(plan)
        except sley.SleyError as error:
            assert str(error)
            found[f"proof {error.code}"] += 1
            continue
        found["equal" if plan in plans else "right"] += 1
        assert (plan in plans) or bool(plan.places(range(len(plan.instructions))))
    return found


def test_damaged_files_are_refused_with_a_code(loaded_of: Callable[[bytes], Plan]) -> None:
    found = check_damage(loaded_of, 400, seed=0)
    assert found["F425"] > 200
    assert found["proof V201"] > 10


@pytest.mark.slow
def test_20000_damaged_files_are_refused_with_a_code(loaded_of: Callable[[bytes], Plan]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = check_damage(loaded_of, 20_000, seed=1)
    assert found["F425"] > 10_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 150 << 10  # KiB


HUGE = 2**31 - 1
MOST_BYTES = 4 << 20
"""Of a small file: the recognition of its content takes 1 MiB."""


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["columns"][0].__setitem__(2, HUGE),
        lambda head: head["plan"]["collective"].__setitem__(1, HUGE),
        lambda head: head["plan"]["collective"].__setitem__(2, 1 << 22),
        lambda head: head.__setitem__("columns", [["plan.note", "<i8", HUGE]] * 9),
        lambda head: head["plan"].__setitem__("times", [10**400, 1, 1]),
    ],
    ids=["rows", "ranks", "chunks", "further columns", "times"],
)
def test_sizes_are_checked_before_memory_is_taken(
    loaded_of: Callable[[bytes], Plan], change: Callable[[dict[str, Any]], None]
) -> None:
    data = content_of(PLANS["ring"]())
    head = header(data)
    change(head)
    tracemalloc.start()
    try:
        with pytest.raises(sley.SleyError, match=r"F425|L118"):
            sley.verify(loaded_of(with_header(data, head)))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "column", ["collective.input_base", "plan.scratch_chunks", "vertices.node", "sources.caller"]
)
def test_huge_numbers_in_columns_take_no_memory(
    loaded_of: Callable[[bytes], Plan], column: str
) -> None:
    plan = replace(PLANS["ring"](), topology=sley.Topology.cluster(1, 4))
    data = content_of(plan)
    at, size = columns_at(data)[column]
    wrong = sealed(data[:at] + b"\xff\xff\xff\x7f" * (size // 4) + data[at + size :])
    tracemalloc.start()
    try:
        with pytest.raises(sley.SleyError, match=r"F425|T601"):
            loaded_of(wrong)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_every_changed_bit_is_found(refusal: Callable[[bytes], str]) -> None:
    data = content_of(PLANS["ring"]())
    for at in range(28, len(data), 61):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert refusal(bytes(changed)) == "F425"


@pytest.mark.parametrize("column", ["src_buffer", "dst_buffer", "send_peer", "recv_peer"])
def test_what_an_instruction_does_not_use_must_exist_too(
    refusal: Callable[[bytes], str], column: str
) -> None:
    """Pictures, lifting and kernels read it without a look at the operation."""
    plan = PLANS["ring"]()
    values = getattr(plan.instructions, column).copy()
    values[np.flatnonzero(values < 0)] = 100
    wrong = replace(plan, instructions=replace(plan.instructions, **{column: values}))
    assert refusal(content_of(wrong)) == "F425"


def test_lines_that_call_one_another_in_a_circle_are_refused(
    refusal: Callable[[bytes], str],
) -> None:
    data = content_of(PLANS["ring"]())
    at, size = columns_at(data)["sources.caller"]
    assert refusal(sealed(data[:at] + bytes(size) + data[at + size :])) == "F425"


# The proof.

SWAPS = [
    ("instructions.send_peer", "instructions.recv_peer"),
    ("instructions.src_index", "instructions.dst_index"),
    ("instructions.src_index", "instructions.channel"),
    ("instructions.src_buffer", "instructions.dst_buffer"),
]


@pytest.mark.parametrize("columns", SWAPS, ids=" ".join)
def test_a_wrong_plan_in_a_whole_file_is_refused_by_the_proof(
    columns: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.plan"
    plan = sley.compile(A.ring_allreduce(4), topology="1x4")
    path.write_bytes(swapped(content_of(plan), *columns))
    loaded = sley.load(path)
    assert isinstance(loaded, Plan)
    calls: list[Callable[[], object]] = [
        lambda: sley.verify(loaded),
        lambda: sley.verify_file(path),
        lambda: sley.run(loaded, 1024),
        lambda: sley.execute(loaded, [np.zeros(8, np.float32)] * 4),
        lambda: sley.save(loaded, tmp_path / "wrong.xml"),
    ]
    for call in calls:
        with pytest.raises(sley.SleyError, match=r"V2\d\d"):
            call()
    picture = ["-o", str(tmp_path / "wrong.svg")]
    for command, *more in (["verify"], ["simulate"], ["run"], ["draw", *picture], ["lift"]):
        with pytest.raises(SystemExit) as end:
            main([command, str(path), *more])
        assert end.value.code == 1
        assert " V2" in capsys.readouterr().err


# Size.


def check_memory(plan: Plan, folder: Path) -> None:
    """Writing copies no column, and reading needs little more than the file."""
    columns = sum(values.nbytes for _, values in columns_of(plan))
    path = folder / "large.plan"
    tracemalloc.start()
    try:
        sley.save(plan, path)
        assert tracemalloc.get_traced_memory()[1] < 0.2 * columns
        tracemalloc.reset_peak()
        loaded = sley.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * columns
    finally:
        tracemalloc.stop()
    assert path.stat().st_size < 1.1 * columns
    assert loaded == plan


def test_a_large_file_needs_the_memory_of_its_columns_once(tmp_path: Path) -> None:
    check_memory(sley.compile(A.ring_allgather(128), verify=False), tmp_path)


@pytest.mark.slow
def test_1024_gpus_need_the_memory_of_the_columns_once(tmp_path: Path) -> None:
    program = A.build("hm-allreduce", nodes=128, gpus=8)
    check_memory(sley.compile(program, verify=False), tmp_path)
