"""Header: ResCCLang's parameters, checked, and what they make of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from sley.errors import Place, Rule
from sley.errors.rescclang import L147, L148, L149, L150, L151
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, is_integer
from sley.lang.rescclang.lexer import shortened_word
from sley.lang.rescclang.parser import nearest
from sley.lang.rescclang.syntax import Algorithm

MAX_RANKS = 4096
"""Bound on ranks: what every rank holds is kept for each, so that memory grows by the square."""

MAX_WARPS = 32
"""Bound on warps: a thread block of CUDA has at most 1024 threads."""

NUMBERS = {
    "nRanks": MAX_RANKS,
    "nChannels": MAX_NUMBER,
    "nWarps": MAX_WARPS,
    "GPUPerNode": MAX_RANKS,
    "NICPerNode": MAX_RANKS,
}
"""Parameters that are numbers from 1, with their bounds. The body reads them as variables."""

WORDS = ("AlgoName", "OpType")
"""Parameters that are strings."""

OPERATIONS = {"allreduce": "Allreduce", "allgather": "Allgather", "reducescatter": "Reducescatter"}
"""Operators in lower case, and as ResCCL writes them."""

_MAX_NAME = 200


@dataclass(frozen=True)
class Header:
    """What the header says.

    name: of the algorithm, "" without AlgoName.
    collective: what it has to bring about.
    topology: the cluster, None without GPUPerNode.
    instances: parallel parts of every transfer.
    variables: the parameters that are numbers, by name.
    """

    name: str
    collective: Collective
    topology: Topology | None
    instances: int
    variables: dict[str, int]


class _Given:
    """The parameters that the text and the caller give, each with its place."""

    def __init__(self, algorithm: Algorithm, overrides: Mapping[str, object], file: str) -> None:
        self.whole = Place(file, algorithm.line, algorithm.column)
        self.values: dict[str, object] = {}
        self.words: dict[str, str] = {}
        self.places: dict[str, Place] = {}
        for p in algorithm.parameters:
            self._check_name(p.name, Place(file, p.line, p.column))
            if p.name in self.values:
                raise L148.error(
                    at=Place(file, p.line, p.column),
                    expected=f"{p.name} once",
                    found=f"{p.name}={_shown(p.word)}, after {p.name}={_shown(self.words[p.name])}",
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
        """Whether the text gives every GPU a network card of its own."""
        cards = self.values.get("NICPerNode")
        return cards is not None and cards == self.values.get("GPUPerNode")

    def _check_name(self, name: str, at: Place) -> None:
        known = (*NUMBERS, *WORDS)
        if name not in known:
            raise L147.error(
                at=at,
                expected=", ".join(known),
                found=f"{_shown(name)}{nearest(name, known)}",
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
        """Raises a rule about a parameter, and about others that it contradicts."""
        raise rule.error(
            at=[self.places[n] for n in (name, *others)],
            expected=expected,
            found=f"{name}={_shown(self.words[name])}",
        )

    def missing(self, name: str, expected: str) -> NoReturn:
        raise L149.error(at=self.whole, expected=expected, found=f"no {name}")


def _shown(text: str) -> str:
    """Text of the user's for a message, which must not steer a terminal."""
    text = shortened_word(text)
    return text if text.isprintable() else ascii(text)


def read_header(
    algorithm: Algorithm, overrides: Mapping[str, object], *, in_place: bool, file: str
) -> Header:
    """The header of a text, in which `overrides` replace or add parameters.

    Errors: L147 to L151.
    """
    given = _Given(algorithm, overrides, file)
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


def _collective(given: _Given, variables: dict[str, int], in_place: bool) -> Collective:
    """One chunk a rank (ResCCL 4.2 and appendix A)."""
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


def _topology(given: _Given, variables: dict[str, int]) -> Topology | None:
    ranks, gpus = variables["nRanks"], variables.get("GPUPerNode")
    nics = variables.get("NICPerNode")
    if gpus is None:
        if nics is not None:
            given.refuse(L151, "NICPerNode", "GPUPerNode as well")
        return None
    if ranks % gpus:
        given.refuse(L151, "GPUPerNode", f"a number that divides nRanks={ranks}", "nRanks")
    if nics is not None and gpus % nics:
        given.refuse(L151, "NICPerNode", f"a number that divides GPUPerNode={gpus}", "GPUPerNode")
    return Topology.cluster(ranks // gpus, gpus, nics)
