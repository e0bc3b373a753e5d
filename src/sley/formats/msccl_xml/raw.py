"""Raw: the content of an MSCCL XML file as columns: of a text, before it is checked, or of a plan,
before it is written.

The parser is expat, which gets the text in pieces; document types, and so entities, are refused as
soon as they begin. It bounds memory, and keeps the places of elements.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import NoReturn, TypeVar
from xml.parsers import expat

import numpy as np

from sley.errors import Diagnostic, Place, Rule
from sley.errors.formats import F401, F403, F405, F406, F407, F408
from sley.formats.format import MOST_REPORTED, Problems, content_of
from sley.formats.msccl_xml.targets import BUFFERS, OPERATIONS
from sley.ir.tables import NONE, BoolArray, LongArray
from sley.ir.words import FIFO_PROTOCOLS

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": (
        *("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt"),
        *("depid", "deps", "hasdep"),
    ),
}
"""The attributes of the elements inside of <algo>, in the order in which they are written."""

PARENT: Mapping[str, str] = {"gpu": "algo", "tb": "gpu", "step": "tb"}
"""The elements around them."""


@dataclass(frozen=True)
class Header:
    """The attributes of <algo>, in the order in which they are written; None for missing ones."""

    name: str | None
    proto: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    coll: str
    inplace: int | None
    outofplace: int | None
    minBytes: int | None  # noqa: N815 - the file's word
    maxBytes: int | None  # noqa: N815
    nthreads: int | None


@dataclass(frozen=True, eq=False)
class Elements:
    """The elements of a name, in the order of the text.

    columns: int64 (elements,), by attribute. `type` is an Op, `srcbuf` and `dstbuf` are Buffers.
        `tb` of a step and `gpu` of a block are the rows of the elements around them. Elements of a
        text have their `line` and `column`.
    place: the place of a row.
    """

    columns: Mapping[str, LongArray]
    place: Callable[[int], Place]

    def __getitem__(self, attribute: str) -> LongArray:
        return self.columns[attribute]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def report(
        self,
        problems: Problems,
        rows: BoolArray | LongArray,
        rule: Rule,
        expected: str | Callable[[int], str],
        found: str | Callable[[int], str],
        remedy: str = "",
    ) -> None:
        """Adds a problem for each of some rows, as `Problems.add_each`. found: or the attributes to
        show, with a space between them."""
        names = found.split() if isinstance(found, str) else []

        def shown(row: int) -> str:
            return ", ".join(f"{name}={self[name][row]}" for name in names)

        text = shown if isinstance(found, str) else found
        problems.add_each(rows, rule, self.place, expected, text, remedy)

    def remark(self, mask: BoolArray, rule: Rule, expected: str, found: str) -> list[Diagnostic]:
        """One remark on all rows of `mask`, at the first of them; none without rows."""
        rows = np.flatnonzero(mask).tolist()
        more = [f"and {len(rows) - 1} more like it"] if len(rows) > 1 else []
        return [
            rule.diagnostic(at=self.place(row), expected=expected, found=found, notes=more)
            for row in rows[:1]
        ]


@dataclass(frozen=True, eq=False)
class RawFile:
    """What a file says. file: its name in messages. whole: the place of <algo>. ignored: what the
    parser ignored, how often, and where first. text: if it was read from one."""

    file: str
    whole: Place
    header: Header
    gpus: Elements
    blocks: Elements
    steps: Elements
    ignored: Mapping[str, tuple[int, Place]] = field(default_factory=dict)
    text: bytes = b""

    @property
    def block_rank(self) -> LongArray:
        """int64 (blocks,): the rank of each block."""
        return self.gpus["id"][self.blocks["gpu"]]


MAX_TEXT_BYTES = 64 << 20
MAX_ELEMENTS = 4_000_000
MAX_TAG_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
_CACHED_NUMBERS = 1 << 16
_SHOWN_CHARS = 60

_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)

_PARENT = {"algo": "", **PARENT, "copy": "gpu"}
_CHILD = {"gpu": "tb", "tb": "step"}
_WORDS: Mapping[str, Mapping[str, int]] = {"type": OPERATIONS, "srcbuf": BUFFERS, "dstbuf": BUFFERS}
"""The words of the attributes that are no numbers."""

_HARMLESS = dict.fromkeys(("send", "recv", "depid", "deps"), NONE) | {"cnt": 1}
"""The values that wrong attributes get, if not 0; `id` and `s` get the next number."""

_Attributes = dict[str, str]
_T = TypeVar("_T")


def parse(source: str | os.PathLike[str], file: str | None = None) -> tuple[RawFile, Problems]:
    """The raw file of a path, or of text (a string with a "<" or a line end), and its problems.

    file: the file's name in messages; the path by default. Missing and wrong attributes get
    harmless values, and are problems of the result (F406 to F408), so that the caller can look for
    more. Errors: F401 to F405.
    """
    if isinstance(source, str) and ("<" in source or "\n" in source):
        text = source.encode("utf-8", "surrogatepass")
        return _Parser(file or "<text>", text).run()
    file = file or os.fspath(source)
    return _Parser(file, content_of(source, file, MAX_TEXT_BYTES)).run()


class _ParsingEndsError(Exception):
    """Ends parsing after enough problems, or after one that makes others meaningless."""


class _Parser:
    """One run of expat over one file, and its results."""

    def __init__(self, file: str, text: bytes) -> None:
        self.file = file
        self.text = text
        self.problems = Problems()
        self.header: Header | None = None
        self.header_place = Place(file)
        self.ignored: dict[str, tuple[int, Place]] = {}
        # Of each element, and then of each in the element around it, the number of elements.
        self._total = dict.fromkeys(_PARENT, 0)
        self._inside = dict.fromkeys(_PARENT, 0)
        self._rows = {name: array("i") for name in ATTRIBUTES}
        self._path: list[str] = []
        self._elements = 0
        self._events = 0
        self._quiet = 0
        self._whole = True
        expat_parser = expat.ParserCreate()
        expat_parser.buffer_text = True
        expat_parser.StartElementHandler = self._start
        expat_parser.EndElementHandler = lambda _: self._path.pop()
        expat_parser.CharacterDataHandler = self._text
        expat_parser.StartDoctypeDeclHandler = self._doctype
        self._expat = expat_parser

    def run(self) -> tuple[RawFile, Problems]:
        """Parses the text. Errors: F401 to F405, and the problems so far."""
        try:
            # In pieces, after which expat tells whether it came to the end of a tag.
            for begin in range(0, len(self.text), _PIECE_BYTES):
                end = min(begin + _PIECE_BYTES, len(self.text))
                if end > MAX_TEXT_BYTES:
                    self._refuse(
                        F403, expected=f"at most {MAX_TEXT_BYTES} bytes of text", found="more"
                    )
                self._feed(self.text[begin:end], False)
            self._feed(b"", True)
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
        gpus = self._table("gpu", lambda row: f"gpu {gpus['id'][row]}")
        blocks = self._table(
            "tb", lambda row: f"gpu {gpus['id'][blocks['gpu'][row]]}, block {blocks['id'][row]}"
        )
        steps = self._table(
            "step", lambda row: f"{blocks.place(steps['tb'][row]).detail}, step {steps['s'][row]}"
        )
        parts = (self.header, gpus, blocks, steps, self.ignored, self.text)
        return RawFile(self.file, self.header_place, *parts), self.problems

    def _table(self, element: str, name: Callable[[int], str]) -> Elements:
        """The elements of a name. name: of a row, in messages."""
        words = (*ATTRIBUTES[element], PARENT[element], "line", "column")
        table = np.array(self._rows[element], np.int64).reshape(-1, len(words)).T
        columns = dict(zip(words, np.ascontiguousarray(table), strict=True))

        def place(row: int) -> Place:
            return Place(
                self.file, int(columns["line"][row]), int(columns["column"][row]), name(row)
            )

        return Elements(columns, place)

    def _not_xml(self, at: Place, *, expected: str, found: str) -> None:
        """Adds F401, without the problems of attributes so far; a misplaced element may be the
        cause."""
        self.problems.keep_only(F405)
        self.problems.add(F401, at, expected, found)
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
        elif name in ATTRIBUTES:
            self._add(name, parent, attributes)
        elif name == "copy":
            self._ignore("<copy> elements")
        else:
            self._algo(attributes)

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

    # Elements

    def _algo(self, attributes: _Attributes) -> None:
        self._unknown(attributes, [f.name for f in fields(Header)], "algo")
        protocols = {p.value: p.value for p in FIFO_PROTOCOLS}
        proto = self._word(attributes, "proto", protocols, "Simple")
        coll = self._value(attributes, "coll", "", str)
        nchannels, chunks, ranks = (
            self._value(attributes, name, 1, _int32)
            for name in ("nchannels", "nchunksperloop", "ngpus")
        )
        inplace, outofplace, least, most, threads = (
            self._optional(attributes, name, allowed)
            for name, allowed in (
                ("inplace", _INT32),
                ("outofplace", _INT32),
                ("minBytes", _INT64),
                ("maxBytes", _INT64),
                ("nthreads", _INT32),
            )
        )
        name, places = attributes.get("name"), (inplace, outofplace)
        self.header = Header(
            name, proto, nchannels, chunks, ranks, coll, *places, least, most, threads
        )
        self.header_place = self._place()

    def _add(self, element: str, parent: str, a: _Attributes) -> None:
        """Adds a row of an element inside of <algo>."""
        known = ATTRIBUTES[element]
        try:
            row = [value_of(a[name]) for name, value_of in _VALUES[element].items()]
        except (KeyError, ValueError):
            row = [self._repaired(a, name, self._inside[element]) for name in known]
        if len(a) != len(known):
            self._unknown(a, known, element)
        self._rows[element].extend((*row, self._total[parent] - 1, *self._position()))
        self._total[element] += 1
        self._inside[element] += 1
        if element in _CHILD:
            self._inside[_CHILD[element]] = 0

    def _repaired(self, a: _Attributes, name: str, number: int) -> int:
        """The value of an attribute, harmless for a wrong one, which is reported. number: of the
        element, in the one around it."""
        if name in _WORDS:
            return self._word(a, name, _WORDS[name], 0)
        fallback = number if name in ("id", "s") else _HARMLESS.get(name, 0)
        return self._value(a, name, fallback, _int32)

    # Attributes

    def _value(
        self,
        attributes: _Attributes,
        name: str,
        fallback: _T,
        read: Callable[[str], _T],
        wrong: tuple[Rule, str] = (F407, "an integer of 32 bits"),
    ) -> _T:
        """The value of an attribute, which `read` makes of its text; the fallback for a missing one
        (F406), or a wrong one. wrong: its rule, and what is expected."""
        try:
            return read(attributes[name])
        except (KeyError, ValueError):
            if name in attributes:
                found = f'{name}="{_escape(attributes[name])}"'
                self._problem(wrong[0], expected=f"{name} to be {wrong[1]}", found=found)
            else:
                found = f"<{self._path[-1]}> without it"
                self._problem(F406, expected=f"the attribute {name}", found=found)
            return fallback

    def _word(
        self, attributes: _Attributes, name: str, words: Mapping[str, _T], fallback: _T
    ) -> _T:
        wrong = F408, f"one of {' '.join(words)}"
        return self._value(attributes, name, fallback, words.__getitem__, wrong)

    def _optional(self, attributes: _Attributes, name: str, allowed: range) -> int | None:
        if name not in attributes:
            return None
        wrong = F407, f"an integer of {allowed.stop.bit_length()} bits"
        return self._value(attributes, name, 0, lambda text: _integer(text, allowed), wrong)

    def _unknown(self, attributes: _Attributes, known: Sequence[str], element: str) -> None:
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
        times, first = self.ignored.get(what, (0, self._place()))
        if times or len(self.ignored) < MOST_REPORTED:
            self.ignored[what] = times + 1, first


def _integer(text: str, allowed: range) -> int:
    if _NUMBER.fullmatch(text) is None or (value := int(text)) not in allowed:
        raise ValueError(text)
    return value


@lru_cache(maxsize=_CACHED_NUMBERS)
def _int32(text: str) -> int:
    return _integer(text, _INT32)


_VALUES: Mapping[str, Mapping[str, Callable[[str], int]]] = {
    element: {name: _WORDS[name].__getitem__ if name in _WORDS else _int32 for name in names}
    for element, names in ATTRIBUTES.items()
}
"""The values of right attributes, by element; KeyError or ValueError for wrong ones."""


def _escape(text: str) -> str:
    """The file's text for a message: short, and in printable characters."""
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return ascii(short)[1:-1]
