"""The GPU of these tests; without one they are skipped with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sley.errors import SleyError


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of compiled kernels of the session's own, which the workers of xdist share."""
    with pytest.MonkeyPatch.context() as patch:
        if "SLEY_CACHE_DIR" not in os.environ:
            folder: Path = tmp_path_factory.getbasetemp()
            folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
            patch.setenv("SLEY_CACHE_DIR", str(folder / "kernels"))
        yield


@pytest.fixture(scope="session")
def opened() -> Any:
    """The first GPU, or the diagnostic that says why there is none."""
    from sley.devices.cuda import CudaDevice

    try:
        return CudaDevice.open(0)
    except SleyError as error:
        return error.diagnostics[0]


@pytest.fixture
def gpu(opened: Any) -> Any:
    """The first GPU that the process sees."""
    if hasattr(opened, "rule"):
        pytest.skip(f"no GPU: {opened.rule.code}, {opened.found}")
    return opened
