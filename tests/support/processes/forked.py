"""Processes of tests, forked by a server that has imported sley and PyTorch, because these imports
take a second or two. The processes inherit the server's environment and folder."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sley.cli", "sley.torch", "support.processes.rank_processes"])
