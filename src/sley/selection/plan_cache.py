"""The cache of compiled plans: on disk, in the folder `plans` of sley's cache.

`sley.disk_cache` says where that lies and how files are kept: named by what they were made of
and by a digest of what is in them. So a file that was cut short, or that something else wrote, is
made anew. That finds accidents. A plan was proven before it was kept and is not proven again, so
nobody else may write to the folder: otherwise it isn't used (N655).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sley.disk_cache import cached_bytes, folder
from sley.errors import Diagnostic, Place
from sley.errors.selection import N655
from sley.formats.plan_bytes import FORMAT, decode, encode
from sley.ir.plan import Plan
from sley.selection.rules import Selection

_SECTION = "plans"
_MAKERS = ("algorithms", "compiler", "ir", "lang", "passes", "verify")
"""The packages that a plan comes from."""


def cached_plan(selection: Selection, ranks: int, build: Callable[[], Plan]) -> tuple[Plan, bool]:
    """The plan of a selection, from the cache if it is there, else what `build` gives; and whether
    it was there. Of several processes that want it one builds, and the others wait."""
    built: list[Plan] = []

    def content() -> bytes:
        built.append(build())
        return encode(built[0])

    data = cached_bytes(_key(selection, ranks), ".plan", content, section=_SECTION)
    if built:
        return built[0], False
    try:
        return decode(data), True
    except (ValueError, KeyError, TypeError):
        return build(), False


def refusal() -> Diagnostic | None:
    """Why the cache must not be used, None if it may be: its folder and the one around it, as far
    as they are there, are the user's own, and nobody else can write to them."""
    place = folder(_SECTION)
    for path in (place.parent, place):
        try:
            found = path.stat()
        except OSError:
            continue
        who = _who_else(found)
        if who is not None and stat.S_ISDIR(found.st_mode):
            return N655.diagnostic(
                at=Place(str(path)),
                expected="a folder of this user that nobody else can write to",
                found=who,
            )
    return None


def _who_else(found: os.stat_result) -> str | None:
    """Who else can change what lies in a folder."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"everybody can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    if found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_ISVTX:
        return f"its group can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _key(selection: Selection, ranks: int) -> list[str]:
    """All that the plan depends on."""
    return [
        f"plan {FORMAT}",
        _makers(),
        str(ranks),
        selection.name,
        repr(selection.arguments),
        repr(selection.options),
    ]


@cache
def _makers() -> str:
    """The version of sley, and the state of the files that plans come from: whoever works on a
    compiler pass doesn't want yesterday's plans."""
    package = Path(__file__).parent.parent
    files = sorted(path for name in _MAKERS for path in (package / name).rglob("*.py"))
    state = [(str(p.relative_to(package)), (s := p.stat()).st_size, s.st_mtime_ns) for p in files]
    return f"{version('sley')} {state}"
