"""Directories of files for runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sley
from sley.algorithms import build
from sley.ir.sizes import size_in_bytes


def xml(path: Path, what: str = "ring-allreduce", target: str = "executor", **settings: Any) -> str:
    """Writes a plan of the library for a target; returns its text. settings: of `sley.save`, and
    ranks (4) and in_place (True)."""
    size = {"ranks": settings.pop("ranks", 4), "in_place": settings.pop("in_place", True)}
    options = sley.Options(per_chunk=True, **settings.pop("options", {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    sley.save(sley.compile(build(what, **size), options), path, target=target, **settings)
    return path.read_text()


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replaces the first of each text in a file."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text)


def plan(
    path: Path,
    *,
    ranks: int = 16,
    chunks: tuple[int, int, int] = (16, 16, 16),
    operations: int = 1,
    **head: Any,
) -> None:
    """Writes the head of an execution plan of MSCCL++, with nops as operations.

    chunks: of each rank's input, output and scratch. head: fields other than an AllReduce in
    place; None leaves a field out.
    """
    fields = {
        "name": path.stem,
        "collective": "allreduce",
        "protocol": "LL",
        "inplace": True,
        "reuse_resources": True,
        "use_double_scratch_buffer": True,
        "min_message_size": 1024,
        "max_message_size": 65536,
        **head,
    }
    blocks = [{"id": 0, "ops": [{"name": "nop"}] * operations}]
    words = ("input_chunks", "output_chunks", "scratch_chunks")
    own = dict(zip(words, chunks, strict=True))
    gpus = [{"id": rank, **own, "threadblocks": blocks} for rank in range(ranks)]
    known = {word: value for word, value in fields.items() if value is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**known, "gpus": gpus}))


def default_plans(folder: Path) -> None:
    """The four plans that MSCCL++ 0.9's generator installs, with its names, ranks and sizes."""
    for nodes in (2, 4):
        for first, last in (("1K", "64K"), ("128K", "2M")):
            name = f"allreduce_{nodes}nodes_{first}_{last}.json"
            plan(
                folder / name,
                ranks=8 * nodes,
                chunks=(8 * nodes, 8 * nodes, 4),
                min_message_size=size_in_bytes(first),
                max_message_size=size_in_bytes(last),
            )
