"""Collectives as WHAT: the name of a collective stands for all of its algorithms.

Commands that take several plans try those that fit the topology (`fitting`); commands that take one
plan name them, with commands that are ready to be copied (`refuse`).
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from sley.algorithms import for_collective
from sley.cli.options import PARAMETERS, Selection, given_words
from sley.cli.output import print_note
from sley.errors import SleyError
from sley.errors.language import L120

T = TypeVar("T")


def is_collective(what: str) -> bool:
    """Whether WHAT is the name of a collective with algorithms, and of no file."""
    return bool(for_collective(what)) and not Path(what).exists()


def algorithms_of(selection: Selection) -> list[Selection]:
    """A selection for each algorithm of the collective that WHAT is; otherwise the selection."""
    if not is_collective(selection.what):
        return [selection]
    return [replace(selection, what=one.name) for one in for_collective(selection.what)]


def fitting(selection: Selection, make: Callable[[Selection], T]) -> list[T]:
    """What `make` makes of the selection, or of each algorithm of the collective that it is; a note
    names the algorithms that it refuses. Errors: those of `make`, if none fits."""
    every = algorithms_of(selection)
    if len(every) == 1:
        return [make(every[0])]
    made: list[T] = []
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    refused: SleyError | click.UsageError | None = None
    for one in every:
        try:
            made.append(make(one))
        except SleyError as error:
            left_out[error.code].append(one.what)
            refused = refused or error
        except click.UsageError as error:
            left_out["options that they don't take"].append(one.what)
            refused = refused or error
    if not made and refused is not None:
        raise refused
    if left_out:
        of = "; ".join(f"{', '.join(names)} ({why})" for why, names in left_out.items())
        print_note(f"left out, since they don't fit: {of}")
    return made


def refuse(selection: Selection) -> SleyError:
    """The error for a collective where one algorithm is needed: its algorithms, and commands."""
    own = for_collective(selection.what)
    given = {word for word in (*PARAMETERS, "root") if getattr(selection, word) is not None}
    fit = [one for one in own if given <= {*one.parameters, "nodes", "gpus"}] or own
    command = shlex.join(_with(selection.what, fit[0].name))
    on = selection.topology or generic(selection, selection.ranks)
    return L120.error(
        expected="an algorithm that `sley list` prints, or a file",
        found=f"{selection.what!r}, a collective",
        remedy=f"Name one of its algorithms: {command}. They are "
        f"{', '.join(one.name for one in own)}. "
        f"sley choose {selection.what} --topology {on} finds the fastest of all for each size, "
        f"and sley compare {selection.what} --topology {on} simulates each.",
    )


def _with(what: str, name: str) -> Sequence[str]:
    """The command line with `name` instead of WHAT."""
    command, words = given_words()
    at = words.index(what)
    return [*command, *words[:at], name, *words[at + 1 :]]


def generic(selection: Selection, ranks: int | None) -> str:
    """A topology by its size alone: the nodes and GPUs that are given, or one node with the ranks;
    ndv4 if neither is known."""
    if selection.nodes is not None and selection.gpus is not None:
        return f"{selection.nodes}x{selection.gpus}"
    return "ndv4" if ranks is None else f"1x{ranks}"
