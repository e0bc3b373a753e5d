"""TE-CCL's files (JSON), read as schedules.

A flow is a line of text. The flow texts of an AllToAll are no list of its flows, as equal ones are
written once; its paths are. Source: TE-CCL's code, teccl/solvers/allgather.py and alltoall.py.
"""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sley.errors import Place, Rule, SleyError
from sley.errors.schedules import F551, F552
from sley.lang.schedules.documents import JsonObject, Lines, json_object, source_text
from sley.lang.schedules.teccl import (
    BANDWIDTH,
    EPOCHS,
    MAX_EPOCH,
    MAX_PARTS,
    MET,
    TIME,
    Claims,
    Flows,
    Paths,
    TecclSchedule,
)

MAX_NODE = 4095

_NUMBER = r"([0-9]{1,9})"
_HOP = rf"{_NUMBER}->{_NUMBER}(?: with volume ([0-9.eE+-]{{1,30}}))? in epoch {_NUMBER}"
_VIA = r"(?: via switches ([0-9]{1,9}(?:(?:->|, ?)[0-9]{1,9}){0,9}))?"
_FLOW = re.compile(rf"Chunk {_NUMBER} from {_NUMBER} traveled over {_HOP}{_VIA}")
_STEP = re.compile(_HOP + _VIA)
_DEMAND = re.compile(rf"Demand at {_NUMBER} for chunk {_NUMBER} from {_NUMBER} met by epoch .*")
_GPU = re.compile(rf"GPU {_NUMBER}")
_CHUNK = re.compile(rf"Chunk {_NUMBER}")
_FLOWS, _PATHS = re.compile(r"\d-Flows"), re.compile(r"\d-[Cc]hunk paths")
_DURATION = "1-Epoch_Duration"


class _Hop(NamedTuple):
    """A hop of a chunk, or of a part of one.

    volume: the part as a fraction of the chunk; None for all of it. epoch: the one in which it
    leaves `src`. via: the switches between the ends.
    """

    src: int
    dst: int
    volume: Fraction | None
    epoch: int
    via: tuple[int, ...]


class _Flow(NamedTuple):
    """The text of a flow, read. chunk: its number among those of `source`."""

    chunk: int
    source: int
    hop: _Hop
    line: int


def read(source: str | os.PathLike[str], file: str | None = None) -> TecclSchedule:
    """The schedule in a file (a path), or of a text that begins with {.

    file: the file's name in messages. Errors: F404, F551, F552.
    """
    text, file = source_text(source, "{", file)
    return _TecclReader(file, text).schedule()


class _TecclReader:
    """Reads one file."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._top = JsonObject(file, json_object(file, text))
        self._lines = Lines(text, r"Chunk |Demand at ")
        self._routes: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []  # of `Flows`
        self._paths: list[tuple[int, ...]] = []  # of `Paths`

    def schedule(self) -> TecclSchedule:
        flows = self._top.items(self._key(_FLOWS, "7-Flows"))
        parsed = [self._flow(text) for text in flows]
        fluid = any(flow.hop.volume is not None for flow in parsed)
        if fluid:
            self._read_paths(self._top.table(self._key(_PATHS, "8-Chunk paths")))
        else:
            self._rows = [self._row(f.chunk, f.source, f.hop, -1, f.line) for f in parsed]
        if not self._rows:
            self._top.refuse("7-Flows", "at least one flow", flows)
        return TecclSchedule(
            self._file,
            "alltoall" if fluid else "allgather",
            self._claims(),
            Flows(*np.array(self._rows, np.int32).T),
            Paths(*np.array(self._paths, np.int32).reshape(-1, 6).T),
            tuple(self._routes),
        )

    def _key(self, pattern: re.Pattern[str], usual: str) -> str:
        """The key whose number varies."""
        return next((key for key in self._top.values if pattern.fullmatch(key)), usual)

    def _refuse(self, rule: Rule, text: object, expected: str) -> SleyError:
        shown = repr(text[:100]) if isinstance(text, str) else type(text).__name__
        line = self._lines[text] if isinstance(text, str) else 0
        return rule.error(at=Place(self._file, line), expected=expected, found=shown)

    def _row(self, chunk: int, source: int, hop: _Hop, path: int, line: int) -> tuple[int, ...]:
        """The row of a hop; its route gets a number."""
        route = self._routes.setdefault(hop.via, len(self._routes))
        return (chunk, source, hop.src, hop.dst, hop.epoch, route, path, line)

    def _flow(self, text: object) -> _Flow:
        found = _FLOW.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            expected = "Chunk C from S traveled over A->B [with volume V] in epoch K"
            raise self._refuse(F551, text, expected)
        chunk, source = int(found[1]), self._node(found[2], text)
        if chunk > MAX_NODE:
            raise self._refuse(F552, text, f"chunks up to {MAX_NODE}")
        return _Flow(chunk, source, self._hop(found.groups()[2:], text), self._lines[str(text)])

    def _hop(self, groups: tuple[str | None, ...], text: object) -> _Hop:
        """A hop. groups: those of _HOP and _VIA. text: where they are from."""
        *ends, share, epoch, via = groups
        src, dst = (self._node(str(node), text) for node in ends)
        if int(epoch or 0) > MAX_EPOCH:
            raise self._refuse(F552, text, f"epochs up to {MAX_EPOCH}")
        switches = re.split(r"->|, ?", via) if via else []
        route = tuple(self._node(switch, text) for switch in switches)
        if src == dst:
            raise self._refuse(F551, text, "two different nodes")
        volume = None if share is None else self._share(share, text)
        return _Hop(src, dst, volume, int(epoch or 0), route)

    def _node(self, word: str, text: object) -> int:
        if int(word) > MAX_NODE:
            raise self._refuse(F552, text, f"nodes up to {MAX_NODE}")
        return int(word)

    def _share(self, word: str, text: object) -> Fraction:
        """A volume as a fraction of a chunk; TE-CCL rounds to six digits."""
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise self._refuse(F551, text, "a volume above 0 and up to 1")
        share = Fraction(value).limit_denominator(MAX_PARTS)
        if share == 0 or abs(float(share) - value) > 1e-5:
            expected = f"a volume that is a fraction with a denominator up to {MAX_PARTS}"
            raise self._refuse(F552, text, expected)
        return share

    def _read_paths(self, demands: dict[str, Any]) -> None:
        for text, paths in demands.items():
            found = _DEMAND.fullmatch(text)
            if found is None or not isinstance(paths, list):
                raise self._refuse(F551, text, "Demand at D for chunk C from S met by epoch K")
            target, chunk, source = int(found[1]), int(found[2]), int(found[3])
            for node in (target, source):
                self._node(str(node), text)
            if chunk > MAX_NODE * MAX_NODE:
                raise self._refuse(F552, text, f"chunks up to {MAX_NODE * MAX_NODE}")
            for path in paths:
                self._read_path(path, text, (source, target, chunk))

    def _read_path(self, path: object, demand: str, key: tuple[int, int, int]) -> None:
        """A path is a list of [epoch, text of a hop]."""
        source, target, chunk = key
        line, at, shares = self._lines[demand], source, set()
        if not isinstance(path, list) or not path:
            raise self._refuse(F551, demand, "paths, each a list of hops")
        for entry in path:
            text = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
            found = _STEP.fullmatch(text) if isinstance(text, str) else None
            if found is None:
                raise self._refuse(F551, demand, "hops A->B with volume V in epoch K")
            hop = self._hop(found.groups(), text)
            if hop.src != at or hop.volume is None:
                raise self._refuse(F551, demand, f"hops with volumes that lead on from GPU {at}")
            at = hop.dst
            shares.add(hop.volume)
            self._rows.append(self._row(chunk, source, hop, len(self._paths), line))
        if at != target or len(shares) != 1:
            expected = f"paths of one volume that lead from GPU {source} to GPU {target}"
            raise self._refuse(F551, demand, expected)
        share = shares.pop()
        self._paths.append((source, target, chunk, share.numerator, share.denominator, line))

    def _claims(self) -> Claims:
        top = self._top
        epoch = top.number(_DURATION)
        epochs = top.number(EPOCHS)
        if epochs != int(epochs) or epochs > 2 * MAX_EPOCH:
            top.refuse(EPOCHS, f"a whole number up to {2 * MAX_EPOCH}", epochs)
        met = self._met(epoch) if MET in top.values else {}
        return Claims(epoch, int(epochs), top.number(TIME), top.number(BANDWIDTH), met)

    def _met(self, epoch: float) -> dict[tuple[int, int, int], int]:
        """The epoch by which each (GPU, source, chunk) arrives: {"GPU 3": {"GPU 1": {"Chunk 0":
        seconds}}}."""
        met: dict[tuple[int, int, int], int] = {}
        for word, sources in self._top.table(MET).items():
            gpu = self._numbered(_GPU, word)
            for other, chunks in JsonObject(self._file, {word: sources}, MET).table(word).items():
                source = self._numbered(_GPU, other)
                inside = JsonObject(self._file, {other: chunks}, f"{MET}, {word}").table(other)
                times = JsonObject(self._file, inside, f"{MET}, {word}, {other}")
                for name in inside:
                    key = gpu, source, self._numbered(_CHUNK, name)
                    met[key] = round(min(times.number(name) / epoch, 1e12))
        return met

    def _numbered(self, pattern: re.Pattern[str], word: str) -> int:
        found = pattern.fullmatch(word)
        if found is None:
            expected = "GPU N, and in it Chunk N"
            raise F551.error(
                at=Place(self._file, detail=MET), expected=expected, found=repr(word[:40])
            )
        return int(found[1])
