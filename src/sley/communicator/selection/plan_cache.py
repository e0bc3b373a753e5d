"""Plan cache: compiled plans on disk, in the folder `plans` of sley's cache.

`sley.errors.disk_cache` defines that folder, and names a file by what it was made from and by a
digest of its content. So a truncated file, or one that another program wrote, is replaced. The
digest finds accidents only. A plan was proven before it was stored and is not proven again, so the
folder is not used if other users can write to it (N655).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.aside import LateError, within
from sley.errors.disk_cache import PATIENCE_S, cached_bytes, folder
from sley.errors.selection import N655
from sley.formats.plan_file import MAJOR, MINOR, decode, encode
from sley.ir.plan import Plan

_SECTION = "plans"
MAKERS = (
    *("algorithms", "communicator/selection", "compiler", "ir", "lang", "model", "topologies"),
    "verification",
)
"""The packages that choose and make a plan."""


def cached_plan(recipe: str, ranks: int, build: Callable[[], Plan]) -> tuple[Plan, bool]:
    """The plan of a recipe, from the cache if it is there, else from `build`; and whether it was
    there. recipe: its key. If several processes need it, one builds it, and the others wait."""
    built: list[Plan] = []

    def content() -> bytes:
        built.append(build())
        return encode(built[0])

    key = [
        f"plan {MAJOR}.{MINOR}",
        state_of(*MAKERS),
        str(ranks),
        recipe,
    ]  # all that the plan depends on
    data = cached_bytes(key, ".plan", content, section=_SECTION)
    if built:
        return built[0], False
    # The bytes have their digest; what is refused all the same is made again, without the cache.
    try:
        return decode(data), True
    except SleyError:
        return build(), False


def cached_choice(request: str, choose: Callable[[], str]) -> str:
    """A text that tells the choice of plans, from the cache if it is there, else from `choose`;
    otherwise as `cached_plan`. request: all that the choice depends on."""
    key = ["choice", state_of(*MAKERS), request]
    return cached_bytes(key, ".json", lambda: choose().encode(), section=_SECTION).decode()


def refusal(section: str = _SECTION) -> Diagnostic | None:
    """Why a folder of the cache must not be used; None if it may be. It and the parent folder, if
    they exist, must belong to the user, and other users must not be able to write to them."""
    place = folder(section)
    problem: str | None
    # The parent folder too: who can write there can put another folder in this one's place.
    for path in (place.parent, place):
        try:
            found = within(PATIENCE_S, path.stat)
        except OSError:
            continue
        except LateError:
            problem = f"no answer of its file system within {PATIENCE_S:g} s"
        else:
            is_folder = stat.S_ISDIR(found.st_mode)
            problem = _other_writers(found, may_add=path != place) if is_folder else None
        if problem is not None:
            return N655.diagnostic(
                at=Place(str(path)),
                expected="a folder of this user that no other user can write to",
                found=problem,
            )
    return None


def _other_writers(found: os.stat_result, *, may_add: bool) -> str | None:
    """Which other users can change a folder. may_add: whether it does no harm if they only add
    files, as in a sticky folder."""
    only_add = may_add and found.st_mode & stat.S_ISVTX
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH and not only_add:
        return f"all users can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    if found.st_mode & stat.S_IWGRP and not only_add:
        return f"its group can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


@cache
def state_of(*packages: str) -> str:
    """The version of sley, and the state of packages, so that a change of a compiler pass, say,
    replaces old plans."""
    package = Path(__file__).parents[2]
    every = (path for name in packages for path in (package / name).rglob("*.[hp]*"))
    files = sorted(path for path in every if path.suffix in (".py", ".hpp"))
    state = [(str(p.relative_to(package)), (s := p.stat()).st_size, s.st_mtime_ns) for p in files]
    return f"{version('sley')} {state}"
