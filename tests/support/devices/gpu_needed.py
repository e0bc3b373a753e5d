"""The GPU of tests that need one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sley.errors import Diagnostic, SleyError


@cache
def first_gpu() -> Any:
    """The first GPU that the process sees, or the diagnostic that says why there is none."""
    from sley.engine.devices.cuda import CudaDevice

    try:
        return CudaDevice.open(0)
    except SleyError as error:
        return error.diagnostics[0]


def needs_gpu() -> pytest.MarkDecorator:
    """The mark of a module of tests that need a GPU. Skips the module with the reason if there is
    none: its thousand tests would take seconds to be skipped one by one."""
    found = first_gpu()
    if isinstance(found, Diagnostic):
        pytest.skip(f"no GPU: {found.rule.code}, {found.found}", allow_module_level=True)
    return pytest.mark.gpu
