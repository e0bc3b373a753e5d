"""Loading and saving by file name: whole files or none, and errors with codes."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import sley
from sley import load, save
from sley.errors import SleyError
from sley.formats import FORMATS, TARGETS, Target, files, msccl_xml, read
from sley.formats.msccl_xml.targets import RCCL
from support.inputs.xml_plans import VALID, exchange, same_meaning


def test_a_saved_file_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    save(exchange(), path, target="msccl", min_bytes=8)
    assert same_meaning(load(path), exchange())
    assert load(str(path)).sources.files == (str(path),)
    assert read(path).min_bytes == 8
    save(exchange(), str(path), target=RCCL)
    assert 'type="rrcs"' not in path.read_text()


def test_the_default_target_is_the_executor(tmp_path: Path) -> None:
    save(exchange(), tmp_path / "plan.XML")
    assert 'maxBytes="0"' in (tmp_path / "plan.XML").read_text()
    assert 'type="rrcs"' in (tmp_path / "plan.XML").read_text()


def test_loading_passes_its_arguments_on(tmp_path: Path) -> None:
    path = tmp_path / "custom.xml"
    path.write_text(VALID.replace('coll="allreduce"', 'coll="custom"'))
    plan = load(path, collective=sley.AllReduce(2, 2), slots=1)
    assert (plan.collective, plan.slots) == (sley.AllReduce(2, 2), 1)


def test_a_refused_plan_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "plan.xml"
    path.write_text("before")
    with pytest.raises(SleyError, match="F451"):
        save(exchange(), path, max_bytes=0)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.xml"]
    assert path.read_text() == "before"


def test_a_plan_with_blocks_out_of_order_is_not_written() -> None:
    """Its blocks would stand under other ranks than their own."""
    plan = replace(exchange(), block_rank=[1, 0])
    with pytest.raises(SleyError, match="block_rank ascending") as caught:
        msccl_xml.write(plan, "executor")
    assert caught.value.code == "V201"


def test_a_failing_disk_leaves_what_was_there(tmp_path: Path, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError("no space left")

    path = tmp_path / "plan.xml"
    path.write_text("before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SleyError, match="no space left") as caught:
        save(exchange(), path)
    assert caught.value.code == "F461"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.xml"]
    assert path.read_text() == "before"


def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save(exchange(), tmp_path / "plan.xml")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "plan.xml")]
    assert modes[0] == modes[1]


def test_saving_over_a_link_writes_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "real.xml").touch()
    (tmp_path / "link.xml").symlink_to(tmp_path / "real.xml")
    save(exchange(), tmp_path / "link.xml")
    assert (tmp_path / "link.xml").is_symlink()
    assert (tmp_path / "real.xml").stat().st_size > 0


@pytest.mark.parametrize("name", ["plan", "plan.txt", "plan.xml.bak", ".xml"])
def test_unknown_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SleyError) as caught:
        load(tmp_path / name)
    assert caught.value.code == "F404"
    with pytest.raises(SleyError) as caught:
        save(exchange(), tmp_path / name)
    assert caught.value.code == "F460"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["no/such/folder/plan.xml", "a\0b.xml"])
def test_places_that_cannot_be_written_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SleyError) as caught:
        save(exchange(), tmp_path / name)
    assert caught.value.code == "F461"


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "plan.xml")
    with pytest.raises(SleyError) as caught:
        save(exchange(), path)
    assert (caught.value.code, path.is_fifo()) == ("F461", True)
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SleyError) as caught:
        load(tmp_path / "missing.xml")
    assert caught.value.code == "F404"


@pytest.mark.parametrize(
    ("name", "settings", "code"),
    [
        ("plan.xml", {"dtype": "int8"}, "C309"),
        ("plan.xml", {"sizes": 8}, "C309"),
        ("plan.cu", {"min_bytes": 8}, "C309"),
        ("plan.cpp", {"target": "msccl"}, "C309"),
        ("plan.xml", {"target": "mscclpp"}, "F440"),
        ("plan.xml", {"target": Target("mscclpp", ".json")}, "F440"),
    ],
)
def test_what_a_kind_of_file_does_not_have_is_refused(
    name: str, settings: dict[str, object], code: str, tmp_path: Path
) -> None:
    with pytest.raises(SleyError) as caught:
        save(exchange(), tmp_path / name, **settings)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_target_of_no_format_is_refused() -> None:
    with pytest.raises(SleyError, match="F440"):
        files.check(exchange(), Target("mscclpp", ".json"))


def test_a_plan_is_checked_as_its_target_runs_it() -> None:
    program = sley.algorithms.hierarchical_allreduce(4, 4, in_place=True)
    plan = sley.compile(program)
    sley.verify(plan)
    with pytest.raises(SleyError, match=r"V203(?s:.*)sley.compile\(..., per_chunk=True\)"):
        files.check(plan, "executor")
    plan = sley.compile(program, per_chunk=True)
    files.check(plan, "executor")
    with pytest.raises(SleyError, match="F444"):
        files.check(sley.compile(program, per_chunk=True, instances=16), "rccl")


def test_every_target_reads_files_of_its_format() -> None:
    for name, target in TARGETS.items():
        assert name in (target.name, str(target))
        assert target in FORMATS[target.suffix].targets
    assert all(suffix == form.suffix for suffix, form in files.FORMATS.items())
