"""Plan header: the plan of a plan file's header and columns, of which nothing is taken as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from numpy.typing import NDArray

from sley.errors import Place
from sley.formats.source_paths import is_portable, local_path
from sley.ir.collective import Collective
from sley.ir.collectives import MAX_COUNT
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.fabric import TopologyLinks, Vertices
from sley.ir.plan import Estimate, Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, column_types
from sley.ir.topology import Topology
from sley.ir.words import LoopOrder, Protocol, is_integer, is_real

E = TypeVar("E", bound=Enum)

MOST_CALLERS = 900
"""The most lines that call one another; Python's own limit is 1000."""


_NO_GROUPS = Edges.empty(0)


class WrongError(Exception):
    """Something in a file is wrong: what is expected, and what is found."""


def value_of(
    table: Any, key: str, is_right: type[Any] | Callable[[Any], bool], expected: str
) -> Any:
    """The value of a key of the header. is_right: or the type of right values."""
    value = table.get(key) if isinstance(table, dict) else None
    if not (isinstance(value, is_right) if isinstance(is_right, type) else is_right(value)):
        raise WrongError(f"{expected} for {key}", shown(value))
    return value


def shown(value: object) -> str:
    return repr(value)[:60]


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_number(value: object) -> bool:
    return is_real(value) and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def is_words(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def plan_of(head: Any, columns: Mapping[str, Mapping[str, NDArray[Any]]]) -> Plan:
    """The plan of a header and columns, whose tables may still contradict one another.

    columns: for each table those of a file by their names, none that the table hasn't."""

    def of(table: str, cls: type[Any]) -> Mapping[str, Any]:
        for name in column_types(cls):
            if name not in columns[table]:
                raise WrongError(f"a column {table}.{name}", "none")
        return columns[table]

    words = value_of(head, "plan", dict, "a table")
    times = value_of(words, "times", _are_times, "two times and a number of tiles, or null")
    name, ranks, chunks, in_place, root, *varying = value_of(
        words, "collective", _is_collective, "name, ranks, chunks, in_place and root"
    )
    try:
        return Plan(
            name=value_of(words, "name", str, "a text"),
            collective=Collective(
                name=name,
                ranks=ranks,
                chunks=chunks,
                in_place=in_place,
                root=root,
                values=Edges(**of("values", Edges)),
                max_count=varying[0] if varying else NONE,
                **of("collective", Collective),
            ),
            protocol=_member(words, "protocol", Protocol),
            loop_order=_member(words, "loop_order", LoopOrder),
            slots=value_of(words, "slots", is_count, "a number"),
            per_chunk=value_of(words, "per_chunk", bool, "true or false"),
            instructions=Instructions(**of("instructions", Instructions)),
            waits=Edges(**of("waits", Edges)),
            sources=Sources(
                **of("sources", Sources),
                files=tuple(map(local_path, value_of(head, "files", _are_files, "names"))),
                whole=_place(head),
            ),
            estimate=None
            if times is None
            else Estimate(times[0], times[1], of("estimate", Estimate)["busy_us"], times[2]),
            topology=_topology(head, of),
            groups=Edges(**of("groups", Edges)) if columns["groups"] else _NO_GROUPS,
            **of("plan", Plan),
        )
    except ValueError as error:  # of a table
        raise WrongError("columns of one length in each table", error) from None


def _member(words: Any, key: str, kind: type[E]) -> E:
    try:
        return kind(words.get(key))
    except ValueError:
        raise WrongError(f"a known word for {key}", shown(words.get(key))) from None


def _topology(head: Any, of: Callable[..., Mapping[str, Any]]) -> Topology | None:
    """The topology of a file. Errors: T601 to T603."""
    words = value_of(
        head, "topology", lambda v: v is None or isinstance(v, dict), "a table, or null"
    )
    if words is None:
        return None
    model = value_of(words, "model", dict, "a table")
    costs: dict[str, Any] = {}
    for word in {f.name for f in fields(CostModel)} & model.keys():
        value = value_of(model, word, _is_cost, "a number, or three")
        costs[word] = ByProtocol(*value) if isinstance(value, list) else value
    return Topology(
        name=value_of(words, "name", str, "a text"),
        vertices=Vertices(**of("vertices", Vertices)),
        links=TopologyLinks(**of("links", TopologyLinks)),
        model=CostModel(**costs),
        in_network=value_of(words, "in_network", bool, "true or false"),
        shared_memory=value_of(words, "shared_memory", bool, "true or false"),
    )


def _are_times(value: Any) -> bool:
    if not isinstance(value, list):
        return value is None
    return len(value) == 3 and all(map(_is_number, value)) and is_count(value[2])


def _is_collective(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) in (5, 6) and isinstance(value[0], str)):
        return False
    _, ranks, chunks, in_place, root, *varying = value
    numbers = (ranks, chunks, root + 1 if is_integer(root) else None)
    most = [is_integer(one) and 0 <= one <= MAX_COUNT for one in varying]
    return all(map(is_count, numbers)) and isinstance(in_place, bool) and all(most)


def _is_cost(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 3 and all(map(_is_number, value))
    return _is_number(value)


def _are_files(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_file, value))


def _is_file(value: object) -> bool:
    return _is_text(value) and is_portable(str(value))


def _place(head: Any) -> Place:
    """The place of the plan as a whole."""
    value = value_of(head, "whole", dict, "a place")
    callers = value_of(value, "called_from", _are_callers, "lines")
    for one in (value, *callers):
        value_of(one, "file", _is_file, "a name")
        value_of(one, "line", is_count, "a number")
    value_of(value, "column", is_count, "a number")
    value_of(value, "detail", _is_text, "a text")
    return on_paths(local_path, value)


def _are_callers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_CALLERS


def on_paths(change: Callable[[str], str], place: Any) -> Place:
    """The place of a JSON value with other names of the files, of its callers too."""
    callers = [{**one, "file": change(one["file"])} for one in place["called_from"]]
    return Place.from_json({**place, "file": change(place["file"]), "called_from": callers})
