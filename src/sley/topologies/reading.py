"""Reading: checked access to the tables of a TOML or JSON file; every error names the key."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sley.errors import Diagnostic, Place, Rule, SleyError, did_you_mean
from sley.errors.topology import T602, T605, T607
from sley.ir.words import is_integer, is_real
from sley.topologies.node import Rate

_SHOWN = 60
_MISSING = object()


def excerpt(value: object) -> str:
    """A value's repr, cut to a length that fits a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def at_place(error: SleyError, place: Place) -> SleyError:
    """The error, with `place` in each diagnostic that has no place."""
    return SleyError([d if d.places else replace(d, places=(place,)) for d in error.diagnostics])


def json_of(file: str, text: str) -> Any:
    """The value of a JSON text. Errors: T605."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = Place(file, error.lineno, error.colno)
        raise T605.error(at=place, expected="JSON", found=error.msg) from error
    except (RecursionError, ValueError) as error:
        raise T605.error(at=Place(file), expected="JSON", found=str(error)) from error


class Section:
    """A table of a file. Methods take values by key; `finish` refuses the keys that were not
    taken."""

    def __init__(self, file: str, values: Mapping[str, Any], path: str = "") -> None:
        self.file = file
        self.path = path
        self._values = values
        self._taken: set[str] = set()

    def place(self, key: str = "") -> Place:
        """The place of a key in the file."""
        return Place(self.file, detail=".".join(part for part in (self.path, key) if part))

    def refuse(
        self, key: str, expected: str, found: object, rule: Rule = T607, remedy: str = ""
    ) -> SleyError:
        """The error about the value of a key."""
        at, shown = self.place(key), excerpt(found)
        return rule.error(at=at, expected=expected, found=shown, remedy=remedy)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def is_table(self, key: str) -> bool:
        """Whether a key's value is a table."""
        return isinstance(self._values.get(key), dict)

    def value(self, key: str, expected: str, default: Any = _MISSING) -> Any:
        """The unchecked value of a key, or `default` without the key. Errors: T607."""
        self._taken.add(key)
        if key in self._values:
            return self._values[key]
        if default is _MISSING:
            raise SleyError([self._missing(key, expected)])
        return default

    def _missing(self, key: str, expected: str) -> Diagnostic:
        remedy = f"Add the key {key}."
        at = self.place(key)
        return T607.diagnostic(at=at, expected=expected, found="no such key", remedy=remedy)

    def _unknown(self, key: str, known: Collection[str], wanted: Collection[str]) -> Diagnostic:
        return T607.diagnostic(
            at=self.place(key),
            expected=", ".join(sorted(known)),
            found=excerpt(key),
            remedy=did_you_mean(key, wanted) or did_you_mean(key, known),
        )

    def key_faults(self, required: Collection[str], optional: Collection[str]) -> list[Diagnostic]:
        """T607 for each unknown key, and for each required one that is missing and for which no
        unknown one seems to stand."""
        known = {*required, *optional, *(("source",) if self.path else ())}
        missing = [key for key in required if key not in self._values]
        unknown = [key for key in self._values if key not in known]
        found = [self._unknown(key, known, missing) for key in unknown]
        meant = " ".join(one.remedy for one in found if one.remedy).replace("?", "").split()
        return found + [self._missing(key, "this key") for key in missing if key not in meant]

    def text(self, key: str, default: Any = _MISSING) -> str:
        """A string. Errors: T607."""
        found = self.value(key, "a string", default)
        if not isinstance(found, str):
            raise self.refuse(key, "a string", found)
        return found

    def flag(self, key: str) -> bool:
        """A Boolean, false without the key. Errors: T607."""
        found = self.value(key, "true or false", False)
        if not isinstance(found, bool):
            raise self.refuse(key, "true or false", found)
        return found

    def count(self, key: str, most: int, default: Any = _MISSING) -> int:
        """A whole number from 1 to `most`. Errors: T607."""
        expected = f"a whole number from 1 to {most}"
        found = self.value(key, expected, default)
        if not is_integer(found) or not 1 <= found <= most:
            raise self.refuse(key, expected, found)
        return int(found)

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A real number. Errors: T607."""
        found = self.value(key, "a number", default)
        if not is_real(found):
            raise self.refuse(key, "a number", found)
        return float(found)

    def positive(self, key: str) -> float:
        """A number above 0. Errors: T602, T607."""
        found = self.number(key)
        if not math.isfinite(found) or found <= 0:
            raise self.refuse(key, "a number above 0", found, T602)
        return found

    def latency(self) -> float:
        """latency_us, NONE without the key. Errors: T602, T607."""
        found = self.number("latency_us", -1)
        if "latency_us" in self and not (math.isfinite(found) and found >= 0):
            raise self.refuse("latency_us", "a number from 0", found, T602)
        return found

    def rate(self) -> Rate:
        """nominal_GBps, GBps and optionally latency_us. Errors: T602, T607."""
        rate = Rate(self.positive("nominal_GBps"), self.positive("GBps"), self.latency())
        if rate.GBps > rate.nominal_GBps:
            expected = f"at most nominal_GBps, {rate.nominal_GBps:g}"
            raise self.refuse("GBps", expected, rate.GBps, T602)
        return rate

    def items(self, key: str, default: Any = _MISSING) -> list[Any]:
        """An array. Errors: T607."""
        found = self.value(key, "an array", default)
        if not isinstance(found, list):
            raise self.refuse(key, "an array", found)
        return found

    def section(self, key: str) -> Section:
        """A table. Errors: T607."""
        found = self.value(key, "a table")
        if not isinstance(found, dict):
            raise self.refuse(key, "a table", found)
        return Section(self.file, found, self.place(key).detail)

    def optional_section(self, key: str) -> Section | None:
        """A table, None without the key. Errors: T607."""
        self._taken.add(key)
        return self.section(key) if key in self else None

    def sections(self, key: str) -> list[Section]:
        """An array of tables. Errors: T607."""
        path = self.place(key).detail
        found = [Section(self.file, one, f"{path}[{i}]") for i, one in enumerate(self.items(key))]
        for i, one in enumerate(self.items(key)):
            if not isinstance(one, dict):
                raise self.refuse(f"{key}[{i}]", "a table", one)
        return found

    def finish(self) -> None:
        """Refuses the keys that were not taken. Every table below the file's top level may have
        the key "source". Errors: T607."""
        if self.path:
            self.text("source", "")
        left = [key for key in self._values if key not in self._taken]
        if not left:
            return
        raise SleyError([self._unknown(key, self._taken, ()) for key in left])
