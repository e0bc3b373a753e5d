"""Tuner: the policy of a communicator (SLEY_TUNER), which all ranks use or none."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sley.communicator.rendezvous.gather import name_ranks
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.machine import machine_here, processor
from sley.communicator.settings import Settings
from sley.errors import Diagnostic, Place, SleyError
from sley.errors.communicator import N604

if TYPE_CHECKING:
    from sley.communicator.selection.policy import Policy

_DIGITS = 16


class Tuner:
    """The policy that a rank has read, and what the ranks must have in common to use it.

    words: for the other ranks, see `bootstrap(offered=...)`; empty without a policy.
    """

    def __init__(self, settings: Settings) -> None:
        self._policy: Policy | None = None
        self._problems: tuple[Diagnostic, ...] = ()
        self.words: Mapping[str, str] = {}
        if settings.tuner is None:
            return
        from sley.communicator.selection.policy import read  # it needs the compiler

        self._place = Place(os.fspath(settings.tuner))
        try:
            self._policy = read(settings.tuner)
        except SleyError as error:
            self._problems = error.diagnostics
            return
        digest = hashlib.sha256(self._policy.text().encode()).hexdigest()[:_DIGITS]
        self.words = {
            "policy": digest,
            "processor": processor(),
            "explore": repr(float(settings.explore)),
        }

    def agree(
        self, offered: Sequence[Mapping[str, str]], hosts: Hosts
    ) -> tuple[Policy | None, tuple[Diagnostic, ...]]:
        """The policy if all ranks may use it, else None; and why not.

        offered: the words of all ranks, by rank. Every rank comes to the same decision: it depends
        only on them, on the hosts, and on the policy, which the words identify.
        """
        different = _difference(offered)
        if different is not None:
            # A rank whose own file is at fault reports that instead.
            return None, self._problems or (different,)
        if self._policy is None:
            return None, self._problems
        try:
            self._policy.machine.check(machine_here(hosts, self._place), self._place)
        except SleyError as error:
            return None, error.diagnostics
        return self._policy, ()


def _difference(offered: Sequence[Mapping[str, str]]) -> Diagnostic | None:
    """The first word in which a rank differs from rank 0. Errors: N604."""
    first = offered[0]
    for word in ("policy", "processor", "explore"):
        others = [rank for rank, one in enumerate(offered) if one.get(word) != first.get(word)]
        if others:
            found = offered[others[0]].get(word)
            return N604.diagnostic(
                expected=f"the same on all ranks as on rank 0: {_in_words(word, first.get(word))}",
                found=f"{_in_words(word, found)} on {name_ranks(others)}",
            )
    return None


def _in_words(word: str, value: str | None) -> str:
    return f"no valid {word}" if value is None else f"{word} {value}"
