"""The registration of the backend with PyTorch, and the arguments of a new group."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

import sley.torch
from sley.communicator import Settings
from support.processes.rank_pool import RankPool


def test_the_backend_is_registered_once() -> None:
    sley.torch.register()
    sley.torch.register()
    assert dist.Backend.backend_list.count("sley") == 1
    assert dist.Backend.backend_capability["sley"] == ["cpu"]
    assert dist.Backend("SLEY") == "sley"
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"  # as it was


def test_newer_releases_find_the_backend_by_its_entry_point() -> None:
    (entry,) = entry_points(group="torch.distributed.backends", name="sley")
    assert entry.load() is sley.torch.register


def test_without_pytorch_the_import_says_what_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; import sley.torch"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "R512" in ended.stderr
    assert 'pip install "sley[torch]"' in ended.stderr


def check_settings() -> None:
    group = dist.new_group(timeout=timedelta(seconds=77), pg_options=Settings(slots=3))
    found = group._endpoint.settings
    assert (found.slots, found.timeout_s) == (3, 77.0)
    group.set_timeout(timedelta(seconds=5))
    assert group._endpoint.settings.timeout_s == 5.0
    dist.destroy_process_group(group)
    for timeout_s, expected in ((30, 30), (None, default_pg_timeout.total_seconds())):
        group = dist.new_group(pg_options=Settings(timeout_s=timeout_s))
        assert group._endpoint.settings.timeout_s == expected
        dist.destroy_process_group(group)


def test_settings_are_options_of_the_group(four_ranks: RankPool) -> None:
    four_ranks.run(check_settings)
