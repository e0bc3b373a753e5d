"""Programs that call NCCL, started by `sley exec`: PyTorch trains on 4 ranks, which share the GPU,
with the backends "nccl" and "cuda:sley". The losses are compared with the losses of one process,
and the results of calls with what they should be. NVIDIA's library isn't opened: it refuses
several ranks on a GPU before 2.30, and a call that sley doesn't run ends the program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryFile
from typing import Any

from first_contact.lines import Lines, run_step, step_parser

RANKS = 4
WAYS = {
    "nccl": ("ddp", "fsdp", "tensor", "graph", "pipeline", "compiled"),
    "cpu:sley,cuda:sley": ("ddp", "graph", "operators", "exchange", "batch", "profile", "pipeline"),
}
"""What is made with each backend, as `training` names it."""

SETTINGS = {"SLEY_NCCL": "only", "NCCL_DEBUG": "INFO", "SLEY_TIMEOUT_S": "30"}
APART = 1e-5
"""How far a loss may be from another that was added up in another order, of values near 0.5."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def trained(
    ranks: int, backend: str, *ways: str, under: tuple[str, ...] = ()
) -> tuple[dict[str, Any], str]:
    """What rank 0 of a program prints, and the last lines of all ranks' errors and logs; "end" is
    how the ranks ended, if not well. under: the command that starts a rank's command."""
    variables = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    command = [*under, sys.executable, "-m", "first_contact.training", backend, *ways]
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
        for log, code in zip(logs, codes, strict=True):
            log.seek(0)
            told = log.read().splitlines()
            texts += [line for line in told if "sley" in line] + (told[-4:] if code else [])
        out.seek(0)
        found = {}
        for line in out.read().splitlines():
            found |= json.loads(line) if line.startswith("{") else {}
    words = "\n".join(dict.fromkeys(texts))
    if any(codes) and not found:
        raise RuntimeError(f"ranks ended with {codes}: {words}")
    return found | ({"end": codes} if any(codes) else {}), words


def compared(
    losses: Sequence[float],
    backend: str,
    ways: Sequence[str],
    under: tuple[str, ...],
    ranks: int = RANKS,
) -> dict[str, Any]:
    """Training over sley beside one process, with its losses."""
    found, words = trained(ranks, backend, *ways, under=under)
    apart = {
        way: max(abs(a - b) for a, b in zip(one, losses, strict=True))
        for way, one in found.items()
        if way != "end" and isinstance(one, list)
    }
    wrong = [way for way, one in found.items() if way == "end" or apart.get(way, one) > APART]
    wrong += [way for way in ways if way not in found]
    return {"losses": found, "apart": apart, "wrong": wrong, "log": words}


def step(lines: Lines) -> bool:
    os.environ |= SETTINGS
    under = (sys.executable, "-m", "sley", "exec", "--ranks", str(RANKS), "--")
    alone: dict[str, Any] = {}

    def train_alone() -> dict[str, Any]:
        alone.update(trained(1, "", "ddp")[0])
        return alone

    if not lines.attempt({"training": "one process"}, train_alone):
        return False
    good = [
        lines.attempt(
            {"training": f"{RANKS} ranks", "backend": backend},
            partial(compared, alone["ddp"], backend, ways, under),
        )
        for backend, ways in WAYS.items()
    ]
    return all(good)


if __name__ == "__main__":
    options = step_parser(__doc__).parse_args()
    run_step("programs", options.lines, step)
