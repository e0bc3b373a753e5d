"""The GPU of these tests, and their cache of kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.devices.gpu_needed import first_gpu


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of compiled kernels of the session's own, which the workers of xdist share."""
    with pytest.MonkeyPatch.context() as patch:
        if "SLEY_CACHE_DIR" not in os.environ:
            folder: Path = tmp_path_factory.getbasetemp()
            folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
            patch.setenv("SLEY_CACHE_DIR", str(folder / "kernels"))
        yield


@pytest.fixture
def gpu() -> Any:
    """The first GPU that the process sees."""
    return first_gpu()
