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

from pathlib import Path

import numpy as np

from sley.errors import Place
from sley.errors.formats import F404
from sley.errors.language import L112
from sley.errors.text_files import text_of
from sley.ir.program import Program
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.lang.rescclang.evaluate import transfers
from sley.lang.rescclang.header import NUMBERS, Header, read_header
from sley.lang.rescclang.lexer import split_lines
from sley.lang.rescclang.parser import Parser
from sley.lang.rescclang.syntax import SyntaxTree
from sley.lang.transfers import TransferSteps, assemble

MAX_BYTES = 4 * 2**20
"""Bound on the size of a text."""

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

    Errors: L101, L103, L112, L113, L122, L124, L143 to L156, F404, with line and column.
    """
    name = file or _NO_FILE
    if not isinstance(text, str):
        raise L112.error(at=Place(name), expected="a text", found=type(text).__name__)
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise F404.error(
            at=Place(name),
            expected=f"at most {MAX_BYTES} bytes",
            found=f"{len(text)} characters",
            remedy="Give a text of at most 4 MB; loops make large algorithms short.",
        )
    algorithm = Parser(split_lines(text), name, NUMBERS).algorithm()
    read = read_header(algorithm, header, in_place=in_place, file=name)
    steps = _steps(algorithm, read, name)
    default = Path(file).stem if file else "rescclang"
    sources = Sources.of_file(
        name,
        [t.line for t in algorithm.transfers],
        [t.column for t in algorithm.transfers],
        whole=Place(name, algorithm.line, algorithm.column),
    )
    return assemble(
        read.collective,
        steps,
        name=read.name or default,
        sources=sources,
        topology=read.topology,
    )


def load(path: str | Path, *, in_place: bool = False, **header: int | str) -> Program:
    """The program of a file of UTF-8 text; see `parse`. Errors: F404, and those of `parse`."""
    return parse(text_of(Path(path), F404), file=str(path), in_place=in_place, **header)


def _steps(algorithm: SyntaxTree, header: Header, file: str) -> TransferSteps:
    ranks = header.collective.ranks
    src, dst, step, chunk, site = transfers(algorithm, header.variables, ranks, file=file)
    kinds = np.array([t.kind for t in algorithm.transfers], np.int8)
    return TransferSteps(
        src=src,
        dst=dst,
        step=step,
        chunk=chunk,
        kind=kinds[site],
        channel=np.full(len(site), NONE, np.int32),
        instances=np.full(len(site), header.instances, np.int32),
        source=site,
    )
