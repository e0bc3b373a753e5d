"""Programs that ask for gloo and get sley."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import entry_points
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from sley.errors import SleyError
from sley.torch import ProcessGroupSley, replace_gloo
from support.processes.rank_pool import RankPool

FUNCTIONS = ("_new_process_group_helper", "_set_pg_timeout")


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    """Checks that PyTorch is left as it was."""
    before = [getattr(c10d, name) for name in FUNCTIONS]
    yield
    assert [getattr(c10d, name) for name in FUNCTIONS] == before


def check_replaced() -> None:
    rank, cpu = dist.get_rank(), torch.device("cpu")
    with replace_gloo():
        world = dist.new_group(backend="gloo", timeout=timedelta(seconds=50))
        both = dist.new_group(backend="cpu:gloo,cuda:nccl")
        pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
        options = dist.ProcessGroupGloo._Options()
        part = dist.new_group([0, 3], backend=dist.Backend.GLOO, pg_options=options)
        own = dist.new_group(backend="sley")
        cuda = dist.new_group(backend="cuda:gloo")
    after = dist.new_group(backend="gloo")
    assert isinstance(after._get_backend(cpu), dist.ProcessGroupGloo)
    assert not isinstance(cuda, ProcessGroupSley)
    for group, name in ((world, "gloo"), (both, "cpu:gloo,cuda:nccl"), (own, "sley")):
        assert isinstance(group, ProcessGroupSley)
        assert dist.get_backend(group) == name
        dist.all_reduce(tensor := torch.tensor([1 << rank]), group=group)
        assert tensor.item() == 15
    assert (world.name(), both.name(), own.name()) == ("sley", "sley", "sley")
    assert (world.timeout.seconds, world._endpoint.settings.timeout_s) == (50, 50.0)
    assert dist.get_backend_config(world) == "cpu:gloo,cuda:gloo"
    assert [device.type for device in world._device_types] == ["cpu", "cuda"]
    assert dist.get_backend_config(both) == "cpu:gloo,cuda:nccl"
    assert dist.get_backend(pair) == "sley"  # the backend of the default group
    assert isinstance(part, ProcessGroupSley) == (rank in (0, 3))
    dist.all_gather_object(found := [None] * 4, rank, group=world)
    assert found == [0, 1, 2, 3]


def test_groups_of_gloo_are_sleys_until_the_end_of_the_block(four_ranks: RankPool) -> None:
    four_ranks.run(check_replaced)


def check_what_gloo_alone_has() -> None:
    with replace_gloo():
        group = dist.new_group(backend="gloo")
        dist.monitored_barrier(group, timeout=timedelta(seconds=30), wait_all_ranks=True)
        dist.all_reduce(bits := torch.tensor([1 << dist.get_rank()]), dist.ReduceOp.BOR, group)
        assert bits.item() == 15
        assert type(group.create_device(interface="lo")).__name__ == "Device"
        c10d._set_pg_timeout(timedelta(seconds=40), group)
        assert group._endpoint.settings.timeout_s == 40.0
        assert group._fallback.gloo().options._timeout == timedelta(seconds=40)
        later = dist.new_group(backend="gloo")
        c10d._set_pg_timeout(timedelta(seconds=45), later)
        assert later._fallback.gloo().options._timeout == timedelta(seconds=45)


def check_training() -> None:
    from torch.distributed import checkpoint  # takes a quarter of a second

    with replace_gloo():
        group = dist.new_group(backend="gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), process_group=group)
    model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
    with TemporaryDirectory() as folder:
        checkpoint.save({"w": model.module.weight}, checkpoint_id=folder, process_group=group)


def test_training_with_a_replaced_group_is_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_training)


def test_what_pytorch_does_for_gloo_alone_works(four_ranks: RankPool) -> None:
    four_ranks.run(check_what_gloo_alone_has)


def test_the_last_undo_restores_pytorch() -> None:
    original = c10d._new_process_group_helper
    one, other = replace_gloo(), replace_gloo()
    wrapper = c10d._new_process_group_helper
    assert wrapper is not original
    one.close()
    one.close()
    assert c10d._new_process_group_helper is wrapper
    other.close()
    assert c10d._new_process_group_helper is original


def test_another_librarys_wrapper_stays_when_the_replacement_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replacement = replace_gloo()
    ours = c10d._new_process_group_helper
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    c10d._new_process_group_helper = theirs
    try:
        replacement.close()
        assert c10d._new_process_group_helper is theirs
        code = ONE_RANK.format(backend="gloo")
        exec(code, {"dist": dist, "torch": torch})
        assert not isinstance(dist.group.WORLD, ProcessGroupSley)
        dist.destroy_process_group()
    finally:
        c10d._new_process_group_helper = ours.__wrapped__


ONE_RANK = """
dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("backend", ["gloo", "CPU:GLOO", "undefined"])
def test_a_default_group_of_gloo_is_sleys(backend: str) -> None:
    with replace_gloo():
        exec(ONE_RANK.format(backend=backend), {"dist": dist, "torch": torch})
        try:
            assert isinstance(dist.group.WORLD, ProcessGroupSley)
            assert isinstance(dist.new_group(), ProcessGroupSley)
        finally:
            dist.destroy_process_group()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_variable_replaces_gloo_in_a_program_that_does_not_import_sley() -> None:
    code = "import torch\nimport torch.distributed as dist\n"
    code += ONE_RANK.format(backend="gloo") + "print(type(dist.group.WORLD).__name__)"
    code += "\ndist.destroy_process_group()"
    ended = run_python(code, SLEY_REPLACE_GLOO="1")
    assert ended.stdout.strip() == "ProcessGroupSley", ended.stderr


def test_a_variable_that_is_neither_yes_nor_no_is_an_error_of_the_first_group() -> None:
    code = "import torch, torch.distributed as dist\nprint('imported')\n"
    ended = run_python(code + ONE_RANK.format(backend="gloo"), SLEY_REPLACE_GLOO="perhaps")
    assert ended.stdout.strip() == "imported", ended.stderr
    assert "R514" in ended.stderr
    assert "SLEY_REPLACE_GLOO='perhaps'" in ended.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in ended.stderr


def test_pytorch_loads_nothing_of_sley_before_a_group_asks_for_it() -> None:
    (entry,) = entry_points(group="torch.backends", name="sley")
    assert entry.value == "sley:autoload"
    code = "import sys, torch, torch.distributed as dist\n"
    code += "print([m for m in sys.modules if m.startswith('sley.')])\n"
    code += ONE_RANK.format(backend="sley") + "print(type(dist.group.WORLD).__name__)"
    code += "\ndist.destroy_process_group()"
    ended = run_python(code, SLEY_REPLACE_GLOO="")
    assert ended.stdout.split() == ["[]", "ProcessGroupSley"], ended.stderr


def test_a_rank_that_alone_replaces_gloo_is_told_so() -> None:
    with replace_gloo(), pytest.raises(SleyError, match="Replace gloo on all ranks") as caught:
        dist.init_process_group(
            "gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=0.2)
        )
    assert caught.value.code == "N601"


@pytest.mark.parametrize(
    ("changed", "found"),
    [(None, "without it"), (lambda timeout: None, "without its parameters group")],
)
def test_a_pytorch_with_other_functions_is_refused_and_left_alone(
    changed: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c10d, FUNCTIONS[1], changed)
    before = getattr(c10d, FUNCTIONS[0])
    with pytest.raises(SleyError, match=found) as caught:
        replace_gloo()
    assert caught.value.code == "B905"
    assert getattr(c10d, FUNCTIONS[0]) is before
