"""Text: the `Program` of a text in ResCCLang (ResCCL 4.2, figures 14 and 16).

    ResCCLAlgo(nRanks=4, AlgoName="ring", OpType="Allgather"):
        for r in range(nRanks):
            for step in range(nRanks - 1):
                transfer(r, (r + 1) % nRanks, step, (r - step) % nRanks, recv)

It extends the paper's language: `/` and `//` both divide and round down; the header's numbers are
variables of the body, so that one text works for clusters of any size; a variable keeps its last
value after a loop, as in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import numpy as np

from sley.errors import Place
from sley.errors.formats import F404
from sley.errors.language import L112
from sley.errors.rescclang import L150
from sley.errors.text_files import text_of
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD
from sley.ir.program import Program
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, is_integer
from sley.lang.rescclang.evaluate import transfers
from sley.lang.rescclang.parser import Parameter, SyntaxTree, nearest, shorten, syntax_tree
from sley.lang.transfers import TransferSteps, assemble

MAX_RANKS = 4096
"""Bound on ranks: a collective stores the results of each rank, so memory grows quadratically."""

MAX_WARPS = 32
"""Bound on warps: a thread block of CUDA has at most 1024 threads."""

NUMBERS = {
    "nRanks": MAX_RANKS,
    "nChannels": MAX_NUMBER,
    "nWarps": MAX_WARPS,
    "GPUPerNode": MAX_RANKS,
    "NICPerNode": MAX_RANKS,
}
"""Parameters that are numbers from 1, with their bounds. They are variables of the body."""

WORDS = ("AlgoName", "OpType")
"""Parameters that are strings."""

OPERATIONS = {"allreduce": "Allreduce", "allgather": "Allgather", "reducescatter": "Reducescatter"}
"""Operators in lower case, and in ResCCL's spelling."""

_MAX_NAME = 200


class _Parameters:
    """The parameters of the text and of the caller."""

    def __init__(self, algorithm: SyntaxTree, overrides: Mapping[str, object]) -> None:
        self.whole = algorithm.at
        self.given: dict[str, Parameter] = {}
        for p in algorithm.parameters:
            self._check_name(p.name, p.at)
            if p.name in self.given:
                before = f"{p.name}={_escape(self.given[p.name].word)}"
                found = f"{p.name}={_escape(p.word)}, after {before}"
                raise L150.error(at=p.at, expected=f"{p.name} once", found=found)
            self.given[p.name] = p
        if "GPUPerNode" in overrides and "NICPerNode" not in overrides and self._own_cards():
            overrides = {**overrides, "NICPerNode": overrides["GPUPerNode"]}
        for name, value in overrides.items():
            place = replace(self.whole, detail="given by the caller")
            self._check_name(name, place)
            self.given[name] = Parameter(name, value, repr(value), place, place)

    def _own_cards(self) -> bool:
        """Whether each GPU of the text has its own network card."""
        cards, gpus = (self.given.get(name) for name in ("NICPerNode", "GPUPerNode"))
        return cards is not None and gpus is not None and cards.value == gpus.value

    def _check_name(self, name: str, at: Place) -> None:
        known = (*NUMBERS, *WORDS)
        if name not in known:
            found = f"{_escape(name)}{nearest(name, known)}"
            raise L150.error(at=at, expected=", ".join(known), found=found)

    def number(self, name: str) -> int | None:
        """A parameter from 1 to its bound. Errors: L150."""
        if name not in self.given:
            return None
        value = self.given[name].value
        number = int(cast("int", value)) if is_integer(value) else 0
        if not 1 <= number <= NUMBERS[name]:
            self.refuse(name, f"a number from 1 to {NUMBERS[name]}")
        return number

    def word(self, name: str) -> str | None:
        """A parameter that is a string. Errors: L150."""
        if name not in self.given:
            return None
        value = self.given[name].value
        if not isinstance(value, str) or not 1 <= len(value) <= _MAX_NAME:
            self.refuse(name, f"a string of 1 to {_MAX_NAME} characters")
        return value

    def refuse(self, name: str, expected: str, *others: str) -> NoReturn:
        """Raises L150 for a parameter, and the others that it contradicts."""
        raise L150.error(
            at=[self.given[name].value_at, *(self.given[n].value_at.labelled(n) for n in others)],
            expected=expected,
            found=f"{name}={_escape(self.given[name].word)}",
        )

    def missing(self, name: str, expected: str) -> NoReturn:
        raise L150.error(
            at=self.whole,
            expected=expected,
            found=f"no {name}",
            remedy="Add the parameter to the header, or pass it when you read the text.",
        )


def _escape(text: str) -> str:
    """The user's text for a message, without control characters for a terminal."""
    text = shorten(text)
    return text if text.isprintable() else ascii(text)


def _collective(given: _Parameters, variables: dict[str, int], in_place: bool) -> Collective:
    """The collective, with one chunk a rank (ResCCL 4.2 and appendix A)."""
    if "nRanks" not in variables:
        given.missing("nRanks", "nRanks=..., the number of GPUs")
    known = " or ".join(f'"{word}"' for word in OPERATIONS.values())
    operation = given.word("OpType")
    if operation is None:
        given.missing("OpType", f"OpType={known}")
    operation, ranks = operation.lower(), variables["nRanks"]
    if operation not in OPERATIONS:
        given.refuse("OpType", known)
    row = STANDARD[operation]
    return row.of(ranks, 1 if row.has_parts else ranks, in_place=in_place)


def _topology(given: _Parameters, variables: dict[str, int]) -> Topology | None:
    ranks, gpus = variables["nRanks"], variables.get("GPUPerNode")
    nics = variables.get("NICPerNode")
    if gpus is None:
        if nics is not None:
            given.refuse("NICPerNode", "GPUPerNode as well")
        return None
    if ranks % gpus:
        given.refuse("GPUPerNode", f"a number that divides nRanks={ranks}", "nRanks")
    if nics is not None and gpus % nics:
        given.refuse("NICPerNode", f"a number that divides GPUPerNode={gpus}", "GPUPerNode")
    return Topology.cluster(ranks // gpus, gpus, nics)


MAX_BYTES = 2**20
"""Bound on the size of a text: Python's tree of it takes some 600 times as much memory."""

_NO_FILE = "<rescclang>"


def parse(text: str, *, file: str = "", in_place: bool = False, **header: int | str) -> Program:
    """The program of a text.

    file: its name, for messages. in_place: whether input and output share memory; the text is the
    same either way. header: parameters that replace or extend those of the text's header, as in
    ``parse(text, nRanks=64)``. If the text has as many cards as GPUs, NICPerNode follows
    GPUPerNode.

    The header's nRanks and OpType (Allreduce, Allgather or Reducescatter, with one chunk a rank)
    define the collective, AlgoName the program's name (by default the file's), GPUPerNode and
    NICPerNode its topology, nChannels the number of instances of each transfer. nWarps is checked
    but has no effect, because a plan doesn't define the number of warps of a thread block.

    Errors: L101, L103, L112, L115, L122, L124, L143 to L156, F404, with line and column.
    """
    name = file or _NO_FILE
    if not isinstance(text, str):
        raise L112.error(at=Place(name), expected="a text", found=type(text).__name__)
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise F404.error(
            at=Place(name),
            expected=f"at most {MAX_BYTES} bytes",
            found=f"{len(text)} characters",
            remedy="Give a text of at most 1 MB; loops make large algorithms short.",
        )
    algorithm = syntax_tree(text, name, NUMBERS)
    given = _Parameters(algorithm, header)
    variables = {word: v for word in NUMBERS if (v := given.number(word)) is not None}
    title = given.word("AlgoName") or (Path(file).stem if file else "rescclang")
    if not title.isprintable() and "AlgoName" in given.given:
        given.refuse("AlgoName", "printable characters")
    collective = _collective(given, variables, in_place)
    topology = _topology(given, variables)
    src, dst, step, chunk, site = transfers(algorithm, variables, collective.ranks)
    sources = Sources.of_file(
        name,
        [t.at.line for t in algorithm.transfers],
        [t.at.column for t in algorithm.transfers],
        whole=algorithm.at,
    )
    steps = TransferSteps(
        src=src,
        dst=dst,
        step=step,
        chunk=chunk,
        kind=np.array([t.kind for t in algorithm.transfers], np.int8)[site],
        channel=np.full(len(site), NONE, np.int32),
        instances=np.full(len(site), variables.get("nChannels", 1), np.int32),
        source=site,
    )
    return assemble(collective, steps, name=title, sources=sources, topology=topology)


def load(path: str | Path, *, in_place: bool = False, **header: int | str) -> Program:
    """The program of a file of UTF-8 text; see `parse`. Errors: F404, and those of `parse`."""
    return parse(text_of(Path(path), F404), file=str(path), in_place=in_place, **header)
