"""Compiled plans on disk: equal plans, no partial files, and none of another user."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import sley
from sley.communicator.selection import plan_cache
from sley.communicator.selection.kinds import Request
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.rules import default_rows
from sley.errors.disk_cache import folder as cache_folder
from sley.ir.plan import Plan
from sley.ir.plan_table import Recipe
from sley.ir.tables import Edges, Table
from support.generators.examples import examples
from support.processes.call_cases import hosts_of, requests


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLEY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, column by column."""
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, (Table, Edges)) or not hasattr(one, "__dataclass_fields__"):
        return bool(one == two)
    return all(same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))


def a_plan(**options: Any) -> Plan:
    return sley.compile(sley.algorithms.all_pairs_allreduce(4, in_place=True), **options)


def a_recipe(row: int = -1) -> Recipe:
    return default_rows("all_reduce", hosts_of(4), in_place=True)[row].recipe


class Builder:
    """Builds a plan, and counts."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self) -> Plan:
        self.built += 1
        return a_plan()


def test_the_second_time_nothing_is_built(folder: Path) -> None:
    builder = Builder()
    plan, was_there = plan_cache.cached_plan(a_recipe().key, 4, builder)
    again, is_there = plan_cache.cached_plan(a_recipe().key, 4, builder)
    assert (was_there, is_there, builder.built) == (False, True, 1)
    assert same(plan, again)
    assert len(list(folder.glob("*/*"))) == 1


def test_the_key_of_a_plan_has_every_input(monkeypatch: pytest.MonkeyPatch) -> None:
    builder, recipe = Builder(), a_recipe()
    plan_cache.cached_plan(recipe.key, 4, builder)
    plan_cache.cached_plan(a_recipe(0).key, 4, builder)
    more = replace(recipe, options={**recipe.options, "instances": 2})
    plan_cache.cached_plan(more.key, 4, builder)
    plan_cache.cached_plan(recipe.given(stage_channels=(0, 0)).key, 4, builder)
    plan_cache.cached_plan(recipe.key, 5, builder)
    state = plan_cache.state_of(*plan_cache.MAKERS)
    assert all(f"('{name}/" in state for name in plan_cache.MAKERS)
    monkeypatch.setattr(plan_cache, "state_of", lambda *packages: "another version")
    plan_cache.cached_plan(recipe.key, 4, builder)
    assert builder.built == 6


@pytest.mark.parametrize("content", [b"", b"foreign", None])
def test_a_file_that_was_changed_is_made_anew(folder: Path, content: bytes | None) -> None:
    builder = Builder()
    plan_cache.cached_plan(a_recipe().key, 4, builder)
    (file,) = folder.glob("*/*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data) if content is None else content)
    assert plan_cache.cached_plan(a_recipe().key, 4, builder)[1] is False
    assert plan_cache.cached_plan(a_recipe().key, 4, builder)[1] is True
    assert builder.built == 2


def test_a_sound_file_that_holds_no_plan_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    with monkeypatch.context() as patched:
        patched.setattr(plan_cache, "encode", lambda plan: b"no plan")
        plan_cache.cached_plan(a_recipe().key, 4, builder)
    plan, was_there = plan_cache.cached_plan(a_recipe().key, 4, builder)
    assert same(plan, a_plan())
    assert (was_there, builder.built) == (False, 2)


@given(request=requests(6))
@examples(10)
def test_plans_from_disk_are_those_that_were_compiled(request: Request) -> None:
    call = (request.kind, request.size_bytes)
    where = {"in_place": request.in_place, "root": request.root}
    without = Plans(request.hosts, cache=False).find(*call, **where)
    Plans(request.hosts).find(*call, **where)
    found = Plans(request.hosts).find(*call, **where)
    assert (without.origin, found.origin) == ("compiled", "disk")
    assert found.digest == without.digest
    assert same(found.plan, without.plan)


def test_the_folder_is_made_for_nobody_else(folder: Path) -> None:
    old = os.umask(0)
    try:
        plan_cache.cached_plan(a_recipe().key, 4, Builder())
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert plan_cache.refusal() is None


@pytest.mark.parametrize("which", ["plans", "cache"])
@pytest.mark.parametrize(("mode", "words"), [(0o777, "all users"), (0o770, "its group")])
def test_a_folder_that_others_can_write_to_is_not_used(
    folder: Path, which: str, mode: int, words: str
) -> None:
    folder.mkdir(parents=True)
    (folder if which == "plans" else folder.parent).chmod(mode)
    refused = plan_cache.refusal()
    assert refused is not None
    assert refused.code == "N655"
    assert words in refused.found
    plans = Plans(hosts_of(4))
    assert [problem.code for problem in plans.problems] == ["N655"]
    assert plans.find("all_reduce", 8).origin == "compiled"
    assert Plans(hosts_of(4)).find("all_reduce", 8).origin == "compiled"
    assert list(folder.glob("*/*")) == []


def test_a_folder_of_somebody_else_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    refused = plan_cache.refusal()
    assert (refused is None) == (owner == 0), "the system's administrator is trusted"
    os.chown(folder, 4321, -1) if owner == 0 else None
    refused = plan_cache.refusal()
    assert refused is not None
    assert "belongs to user" in refused.found


def test_a_sticky_folder_around_it_is_as_good_as_own(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    assert plan_cache.refusal() is None
    folder.chmod(0o1777)
    assert plan_cache.refusal() is not None, "others could put plans there"


def test_a_folder_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_CACHE_DIR", os.devnull)
    plans = Plans(hosts_of(3))
    assert plans.problems == ()
    assert plans.find("all_gather", 100).origin == "compiled"


def test_the_folder_is_beside_that_of_kernels(folder: Path) -> None:
    assert cache_folder("plans") == folder
    assert cache_folder() == folder.parent / "kernels"
