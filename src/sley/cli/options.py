"""Options that several commands share, and what they select."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sley.algorithms import CATALOG
from sley.compiler import Options
from sley.compiler.options import kinds
from sley.engine.types import DATA_TYPES
from sley.ir.sizes import size_in_bytes

E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Callable[..., Any])

_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}


COMPILER_OPTIONS: dict[str, str] = {
    f.name: f.metadata["line"] for f in fields(Options) if f.metadata["line"] is not None
}
"""The compiler's options that the command line offers, and what its help says of each."""


@dataclass(frozen=True)
class Selection:
    """What is to be compiled and how: the values of `plan_options`."""

    what: str
    ranks: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    nics: int | None = None
    root: int | None = None
    in_place: bool | None = None
    stage_channels: tuple[int, ...] | None = None
    rings: int | None = None
    node_instances: int | None = None
    size: int | None = None
    topology: str | None = None
    collective: str | None = None
    options: Options = field(default_factory=Options)

    def with_place(self, in_place: bool) -> Selection:
        """The same, in or out of place."""
        return replace(self, in_place=in_place)

    def with_options(self, **overrides: Any) -> Selection:
        """The same, with other options of the compiler."""
        return replace(self, options=Options.of(self.options, overrides))


class _What(click.ParamType[str]):
    """WHAT: an algorithm or a file; completes both."""

    name = "what"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in CATALOG if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]


class Member(click.ParamType[E]):
    """A member of an enumeration by its value, in any case."""

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind
        self._choice = click.Choice([str(m.value) for m in kind], case_sensitive=False)
        self.name = kind.__name__.lower()

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self._choice.get_metavar(param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self._choice.shell_complete(ctx, param, incomplete)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> E:
        if isinstance(value, self._kind):
            return value
        return self._kind(self._choice.convert(str(value), param, ctx))


class Several(click.ParamType[tuple[Any, ...]]):
    """Values of one type, divided by commas."""

    def __init__(self, one: click.ParamType[Any]) -> None:
        self._one = one
        self.name = f"{one.name}s"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return f"{self._one.get_metavar(param, ctx) or self._one.name.upper()},..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._one.convert(part, param, ctx) for part in str(value).split(","))


class DType(click.Choice[str]):
    """A data type by NumPy's name or by that of nccl-tests."""

    def __init__(self) -> None:
        super().__init__([*sorted(DATA_TYPES), *_ALIASES])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = super().convert(value, param, ctx)
        return _ALIASES.get(name, name)


class BlockThreads(click.IntRange):
    """Threads of a thread block: whole warps, as many as GPUs take."""

    def __init__(self) -> None:
        super().__init__(32, 1024)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if number % 32:
            self.fail(f"{number} threads are no whole warps of 32", param, ctx)
        return number


class _Numbers(click.ParamType[tuple[int, ...]]):
    """Numbers from 0, divided by commas."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
            self.fail(f"{value!r} is not a list of numbers such as 0,1,2", param, ctx)
        return tuple(map(int, parts))


class SizeType(click.ParamType[int]):
    """A size in bytes with K, M, G for powers of 1024, as nccl-tests takes it."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        size = size_in_bytes(value)
        if size is None:
            self.fail(f"{value!r} is not a size from 1, such as 4096, 64K or 16M", param, ctx)
        return size


_POSITIVE = click.IntRange(min=1)


def flag(word: str) -> str:
    """An option of the compiler as the command line spells it."""
    return f"--{word.replace('_', '-')}"


def compiler_option(word: str, *, several: bool = False) -> Callable[[F], F]:
    """An option of the compiler as one of a command. Its default is None.

    several: whether it takes several values, of which none is the default.
    """
    kind, line = kinds()[word], COMPILER_OPTIONS[word]
    if several:
        line = line.partition(" [")[0]
    if kind is bool:
        return click.option(f"{flag(word)}/{flag(f'no_{word}')}", word, default=None, help=line)
    one: click.ParamType[Any] = Member(kind) if issubclass(kind, Enum) else click.INT
    return click.option(flag(word), type=Several(one) if several else one, help=line)


def plan_options(command: F) -> F:
    """Adds the argument WHAT and the options that say how it becomes a plan; the command gets
    them as one `Selection`, its first argument."""

    @click.argument("what", type=_What())
    @click.option("--ranks", type=_POSITIVE, help="Number of ranks.")
    @click.option("--nodes", type=_POSITIVE, help="Number of nodes.")
    @click.option("--gpus", type=_POSITIVE, help="GPUs on each node.")
    @click.option("--nics", type=_POSITIVE, help="Network cards of each node; default: as GPUs.")
    @click.option("--root", type=click.IntRange(min=0), help="Root of a rooted collective.")
    @click.option(
        "--in-place/--out-of-place", "in_place", default=None, help="Alias input and output or not."
    )
    @click.option(
        "--stage-channels", type=_Numbers(), help="A channel for each stage (hm-...): 0,1,2."
    )
    @click.option("--rings", type=_POSITIVE, help="Rings (multi-ring-...); default: as GPUs.")
    @click.option(
        "--node-instances",
        type=_POSITIVE,
        help="Parallel parts of the phases within nodes (hierarchical-allreduce).",
    )
    @click.option("--size", type=SizeType(), help="Size of a call, for --schedule auto.")
    @click.option(
        "--topology",
        help="NAME[:NODES] (sley topology list), NODESxGPUS[:NICS] or a file: which ranks are "
        "linked, and which share a card.",
    )
    @click.option(
        "--collective",
        metavar="FILE.py",
        help="The program whose collective an XML file is about, where it does not say it.",
    )
    @click.pass_context
    def wrapper(ctx: click.Context, /, **values: Any) -> object:
        options = Options(**{word: values.pop(word) for word in COMPILER_OPTIONS})
        words = [f.name for f in fields(Selection) if f.name != "options"]
        chosen = {word: values.pop(word) for word in words}
        return ctx.invoke(command, Selection(**chosen, options=options), **values)

    for word in reversed(COMPILER_OPTIONS):
        wrapper = compiler_option(word)(wrapper)
    return standing_for(command, wrapper)


def standing_for(command: F, wrapper: Callable[..., object]) -> F:
    """A wrapper that takes options of its own, with the name, text and options of its command."""
    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__click_params__ = [  # type: ignore[attr-defined]
        *getattr(command, "__click_params__", []),
        *wrapper.__click_params__,  # type: ignore[attr-defined]
    ]
    return wrapper  # type: ignore[return-value]


def common_options(command: F) -> F:
    """Adds --json and -v."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    return click.option("-v", "--verbose", is_flag=True, help="Print the time of each phase.")(
        command
    )
