"""Policies as values and files: what is written is read back, and everything else is refused."""

import io
import json
import os
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.algorithms import CATALOG
from sley.compiler import Options
from sley.errors import Place, SleyError
from sley.tuning.policy import Change, Decision, Machine, Measured, Policy, Range, read, write
from sley.tuning.policy.policy import TILES
from support.examples import examples

MACHINE = Machine("simulator", "ndv4:2", "f00d", 2, 8)
TEXTS = st.text("abc é→ .=-", max_size=6)
COLLECTIVES = ("allreduce", "allgather", "alltonext")


def decisions(collective):
    names = [a.name for a in CATALOG.values() if a.collective == collective]
    options = st.builds(
        Options,
        protocol=st.sampled_from(["LL", "LL128", "Simple", None]),
        instances=st.sampled_from([None, 1, 24]),
        max_blocks=st.sampled_from([None, 32]),
        slots=st.sampled_from([None, 2]),
        per_chunk=st.sampled_from([None, False, True]),
    )
    return st.builds(Decision, st.sampled_from(names), options, st.sampled_from(TILES))


@st.composite
def ranges(draw, collective):
    cuts = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=2, max_size=8)))
    made = []
    for begin, end in zip(cuts[::2], cuts[1::2], strict=False):
        times = st.floats(1e-3, 1e9)
        sizes = sorted(draw(st.sets(st.integers(max(begin, 1), end), max_size=3)))
        made.append(
            Range(
                begin,
                end,
                draw(decisions(collective)),
                tuple(Measured(size, draw(times), draw(times)) for size in sizes),
                tuple(draw(st.lists(decisions(collective), max_size=2))),
            )
        )
    return tuple(made)


policies = st.builds(
    Policy,
    st.just(MACHINE),
    st.fixed_dictionaries({}, optional={name: ranges(name) for name in COLLECTIVES}),
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.lists(
        st.builds(
            Change,
            st.integers(1, 1000),
            st.sampled_from(COLLECTIVES),
            st.integers(1, 1 << 40),
            TEXTS,
            TEXTS,
        ),
        max_size=2,
    ).map(tuple),
)


@examples(9)
@given(policies)
def test_a_policy_is_read_back_as_it_was_written(tmp_path_factory, policy):
    path = tmp_path_factory.mktemp("policy") / "policy.zip"
    write(policy, path)
    assert read(path) == policy
    first = path.read_bytes()
    write(read(path), path)
    assert path.read_bytes() == first, "equal policies give different files"


@examples(9)
@given(policies, st.sampled_from(COLLECTIVES), st.integers(0, 1 << 41))
def test_find_gives_the_rule_whose_range_has_the_size(policy, collective, size_bytes):
    covering = [
        one
        for one in policy.ranges.get(collective, ())
        if one.begin_bytes <= size_bytes <= one.end_bytes
    ]
    assert policy.find(collective, size_bytes) == (covering[0] if covering else None)


def text_of(policy, tmp_path):
    write(policy, tmp_path / "p.zip")
    with zipfile.ZipFile(tmp_path / "p.zip") as file:
        return json.loads(file.read("policy.json"))


def zipped(path, members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    path.write_bytes(content.getvalue())
    return path


RULE = Range(0, 1023, Decision("ring-allreduce", Options(protocol="LL", instances=4)))
POLICY = Policy(MACHINE, {"allreduce": (RULE,)}, "bandit", {"seed": "0"})


def rejected(path, code):
    with pytest.raises(SleyError) as caught:
        read(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value), "the message doesn't name the file"
    return str(caught.value)


def change(plain, keys, value):
    for key in keys[:-1]:
        plain = plain[key]
    plain[keys[-1]] = value


@pytest.mark.parametrize(
    ("keys", "value", "code", "says"),
    [
        (("format",), 2, "D902", "format 2"),
        (("format",), "1", "D901", "integer"),
        (("surprise",), 1, "D901", "surprise"),
        (("machine", "nodes"), 0, "D901", "machine.nodes"),
        (("machine", "nodes"), True, "D901", "machine.nodes"),
        (("machine", "topology"), 7, "D901", "machine.topology"),
        (("ranges", "allreduce"), {}, "D901", "ranges.allreduce"),
        (("ranges", "starsum"), [], "D901", "starsum"),
        (("ranges", "allreduce", 0, "begin_bytes"), -1, "D901", "begin_bytes"),
        (("ranges", "allreduce", 0, "begin_bytes"), 5000, "D901", "5000"),
        (("ranges", "allreduce", 0, "decision", "algorithm"), "star", "D904", "star"),
        (("ranges", "allreduce", 0, "decision", "algorithm"), "ring-allgather", "D904", "gather"),
        (("ranges", "allreduce", 0, "decision", "instances"), 10**9, "D901", "instances"),
        (("ranges", "allreduce", 0, "decision", "tile"), 0.3, "D901", "0.3"),
        (("ranges", "allreduce", 0, "decision", "tile"), 1e999, "D901", "Infinity"),
        (("ranges", "allreduce", 0, "measured"), [{"size_bytes": 1}], "D901", "time_us"),
        (("notes", "seed"), 0, "D901", "notes.seed"),
        (("notes", "seed"), "\x1b[31m", "D901", "control"),
        (("notes", "\x1b[31m"), "0", "D901", "'\\x1b[31m'"),
        (("notes", "\ud800"), 0, "D901", "'\\ud800'"),
        (("notes", "a" * 2000), "0", "D901", "characters"),
        (("ranges", "\x1b[31m"), 0, "D901", "'\\x1b[31m'"),
        (("agent",), "a" * 2000, "D901", "characters"),
        (("ranges", "allreduce", 0, "decision", "tile"), 10**400, "D901", "tile"),
        (("ranges", "allreduce", 0, "decision", "orders"), 3, "D901", "a list"),
        (("ranges", "allreduce", 0, "decision", "orders"), [[0, -1]], "D901", "-1"),
    ],
)
def test_a_changed_entry_is_refused_with_its_place(tmp_path, keys, value, code, says):
    plain = text_of(POLICY, tmp_path)
    change(plain, keys, value)
    path = zipped(tmp_path / "bad.zip", {"policy.json": json.dumps(plain)})
    assert says in rejected(path, code)


def test_overlapping_ranges_are_refused(tmp_path):
    plain = text_of(POLICY, tmp_path)
    plain["ranges"]["allreduce"] *= 2
    rejected(zipped(tmp_path / "bad.zip", {"policy.json": json.dumps(plain)}), "D901")


def test_hostile_and_damaged_files_are_refused(tmp_path):
    write(POLICY, tmp_path / "good.zip")
    good = (tmp_path / "good.zip").read_bytes()
    cases = {
        "empty": b"",
        "text": b"policy",
        "pickle": b"\x80\x04cposix\nsystem\n.",
        "cut": good[: len(good) // 2],
        "flipped": bytes([*good[:40], good[40] ^ 0xFF, *good[41:]]),
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.zip"
        path.write_bytes(content)
        rejected(path, "D901")
    rejected(tmp_path / "missing.zip", "D901")
    os.mkfifo(tmp_path / "pipe")
    rejected(tmp_path / "pipe", "D901")
    rejected(tmp_path, "D901")
    for number, members in enumerate(
        (
            {},
            {"other.json": "{}"},
            {"policy.json": "{}", "agent.pkl": "x"},
            {"policy.json": "[" * 100_000},
            {"policy.json": b"\xff\xfe"},
            {"policy.json": "1" * 10_000},
            {"policy.json": b"0" * (64 << 20)},  # 64 MB in 64 KB
        )
    ):
        rejected(zipped(tmp_path / f"members{number}.zip", members), "D901")


@given(st.data())
def test_a_damaged_file_never_raises_anything_but_a_diagnostic(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    write(POLICY, folder / "p.zip")
    content = bytearray((folder / "p.zip").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    (folder / "p.zip").write_bytes(content)
    try:
        assert isinstance(read(folder / "p.zip"), Policy)
    except SleyError as error:
        assert error.code.startswith("D9")


def test_a_policy_for_another_machine_is_refused():
    MACHINE.check(MACHINE, Place("p.zip"))
    for changed in ({"gpus": 4}, {"nodes": 1}, {"engine": "cpu"}, {"fingerprint": "beef"}):
        with pytest.raises(SleyError) as caught:
            MACHINE.check(replace(MACHINE, **changed), Place("p.zip"))
        assert caught.value.code == "D903"
