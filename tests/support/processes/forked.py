"""Processes of tests, forked by a server that has imported sley and what modules of tests import,
because these imports take a second. The processes inherit the server's environment and folder."""

from __future__ import annotations

import gc
import multiprocessing
from multiprocessing import forkserver

IMPORTED = ["sley.cli", "pytest", "hypothesis"]
TORCH = ["sley.torch", "torch._dynamo"]

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(IMPORTED)
gc.freeze()  # in a forked process, collections would look at all that the server has imported


def preload_torch() -> None:
    """From now on another server forks, which has imported PyTorch too: that takes it two seconds,
    and each process of PyTorch otherwise. No process of the first one may be left."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # as tests of Python do
    PROCESSES.set_forkserver_preload([*IMPORTED, *TORCH])
