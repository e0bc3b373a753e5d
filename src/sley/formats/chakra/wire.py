"""Wire: the encoding of protocol buffers, as far as execution traces need it.

Message types and field numbers are in `traces`. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _LENGTH = 0, 2
"""Types of fields: a number, and bytes after their length."""


def varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint64, bool or enum; `value` is at least 0."""
    return varint(field << 3 | _VARINT) + varint(value)


def message(field: int, content: bytes) -> bytes:
    """A field of type message, bytes, or string in UTF-8."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def numbers(field: int, values: Iterable[int]) -> bytes:
    """A packed repeated field of numbers; nothing if there are none."""
    content = b"".join(map(varint, values))
    return message(field, content) if content else b""


def delimited(content: bytes) -> bytes:
    """A message in a file of messages: after its length."""
    return varint(len(content)) + content
