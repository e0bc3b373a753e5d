"""Directories of files for runtimes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sley
from sley import formats
from sley.algorithms import build
from sley.formats import files
from sley.ir.sizes import size_in_bytes
from support.inputs.mscclpp_plans import Made, text_of

_TEXTS: dict[str, str] = {}
"""The texts of XML files, by what they are for."""


def xml(path: Path, what: str = "ring-allreduce", target: str = "executor", **settings: Any) -> str:
    """Writes a plan of the library for a target; returns its text. settings: of `sley.save`, and
    ranks (4), in_place (True) and root."""
    size = {"ranks": settings.pop("ranks", 4), "in_place": settings.pop("in_place", True)}
    size |= {"root": settings.pop("root")} if "root" in settings else {}
    options = sley.Options(per_chunk=True, **settings.pop("options", {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    key = repr((what, target, size, options, settings))
    if key not in _TEXTS:
        sley.save(sley.compile(build(what, **size), options), path, target=target, **settings)
        _TEXTS[key] = path.read_text()
    path.write_text(_TEXTS[key])
    return _TEXTS[key]


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replaces the first of each text in a file."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path.write_text(text)


def plan(path: Path, *, ranks: int = 16, collective: str = "allreduce", **head: Any) -> None:
    """Writes an execution plan of MSCCL++: an AllReduce of 2^n ranks by recursive doubling, or a
    ReduceScatter of two. head: other fields of the file; None leaves a field out. In place, if
    `inplace` is not False."""
    fields = {
        "name": path.stem,
        "min_message_size": 1024,
        "max_message_size": 65536,
    }
    own, gpus = _document(collective, ranks, bool(head.get("inplace", True)))
    document = {**own, **fields, **head}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text_of({key: one for key, one in document.items() if one is not None})
    path.write_text(text.replace('"GPUS"', gpus))


def _doubling(ranks: int, in_place: bool) -> sley.Program:
    """An AllReduce of one chunk by recursive doubling."""

    def body(p: Any) -> None:
        for rank in range(ranks if not in_place else 0):
            p.chunk(rank, "in", 0).copy(rank, "out", 0)
        for step in range(ranks.bit_length() - 1):
            for rank in range(ranks):
                p.chunk(rank ^ 1 << step, "out", 0).copy(rank, "scratch", step)
            for rank in range(ranks):
                p.chunk(rank, "out", 0).reduce(p.chunk(rank, "scratch", step))

    collective = sley.AllReduce(ranks=ranks, chunks=1, in_place=in_place)
    return sley.trace(collective, body, name="doubling")


@cache
def _document(collective: str, ranks: int, in_place: bool) -> tuple[dict[str, Any], str]:
    """The fields of a plan, with "GPUS" instead of the GPUs, and the text of these."""
    if collective == "allreduce":
        plan = sley.compile(_doubling(ranks, in_place))
        text = formats.FORMATS[".json"].write(
            plan, formats.TARGETS["mscclpp"], ranks_per_node=min(ranks, 8)
        )
        document = json.loads(text)
        return {**document, "gpus": "GPUS"}, text_of(document["gpus"])
    made = Made(
        collective,
        ranks,
        (2, 1, 1),
        inplace=True,
        protocol="LL",
        use_double_scratch_buffer=True,
    )
    for rank, gpu in enumerate(made.gpus):
        block = gpu.block()
        block.move("ppkt", [("i", 1 - rank, 1)], [(1 - rank, "s", 0, 1)])
        block.move("repkt", [("i", rank, 1), ("s", 0, 1)], [("o", 0, 1)])
    document = made.to_json()
    return {**document, "gpus": "GPUS"}, text_of(document["gpus"])


def head_of_plan(path: Path, chunks: tuple[int, int, int], **head: Any) -> None:
    """Writes a plan with other numbers of chunks, for which its steps are wrong."""
    plan(path, **head)
    document = json.loads(path.read_text())
    for gpu in document["gpus"]:
        words = ("input_chunks", "output_chunks", "scratch_chunks")
        gpu.update(zip(words, chunks, strict=True))
    path.write_text(text_of(document))


def default_plans(folder: Path) -> None:
    """The four plans that MSCCL++'s generator installs, with its names, ranks and sizes."""
    for nodes in (2, 4):
        for first, last in (("1K", "64K"), ("128K", "2M")):
            name = f"allreduce_{nodes}nodes_{first}_{last}.json"
            plan(
                folder / name,
                ranks=8 * nodes,
                min_message_size=size_in_bytes(first),
                max_message_size=size_in_bytes(last),
            )


def prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every file pass as proven: for tests of which file runs, not how."""

    def verify_file(_path: Path, target: str) -> files.FileProof:
        return files.FileProof(formats.TARGETS[target], (), ())

    monkeypatch.setattr(files, "verify_file", verify_file)
