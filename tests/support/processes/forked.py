"""Processes of tests, forked by a server that has imported sley, PyTorch and what modules of tests
import, because these imports take a second or two, and a fifth of a second. The processes inherit
the server's environment and folder."""

from __future__ import annotations

import gc
import multiprocessing

IMPORTED = ["sley.cli", "sley.torch", "torch._dynamo", "pytest", "hypothesis"]

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(IMPORTED)
gc.freeze()  # in a forked process, collections would look at all that the server has imported
