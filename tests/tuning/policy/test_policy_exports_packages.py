"""Packages: the plans of a policy as files, which other runtimes and sley's communicators read."""

from __future__ import annotations

import itertools

import pytest

import sley
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.policy import program_of
from sley.errors import SleyError
from sley.errors.formats import F461
from sley.formats import files, read
from sley.ir.sizes import SizeRange
from sley.tuning.policy import Machine, PlanRow, Policy, Recipe
from sley.tuning.policy.exports import write_package, write_plan_folder

MACHINE = Machine("simulator", "2x2", "f00d", 2, 2)
TREE = Recipe("double-binary-tree-allreduce", options={"protocol": "LL", "instances": 2})
MERGED = Recipe("hierarchical-allreduce", options={"schedule": "hpds", "allocate": "state"})
DIRECT = Recipe("ring-allgather", options={"protocol": "Direct"}, tile=0.25)
POLICY = Policy(
    (
        PlanRow(TREE, SizeRange(0, 4096), "allreduce"),
        PlanRow(MERGED, SizeRange(4097, None), "allreduce"),
        PlanRow(DIRECT, SizeRange(1024, 65536), "allgather"),
        PlanRow(Recipe("alltonext", options={"protocol": "LL"}), SizeRange(0, None), "alltonext"),
        PlanRow(Recipe("flat-broadcast"), SizeRange(1, 100), "broadcast"),
    ),
    machine=MACHINE,
)


@pytest.mark.parametrize("target", ["executor", "rccl", "msccl"])
def test_a_package_has_the_plans_of_the_ranges_with_their_sizes(tmp_path, target):
    paths, remarks = write_package(POLICY, tmp_path / "plans", target)
    assert sorted((tmp_path / "plans").iterdir()) == sorted(paths)
    found = {}
    for path in paths:
        in_place = "in-place" in path.name
        custom = program_of(POLICY.of("alltonext")[0].recipe, 2, 2, in_place=in_place)
        imported = read(path, collective=custom.collective if "alltonext" in path.name else None)
        sley.verify(imported.plan, per_chunk=True)
        assert imported.plan.collective.in_place == in_place
        found[path.name.partition("-")[0], in_place] = imported
    numbers = ["01", "05"] + ["04"] * (target == "msccl")
    assert set(found) == set(itertools.product(numbers, (False, True)))
    ends = {"executor": 4096, "rccl": 4096, "msccl": 4097}
    for in_place in (False, True):
        imported = found["01", in_place]
        assert imported.plan.protocol.value == "LL"
        assert (imported.min_bytes, imported.max_bytes) == (0, ends[target])
    notes = " / ".join(remarks)
    assert "allreduce, 4097 and more, in place: left out, F44" in notes, "merged blocks"
    assert "allgather, 1K to 64K, out of place: left out, F" in notes, "the protocol Direct"
    assert "tile=0.25" in notes
    assert ("alltonext" in notes) == (target != "msccl")


def test_a_package_for_mscclpp_has_plans_in_place_and_their_registration(tmp_path):
    recipe = Recipe("all-pairs-allreduce", options={"protocol": "LL"})
    rows = (PlanRow(recipe, SizeRange(0, 4096), "allreduce"),)
    policy = Policy(rows, machine=Machine("simulator", "1x4", "f00d", 1, 4))
    paths, remarks = write_package(policy, tmp_path / "plans", "mscclpp")
    assert [path.name for path in paths] == [
        "01-all-pairs-allreduce-in-place.json",
        "register_plans.py",
    ]
    assert not any("left out" in one for one in remarks), remarks
    assert any("ends the process" in one for one in remarks), remarks


def test_a_package_has_loop_orders_that_its_runtimes_know(tmp_path):
    recipe = Recipe("ring-allreduce", options={"schedule": "hpds"})
    policy = Policy((PlanRow(recipe, SizeRange(0, None), "allreduce"),), machine=MACHINE)
    paths, remarks = write_package(policy, tmp_path)
    assert len(paths) == 2
    assert remarks == ()


def test_a_full_disk_ends_the_export(tmp_path, monkeypatch):
    def save(*_args, **_settings):
        raise F461.error(expected="a file that can be written", found="No space left on device")

    monkeypatch.setattr(files, "save", save)
    with pytest.raises(SleyError, match="No space left") as caught:
        write_package(POLICY, tmp_path)
    assert caught.value.code == "F461"


def test_a_policy_that_a_target_can_not_run_makes_no_package(tmp_path):
    policy = Policy(POLICY.of("allgather"), machine=MACHINE)
    with pytest.raises(SleyError) as caught:
        write_package(policy, tmp_path, "executor")
    assert caught.value.code == "D905"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_package, write_plan_folder])
def test_a_folder_with_files_is_refused(tmp_path, write):
    (tmp_path / "old.xml").write_text("")
    for folder in (tmp_path, tmp_path / "old.xml"):
        with pytest.raises(SleyError) as caught:
            write(POLICY, folder)
        assert caught.value.code == "F461"


def test_a_communicator_chooses_from_the_folder_as_the_policy(tmp_path):
    paths, remarks = write_plan_folder(POLICY, tmp_path / "plans")
    assert paths[-1].name == "plans.toml"
    plans = Plans(Hosts.of(["a", "a", "b", "b"]), plan_dir=tmp_path / "plans", cache=False)
    assert plans.problems == ()
    kinds = {"allreduce": "all_reduce", "allgather": "all_gather", "broadcast": "broadcast"}
    for collective, kind in kinds.items():
        for size, in_place in itertools.product((1, 100, 101, 4096, 4100, 65536, 1 << 20), (0, 1)):
            one = POLICY.find(collective, size)
            ready = plans.find(kind, size, in_place=bool(in_place))
            is_from_folder = ready.origin == "registered"
            assert is_from_folder == (one is not None), (collective, size)
            if one:
                assert ready.plan.name == one.recipe.name
                wanted = sley.compile(
                    program_of(one.recipe, 2, 2, in_place=bool(in_place)), **one.recipe.options
                )
                assert ready.plan.protocol == wanted.protocol
                assert ready.plan.blocks_per_rank == wanted.blocks_per_rank
    notes = " / ".join(remarks)
    for words in ("alltonext, all sizes: left out", "root 0", "tile=0.25"):
        assert words in notes


def test_an_algorithm_that_does_not_fit_the_ranks_is_left_out(tmp_path):
    machine = Machine("simulator", "1x3", "f00d", 1, 3)
    doubling = PlanRow(Recipe("recursive-doubling-allgather"), SizeRange(0, 9), "allgather")
    ring = PlanRow(Recipe("ring-allgather"), SizeRange(10, 99), "allgather")
    policy = Policy((doubling, ring), machine=machine)
    for number, write in enumerate((write_package, write_plan_folder)):
        paths, remarks = write(policy, tmp_path / str(number))
        assert not any("doubling" in path.name for path in paths)
        assert any("L121" in note for note in remarks)
        alone = Policy((doubling,), machine=machine)
        with pytest.raises(SleyError) as caught:
            write(alone, tmp_path / f"alone{number}")
        assert caught.value.code == "D905"
