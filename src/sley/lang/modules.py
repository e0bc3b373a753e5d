"""Modules: those that a user's file loads from its own folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

_SLEY = Path(__file__).parents[1]
"""The folder of sley's modules."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""The names of folders of installed modules, also of those that `sysconfig` does not list."""


@contextmanager
def own_modules(path: Path, own: dict[str, object]) -> Iterator[None]:
    """The modules of a file, among all modules in the ``with`` block alone: another file may have
    modules of the same names. Modules that the file replaces or removes come back.

    own: the modules that the file has loaded from its folder; those that it loads in the block are
        added. Installed modules are none of them, even if they are below that folder.
    """
    modules, before = sys.modules, dict(sys.modules)
    folder = path.resolve().parent
    installed = _installed_below(folder)
    modules.update(own)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.modules = modules
        # The path of a package may depend on other modules: it is looked up before they are gone.
        changed = {n: m for n, m in modules.items() if n not in before or m is not before[n]}
        own |= {n: m for n, m in changed.items() if _is_own(m, folder, installed)}
        for name in own.keys() & changed.keys() - before.keys():
            del modules[name]
        modules.update(before)


def _is_own(module: object, folder: Path, installed: Sequence[Path]) -> bool:
    """Whether a module is of a file's folder, outside of the folders of installed ones; also what a
    file has put in a module's place."""
    if not isinstance(module, ModuleType):
        return True
    place = _place_of(module)
    return (
        place is not None
        and folder in place.parents
        and not any(root in place.parents for root in installed)
        and _INSTALLED.isdisjoint(place.relative_to(folder).parts)
    )


def _place_of(module: ModuleType) -> Path | None:
    """The file of a module, or the folder of a package without one; None for other modules."""
    values = vars(module)
    place = values.get("__file__")
    if place is None:
        try:
            place = next(iter(values.get("__path__") or ()), None)
        except (AttributeError, KeyError, TypeError):  # a file may set it to anything
            return None
    return Path(place).resolve() if isinstance(place, str) and "\0" not in place else None


def _installed_below(folder: Path) -> list[Path]:
    """The folders of installed modules and of sley that are in a folder, or are the folder."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [root.resolve() for root in (*(Path(get_path(name)) for name in names), _SLEY)]
    return [root for root in roots if folder in (root, *root.parents)]
