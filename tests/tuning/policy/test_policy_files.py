"""Policies as values and files: what is written is read back, and everything else is refused."""

import itertools
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.algorithms import CATALOG
from sley.communicator.selection.policy import CHANGE, TILES
from sley.compiler import Options
from sley.errors import Place, SleyError
from sley.errors.compiler import C304
from sley.ir.sizes import SizeRange
from sley.tuning.policy import Machine, Measured, PlanRow, Policy, Recipe, read, write
from support.generators.examples import examples

MACHINE = Machine("simulator", "ndv4:2", "f00d", 2, 8)
TEXTS = st.text("abc é→ .=-", max_size=6)
COLLECTIVES = ("allreduce", "allgather", "alltonext")


def recipes(collective):
    names = [a.name for a in CATALOG.values() if a.collective == collective]
    options = st.builds(
        Options,
        protocol=st.sampled_from(["LL", "LL128", "Simple", None]),
        instances=st.sampled_from([None, 1, 24]),
        max_blocks=st.sampled_from([None, 32]),
        slots=st.sampled_from([None, 2]),
        per_chunk=st.sampled_from([None, False, True]),
    )
    given_options = options.map(Options.given)
    tiles = st.sampled_from(TILES)
    return st.builds(Recipe, st.sampled_from(names), st.just({}), given_options, tiles)


@st.composite
def rows(draw, collective):
    cuts = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=2, max_size=8)))
    made = []
    for begin, end in zip(cuts[::2], cuts[1::2], strict=False):
        times = st.floats(1e-3, 1e9)
        sizes = sorted(draw(st.sets(st.integers(max(begin, 1), end), max_size=3)))
        made.append(
            PlanRow(
                draw(recipes(collective)),
                SizeRange(begin, end),
                collective,
                measured=tuple(Measured(size, draw(times), draw(times)) for size in sizes),
                alternatives=tuple(draw(st.lists(recipes(collective), max_size=2))),
            )
        )
    return tuple(made)


policies = st.builds(
    Policy,
    st.tuples(*map(rows, COLLECTIVES)).map(lambda each: tuple(itertools.chain(*each))),
    machine=st.just(MACHINE),
    facts=st.fixed_dictionaries(
        {},
        optional={
            "agent": TEXTS,
            "notes": st.dictionaries(TEXTS, TEXTS, max_size=2),
            "changes": st.lists(
                st.fixed_dictionaries(
                    {w: st.integers(1, 1 << 40) if of is int else TEXTS for w, of in CHANGE.items()}
                ),
                max_size=2,
            ),
        },
    ),
)


@examples(9)
@given(policies)
def test_a_policy_is_read_back_as_it_was_written(tmp_path_factory, policy):
    path = tmp_path_factory.mktemp("policy") / "policy.toml"
    write(policy, path)
    assert read(path) == policy
    first = path.read_bytes()
    write(read(path), path)
    assert path.read_bytes() == first, "equal policies give different files"


@examples(9)
@given(policies, st.sampled_from(COLLECTIVES), st.integers(0, 1 << 41))
def test_find_gives_the_rule_whose_range_has_the_size(policy, collective, size_bytes):
    covering = [one for one in policy.of(collective) if one.sizes.covers(size_bytes)]
    assert policy.find(collective, size_bytes) == (covering[0] if covering else None)


RING = Recipe("ring-allreduce", options={"protocol": "LL", "instances": 4})
POLICY = Policy(
    (PlanRow(RING, SizeRange(0, 1023), "allreduce"),),
    machine=MACHINE,
    facts={"agent": "bandit", "notes": {"seed": "0"}},
)


TIMED = "time_us = 1, default_us = 1"


def rejected(path, code):
    with pytest.raises(SleyError) as caught:
        read(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value), "the message doesn't name the file"
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("[machine]", "surprise = 1\n[machine]", "D901", "surprise"),
        ("[machine]", "[engine]", "D901", "engine"),
        ("[facts]", "[[facts]]", "D901", "facts: D901"),
        ('engine = "simulator"', "", "D901", "machine.engine"),
        ("nodes = 2", "nodes = 0", "D901", "machine.nodes"),
        ("nodes = 2", "nodes = true", "D901", "True"),
        ('topology = "ndv4:2"', "topology = 7", "D901", "machine.topology"),
        ('collective = "allreduce"', 'collective = "starsum"', "D901", "starsum"),
        ("max_bytes = 1023", "min_bytes = -1", "D901", "min_bytes = -1"),
        ("max_bytes = 1023", "max_bytes = 1023\nmin_bytes = 5000", "D901", "5000"),
        ('what = "ring-allreduce"', 'what = "star"', "D904", "star"),
        ('what = "ring-allreduce"', 'what = "ring-allgather"', "D904", "gather"),
        ("instances = 4", "instances = 1000000000", "D901", "instances"),
        ("instances = 4", "instance = 4", "D901", "Did you mean instances"),
        ("max_bytes = 1023", "tile = 0.3", "D901", "0.3"),
        ("max_bytes = 1023", "tile = inf", "D901", "inf"),
        ("max_bytes = 1023", "tile = 2", "D901", "2"),
        ("max_bytes = 1023", "measured = [{ size_bytes = 1 }]", "D901", "time_us"),
        ("max_bytes = 1023", f"measured = [{{ {TIMED}, size_bytes = 1.5 }}]", "D901", "size_bytes"),
        ("instances = 4", 'schedule = "auto"', "D901", "schedule='auto'"),
        ("max_bytes = 1023", "arguments = { orders = [[]] }", "D901", "orders"),
        ("max_bytes = 1023", "arguments = { orders = 3 }", "D901", "orders"),
        ("max_bytes = 1023", "arguments = { orders = [[0, -1]] }", "D901", "-1"),
        ("max_bytes = 1023", "arguments = { stages = 1 }", "D901", "stages"),
        ("max_bytes = 1023", "arguments = { stages = [] }", "D901", "stages"),
        ("max_bytes = 1023", "arguments = { trees = [[1, -2]] }", "D901", "-2"),
        ("max_bytes = 1023", "in_place = true", "D901", "ring-allreduce"),
        ('seed = "0"', "seed = 0", "D901", "notes"),
        ('seed = "0"', 'seed = "\\u001b[31m"', "D901", "control"),
        ('seed = "0"', '"\\u001b[31m" = "0"', "D901", "control"),
        ('seed = "0"', f'{"a" * 2000} = "0"', "D901", "characters"),
        ('agent = "bandit"', f'agent = "{"a" * 2000}"', "D901", "characters"),
        ('agent = "bandit"', "agent = 3", "D901", "agent"),
        ('agent = "bandit"', "changes = [3]", "D901", "a change with call"),
    ],
)
def test_a_changed_entry_is_refused_with_its_place(tmp_path, old, new, code, says):
    path = tmp_path / "bad.toml"
    write(POLICY, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert says in rejected(path, code)


def test_all_that_is_wrong_with_an_option_is_told(monkeypatch):
    two = [C304.diagnostic(expected="one", found=found) for found in ("a", "b")]

    def refuse(*_):
        raise SleyError(two)

    monkeypatch.setattr(Options, "of", refuse)
    with pytest.raises(SleyError) as caught:
        replace(POLICY, facts={})
    assert [(d.code, d.found) for d in caught.value.diagnostics] == [("D901", "a"), ("D901", "b")]


def test_overlapping_ranges_are_refused(tmp_path):
    path = tmp_path / "bad.toml"
    write(POLICY, path)
    text = path.read_text()
    path.write_text(text + "\n" + text[text.index("[[plans]]") :])
    rejected(path, "D901")


def test_hostile_and_damaged_files_are_refused(tmp_path):
    cases = {
        "empty": b"",
        "text": b"policy",
        "pickle": b"\x80\x04cposix\nsystem\n.",
        "cut": b"[machine]\nengine = ",
        "latin": b"\xff\xfe",
        "deep": b"a=" + b"[" * 100_000,
        "number": b"a=" + b"1" * 10_000,
        "package": b'[[plans]]\nwhat = "ring-allreduce"',
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.toml"
        path.write_bytes(content)
        rejected(path, "D901")
    rejected(tmp_path / "missing.toml", "D901")
    os.mkfifo(tmp_path / "pipe")
    rejected(tmp_path / "pipe", "D901")
    rejected(tmp_path, "D901")


def test_a_policy_of_an_older_sley_names_what_to_do(tmp_path):
    (tmp_path / "policy.zip").write_bytes(b"PK\x03\x04" + bytes(26) + b"policy.json{}")
    assert "sley tune train -o policy.toml" in rejected(tmp_path / "policy.zip", "D901")


@given(st.data())
def test_a_damaged_file_never_raises_anything_but_a_diagnostic(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    write(POLICY, folder / "p.toml")
    content = bytearray((folder / "p.toml").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    (folder / "p.toml").write_bytes(content)
    try:
        assert isinstance(read(folder / "p.toml"), Policy)
    except SleyError as error:
        assert error.code.startswith("D9")


def test_a_policy_for_another_machine_is_refused():
    MACHINE.check(MACHINE, Place("p.toml"))
    for changed in ({"gpus": 4}, {"nodes": 1}, {"engine": "cpu"}, {"fingerprint": "beef"}):
        with pytest.raises(SleyError) as caught:
            MACHINE.check(replace(MACHINE, **changed), Place("p.toml"))
        assert caught.value.code == "D903"
