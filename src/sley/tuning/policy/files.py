"""Files: reads and writes policies as `policy.zip`, a ZIP file with the JSON text policy.json.

Nothing in such a file is executed: no pickle, no code. A reader refuses unknown entries, since they
would be ignored silently.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sley.compiler import Options
from sley.errors import Place, SleyError, reason_of, shortened
from sley.errors.policy import D901, D902
from sley.formats import write_file
from sley.ir.sizes import MAX_BYTES
from sley.ir.topology import MAX_RANKS
from sley.ir.words import is_integer, is_real
from sley.tuning.policy.policy import FORMAT, Change, Decision, Machine, Measured, Policy, Range

_MEMBER = "policy.json"
MOST_BYTES = 16 << 20
"""Bound on the file and on its text: a policy has some kilobytes."""

_MOST_TEXT, _MOST_NUMBER = 1000, 1e15

_OPTIONS = tuple(field.name for field in fields(Options))
"""The options of a decision."""


def write(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Writes a policy; equal policies give equal bytes. Errors: F461."""
    text = json.dumps(_plain(policy), indent=1, sort_keys=True, allow_nan=False)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(_MEMBER), text)  # without a time, which would differ
    write_file(path, content.getvalue())


def read(path: str | os.PathLike[str]) -> Policy:
    """The policy of a file. Errors: D901, D902, D904."""
    place = Place(os.fspath(path))
    plain = _json(Path(path), place)
    try:
        return _policy(_Entry(plain, place))
    except SleyError as error:
        raise _located(error, place.file) from error


def _json(path: Path, place: Place) -> Any:
    """The JSON value of the file. Errors: D901."""
    try:
        if path.exists() and not path.is_file():  # a FIFO would never end
            raise D901.error(at=place, expected="a file", found="something else")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise D901.error(at=place, expected=f"at most {MOST_BYTES} bytes", found="more")
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            names = file.namelist()
            if names != [_MEMBER]:
                found = ", ".join(map(repr, shortened(names))) or "an empty file"
                raise D901.error(at=place, expected=f"a ZIP file with {_MEMBER}", found=found)
            with file.open(_MEMBER) as member:  # its size in the directory may be a lie
                text = member.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise D901.error(at=place, expected=f"at most {MOST_BYTES} bytes of text", found="more")
        return json.loads(text.decode(), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except OSError as error:
        expected = "a file that can be read"
        raise D901.error(at=place, expected=expected, found=reason_of(error)) from error
    except Exception as error:
        # zipfile raises many kinds for a damaged file: BadZipFile, zlib.error, EOFError,
        # NotImplementedError, RuntimeError (encrypted), struct.error, UnicodeDecodeError.
        if isinstance(error, SleyError):
            raise
        expected = f"a ZIP file with {_MEMBER} as `sley tune` writes it"
        found = reason_of(error)
        raise D901.error(at=place, expected=expected, found=found) from error


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number in JSON")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. A name that comes twice would lose one of its values."""
    found = dict(members)
    if len(found) != len(members):
        names = [name for name, _ in members]
        raise ValueError(f"{max(names, key=names.count)!r} twice in an object")
    return found


def _located(error: SleyError, file: str) -> SleyError:
    """The error, with the file in all of its places."""
    return SleyError(
        [
            replace(d, places=tuple(replace(at, file=file) for at in d.places or (Place(),)))
            for d in error.diagnostics
        ]
    )


class _Entry:
    """A value of the file with its place; each method checks what it reads. Errors: D901."""

    def __init__(self, value: Any, place: Place) -> None:
        self.value, self.place = value, place

    def fail(self, expected: str) -> SleyError:
        found = repr(self.value)
        return D901.error(
            at=self.place,
            expected=expected,
            found=found if len(found) <= 80 else f"{found[:77]}...",
        )

    def members(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, _Entry]:
        """The members of an object, which has no others."""
        if not isinstance(self.value, dict):
            raise self.fail("an object of JSON")
        missing = [name for name in required if name not in self.value]
        unknown = [name for name in self.value if name not in (*required, *optional)]
        if missing or unknown:
            raise D901.error(
                at=self.place,
                expected=f"the entries {', '.join(required)}"
                + (f", optionally {', '.join(optional)}" if optional else ""),
                found="; ".join(
                    [f"without {', '.join(missing)}"] * bool(missing)
                    + [f"also {', '.join(map(repr, shortened(unknown)))}"] * bool(unknown)
                ),
            )
        return {name: self._below(value, name) for name, value in self.value.items()}

    def named(self) -> dict[str, _Entry]:
        """The members of an object with any names that `text` allows."""
        if not isinstance(self.value, dict):
            raise self.fail("an object of JSON")
        return {
            _Entry(name, self.place).text(): self._below(value, name)
            for name, value in self.value.items()
        }

    def items(self) -> list[_Entry]:
        if not isinstance(self.value, list):
            raise self.fail("a list")
        return [self._below(value, f"[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        if not (isinstance(self.value, str) and len(self.value) <= _MOST_TEXT):
            raise self.fail(f"a text of at most {_MOST_TEXT} characters")
        if not self.value.isprintable():  # it is shown on terminals
            raise self.fail("a text without control characters")
        return self.value

    def integer(self, least: int, most: int) -> int:
        if not is_integer(self.value) or not least <= self.value <= most:
            raise self.fail(f"an integer from {least} to {most}")
        return int(self.value)

    def positive(self) -> float:
        if not is_real(self.value) or not 0 < self.value < _MOST_NUMBER:
            raise self.fail(f"a positive number below {_MOST_NUMBER:g}")
        return float(self.value)

    def _below(self, value: Any, name: str) -> _Entry:
        detail = f"{self.place.detail}{'' if name.startswith('[') else '.'}{name}".lstrip(".")
        return _Entry(value, Place(self.place.file, detail=detail))


def _policy(top: _Entry) -> Policy:
    format_ = top.value.get("format") if isinstance(top.value, dict) else None
    if is_integer(format_) and format_ != FORMAT:
        raise D902.error(at=top.place, expected=f"format {FORMAT}", found=f"format {format_}")
    m = top.members(("format", "machine", "ranges"), ("agent", "notes", "changes"))
    m["format"].integer(FORMAT, FORMAT)
    place = m["machine"].members(("engine", "topology", "fingerprint", "nodes", "gpus"))
    machine = Machine(
        engine=place["engine"].text(),
        topology=place["topology"].text(),
        fingerprint=place["fingerprint"].text(),
        nodes=place["nodes"].integer(1, 1 << 20),
        gpus=place["gpus"].integer(1, 1 << 20),
    )
    ranges = {
        name: tuple(_range(one) for one in entry.items())
        for name, entry in m["ranges"].named().items()
    }
    notes = m["notes"].named() if "notes" in m else {}
    return Policy(
        machine,
        ranges,
        m["agent"].text() if "agent" in m else "",
        {name: note.text() for name, note in notes.items()},
        tuple(_change(one) for one in m["changes"].items()) if "changes" in m else (),
    )


def _range(entry: _Entry) -> Range:
    m = entry.members(("begin_bytes", "end_bytes", "decision"), ("measured", "alternatives"))
    end = m["end_bytes"]
    return Range(
        m["begin_bytes"].integer(0, MAX_BYTES),
        None if end.value is None else end.integer(0, MAX_BYTES),
        _decision(m["decision"]),
        tuple(_measured(one) for one in m["measured"].items()) if "measured" in m else (),
        tuple(_decision(one) for one in m["alternatives"].items()) if "alternatives" in m else (),
    )


def _change(entry: _Entry) -> Change:
    m = entry.members(("call", "collective", "size_bytes", "before", "after"))
    return Change(
        m["call"].integer(1, MAX_BYTES),
        m["collective"].text(),
        m["size_bytes"].integer(1, MAX_BYTES),
        m["before"].text(),
        m["after"].text(),
    )


def _decision(entry: _Entry) -> Decision:
    m = entry.members(("algorithm",), ("tile", "orders", *_OPTIONS))
    given = {word: m[word].value for word in _OPTIONS if word in m}
    try:
        options = Options.of(None, given)
    except SleyError as error:
        raise entry.fail(error.diagnostics[0].expected) from error
    tile = m["tile"].positive() if "tile" in m else 1.0
    orders = m["orders"].items() if "orders" in m else []
    rings = [tuple(one.integer(0, MAX_RANKS - 1) for one in order.items()) for order in orders]
    return Decision(m["algorithm"].text(), options, tile, tuple(rings))


def _measured(entry: _Entry) -> Measured:
    m = entry.members(("size_bytes", "time_us", "default_us"))
    size_bytes = m["size_bytes"].integer(1, MAX_BYTES)
    return Measured(size_bytes, m["time_us"].positive(), m["default_us"].positive())


def _plain(policy: Policy) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "machine": dict(vars(policy.machine)),
        "agent": policy.agent,
        "notes": dict(policy.notes),
        "changes": [dict(vars(one)) for one in policy.changes],
        "ranges": {
            name: [_plain_range(one) for one in ranges] for name, ranges in policy.ranges.items()
        },
    }


def _plain_range(one: Range) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "begin_bytes": one.begin_bytes,
        "end_bytes": one.end_bytes,
        "decision": _plain_decision(one.decision),
        "measured": [dict(vars(one)) for one in one.measured],
    }
    if one.alternatives:
        plain["alternatives"] = [_plain_decision(one) for one in one.alternatives]
    return plain


def _plain_decision(decision: Decision) -> Mapping[str, Any]:
    given = decision.options.given()
    options = {word: getattr(value, "value", value) for word, value in given.items()}
    orders = {"orders": decision.orders} if decision.orders else {}
    return {"algorithm": decision.algorithm, "tile": decision.tile, **orders, **options}
