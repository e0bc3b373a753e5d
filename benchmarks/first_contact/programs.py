"""Programs that call NCCL, started by `sley exec`: PyTorch trains on 4 ranks, which share the GPU.
The losses are compared with the losses of one process. NVIDIA's library isn't opened: it refuses
several ranks on a GPU before 2.30, and a call that sley doesn't run ends the program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryFile
from typing import Any

from first_contact.lines import Lines, run_step, step_parser

RANKS = 4
WAYS = ("ddp", "fsdp", "tensor")
GRAPH = "graph"

APART = 1e-5
"""How far a loss may be from another that was added up in another order, of values near 0.5."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def trained(ranks: int, *ways: str, under: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """What rank 0 of a program prints, and the last lines of all ranks' errors and logs. under: the
    command that starts a rank's command."""
    variables = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    command = [*under, sys.executable, "-m", "first_contact.training", *ways]
    with ExitStack() as stack:
        logs = [stack.enter_context(TemporaryFile("w+")) for _ in range(ranks)]
        out = stack.enter_context(TemporaryFile("w+"))
        started = [
            subprocess.Popen(
                command,
                env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=out if rank == 0 else subprocess.DEVNULL,
                stderr=log,
            )
            for rank, log in enumerate(logs)
        ]
        codes = [process.wait() for process in started]
        texts = []
        for log in logs:
            log.seek(0)
            texts += [line for line in log.read().splitlines() if "sley" in line] or [""]
        out.seek(0)
        found = {}
        for line in out.read().splitlines():
            found |= json.loads(line) if line.startswith("{") else {}
    words = "\n".join(dict.fromkeys(texts))
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}: {words}")
    return found, words


def compared(alone: Mapping[str, Any], under: tuple[str, ...]) -> dict[str, Any]:
    """Training over sley beside one process."""
    found, words = trained(RANKS, *WAYS, GRAPH, under=under)
    apart = {
        way: max(abs(a - b) for a, b in zip(found[way], alone[WAYS[0]], strict=True))
        for way in WAYS
    }
    wrong = [way for way in WAYS if apart[way] > APART] + ([GRAPH] if found[GRAPH] != [0] else [])
    return {"losses": found, "apart": apart, "wrong": wrong, "log": words}


def step(lines: Lines) -> bool:
    os.environ |= {"SLEY_NCCL": "only", "NCCL_DEBUG": "INFO"}
    under = (sys.executable, "-m", "sley", "exec", "--ranks", str(RANKS), "--")
    alone: dict[str, Any] = {}

    def train_alone() -> dict[str, Any]:
        alone.update(trained(1, WAYS[0])[0])
        return alone

    if not lines.attempt({"training": "one process"}, train_alone):
        return False
    return lines.attempt({"training": f"{RANKS} ranks"}, partial(compared, alone, under))


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("programs", options.lines, step)
