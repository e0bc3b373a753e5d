"""Recipe: how a plan is made: by a name or a file, with arguments and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a plan is made from; selection, the command line and the tuner build it.

    name: of an algorithm of the library, or the path of a file with a program, a schedule or a
        plan (`file.py:function` for one of several functions).
    arguments: of the algorithm or the function, by name.
    options: of the compiler, by the names in `sley.Options`.
    tile: the tile's size as a share of the runtime's own.

    Enumerations become their values and lists tuples, so a recipe is equal to the one that is read
    back from a file.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tile: float = 1.0

    def __post_init__(self) -> None:
        for word in ("arguments", "options"):
            object.__setattr__(self, word, _plain(getattr(self, word)))

    @property
    def key(self) -> str:
        """Equal for equal recipes."""
        arguments, options = sorted(self.arguments.items()), sorted(self.options.items())
        return repr((self.name, arguments, options, self.tile))

    @property
    def stem(self) -> str:
        """The algorithm's name, or the file's without its suffix."""
        return Path(self.name.partition(".py:")[0]).stem

    def given(self, **arguments: Any) -> Recipe:
        """The recipe with further arguments; None leaves one as it is."""
        more = {word: value for word, value in arguments.items() if value is not None}
        return replace(self, arguments={**self.arguments, **more})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        words = [f"{word}={value}" for word, value in self.options.items()]
        words += [f"tile={self.tile:g}"] if self.tile != 1 else []
        if orders := self.arguments.get("orders"):
            words.append("orders=" + ";".join(",".join(map(str, order)) for order in orders))
        return " ".join([self.name, *words])


def _plain(value: Any) -> Any:
    """The value as a file has it: an enumeration's member as its value, a list as a tuple."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value
