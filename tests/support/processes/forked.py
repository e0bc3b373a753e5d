"""Processes of tests, forked by a server that has imported sley, PyTorch and what modules of tests
import, because these imports take a second or two, and a fifth of a second. The processes inherit
the server's environment and folder."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sley.cli", "sley.torch", "pytest", "hypothesis"])
