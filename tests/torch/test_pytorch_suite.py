"""PyTorch's own tests of collectives and DDP, as far as the installed package has them.

They are written for gloo, NCCL, MPI and UCC, and read the backend from the environment. Here four
processes run one test after another, each with a new default group, including tests for only one of
these backends. Tests that need a GPU skip themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.processes.rank_pool import BACKEND, RankPool

pytestmark = pytest.mark.slow

RANKS = 4
MODULE = "torch.testing._internal.distributed.distributed_test"
_NEEDS_GPU = "sets up a GPU before it looks at what the backend can do"
_GLOO_ONLY = "PyTorch before 2.15 has dist.monitored_barrier for gloo alone"
SKIPPED = {
    "test_batch_isend_irecv_op_err": _NEEDS_GPU,
    "test_batch_isend_irecv_mixed_backend_err": _NEEDS_GPU,
    "test_all_to_all_cuda": _NEEDS_GPU,
    "test_all_to_all_cuda_complex": _NEEDS_GPU,
    "test_all_to_all_full_group_cuda": _NEEDS_GPU,
    "test_accumulate_gradients_no_sync": _NEEDS_GPU,
    "test_accumulate_gradients_no_sync_grad_is_view": _NEEDS_GPU,
    "test_accumulate_gradients_no_sync_allreduce_hook": _NEEDS_GPU,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _NEEDS_GPU,
    "test_SyncBatchNorm_process_group": "uses torchvision whether it is there or not",
    "test_monitored_barrier_gloo": _GLOO_ONLY,
    "test_monitored_barrier_gloo_subgroup": _GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": _GLOO_ONLY,
    "test_monitored_barrier_failure_order": _GLOO_ONLY,
}
"""Tests that sley doesn't run, with the reason."""


def names() -> list[str]:
    """The tests in the module's file; it can't be imported before the environment is set."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        return []
    return re.findall(r"^        def (test_\w+)\(self", Path(spec.origin).read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where PyTorch's tests keep what their processes share."""
    made = tmp_path_factory.mktemp("suite")
    (made / "barrier").mkdir()
    (made / "test_dir").mkdir()
    return made


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[RankPool]:
    pytest.importorskip("expecttest", reason="PyTorch's tests need it")
    environment = {
        "BACKEND": BACKEND,
        "WORLD_SIZE": str(RANKS),
        "TEMP_DIR": str(folder),
        "INIT_METHOD": f"file://{folder}/shared",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    ranks = RankPool(RANKS, environment, timeout_s=40.0)
    yield ranks
    ranks.stop()


def cases(name: str, rank: int) -> list[Any]:
    """PyTorch's test `name`, or where it has parameters all of its instances, as its runner would
    make them in the process of `rank`."""
    suite = importlib.import_module(MODULE)
    features = suite.DistTestCases.backend_feature
    features["ddp"].add(BACKEND)
    features["subgroup"].add(BACKEND)

    class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        pass

    instances = [name] if hasattr(Case, name) else [n for n in dir(Case) if n.startswith(name)]
    made = [Case(instance) for instance in instances]
    for one in made:
        one.rank = rank
        one.file_name = f"{os.environ['TEMP_DIR']}/{name}"
    return made


def check_test(name: str, file: str) -> str:
    """Runs a test in this process; the reason where it says that it isn't for us."""
    rank = int(os.environ["RANK"])
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{file}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(0)
    barrier = importlib.import_module(MODULE).Barrier
    barrier.barrier_id = 0
    try:
        for case in cases(name, rank):
            getattr(case, case._testMethodName)()
    except unittest.SkipTest as skip:
        return str(skip)
    except SystemExit as end:
        return next((skip.message for skip in skips() if skip.exit_code == end.code), "skipped")
    else:
        barrier.sync(RANKS, timeout=30)  # nobody leaves before all have done what they check
        return ""
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def skips() -> list[Any]:
    """The exit codes by which PyTorch's tests say why they are skipped."""
    common = importlib.import_module("torch.testing._internal.common_distributed")
    return list(common.TEST_SKIPS.values())


@pytest.mark.parametrize("name", names())
def test_tests_of_pytorch_pass(pool: RankPool, folder: Path, tmp_path: Path, name: str) -> None:
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    for arrived in (folder / "barrier").iterdir():
        arrived.unlink()
    reasons = pool.run(check_test, name, str(tmp_path / "store"))
    if reasons[0]:
        pytest.skip(reasons[0])
