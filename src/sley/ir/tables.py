"""Tables: values made of NumPy columns, with one row a transfer, an instruction or a block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache, cached_property, wraps
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sley.errors import printable
from sley.errors.successors import gone

if TYPE_CHECKING:
    from pandas import DataFrame

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
W = TypeVar("W", bound="Value")

NONE = -1
"""No value, in a column."""

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
ByteArray: TypeAlias = NDArray[np.int8]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]


_DTYPES: dict[str, np.dtype[Any]] = {
    "IntArray": np.dtype(np.int32),
    "LongArray": np.dtype(np.int64),
    "ByteArray": np.dtype(np.int8),
    "BoolArray": np.dtype(np.bool_),
    "FloatArray": np.dtype(np.float64),
}


def column_types(cls: Any) -> Mapping[str, np.dtype[Any]]:
    """The fields of a class that are annotated as arrays, with their types."""
    return _column_types(cls)  # mypy finds classes of values not hashable


@cache  # every value asks for them
def _column_types(cls: type[Any]) -> Mapping[str, np.dtype[Any]]:
    found = {f.name: _DTYPES[str(f.type)] for f in fields(cls) if str(f.type) in _DTYPES}
    return MappingProxyType(found)


def frozen_array(values: Any, dtype: DTypeLike) -> NDArray[Any]:
    """`values` as a read-only, contiguous array of `dtype`, if possible as a view."""
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """A frozen value of a stage; values with equal fields, arrays included, are equal, and have
    equal hashes, which are computed once.

    A subclass is a frozen dataclass with eq=False and repr=False. A field that is annotated as an
    array (`IntArray` and others) becomes a read-only, contiguous array of that type. A `name` and
    an `accuracy`, which may come from a file, become one line of characters that are shown.
    Pickling stores its fields, without cached properties; unpickled arrays are read-only again.
    """

    def __post_init__(self) -> None:
        own = self.__dict__  # what `getattr` looks up, and looks for elsewhere if it isn't there
        for word in {"name", "accuracy"} & own.keys():
            if isinstance(own[word], str):
                own[word] = printable(own[word], kept="")
        for name, dtype in column_types(type(self)).items():
            own[name] = frozen_array(own[name], dtype)

    if not TYPE_CHECKING:  # for which every value would have every attribute

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            raise AttributeError(
                gone("method", f"{kind}.{name}") or f"{kind!r} object has no attribute {name!r}",
                name=name,
                obj=self,
            )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *(_hashable(getattr(self, f.name)) for f in fields(self))))

    def __repr__(self) -> str:
        parts = [f"{f.name}={brief(getattr(self, f.name), repr)}" for f in fields(self)]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[type[Value], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


def kept(find: Callable[[W], V]) -> Callable[[W], V]:
    """A function of a value whose results stay with the value, as cached properties do."""
    name = f"{find.__module__}.{find.__qualname__}"

    @wraps(find)
    def found(value: W) -> V:
        own = value.__dict__
        if name not in own:
            own[name] = find(value)
        result: V = own[name]
        return result

    return found


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _hashable(value: Any) -> Any:
    """A value with a hash that is equal for fields that are equal (0.0 equals -0.0)."""
    if not isinstance(value, np.ndarray):
        return value
    return value.shape, (value + 0.0 if value.dtype.kind == "f" else value).tobytes()


def brief(value: Any, text: Callable[[Any], str] = str) -> str:
    """A short text of a field: type and shape of an array, length of a table, six digits; `text` of
    other values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{len(value)} rows" if isinstance(value, Table) else text(value)


_SHOWN_ROWS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Table(Value):
    """Columns of one length. ``table[i]`` is a row for people, tests and messages.

    A subclass names in `WORDS` the columns that hold members of an enumeration. Rows have the
    members; texts and `to_dict` have their words.
    """

    WORDS: ClassVar[Mapping[str, type[IntEnum]]] = MappingProxyType({})

    def __post_init__(self) -> None:
        super().__post_init__()
        length = len(self)
        for name in column_types(type(self)):
            if (rows := len(getattr(self, name))) != length:
                raise ValueError(f"{type(self).__name__}.{name}: {rows} rows, not {length}")

    @classmethod
    def column_names(cls) -> list[str]:
        """The names of the columns, in order."""
        return list(column_types(cls))

    def __len__(self) -> int:
        return len(getattr(self, next(iter(column_types(type(self))))))

    def __getitem__(self, row: int) -> SimpleNamespace:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        cells = {n: getattr(self, n)[row].item() for n in self.column_names()}
        return SimpleNamespace(**{n: self._members(n).get(v, v) for n, v in cells.items()})

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        """The names of the columns and the first rows."""
        shown = self.first(_SHOWN_ROWS)
        widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            for cells in shown
        ]
        more = ["..."] if len(self) > _SHOWN_ROWS else []
        return "\n  ".join([f"{type(self).__name__}({len(self)} rows)", *lines, *more])

    def first(self, rows: int) -> list[list[str]]:
        """The names of the columns, and the words of the first rows."""
        names = self.column_names()
        columns = [self._cells(n, getattr(self, n)[:rows]) for n in names]
        return [
            names,
            *(["-" if v is None else brief(v) for v in c] for c in zip(*columns, strict=True)),
        ]

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as lists: words for members of enumerations ("send", "scratch"), None for
        NONE."""
        return {n: self._cells(n, getattr(self, n)) for n in self.column_names()}

    def to_pandas(self) -> DataFrame:
        """`to_dict` as a DataFrame of pandas, which must be installed; None is its NA."""
        import pandas

        return pandas.DataFrame(self.to_dict()).convert_dtypes()

    def _cells(self, name: str, column: NDArray[Any]) -> list[Any]:
        members = self._members(name)
        words = {number: word_of(member) for number, member in members.items()} | {NONE: None}
        return [words.get(value, value) for value in column.tolist()]

    def _members(self, name: str) -> dict[int, IntEnum]:
        """The members of a column's enumeration, by their numbers."""
        return {int(member): member for member in self.WORDS.get(name, ())}


def word_of(member: IntEnum) -> str:
    """The word of a member of an enumeration: its `word`, or its name in lower case."""
    return str(getattr(member, "word", member.name.lower()))


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Value):
    """Edges in CSR form: those of node i are ``target[offset[i]:offset[i + 1]]``.

    offset: int64 (nodes + 1,), where each node's edges begin in `target`, and where the last ones
        end.
    target: int32 (edges,), the target node of each edge.
    """

    offset: LongArray
    target: IntArray

    @classmethod
    def from_pairs(cls, nodes: int, source: NDArray[Any], target: NDArray[Any]) -> Edges:
        """The edges of the distinct pairs; a node's targets are in ascending order."""
        bits = nodes.bit_length()
        key = distinct((source.astype(np.int64) << bits) | target)
        counts = np.bincount(key >> bits, minlength=nodes)
        return cls(offsets_of(counts), (key & ((1 << bits) - 1)).astype(np.int32))

    @classmethod
    def empty(cls, nodes: int) -> Edges:
        return cls(np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32))

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, node: int) -> IntArray:
        return self.target[self.offset[node] : self.offset[node + 1]]

    def __repr__(self) -> str:
        return f"Edges({len(self.offset) - 1} nodes, {len(self.target)} edges)"

    @property
    def source(self) -> IntArray:
        """int32 (edges,): the source node of each edge."""
        return np.repeat(np.arange(len(self.offset) - 1, dtype=np.int32), np.diff(self.offset))

    def pick(self, nodes: NDArray[Any]) -> Edges:
        """The edges of `nodes`; node i of the result is nodes[i]."""
        counts = np.diff(self.offset)[nodes]
        offset = offsets_of(counts)
        start = np.repeat(self.offset[nodes] - offset[:-1], counts)
        return Edges(offset, self.target[start + np.arange(offset[-1])])

    def reversed(self) -> Edges:
        """The same edges in the opposite direction."""
        nodes = len(self.offset) - 1
        order = np.argsort(self.target, kind="stable")
        counts = np.bincount(self.target, minlength=nodes)
        return Edges(offsets_of(counts), self.source[order])


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys and values in the order of the pairs."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending; on large arrays several times faster than `np.unique`, which
    hashes, and whose first call imports more than a rank's whole start takes."""
    values = np.sort(values, axis=None)
    keep = np.ones(len(values), bool)
    keep[1:] = values[1:] != values[:-1]
    return values[keep]


def ordered_by(*columns: NDArray[Any]) -> LongArray:
    """The rows in ascending order of the columns, the first one the most significant: as
    `np.lexsort`, in one sort if the columns fit into one number. No value is negative."""
    key, widths = _packed(columns)
    if key is None:
        return np.lexsort(columns[::-1])
    # NumPy sorts 16 bits by radix, five times as fast.
    return np.argsort(key.astype(np.uint16) if sum(widths) <= 16 else key, kind="stable")


def sorted_rows(*columns: NDArray[Any]) -> list[NDArray[Any]]:
    """The columns with their rows in the order of `ordered_by`: several times faster than to sort
    the rows' numbers and to look up each column by them."""
    key, widths = _packed(columns)
    if key is None:
        order = np.lexsort(columns[::-1])
        return [column[order] for column in columns]
    key.sort()
    found = []
    for column, width in zip(columns[::-1], widths[::-1], strict=True):
        found.append((key & ((1 << width) - 1)).astype(column.dtype))
        key >>= width
    return found[::-1]


def _packed(columns: tuple[NDArray[Any], ...]) -> tuple[LongArray | None, list[int]]:
    """int64 (rows,): the columns in one number, the first one the most significant, or None if they
    don't fit; and the bits of each. No value is negative."""
    widths = [int(column.max(initial=0)).bit_length() for column in columns]
    if sum(widths) >= 63:
        return None, widths
    key = np.zeros(len(columns[0]), np.int64)
    for column, width in zip(columns, widths, strict=True):
        key <<= width
        key |= column
    return key, widths


def inverse(order: NDArray[Any]) -> LongArray:
    """int64 (rows,): the place of each row in `order`, which contains every row once."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def numbering(keys: NDArray[Any], limit: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The distinct keys, ascending, and the place of each key among them: as `np.unique`, without
    sorting if `limit` is not much larger than the number of keys.

    limit: all keys are from 0 to limit - 1.
    """
    if limit > 4 * len(keys) + 2**16:
        names, number = np.unique(keys, return_inverse=True)
        return names, number
    present = np.zeros(limit, bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[keys]


def offsets_of(counts: NDArray[Any]) -> LongArray:
    """CSR offsets for nodes with `counts` entries each: int64 (len(counts) + 1,)."""
    offset = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offset[1:])
    return offset


def spans(start: NDArray[Any], count: NDArray[Any]) -> tuple[LongArray, LongArray]:
    """(owner, value) for every value of every range from start to start + count - 1, in order."""
    owner = np.repeat(np.arange(len(start), dtype=np.int64), count)
    first = np.repeat(offsets_of(count)[:-1], count)
    value = np.arange(len(owner), dtype=np.int64) - first + np.asarray(start, np.int64)[owner]
    return owner, value


def neighbouring_writes(cell: LongArray, write: BoolArray) -> tuple[IntArray, IntArray]:
    """For accesses sorted by cell, then by time: the row of the last write to the same cell before
    each access, and of the next one after it, or NONE."""
    rows = np.arange(len(cell), dtype=np.int32)
    starts = np.ones(len(cell), bool)
    starts[1:] = cell[1:] != cell[:-1]
    first = np.maximum.accumulate(np.where(starts, rows, 0))
    ends = np.append(starts[1:], True)[: len(cell)]
    last = np.minimum.accumulate(np.where(ends, rows, len(cell))[::-1])[::-1]
    before, after = np.full_like(rows, NONE), np.full_like(rows, len(cell))
    before[1:] = np.maximum.accumulate(np.where(write, rows, NONE))[:-1]
    after[:-1] = np.minimum.accumulate(np.where(write, rows, len(cell))[::-1])[::-1][1:]
    return np.where(before >= first, before, NONE), np.where(after <= last, after, NONE)
