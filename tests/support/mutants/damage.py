"""Damaged plan files: bytes of a plan file with a change that a disk, a copy or a program makes."""

from __future__ import annotations

import copy
import json
import random
import struct
import zlib
from typing import Any

_START = struct.Struct("<8sHHIQII")
_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**63, 10**30),
    *(1.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "Simple", "allgather", "/etc/passwd", "../x", "\ud800", "\0"),
    *([], {}, [1], ["a", "<i4", 1], {"a": 1}),
)


def sealed(data: bytes, *, whole: bool = True) -> bytes:
    """A file with its checksum made right, and with its length too if `whole`."""
    if whole:
        data = data[:16] + len(data).to_bytes(8, "little") + data[24:]
    checksum = zlib.crc32(data[28:], zlib.crc32(data[:24]))
    return data[:24] + checksum.to_bytes(4, "little") + data[28:]


def header(data: bytes) -> dict[str, Any]:
    """The header of a file."""
    found: dict[str, Any] = json.loads(
        data[_START.size : _START.size + _START.unpack_from(data)[3]]
    )
    return found


def with_header(data: bytes, head: Any, more: bytes = b"") -> bytes:
    """A right file with another header, and more bytes at its end."""
    magic, major, minor, old, *_ = _START.unpack_from(data)
    text = json.dumps(head).encode()
    start = _START.pack(magic, major, minor, len(text), 0, 0, 0)
    columns = data[_START.size + old + -old % 8 :]
    return sealed(start + text + bytes(-len(text) % 8) + columns + more)


def columns_at(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the bytes of each column begin, and how many they are."""
    length = _START.unpack_from(data)[3]
    at, found = _START.size + length + -length % 8, {}
    for name, kind, rows in header(data)["columns"]:
        size = rows * int(kind[-1])
        found[name] = (at, size)
        at += size + -size % 8
    return found


def swapped(data: bytes, one: str, other: str) -> bytes:
    """A right file with the contents of two columns of one type and length exchanged."""
    places = columns_at(data)
    (a, size), (b, same) = places[one], places[other]
    assert size == same
    out = bytearray(data)
    out[a : a + size], out[b : b + size] = data[b : b + size], data[a : a + size]
    return sealed(bytes(out))


def damaged(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """A file with a random change. other: another file, for parts of both."""
    kind = chance.randrange(9)
    at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    if kind == 0:
        return _flipped(data, 0, chance)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[end:] if chance.random() < 0.5 else data[:end] + data[at:]
    if kind == 3:
        cut = data[:at] + other[chance.randrange(len(other) + 1) :]
        return sealed(cut.ljust(32, b"\0")) if chance.random() < 0.5 else cut
    if kind == 4:
        return sealed(_flipped(data, 8, chance), whole=False)
    first_column = min(place for place, _ in columns_at(data).values())
    if kind == 5:
        return sealed(_flipped(data, first_column, chance))
    if kind == 6:
        word = struct.pack(
            "<i", chance.choice((-2, -1, 0, 1, 2, 7, 255, 2**20, 2**31 - 1, -(2**31)))
        )
        at = chance.randrange(first_column, len(data) - 3) & -4
        return sealed(data[:at] + word + data[at + 4 :])
    if kind == 7:
        places = columns_at(data)
        one = chance.choice(sorted(places))
        same = [name for name in places if places[name][1] == places[one][1]]
        return swapped(data, one, chance.choice(same))
    head = header(data)
    for _ in range(chance.randrange(1, 3)):
        _change(head, chance)
    return with_header(data, head)


def _flipped(data: bytes, first: int, chance: random.Random) -> bytes:
    """Bytes with up to 8 bits changed, from byte `first` on."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 9)):
        out[chance.randrange(first, len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def _change(value: Any, chance: random.Random) -> None:
    """Changes or removes one value somewhere in a header."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
            value = inner
            continue
        if chance.random() < 0.15:
            del value[key]
        elif isinstance(inner, int) and chance.random() < 0.4:
            value[key] = inner + chance.choice((-1, 1, 7, 1000))
        else:
            value[key] = copy.deepcopy(chance.choice(_VALUES))
        return
