"""Options that several commands share, and what they select."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sley.algorithms import CATALOG
from sley.ir.words import Protocol

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """What is to be compiled and how: the values of `plan_options`."""

    what: str
    ranks: int | None
    nodes: int | None
    gpus: int | None
    root: int | None
    in_place: bool | None
    channels: int
    instances: int
    protocol: Protocol | None
    slots: int | None
    fusion: bool
    topology: str | None
    collective: str | None

    def with_place(self, in_place: bool) -> Selection:
        """The same, in or out of place."""
        return replace(self, in_place=in_place)


class _What(click.ParamType[str]):
    """WHAT: an algorithm or a file; completes both."""

    name = "what"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in CATALOG if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]


class _Protocol(click.Choice[str]):
    def __init__(self) -> None:
        super().__init__([p.value for p in Protocol], case_sensitive=False)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class SizeType(click.ParamType[int]):
    """A size in bytes with K, M, G for powers of 1024, as nccl-tests takes it."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)([KMG]?)(?:I?B)?", str(value).strip().upper())
        if match is None:
            self.fail(f"{value!r} is not a size such as 4096, 64K or 16M", param, ctx)
        if not int(match[1]):
            self.fail("a size is at least 1", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


_POSITIVE = click.IntRange(min=1)


def plan_options(command: F) -> F:
    """Adds the argument WHAT and the options that say how it becomes a plan; the command gets
    them as one `Selection`, its first argument."""

    @click.argument("what", type=_What())
    @click.option("--ranks", type=_POSITIVE, help="Number of ranks.")
    @click.option("--nodes", type=_POSITIVE, help="Number of nodes.")
    @click.option("--gpus", type=_POSITIVE, help="GPUs on each node.")
    @click.option("--root", type=click.IntRange(min=0), help="Root of a rooted collective.")
    @click.option(
        "--in-place/--out-of-place", "in_place", default=None, help="Alias input and output or not."
    )
    @click.option(
        "--channels", type=_POSITIVE, default=1, show_default=True, help="Spread over channels."
    )
    @click.option(
        "--instances", type=_POSITIVE, default=1, show_default=True, help="Parallel parts."
    )
    @click.option("--protocol", type=_Protocol(), help="Protocol; default: the program's.")
    @click.option(
        "--slots", type=int, help="Messages that a connection holds; default: the protocol's."
    )
    @click.option("--fusion/--no-fusion", default=True, help="Fuse receives with sends.")
    @click.option("--topology", help="Refuse transfers that it has no link for: dgx1.")
    @click.option(
        "--collective",
        metavar="FILE.py",
        help="The program whose collective an XML file is about, where it does not say it.",
    )
    @click.pass_context
    def wrapper(ctx: click.Context, /, **values: Any) -> object:
        chosen = {f.name: values.pop(f.name) for f in fields(Selection)}
        if chosen["protocol"] is not None:
            chosen["protocol"] = Protocol(chosen["protocol"])
        return ctx.invoke(command, Selection(**chosen), **values)

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
