"""Processes of tests, forked by a server that has imported before what they need: sley and PyTorch
take a second or two. They begin with the environment and the folder that the server had."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["sley.cli", "sley.torch", "support.rank_processes"])
