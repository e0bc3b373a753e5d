"""Header: checks ResCCLang's parameters, and derives the collective and topology from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from sley.errors import Place, Rule
from sley.errors.rescclang import L150
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, is_integer
from sley.lang.rescclang.lexer import shorten
from sley.lang.rescclang.parser import nearest
from sley.lang.rescclang.syntax import SyntaxTree

MAX_RANKS = 4096
"""Bound on ranks: a collective stores the results of each rank, so memory grows quadratically."""

MAX_WARPS = 32
"""Bound on warps: a thread block of CUDA has at most 1024 threads."""

NUMBERS = {
    "nRanks": MAX_RANKS,
    "nChannels": MAX_NUMBER,
    "nWarps": MAX_WARPS,
    "GPUPerNode": MAX_RANKS,
    "NICPerNode": MAX_RANKS,
}
"""Parameters that are numbers from 1, with their bounds. They are variables of the body."""

WORDS = ("AlgoName", "OpType")
"""Parameters that are strings."""

OPERATIONS = {"allreduce": "Allreduce", "allgather": "Allgather", "reducescatter": "Reducescatter"}
"""Operators in lower case, and in ResCCL's spelling."""

_MAX_NAME = 200


@dataclass(frozen=True)
class Header:
    """The header of a text.

    name: AlgoName, by default "".
    collective: the collective of nRanks and OpType.
    topology: the cluster, None without GPUPerNode.
    instances: parallel parts of each transfer.
    variables: the parameters that are numbers, by name.
    """

    name: str
    collective: Collective
    topology: Topology | None
    instances: int
    variables: dict[str, int]


class _Parameters:
    """The parameters of the text and of the caller, with their values, words and places."""

    def __init__(self, algorithm: SyntaxTree, overrides: Mapping[str, object], file: str) -> None:
        self.whole = Place(file, algorithm.line, algorithm.column)
        self.values: dict[str, object] = {}
        self.words: dict[str, str] = {}
        self.places: dict[str, Place] = {}
        for p in algorithm.parameters:
            self._check_name(p.name, Place(file, p.line, p.column))
            if p.name in self.values:
                raise L150.error(
                    at=Place(file, p.line, p.column),
                    expected=f"{p.name} once",
                    found=f"{p.name}={_escape(p.word)}, after "
                    f"{p.name}={_escape(self.words[p.name])}",
                )
            self.values[p.name], self.words[p.name] = p.value, p.word
            self.places[p.name] = Place(file, p.value_line, p.value_column)
        if "GPUPerNode" in overrides and "NICPerNode" not in overrides and self._own_cards():
            overrides = {**overrides, "NICPerNode": overrides["GPUPerNode"]}
        for name, value in overrides.items():
            place = Place(file, algorithm.line, algorithm.column, "given by the caller")
            self._check_name(name, place)
            self.values[name], self.words[name] = value, repr(value)
            self.places[name] = place

    def _own_cards(self) -> bool:
        """Whether each GPU of the text has its own network card."""
        cards = self.values.get("NICPerNode")
        return cards is not None and cards == self.values.get("GPUPerNode")

    def _check_name(self, name: str, at: Place) -> None:
        known = (*NUMBERS, *WORDS)
        if name not in known:
            raise L150.error(
                at=at,
                expected=", ".join(known),
                found=f"{_escape(name)}{nearest(name, known)}",
            )

    def number(self, name: str) -> int | None:
        """A parameter from 1 to its bound. Errors: L150."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        number = int(cast("int", value)) if is_integer(value) else 0
        if not 1 <= number <= NUMBERS[name]:
            self.refuse(L150, name, f"a number from 1 to {NUMBERS[name]}")
        return number

    def word(self, name: str) -> str | None:
        """A parameter that is a string. Errors: L150."""
        value = self.values.get(name)
        if name not in self.values:
            return None
        if not isinstance(value, str) or not 1 <= len(value) <= _MAX_NAME:
            self.refuse(L150, name, f"a string of 1 to {_MAX_NAME} characters")
        return value

    def refuse(self, rule: Rule, name: str, expected: str, *others: str) -> NoReturn:
        """Raises a rule for a parameter, and the others that it contradicts."""
        raise rule.error(
            at=[self.places[name], *(self.places[n].labelled(n) for n in others)],
            expected=expected,
            found=f"{name}={_escape(self.words[name])}",
        )

    def missing(self, name: str, expected: str) -> NoReturn:
        raise L150.error(
            at=self.whole,
            expected=expected,
            found=f"no {name}",
            remedy="Add the parameter to the header, or pass it when you read the text.",
        )


def _escape(text: str) -> str:
    """The user's text for a message, without control characters for a terminal."""
    text = shorten(text)
    return text if text.isprintable() else ascii(text)


def read_header(
    algorithm: SyntaxTree, overrides: Mapping[str, object], *, in_place: bool, file: str
) -> Header:
    """The header of a text, in which `overrides` replace or add parameters.

    Errors: L150.
    """
    given = _Parameters(algorithm, overrides, file)
    variables = {name: v for name in NUMBERS if (v := given.number(name)) is not None}
    name = given.word("AlgoName") or ""
    if not name.isprintable():
        given.refuse(L150, "AlgoName", "printable characters")
    return Header(
        name=name,
        collective=_collective(given, variables, in_place),
        topology=_topology(given, variables),
        instances=variables.get("nChannels", 1),
        variables=variables,
    )


def _collective(given: _Parameters, variables: dict[str, int], in_place: bool) -> Collective:
    """The collective, with one chunk a rank (ResCCL 4.2 and appendix A)."""
    if "nRanks" not in variables:
        given.missing("nRanks", "nRanks=..., the number of GPUs")
    known = " or ".join(f'"{word}"' for word in OPERATIONS.values())
    operation = given.word("OpType")
    if operation is None:
        given.missing("OpType", f"OpType={known}")
    operation, ranks = operation.lower(), variables["nRanks"]
    if operation not in OPERATIONS:
        given.refuse(L150, "OpType", known)
    row = STANDARD[operation]
    return row.of(ranks, 1 if row.has_parts else ranks, in_place=in_place)


def _topology(given: _Parameters, variables: dict[str, int]) -> Topology | None:
    ranks, gpus = variables["nRanks"], variables.get("GPUPerNode")
    nics = variables.get("NICPerNode")
    if gpus is None:
        if nics is not None:
            given.refuse(L150, "NICPerNode", "GPUPerNode as well")
        return None
    if ranks % gpus:
        given.refuse(L150, "GPUPerNode", f"a number that divides nRanks={ranks}", "nRanks")
    if nics is not None and gpus % nics:
        given.refuse(L150, "NICPerNode", f"a number that divides GPUPerNode={gpus}", "GPUPerNode")
    return Topology.cluster(ranks // gpus, gpus, nics)
