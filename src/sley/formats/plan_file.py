"""Plan files: a plan as a file of sley's own, which other ranks and the cache get as bytes too.

All numbers are little-endian. A file begins with

    bytes 0 to 7      "sleyplan"
    bytes 8 to 11     the major and the minor version, 2 bytes each
    bytes 12 to 15    the length of the header
    bytes 16 to 23    the length of the file
    bytes 24 to 27    CRC-32 of all other bytes
    bytes 28 to 31    0

Then come the header, which is JSON, and the columns as in memory, each at a multiple of 8 bytes;
the header names them in order, with their types and lengths. So reading copies no column, and
executes nothing. Columns are not compressed: that takes longer than writing them.

A reader takes files of its major version, ignores what it doesn't know, and uses the defaults of
parameters of the cost model that are missing. So a minor version only adds what may be ignored.

`plan_header` makes a plan of a header and columns, which `plan_faults` checks.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, SleyError, printable, reason_of, recognition
from sley.errors.formats import F403, F404, F425, F426
from sley.errors.text_files import open_file
from sley.errors.verifier import V201
from sley.formats.format import Format, Imported
from sley.formats.plan_faults import fault_of
from sley.formats.plan_header import (
    WrongError,
    is_count,
    is_words,
    on_paths,
    plan_of,
    shown,
    value_of,
)
from sley.formats.source_paths import portable_path
from sley.ir.collective import Collective
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import TopologyLinks, Vertices
from sley.ir.plan import Estimate, Instructions, Plan
from sley.ir.plan_digest import columns_of, scalars_of
from sley.ir.sources import Sources
from sley.ir.tables import Edges, column_types
from sley.ir.topology import Topology

MAGIC = b"sleyplan"
MAJOR, MINOR = 1, 0
"""The version of the files that are written, see above."""

_START = struct.Struct("<8sHHIQII")
_CHECKSUM = slice(24, 28)
_ALIGNMENT = 8
_ENCODER = json.JSONEncoder(allow_nan=False)

_MOST_HEADER = 16 << 20
"""The most bytes of a header. Its longest part is the names of files."""

_TABLES: Mapping[str, type[Any]] = {
    "collective": Collective,
    "instructions": Instructions,
    "sources": Sources,
    "values": Edges,
    "waits": Edges,
    "plan": Plan,
    "groups": Edges,
    "estimate": Estimate,
    "vertices": Vertices,
    "links": TopologyLinks,
}
_TYPES = {
    f"{table}.{name}": (table, name, dtype, dtype.str)
    for table, cls in _TABLES.items()
    for name, dtype in column_types(cls).items()
}
"""The table, the name in it, the type and its name ("<i4") of all columns."""

_SIZES = {name: dtype.itemsize for _, _, dtype, name in _TYPES.values()}


def write(plan: Plan, *, recipe: Mapping[str, str] | None = None) -> list[Any]:
    """The parts of a plan's file, one after another; columns are not copied.

    recipe: what the plan was made from, in words: "what", "arguments", "options". Errors: V201.
    """
    if fault := fault_of(plan):
        raise V201.error(at=plan.places(()), expected=fault[0], found=fault[1])
    parts = _parts(plan, recipe or {})
    parts[0] = _with_checksum(parts[0], parts[1:])
    return parts


FORMAT = Format("sley's plan", ".plan", write, is_own=True)
"""The format of plan files."""


def encode(plan: Plan) -> bytes:
    """The bytes of a plan's file without its checksum, for `decode`: pipes between processes need
    none, and the names of files in the cache have a digest."""
    return b"".join(_parts(plan, {}))


def read(path: str | os.PathLike[str]) -> Imported:
    """The plan of a file, which is not proven, and its recipe. Errors: F403, F404, F425, F426,
    F550."""
    file = os.fspath(path)
    try:
        with open_file(Path(path)) as stream:
            start = stream.read(_START.size)
            _check_start(start, os.fstat(stream.fileno()).st_size, file)
            # A second part would have to be joined to the first one, which needs twice the memory.
            stream.seek(0)
            data = stream.read(_START.unpack(start)[4])
    except OSError as error:
        raise F404.error(
            at=Place(file), expected="a file that can be read", found=reason_of(error)
        ) from error
    except MemoryError as error:
        found = f"{_START.unpack(start)[4]} bytes"
        raise F403.error(
            at=Place(file), expected="a file that fits into memory", found=found
        ) from error
    start = data[: _START.size]
    if _with_checksum(start, [memoryview(data)[_START.size :]]) != start:
        raise _damaged(file, "the checksum of the content", "another one")
    head, plan = _content(data, file)
    if fault := fault_of(plan):
        raise _damaged(file, *fault)
    return Imported(plan, (), None, None, head["recipe"])


def decode(data: bytes) -> Plan:
    """The plan of the bytes of `encode`, of which neither a checksum nor the contents of the tables
    are checked. Errors: F425, F426."""
    _check_start(data[: _START.size], len(data), "")
    return _content(data, "")[1]


def _parts(plan: Plan, recipe: Mapping[str, str]) -> list[Any]:
    """The parts of a file, of which the first one lacks the checksum."""
    columns = [*columns_of(plan), *_topology_columns(plan.topology)]
    head = {
        "plan": scalars_of(plan),
        "recipe": {word: printable(text, kept="") for word, text in recipe.items()},
        "topology": _topology_scalars(plan.topology),
        "files": [portable_path(file) for file in plan.sources.files],
        "whole": on_paths(portable_path, plan.sources.whole.to_json()).to_json(),
        "columns": [[name, _TYPES[name][3], len(values)] for name, values in columns],
    }
    text = _ENCODER.encode(head).encode()
    parts: list[Any] = [b"", text, bytes(-len(text) % _ALIGNMENT)]
    total = _START.size + len(text) + len(parts[2])
    for _, values in columns:
        parts.append(values)  # its memory: columns are contiguous
        total += values.nbytes
        if rest := -values.nbytes % _ALIGNMENT:
            parts.append(bytes(rest))
            total += rest
    parts[0] = _START.pack(MAGIC, MAJOR, MINOR, len(text), total, 0, 0)
    return parts


def _with_checksum(start: bytes, rest: Iterable[Any]) -> bytes:
    """The beginning of a file with the checksum of all its bytes but those of the checksum."""
    checksum = zlib.crc32(start[_CHECKSUM.stop :], zlib.crc32(start[: _CHECKSUM.start]))
    for part in rest:
        checksum = zlib.crc32(part, checksum)
    return start[: _CHECKSUM.start] + checksum.to_bytes(4, "little") + start[_CHECKSUM.stop :]


def _topology_scalars(topology: Topology | None) -> dict[str, Any] | None:
    """The fields of a topology that are not columns."""
    if topology is None:
        return None
    model = {f.name: getattr(topology.model, f.name) for f in fields(CostModel)}
    return {
        "name": topology.name,
        "in_network": bool(topology.in_network),
        "shared_memory": bool(topology.shared_memory),
        "model": {
            name: [float(value.ll), float(value.ll128), float(value.simple)]
            if isinstance(value, ByProtocol)
            else float(value)
            for name, value in model.items()
        },
    }


def _topology_columns(topology: Topology | None) -> Iterator[tuple[str, NDArray[Any]]]:
    if topology is not None:
        for name in Vertices.column_names():
            yield f"vertices.{name}", getattr(topology.vertices, name)
        for name in TopologyLinks.column_names():
            yield f"links.{name}", getattr(topology.links, name)


def _check_start(start: bytes, size: int, file: str) -> None:
    """Refuses a file by its first bytes, and by its size. Errors: F425, F426, F550."""
    if file and not (start and MAGIC.startswith(start[: len(MAGIC)])):
        kind = recognition.kind_of(file)
        if kind is not recognition.BINARY:  # bytes of another kind may be a damaged beginning
            raise recognition.refuse_kind(file, kind, "a plan of sley")
    if len(start) < _START.size or not start.startswith(MAGIC):
        raise _damaged(file, f"a file that begins with {MAGIC.decode()}", "another beginning")
    _, major, minor, header, total, _, _ = _START.unpack(start)
    if major > MAJOR:
        raise F426.error(
            at=Place(file),
            expected=f"a plan file of version {MAJOR}",
            found=f"version {major}.{minor}",
        )
    if major < 1:
        raise _damaged(file, f"a version from 1 to {MAJOR}", f"{major}.{minor}")
    if total != size:
        raise _damaged(file, f"{total} bytes, as the file says", f"{size}")
    if header > min(total - _START.size, _MOST_HEADER):
        raise _damaged(file, f"a header of at most {_MOST_HEADER} bytes", f"{header} of {total}")


def _damaged(file: str, expected: str, found: object) -> SleyError:
    return F425.error(at=Place(file), expected=expected, found=str(found))


def _content(data: bytes, file: str) -> tuple[Any, Plan]:
    """The header and the plan of a file, after `_check_start`. Errors: F425, T601 to T603."""
    end = _START.size + _START.unpack_from(data)[3]
    try:
        head = _head(data[_START.size : end])
        value_of(head, "recipe", is_words, "words by name")
        return head, plan_of(head, _columns_of(head, data, end + -end % _ALIGNMENT))
    except WrongError as wrong:
        raise _damaged(file, *wrong.args) from None
    except SleyError as error:  # of the topology
        raise SleyError([replace(d, places=(Place(file),)) for d in error.diagnostics]) from None


def _head(text: bytes) -> Any:
    try:
        return json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        raise WrongError("a header in JSON", "other text") from None


def _columns_of(head: Any, data: bytes, position: int) -> dict[str, dict[str, NDArray[Any]]]:
    """The columns of a file by their names, for each table; views of its bytes from `position`."""
    found: dict[str, dict[str, NDArray[Any]]] = {table: {} for table in _TABLES}
    end = len(data)
    for row in value_of(head, "columns", lambda v: isinstance(v, list), "a list"):
        try:
            name, kind, rows = row
            size = rows * _SIZES[kind]
            known = _TYPES.get(name)
        except (TypeError, ValueError, KeyError):
            raise WrongError("name, type and length of each column", shown(row)) from None
        if not (is_count(rows) and size <= end - position):
            raise WrongError(f"at most {end - position} bytes of {name}", shown(rows))
        if known is not None:  # others are of a newer minor version
            table, column, dtype, own = known
            if kind != own:
                raise WrongError(f"{own} for column {name}", kind)
            # NumPy takes a length of 0 for none given.
            view = np.frombuffer(data, dtype, rows, position) if rows else np.zeros(0, dtype)
            found[table][column] = view
        position += size + -size % _ALIGNMENT
    if position != end:
        raise WrongError("the end of the file after the last column", f"{end} bytes")
    return found
