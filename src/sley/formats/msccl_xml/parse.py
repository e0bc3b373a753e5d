"""Parse: the RawFile of an XML text, with the places of its elements, in bounded memory.

The parser is expat, which gets the text in pieces; document types, and so entities, are refused as
soon as they begin.
"""

from __future__ import annotations

import io
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, Rule, reason_of
from sley.errors.formats import F401, F403, F404, F405, F406, F407, F408
from sley.errors.text_files import open_file
from sley.formats.msccl_xml.raw import (
    BLOCK_FIELDS,
    GPU_FIELDS,
    STEP_FIELDS,
    Header,
    RawFile,
    Remark,
)
from sley.formats.msccl_xml.words import BUFFERS, OPERATIONS
from sley.formats.problems import MOST_REPORTED, Problems
from sley.ir.tables import NONE
from sley.ir.words import FIFO_PROTOCOLS

MAX_TEXT_BYTES = 64 << 20
MAX_ELEMENTS = 4_000_000
MAX_TAG_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
_CACHED_NUMBERS = 1 << 16
_SHOWN_CHARS = 60

_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)

_PARENT = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb", "copy": "gpu"}
_STEP_ATTRIBUTES = STEP_FIELDS[:10]
_BLOCK_ATTRIBUTES = BLOCK_FIELDS[:4]
_GPU_ATTRIBUTES = GPU_FIELDS[:4]
_ALGO_ATTRIBUTES = (
    "name",
    "proto",
    "coll",
    "nchannels",
    "nchunksperloop",
    "ngpus",
    "inplace",
    "outofplace",
    "minBytes",
    "maxBytes",
    "nthreads",
)

_Attributes = dict[str, str]
_T = TypeVar("_T")


def parse(source: str | os.PathLike[str], file: str | None = None) -> tuple[RawFile, Problems]:
    """The raw file of a path, or of text (a string with a "<" or a line end), and its problems.

    file: the file's name in messages; the path by default. Missing and wrong attributes get
    harmless values, and are problems of the result (F406 to F408), so that the caller can look for
    more. Errors: F401 to F405.
    """
    with _opened(source, file) as (stream, name):
        return _Parser(name).run(stream)


def parse_whole(
    source: str | os.PathLike[str], file: str | None = None
) -> tuple[RawFile, Problems, bytes]:
    """What `parse` returns, and the text."""
    with _opened(source, file) as (stream, name):
        text = stream.read(MAX_TEXT_BYTES + 1)
    return *_Parser(name).run(io.BytesIO(text)), text


@contextmanager
def _opened(source: str | os.PathLike[str], file: str | None) -> Iterator[tuple[BinaryIO, str]]:
    """The stream of a path or text, and the file's name in messages. Errors: F404."""
    if isinstance(source, str) and ("<" in source or "\n" in source):
        yield io.BytesIO(source.encode("utf-8", "surrogatepass")), file or "<text>"
        return
    path = os.fspath(source)
    try:
        with open_file(Path(path)) as stream:
            yield stream, file or path
    except (OSError, ValueError) as problem:
        raise F404.error(
            at=Place(file or path), expected="a file that can be read", found=reason_of(problem)
        ) from problem


class _ParsingEndsError(Exception):
    """Ends parsing after enough problems, or after one that makes others meaningless."""


class _Parser:
    """One run of expat over one file, and its results."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems = Problems()
        self.steps = array("i")
        self.blocks = array("i")
        self.gpus = array("i")
        self.header: Header | None = None
        self.ignored: dict[str, Remark] = {}
        self._path: list[str] = []
        self._elements = 0
        self._events = 0
        self._quiet = 0
        self._blocks_in_gpu = 0
        self._steps_in_block = 0
        self._whole = True
        expat_parser = expat.ParserCreate()
        expat_parser.buffer_text = True
        expat_parser.StartElementHandler = self._start
        expat_parser.EndElementHandler = self._end
        expat_parser.CharacterDataHandler = self._text
        expat_parser.StartDoctypeDeclHandler = self._doctype
        self._expat = expat_parser

    def run(self, stream: BinaryIO) -> tuple[RawFile, Problems]:
        """Parses the stream. Errors: F401 to F405, and the problems so far."""
        try:
            for piece, last in _pieces(stream):
                if piece is None:
                    self._refuse(
                        F403, expected=f"at most {MAX_TEXT_BYTES} bytes of text", found="more"
                    )
                else:
                    self._feed(piece, last)
        except expat.ExpatError as problem:
            at = Place(self.file, problem.lineno, problem.offset + 1)
            found = expat.ErrorString(problem.code)
            self._not_xml(at, expected="well-formed XML", found=found)
        except (LookupError, ValueError) as problem:
            self._not_xml(self._place(), expected="text in UTF-8", found=str(problem))
        except _ParsingEndsError:
            self._whole = False
        if self.header is None or not self._whole:
            self.problems.raise_any()
        if self.header is None:
            raise F405.error(at=Place(self.file), expected="an <algo> element", found="none")
        raw = RawFile(
            self.file,
            self.header,
            _table(self.steps, len(STEP_FIELDS)),
            _table(self.blocks, len(BLOCK_FIELDS)),
            _table(self.gpus, len(GPU_FIELDS)),
            tuple(self.ignored.values()),
        )
        return raw, self.problems

    def _not_xml(self, at: Place, *, expected: str, found: str) -> None:
        """Adds F401, without the problems of attributes so far; a misplaced element may be the
        cause."""
        self.problems.keep_only(F405)
        self.problems.add(F401, at, expected=expected, found=found)
        self._whole = False

    def _feed(self, piece: bytes, last: bool) -> None:
        before = self._events
        self._expat.Parse(piece, last)
        self._quiet = self._quiet + len(piece) if self._events == before else 0
        if self._quiet > MAX_TAG_BYTES:
            # Expat parses an unfinished tag again with each piece, in quadratic time.
            self._refuse(
                F403, expected=f"at most {MAX_TAG_BYTES} bytes in a tag or comment", found="more"
            )

    # Called by expat

    def _start(self, name: str, attributes: _Attributes) -> None:
        self._events += 1
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            self._refuse(F403, expected=f"at most {MAX_ELEMENTS} elements", found="more")
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if _PARENT.get(name) != parent:
            self._misplaced(name, parent)
        elif name == "step":
            self._step(attributes)
        elif name == "tb":
            self._block(attributes)
        elif name == "gpu":
            self._gpu(attributes)
        elif name == "copy":
            self._ignore("<copy> elements")
        else:
            self._algo(attributes)

    def _end(self, name: str) -> None:
        self._path.pop()

    def _text(self, text: str) -> None:
        self._events += 1
        if text.strip():
            self._problem(
                F405, expected="no text between the elements", found=_escape(text.strip())
            )

    def _doctype(self, *declaration: object) -> None:
        remedy = "Remove the <!DOCTYPE ...> declaration, and replace the entities by their text."
        found = f"one named {declaration[0]}"
        self._refuse(F401, expected="no document type", found=found, remedy=remedy)

    # One method an element

    def _algo(self, attributes: _Attributes) -> None:
        self._unknown(attributes, _ALGO_ATTRIBUTES, "algo")
        proto = self._word(
            attributes, "proto", {p.value: p.value for p in FIFO_PROTOCOLS}, "Simple"
        )
        self.header = Header(
            name=attributes.get("name"),
            proto=proto,
            coll=self._required(attributes, "coll", ""),
            nchannels=self._number(attributes, "nchannels", 1),
            nchunksperloop=self._number(attributes, "nchunksperloop", 1),
            ngpus=self._number(attributes, "ngpus", 1),
            inplace=self._optional(attributes, "inplace", _INT32),
            outofplace=self._optional(attributes, "outofplace", _INT32),
            min_bytes=self._optional(attributes, "minBytes", _INT64),
            max_bytes=self._optional(attributes, "maxBytes", _INT64),
            nthreads=self._optional(attributes, "nthreads", _INT32),
            line=self._expat.CurrentLineNumber,
            column=self._expat.CurrentColumnNumber + 1,
        )

    def _gpu(self, attributes: _Attributes) -> None:
        self._unknown(attributes, _GPU_ATTRIBUTES, "gpu")
        row = [self._number(attributes, "id", len(self.gpus) // len(GPU_FIELDS))]
        row += [self._number(attributes, name, 0) for name in _GPU_ATTRIBUTES[1:]]
        self.gpus.extend((*row, *self._position()))
        self._blocks_in_gpu = 0

    def _block(self, attributes: _Attributes) -> None:
        self._unknown(attributes, _BLOCK_ATTRIBUTES, "tb")
        row = [self._number(attributes, "id", self._blocks_in_gpu)]
        row += [self._number(attributes, name, NONE) for name in ("send", "recv")]
        row.append(self._number(attributes, "chan", 0))
        self.blocks.extend((*row, *self._position(), len(self.gpus) // len(GPU_FIELDS) - 1))
        self._blocks_in_gpu += 1
        self._steps_in_block = 0

    def _step(self, a: _Attributes) -> None:
        try:
            row: tuple[int, ...] = (
                _int32(a["s"]),
                OPERATIONS[a["type"]],
                BUFFERS[a["srcbuf"]],
                _int32(a["srcoff"]),
                BUFFERS[a["dstbuf"]],
                _int32(a["dstoff"]),
                _int32(a["cnt"]),
                _int32(a["depid"]),
                _int32(a["deps"]),
                _int32(a["hasdep"]),
            )
        except (KeyError, ValueError):
            row = self._repair_step(a)
        if len(a) != len(_STEP_ATTRIBUTES):
            self._unknown(a, _STEP_ATTRIBUTES, "step")
        self._steps_in_block += 1
        self.steps.extend(row)
        self.steps.extend((*self._position(), len(self.blocks) // len(BLOCK_FIELDS) - 1))

    def _repair_step(self, a: _Attributes) -> tuple[int, ...]:
        """A step's row with harmless values for wrong attributes, which are reported."""
        fallback = {"s": self._steps_in_block, "depid": NONE, "deps": NONE, "cnt": 1}
        words: dict[str, Mapping[str, int]] = {
            "type": OPERATIONS,
            "srcbuf": BUFFERS,
            "dstbuf": BUFFERS,
        }
        return tuple(
            self._word(a, name, words[name], 0)
            if name in words
            else self._number(a, name, fallback.get(name, 0))
            for name in _STEP_ATTRIBUTES
        )

    # Attributes

    def _required(self, attributes: _Attributes, name: str, fallback: str) -> str:
        value = attributes.get(name)
        if value is None:
            self._problem(
                F406,
                expected=f"the attribute {name}",
                found=f"<{self._path[-1]}> without it",
            )
            return fallback
        return value

    def _word(
        self, attributes: _Attributes, name: str, words: Mapping[str, _T], fallback: _T
    ) -> _T:
        text = self._required(attributes, name, "")
        if name not in attributes:
            return fallback
        if text not in words:
            known = " ".join(words)
            self._problem(
                F408, expected=f"{name} to be one of {known}", found=f'{name}="{_escape(text)}"'
            )
            return fallback
        return words[text]

    def _number(self, attributes: _Attributes, name: str, fallback: int) -> int:
        text = self._required(attributes, name, "")
        return self._integer(name, text, _INT32, fallback) if name in attributes else fallback

    def _optional(self, attributes: _Attributes, name: str, allowed: range) -> int | None:
        text = attributes.get(name)
        return None if text is None else self._integer(name, text, allowed, 0)

    def _integer(self, name: str, text: str, allowed: range, fallback: int) -> int:
        try:
            return _integer(text, allowed)
        except ValueError:
            bits = allowed.stop.bit_length()
            self._problem(
                F407,
                expected=f"{name} to be an integer of {bits} bits",
                found=f'{name}="{_escape(text)}"',
            )
            return fallback

    def _unknown(self, attributes: _Attributes, known: tuple[str, ...], element: str) -> None:
        for name in attributes:
            if name not in known:
                self._ignore(f"attribute {_escape(name)} of <{element}>")

    # Reporting

    def _position(self) -> tuple[int, int]:
        return self._expat.CurrentLineNumber, self._expat.CurrentColumnNumber + 1

    def _place(self) -> Place:
        return Place(self.file, *self._position())

    def _problem(self, rule: Rule, *, expected: str, found: str) -> None:
        self.problems.add(rule, self._place(), expected=expected, found=found)
        self._whole = self._whole and rule is not F405
        if self.problems.full:
            raise _ParsingEndsError

    def _refuse(self, rule: Rule, *, expected: str, found: str, remedy: str = "") -> NoReturn:
        self.problems.add(rule, self._place(), expected=expected, found=found, remedy=remedy)
        raise _ParsingEndsError

    def _misplaced(self, name: str, parent: str) -> None:
        inside = f"inside <{_escape(parent)}>" if parent else "outermost"
        children = " or ".join(f"<{c}>" for c, p in _PARENT.items() if p == parent) or "nothing"
        self._problem(F405, expected=f"{children} {inside}", found=f"<{_escape(name)}>")

    def _ignore(self, what: str) -> None:
        known = self.ignored.get(what)
        if known is not None:
            self.ignored[what] = replace(known, times=known.times + 1)
        elif len(self.ignored) < MOST_REPORTED:
            self.ignored[what] = Remark(what, 1, *self._position())


def _pieces(stream: BinaryIO) -> Iterator[tuple[bytes | None, bool]]:
    """The pieces of the stream's text, and whether each is the last; None if it is too long."""
    total = 0
    while piece := stream.read(_PIECE_BYTES):
        total += len(piece)
        if total > MAX_TEXT_BYTES:
            yield None, True
            return
        yield piece, False
    yield b"", True


def _integer(text: str, allowed: range) -> int:
    if _NUMBER.fullmatch(text) is None or (value := int(text)) not in allowed:
        raise ValueError(text)
    return value


@lru_cache(maxsize=_CACHED_NUMBERS)
def _int32(text: str) -> int:
    return _integer(text, _INT32)


def _escape(text: str) -> str:
    """The file's text for a message: short, and in printable characters."""
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return ascii(short)[1:-1]


def _table(values: array[int], width: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64).reshape(-1, width)
