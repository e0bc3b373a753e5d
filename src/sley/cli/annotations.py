"""Annotations: diagnostics as services for code review read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from sley.errors import Diagnostic, Place

GITHUB, SARIF = "github", "sarif"

output_format_option = click.option(
    "--output-format",
    type=click.Choice([GITHUB, SARIF]),
    help="For code review: GitHub's annotations, or a SARIF log.",
)


def check_one_form(output_format: str | None, as_json: bool) -> None:
    """Refuses --output-format beside --json. Errors: click's usage error."""
    if output_format and as_json:
        raise click.UsageError("--output-format and --json are two forms of one answer: give one")


def annotation_lines(
    form: str, errors: Sequence[Diagnostic], notes: Sequence[Diagnostic] = ()
) -> list[str]:
    """Errors and remarks as lines that GitHub's runners read (workflow commands), or as a SARIF log
    (OASIS SARIF 2.1.0)."""
    levels = [*(("error", one) for one in errors), *(("note", one) for one in notes)]
    if form == SARIF:
        return json.dumps(_sarif(levels), indent=2).splitlines()
    return [_github("notice" if level == "note" else level, one) for level, one in levels]


def _github(level: str, one: Diagnostic) -> str:
    place = _place_of(one)
    values = {"file": place.file, "line": place.line, "col": place.column, "title": one.rule.title}
    words = ",".join(f"{name}={_escaped(str(v), ':,')}" for name, v in values.items() if v)
    return f"::{level} {words}::{_escaped(_message(one, place))}"


def _escaped(text: str, further: str = "") -> str:
    """A text without the characters that end a command or one of its properties."""
    for character in f"%\r\n{further}":  # the percent sign first: the others become ones with it
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _sarif(levels: Sequence[tuple[str, Diagnostic]]) -> dict[str, Any]:
    rules = {one.code: one.rule for _, one in levels}
    driver = {
        "name": "sley",
        "version": version("sley"),
        "rules": [
            {
                "id": rule.code,
                "name": rule.name,
                "shortDescription": {"text": rule.what},
                "fullDescription": {"text": rule.why},
                "help": {"text": rule.instead},
            }
            for rule in rules.values()
        ],
    }
    return {
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(*one) for one in levels]}],
    }


def _result(level: str, one: Diagnostic) -> dict[str, Any]:
    place = _place_of(one)
    result: dict[str, Any] = {
        "ruleId": one.code,
        "level": level,
        "message": {"text": _message(one, place)},
    }
    if place.file:
        where: dict[str, Any] = {"artifactLocation": {"uri": quote(Path(place.file).as_posix())}}
        if place.line:
            region = {"startLine": place.line, "startColumn": place.column}
            where["region"] = {name: value for name, value in region.items() if value}
        result["locations"] = [{"physicalLocation": where}]
    return result


def _place_of(one: Diagnostic) -> Place:
    """The first place in a file."""
    return next((place for place in one.places if place.file), Place())


def _message(one: Diagnostic, place: Place) -> str:
    """What a diagnostic says without its rule and the line of its place."""
    parts = [f"{place.detail}: " if place.detail else "", f"expected {one.expected}; "]
    parts.append(f"found {one.found}. {one.remedy}")
    return "".join(parts)
