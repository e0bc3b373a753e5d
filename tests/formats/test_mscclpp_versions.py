"""Versions of MSCCL++: what each of them executes, refuses and promises, and how one is named or
found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sley
from sley.cli import main
from sley.compiler.deployment import runtime_named
from sley.compiler.deployment.registration import script
from sley.compiler.deployment.runtimes import _SIGNS, runtime_of
from sley.errors import SleyError
from sley.formats import FORMATS, TARGETS
from sley.formats.mscclpp.targets import FIRST, MSCCLPP, VERSIONS
from support.inputs import mscclpp_right as right
from support.inputs.mscclpp_plans import PORT, Made

OLDEST, FLUSHES, STORES = "v0.9.0", "2026-06", "2026-07"
ABSENT = "F478", "commit 414f6d1a of 2026-07-02"
"""The code of an operation that a version lacks, and the commit that brought it."""

WHAT_DIFFERS: list[tuple[Callable[[], Made], str, tuple[str, str]]] = [
    # the plan, the first version that proves it, and the code and words of those before
    (right.allgather_by_flushed_put, FLUSHES, ("V215", "during the call")),
    (right.allgather_by_switch, STORES, ABSENT),
    (right.allgather_by_packets_through_the_switch, STORES, ABSENT),
    (right.copies_with_semaphores, OLDEST, ("", "")),
    (right.allreduce_by_switch, OLDEST, ("", "")),
]


def about_version(proof: sley.Proof) -> list[str]:
    return [one.text for one in proof.conditions if one.about == "version"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("made", "first", "before"), WHAT_DIFFERS, ids=[row[0].__name__ for row in WHAT_DIFFERS]
)
def test_a_version_executes_what_it_has(tmp_path, made, first, before, version):
    path = tmp_path / "plan.json"
    path.write_text(made().text)
    if VERSIONS[version].day < VERSIONS[first].day:
        with pytest.raises(SleyError) as caught:
            sley.verify_file(path, f"mscclpp@{version}")
        assert {one.code for one in caught.value.diagnostics} == {before[0]}
        assert before[1] in str(caught.value)
        return
    (proof,) = sley.verify_file(path, f"mscclpp@{version}").proofs
    found = about_version(proof)
    if first == OLDEST:
        assert found == []
    else:
        assert len(found) == 1
        assert VERSIONS[first].day in found[0]
        assert VERSIONS[first].name in found[0]


def test_the_condition_names_the_last_commit_that_a_plan_needs(tmp_path):
    made = Made("allgather", 2, (2, 4, 0))
    for rank, gpu in enumerate(made.gpus):
        peer, own = 1 - rank, 2 * rank
        first = gpu.block().on("signal", peer, word=PORT).on("wait", peer, word=PORT)
        first.move("copy", [("i", 0, 1)], [("o", own, 1)])
        first.move("pwsf", [("i", 0, 1)], [(peer, "o", own, 1)], word=PORT)
        first.on("wait", peer, word=PORT)
        second = right.begin(gpu.block(), peer)
        second.move("gstore", [("i", 1, 1)], [("all", "o", own + 1, 1)], word="switch")
        right.end(second, peer)
    path = tmp_path / "plan.json"
    path.write_text(made.text)
    (proof,) = sley.verify_file(path).proofs
    (found,) = about_version(proof)
    assert VERSIONS[STORES].name in found
    assert VERSIONS[FLUSHES].name not in found


def test_only_a_reduction_of_the_switch_limits_the_elements(tmp_path):
    path = tmp_path / "plan.json"
    for made, limited in ((right.allgather_by_switch, False), (right.allreduce_by_switch, True)):
        path.write_text(made().text)
        (proof,) = sley.verify_file(path).proofs
        assert ("elements of 16 or 32 bits" in map(str, proof.conditions)) == limited


def test_packets_of_a_switch_need_halves_of_scratch_at_whole_units(tmp_path):
    made = right.allgather_by_packets_through_the_switch()
    made.header["buffer_alignment"] = 48
    path = tmp_path / "plan.json"
    path.write_text(made.text)
    (proof,) = sley.verify_file(path).proofs
    found = [one.text for one in proof.conditions if one.about == "allocations"]
    assert "allocations of one size on all ranks" in found
    assert any("is a multiple of 12 bytes" in one for one in found)


def test_a_name_without_a_version_is_the_newest():
    days = [commit.day for commit in VERSIONS.values()]
    assert days == sorted(days, reverse=True)
    assert TARGETS["mscclpp"] is MSCCLPP
    assert TARGETS[f"mscclpp@{next(iter(VERSIONS))}"] == MSCCLPP
    assert set(FIRST.values()) <= set(VERSIONS)


def test_a_real_file_is_proven_for_the_versions_that_load_it(data_dir):
    path = data_dir / "users-3" / "nvls_allgather_gstore.json"
    (proof,) = sley.verify_file(path).proofs
    assert VERSIONS[STORES].day in about_version(proof)[0]
    with pytest.raises(SleyError) as caught:
        sley.verify_file(path, "mscclpp@v0.9.0")
    first = caught.value.diagnostics[0]
    assert (first.code, first.places[0].line) == ("F478", 28)
    assert "mscclpp@2026-07" in first.remedy


def test_the_writer_refuses_what_a_version_lacks(tmp_path):
    plan = sley.compile(sley.algorithms.build("nvls-allgather", nodes=1, gpus=4))
    path = tmp_path / "plan.json"
    for act in (
        lambda: sley.save(plan, path, target="mscclpp@v0.9.0"),
        lambda: sley.formats.files.check(plan, "mscclpp@v0.9.0"),
    ):
        with pytest.raises(SleyError) as caught:
            act()
        assert caught.value.code == ABSENT[0]
        assert ABSENT[1] in str(caught.value)
        # The place is the plan's, not a line of a file that is not there.
        assert "rank 0, block 0" in str(caught.value)
    sley.save(plan, path, target="mscclpp@2026-07")
    assert sley.verify_file(path, "mscclpp@2026-07").target.version == "2026-07"
    plan = sley.compile(sley.algorithms.build("nvls-allgather", nodes=1, gpus=4), switches=False)
    sley.save(plan, path, target="mscclpp@v0.9.0")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture
def gather(tmp_path: Path) -> Path:
    """A directory with a plan that needs gstore."""
    folder = tmp_path / "default"
    folder.mkdir()
    made = right.allgather_by_switch()
    (folder / "gather.json").write_text(made.text)
    (folder / "register_plans.py").write_text(script([("gather.json", 2, 2)]))
    return folder


def test_the_command_line_names_the_version(gather, tmp_path):
    plan = gather / "gather.json"
    assert "as mscclpp@2026-08 executes the file" in invoke("verify", plan).stdout
    found = invoke("verify", plan, "--target", "mscclpp@2026-07", "--json")
    assert json.loads(found.stdout)["target"] == "mscclpp@2026-07"
    found = invoke("verify", plan, "--target", "mscclpp@0.9.0")
    assert found.exit_code == 2
    assert all(f"mscclpp@{version}" in found.stderr for version in VERSIONS)
    with pytest.raises(SleyError, match=r"F440(?s:.*)mscclpp@v0.9.0"):
        sley.verify_file(plan, "mscclpp@0.9.0")
    ring, out = ("compile", "ring-allgather", "--ranks", "4"), tmp_path / "ring.json"
    found = invoke(*ring, "--target", "mscclpp@v0.9.0", "-o", out)
    assert f"{out} for mscclpp@v0.9.0" in found.stdout
    assert "mscclpp[@VERSION]" in invoke("verify", "--help").stdout


def installed(folder: Path, version: str | None) -> None:
    """A Python package of MSCCL++ with the signs of a version, of which importing fails."""
    package = folder / "mscclpp"
    for file, text in [
        ("__init__.py", "raise ImportError"),
        *(
            _SIGNS[one]
            for one in VERSIONS
            if version and VERSIONS[one].day <= VERSIONS[version].day
        ),
    ]:
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_doctor_and_package_find_the_installed_version(gather, tmp_path, monkeypatch, version):
    installed(tmp_path / "site", version)
    monkeypatch.syspath_prepend(tmp_path / "site")
    runtime = runtime_named("mscclpp-python")
    assert (runtime.version, runtime.target) == (version, f"mscclpp@{version}")
    assert str(tmp_path / "site" / "mscclpp") in runtime.basis
    found = invoke("doctor", gather, "--target", "mscclpp-python")
    assert f"{version} is the version of the installed package" in found.stdout
    lacks = VERSIONS[version].day < VERSIONS[STORES].day
    assert (found.exit_code, "F478" in found.stdout) == (int(lacks), lacks)
    table = tmp_path / "table.toml"
    table.write_text(f'[[plans]]\nwhat = "{gather / "gather.json"}"\n')
    made = ("package", tmp_path / "out", "--table", table, "--target", "mscclpp-python")
    found = invoke(*made)
    assert (found.exit_code == 1) == lacks, found.output
    found = invoke(*made[:1], tmp_path / "new", *made[2:-1], "mscclpp-python@2026-08")
    assert found.exit_code == 0, found.output
    assert "an executor of 2026-07-02 or later" in found.stderr
    assert "the installed package" not in found.stderr
    assert lacks or "the installed package" in invoke(*made[:1], tmp_path / "b", *made[2:]).stderr


@pytest.mark.parametrize("folder", ["", "site"])
def test_without_a_known_package_the_newest_version_is_said(tmp_path, monkeypatch, folder):
    if folder:
        installed(tmp_path / folder, None)
        monkeypatch.syspath_prepend(tmp_path / folder)
    runtime = runtime_named("mscclpp")
    assert runtime.version == MSCCLPP.version
    assert "mscclpp@VERSION names another" in runtime.basis
    assert (str(tmp_path / "site" / "mscclpp") in runtime.basis) == bool(folder)


def test_a_version_by_the_number_that_all_have_is_refused_with_the_list():
    with pytest.raises(SleyError, match="F440") as caught:
        runtime_named("mscclpp@0.9.0")
    assert all(version in str(caught.value) for version in VERSIONS)


def test_the_runtime_of_a_target_has_its_version():
    assert runtime_of(TARGETS["mscclpp@v0.9.0"]).target == "mscclpp@v0.9.0"
    old, new = (runtime_named(f"mscclpp@{one}").names for one in ("v0.9.0", "2026-06"))
    assert old is not None
    assert new is not None
    assert "allreduce_2nodes_64K_2M.json" in set(old) - set(new)


def test_every_version_is_a_target_of_its_format():
    assert {f"mscclpp@{one}" for one in VERSIONS} == set(map(str, FORMATS[".json"].targets))
