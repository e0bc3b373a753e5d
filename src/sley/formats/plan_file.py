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
parameters of the cost model that are missing, with a remark (F434). So a minor version only adds
what may be ignored.

Below: writing and reading; the plan of a header and columns, of which nothing is taken as it is;
contradictions that the verifier doesn't look for, since no pass makes them; and the names of source
files, which must not tell where the folders of a user are.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sley.errors import Diagnostic, Place, SleyError, printable, reason_of, recognition
from sley.errors.formats import F403, F404, F425, F426, F434
from sley.errors.text_files import Section, json_of, open_file
from sley.errors.verifier import V201
from sley.formats.format import Format, Imported
from sley.ir.collective import Collective
from sley.ir.collectives import MAX_COUNT
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.plan import Estimate, Instructions, Plan
from sley.ir.plan_digest import columns_of, scalars_of
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, column_types
from sley.ir.topology import Topology
from sley.ir.words import Buffer, LoopOrder, Protocol, is_integer, is_real

MAGIC = b"sleyplan"
MAJOR, MINOR = 1, 1
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
    if fault := _fault_of(plan):
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
    if fault := _fault_of(plan):
        raise _damaged(file, *fault)
    return Imported(plan, _assumed(head, plan.topology), None, None, head.values["recipe"])


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
        "whole": _on_paths(portable_path, plan.sources.whole.to_json()).to_json(),
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
        **({"accuracy": topology.accuracy} if topology.accuracy else {}),
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


def _content(data: bytes, file: str) -> tuple[Section, Plan]:
    """The header and the plan of a file, after `_check_start`. Errors: F425, T601 to T603."""
    end = _START.size + _START.unpack_from(data)[3]
    try:
        text = data[_START.size : end].decode("ascii", "replace")
        head = Section(file, {"header": json_of(file, text, F425)}, F425).section("header")
        _checked(head, "recipe", _are_words, "words by name")
        return head, _plan_of(head, _columns_of(head, data, end + -end % _ALIGNMENT))
    except SleyError as error:  # its place is in the header, or in a topology
        raise SleyError([replace(d, places=(Place(file),)) for d in error.diagnostics]) from None


def _columns_of(head: Section, data: bytes, position: int) -> dict[str, dict[str, NDArray[Any]]]:
    """The columns of a file by their names, for each table; views of its bytes from `position`."""
    found: dict[str, dict[str, NDArray[Any]]] = {table: {} for table in _TABLES}
    end = len(data)
    # Each column must fit into what is left of the file, so no length makes it take memory for
    # which there are no bytes.
    for row in head.typed("columns", list):
        try:
            name, kind, rows = row
            size = rows * _SIZES[kind]
            known = _TYPES.get(name)
        except (TypeError, ValueError, KeyError):
            raise head.refuse("columns", "name, type and length of each", row) from None
        if not (_is_count(rows) and size <= end - position):
            raise head.refuse("columns", f"at most {end - position} bytes of {name}", rows)
        if known is not None:  # others are of a newer minor version
            table, column, dtype, own = known
            if kind != own:
                raise head.refuse("columns", f"{own} for column {name}", kind)
            # NumPy takes a length of 0 for none given.
            view = np.frombuffer(data, dtype, rows, position) if rows else np.zeros(0, dtype)
            found[table][column] = view
        position += size + -size % _ALIGNMENT
    if position != end:
        raise head.refuse("columns", "the end of the file after the last column", end)
    return found


E = TypeVar("E", bound=Enum)

MOST_CALLERS = 900
"""The most lines that call one another; Python's own limit is 1000."""

_NO_GROUPS = Edges.empty(0)


def _checked(table: Section, key: str, is_right: Callable[[Any], bool], expected: str) -> Any:
    """The value of a key of the header, None without the key."""
    value = table.value(key, expected, None)
    if not is_right(value):
        raise table.refuse(key, expected, value)
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_number(value: object) -> bool:
    return is_real(value) and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _are_words(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _plan_of(head: Section, columns: Mapping[str, Mapping[str, NDArray[Any]]]) -> Plan:
    """The plan of a header and columns, whose tables may still contradict one another.

    columns: for each table those of a file by their names, none that the table hasn't."""

    def of(table: str, cls: type[Any]) -> Mapping[str, Any]:
        for name in column_types(cls):
            if name not in columns[table]:
                raise _damaged(head.file, f"a column {table}.{name}", "none")
        return columns[table]

    words = head.section("plan")
    times = _checked(words, "times", _are_times, "two times and a number of tiles, or null")
    name, ranks, chunks, in_place, root, *varying = _checked(
        words, "collective", _is_collective, "name, ranks, chunks, in_place and root"
    )
    try:
        return Plan(
            name=words.typed("name", str),
            collective=Collective(
                name=name,
                ranks=ranks,
                chunks=chunks,
                in_place=in_place,
                root=root,
                values=Edges(**of("values", Edges)),
                max_count=varying[0] if varying else NONE,
                **of("collective", Collective),
            ),
            protocol=_member(words, "protocol", Protocol),
            loop_order=_member(words, "loop_order", LoopOrder),
            slots=_checked(words, "slots", _is_count, "a number"),
            per_chunk=words.typed("per_chunk", bool),
            instructions=Instructions(**of("instructions", Instructions)),
            waits=Edges(**of("waits", Edges)),
            sources=Sources(
                **of("sources", Sources),
                files=tuple(map(_local_path, _checked(head, "files", _are_files, "names"))),
                whole=_place(head),
            ),
            estimate=None
            if times is None
            else Estimate(times[0], times[1], of("estimate", Estimate)["busy_us"], times[2]),
            topology=_topology(head, of),
            groups=Edges(**of("groups", Edges)) if columns["groups"] else _NO_GROUPS,
            **of("plan", Plan),
        )
    except ValueError as error:  # of a table
        raise _damaged(head.file, "columns of one length in each table", error) from None


def _member(words: Section, key: str, kind: type[E]) -> E:
    try:
        return kind(words.values.get(key))
    except ValueError:
        raise words.refuse(key, "a known word", words.values.get(key)) from None


def _topology(head: Section, of: Callable[..., Mapping[str, Any]]) -> Topology | None:
    """The topology of a file. Errors: T601 to T603."""
    if head.value("topology", "", None) is None:
        return None
    words = head.section("topology")
    model = words.section("model")
    costs: dict[str, Any] = {}
    for word in {f.name for f in fields(CostModel)} & model.values.keys():
        value = _checked(model, word, _is_cost, "a number, or three")
        costs[word] = ByProtocol(*value) if isinstance(value, list) else value
    return Topology(
        name=words.typed("name", str),
        vertices=Vertices(**of("vertices", Vertices)),
        links=TopologyLinks(**of("links", TopologyLinks)),
        model=CostModel(**costs),
        in_network=words.typed("in_network", bool),
        shared_memory=words.typed("shared_memory", bool),
        accuracy=words.typed("accuracy", str, ""),
    )


def _assumed(head: Section, topology: Topology | None) -> tuple[Diagnostic, ...]:
    """The remark on parameters of the cost model that a file of an earlier version lacks."""
    if topology is None:
        return ()
    lacking = {f.name for f in fields(CostModel)} - head.values["topology"]["model"].keys()
    names = ", ".join(sorted(lacking))
    found = f"a file of an earlier version, without {names}: defaults, unless --topology is given"
    at, expected = Place(head.file), "all parameters of the cost model"
    return (F434.diagnostic(at=at, expected=expected, found=found),) if lacking else ()


def _are_times(value: Any) -> bool:
    if not isinstance(value, list):
        return value is None
    return len(value) == 3 and all(map(_is_number, value)) and _is_count(value[2])


def _is_collective(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) in (5, 6) and isinstance(value[0], str)):
        return False
    _, ranks, chunks, in_place, root, *varying = value
    numbers = (ranks, chunks, root + 1 if is_integer(root) else None)
    most = [is_integer(one) and 0 <= one <= MAX_COUNT for one in varying]
    return all(map(_is_count, numbers)) and isinstance(in_place, bool) and all(most)


def _is_cost(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 3 and all(map(_is_number, value))
    return _is_number(value)


def _are_files(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_file, value))


def _is_file(value: object) -> bool:
    return _is_text(value) and _is_portable(str(value))


def _place(head: Section) -> Place:
    """The place of the plan as a whole."""
    value = head.section("whole")
    callers = value.sections("called_from")
    if len(callers) > MOST_CALLERS:
        raise value.refuse("called_from", f"at most {MOST_CALLERS} lines", len(callers))
    for one in (value, *callers):
        _checked(one, "file", _is_file, "a name")
        _checked(one, "line", _is_count, "a number")
    _checked(value, "column", _is_count, "a number")
    _checked(value, "detail", _is_text, "a text")
    return _on_paths(_local_path, value.values)


def _on_paths(change: Callable[[str], str], place: Any) -> Place:
    """The place of a JSON value with other names of the files, of its callers too."""
    callers = [{**one, "file": change(one["file"])} for one in place["called_from"]]
    return Place.from_json({**place, "file": change(place["file"]), "called_from": callers})


FREE_SCRATCH = 1 << 20
"""The chunks of scratch that a plan may have even if no instruction uses them. A proof has a value
for each chunk, and no bytes of a file stand for them."""


def _fault_of(plan: Plan) -> tuple[str, str] | None:
    """The first of these contradictions of a plan: what is expected, and what is found; None if
    there is none. A buffer that doesn't exist is one even where an instruction doesn't use it:
    pictures, lifting and kernels look at it without a look at the operation."""
    # Each check relies on those before it, so none is made after the first fault.
    faults = chain(_of_collective(plan), _of_instructions(plan), _of_rest(plan))
    return next(((expected, str(found)) for expected, found in faults), None)


_Faults = Iterator[tuple[str, object]]


def _of_collective(plan: Plan) -> _Faults:
    c = plan.collective
    if min(c.ranks, c.chunks) <= 0:
        yield "1 rank or more, of 1 chunk or more", c
    buffers = (c.input_chunks, c.output_chunks, c.input_base, c.output_base, plan.scratch_chunks)
    if not all(len(one) == c.ranks and one.min() >= 0 for one in buffers):
        yield f"sizes and bases from 0 for the buffers of {c.ranks} ranks", c
    if [len(c.initial), len(c.expected)] != [_total(one) for one in buffers[:2]]:
        yield "initial and expected for all chunks", f"{len(c.initial)} and {len(c.expected)}"
    if not _is_between(c.initial.view(np.uint8), 0, 2):
        yield "0 and 1 in initial", c
    if c.in_place and not _is_within_data(c):
        yield "buffers within the data in place", c
    if not NONE <= c.root < c.ranks:
        yield f"a root below {c.ranks}", c.root
    if not (_is_partition(c.values) and _is_between(c.values.target, 0, len(c.initial))):
        yield "values made of input chunks", c.values
    if not _is_between(c.expected, NONE, len(c.values.offset) - 1):
        yield "expected values that exist", c.values


def _of_instructions(plan: Plan) -> _Faults:
    i, scratch = plan.instructions, _total(plan.scratch_chunks)
    if scratch > max(FREE_SCRATCH, _total(i.count)):
        yield "scratch that instructions use", f"{scratch} chunks"
    buffers, peers = (i.src_buffer, i.dst_buffer), (i.send_peer, i.recv_peer)
    most = plan.collective.ranks + len(plan.groups.offset) - 1
    if not (
        all(_is_between(one, NONE, len(Buffer)) for one in buffers)
        and all(_is_between(one, NONE, most) for one in peers)
        and min(i.channel.min(initial=NONE), i.pipeline.min(initial=NONE)) >= NONE
    ):
        found = f"others in {len(i)} instructions"
        yield "buffers, peers and channels that exist, of all instructions", found


def _of_rest(plan: Plan) -> _Faults:
    s, e, t, ranks = plan.sources, plan.estimate, plan.topology, plan.collective.ranks
    if not (
        _is_between(s.file, 0, len(s.files))
        and _is_between(s.caller, NONE, len(s))
        and _depth(s) <= MOST_CALLERS
    ):
        found = f"others in {len(s)} lines of {len(s.files)} files"
        yield "sources in the files, and their callers", found
    if min(s.line.min(initial=0), s.position.min(initial=0)) < 0:
        yield "lines from 0", s
    if e is not None and not (
        len(e.busy_us) == len(plan.block_rank)
        and np.isfinite(e.busy_us).all()
        and np.isfinite((e.time_us, e.unmerged_us)).all()
    ):
        yield "a time for each block", e
    if t is not None and not (
        t.ranks >= ranks
        and _is_between(t.vertices.kind, 0, len(VertexKind))
        and _is_between(t.links.kind, 0, len(LinkKind))
    ):
        yield f"a topology of at least {ranks} GPUs, whose kinds are known", t


def _total(column: NDArray[Any]) -> int:
    return int(column.sum(dtype=np.int64))


# More data than both buffers have would take memory for which no bytes of the file stand.
def _is_within_data(c: Collective) -> bool:
    """Whether no buffer in place begins or ends where there is no data."""
    size = c.input_chunks.astype(np.int64) + c.output_chunks
    ends = (c.input_base + c.input_chunks.astype(np.int64), c.output_base + size - c.input_chunks)
    return bool((np.maximum(*ends) <= size).all())


def _is_partition(edges: Edges) -> bool:
    offset = edges.offset
    whole = len(offset) and offset[0] == 0 and offset[-1] == len(edges.target)
    return bool(whole and (offset[1:] >= offset[:-1]).all())


def _is_between(values: NDArray[Any], least: int, end: int) -> bool:
    return not len(values) or bool(values.min() >= least and values.max() < end)


def _depth(sources: Sources) -> int:
    """How many lines call one another; more than `MOST_CALLERS` if they do in a circle."""
    depth, caller = 0, sources.caller
    # All chains take a step at once; a circle never ends, so the limit does.
    while len(caller) and depth <= MOST_CALLERS:
        caller = sources.caller[caller[caller != NONE]]
        depth += 1
    return depth


_PACKAGE = str(Path(__file__).resolve().parents[1])
_OF_SLEY, _OF_FOLDER = "<sley>", "<folder>"


def portable_path(file: str) -> str:
    """A path without the folders above the current one, and above sley: the rest after these, the
    last name of others. The folders of a file's reader are elsewhere."""
    name = file.rpartition("/")[2]
    if ".." not in file.split("/"):
        if not file.startswith("/"):
            name = file
        elif file.startswith(f"{_PACKAGE}/"):
            name = _OF_SLEY + file[len(_PACKAGE) :]
        elif (folder := _current()) and file.startswith(f"{folder}/"):
            name = _OF_FOLDER + file[len(folder) :]
    return printable(name, kept="")


def _is_portable(name: str) -> bool:
    """Whether `portable_path` may have returned a name."""
    return not name.startswith("/") and ".." not in name.split("/")


def _local_path(name: str) -> str:
    """The path for a name of `portable_path`: absolute again, if the file is in the current
    folder."""
    mark, _, rest = name.partition("/")
    if mark == _OF_SLEY:
        return f"{_PACKAGE}/{rest}"
    if mark != _OF_FOLDER:
        return name
    path = f"{_current()}/{rest}"
    return path if Path(path).is_file() else rest


def _current() -> str:
    """The current folder; "" if it was deleted, or is the root, which tells nothing."""
    with contextlib.suppress(OSError):
        return str(Path.cwd()).rstrip("/")
    return ""
