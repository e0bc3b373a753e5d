"""Values: equal by content, with equal hashes, read-only, and the same after pickling."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest

import sley
from sley.formats.files import FileProof
from sley.formats.msccl_xml.targets import EXECUTOR
from sley.ir.dependencies import dependencies
from sley.ir.tables import Edges, Table, Value, column_types
from sley.lang import msccl
from sley.model.bounds import Bounds
from sley.verification.direct import pulls
from support.mutants.plan_edits import with_columns


@cache
def examples() -> dict[str, Any]:
    """Values as they are once somebody has used them, by the names of their classes."""
    topology = sley.topologies.ndv4(nodes=1)
    program = sley.algorithms.ring_allreduce(8, in_place=True)
    plan = sley.compile(program, topology=topology, schedule="hpds", allocate="state")
    simulation = sley.simulate(plan, "1M", executions=True)
    bounds = Bounds.of(plan.collective, topology)
    bound = bounds.at(2**20)
    choices = sley.choose([program], "1K", topology, instances=[1])
    direct = sley.compile(program, protocol="direct")
    choice, proof = choices.ranges[0], sley.verify(plan)
    with pytest.raises(sley.SleyError) as caught:
        sley.verify(plan, slots=0)
    pair = sley.compile(sley.algorithms.ring_allreduce(2))
    found = [
        *(choice.begin, choice.runner_up, proof.conditions[0], topology.model.launch_us),
        *(caught.value.diagnostics[0], FileProof(None, (proof,), ())),
        *(msccl.ScriptProgram(program), *sley.run(pair, "1K", iterations=1, warmup=0)),
        *(topology, topology.model, program, plan, plan.layout, plan.estimate, simulation),
        *(simulation.links, bounds, bound, sley.verify(plan), choices, choices.ranges[0]),
        *(choices.ranges[0].options, dependencies(program), pulls(direct), EXECUTOR),
        *(plan.collective, plan.instructions, plan.waits, plan.sources, program.transfers),
        sley.GroupCall("allgather", "1M", [[0, 1], [2, 3]]),
    ]
    return {type(value).__name__: value for value in found}


def test_every_public_class_of_values_has_an_example() -> None:
    public = [getattr(sley, name) for name in sley.__all__]
    classes = [one for one in public if isinstance(one, type) and dataclasses.is_dataclass(one)]
    assert {cls.__name__ for cls in classes} <= set(examples())


def value_classes(base: type[Value] = Value) -> Iterator[type[Value]]:
    for cls in base.__subclasses__():
        yield cls
        yield from value_classes(cls)


def all_classes() -> set[type[Value]]:
    for module in walk_packages(sley.__path__, "sley."):
        if "torch" not in module.name and not module.name.endswith("__main__"):
            import_module(module.name)
    return {cls for cls in value_classes() if cls.__module__.startswith("sley.")}


def test_every_class_of_values_compares_by_its_fields_and_has_arrays_of_the_types_it_says() -> None:
    pytest.importorskip("sb3_contrib", reason="the modules of agents are among them")
    found = all_classes()
    assert {sley.Plan, sley.Program, sley.Topology, sley.Collective, Edges} <= found
    for cls in found:
        assert cls.__eq__ is Value.__eq__, f"{cls.__name__} lacks eq=False"
        assert cls.__hash__ is Value.__hash__
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        arrays = [f.name for f in dataclasses.fields(cls) if "Array" in str(f.type)]
        assert arrays == list(column_types(cls)), f"{cls.__name__} has an array of unknown type"
        assert bool(arrays) or cls is Table or not issubclass(cls, Table)


def test_a_value_comes_back_equal_and_read_only() -> None:
    for value in examples().values():
        for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):
            assert again == value
            assert repr(again) == repr(value)
            for column in column_types(type(value)) if isinstance(value, Value) else ():
                assert not getattr(again, column).flags.writeable


def test_cached_properties_are_not_pickled() -> None:
    topology = sley.topologies.ndv4(nodes=1)
    size = len(pickle.dumps(topology))
    topology.paths([0], [1])
    assert topology.linked.any()
    assert len(pickle.dumps(topology)) == size


def test_a_value_differs_from_one_with_another_field() -> None:
    for value in (one for one in examples().values() if isinstance(one, Value)):
        for f in dataclasses.fields(value):
            old = getattr(value, f.name)
            if isinstance(old, np.ndarray) and old.size:
                other = old.copy()
                other.flat[-1] = not other.flat[-1] if old.dtype == bool else other.flat[-1] + 1
            elif isinstance(old, str):
                other = f"{old} again"
            else:
                continue
            changed = copy.copy(value)
            object.__setattr__(changed, f.name, other)
            assert value != changed
        assert value != 1


def test_equal_values_have_equal_hashes_and_other_values_others() -> None:
    for name, value in sorted(examples().items()):
        if not isinstance(value, Value) and name not in sley.__all__:
            continue
        again = pickle.loads(pickle.dumps(value))
        assert again is not value
        assert {value: 1}[again] == 1
        if isinstance(value, Value):
            for f in dataclasses.fields(value):
                if isinstance(getattr(value, f.name), str):
                    assert hash(replace(value, **{f.name: "another"})) != hash(value)


def test_hashes_see_every_element_of_an_array_and_zeros_without_their_signs() -> None:
    plan = examples()["Plan"]
    last = len(plan.instructions) - 1
    assert hash(with_columns(plan, last, channel=7)) != hash(plan)
    links = examples()["Topology"].links
    zeros = np.zeros(len(links))
    assert replace(links, latency_us=zeros) == replace(links, latency_us=-zeros)
    assert hash(replace(links, latency_us=zeros)) == hash(replace(links, latency_us=-zeros))


def test_arrays_of_other_lengths_are_a_difference() -> None:
    plan = examples()["Plan"]
    assert plan != replace(plan, scratch_chunks=plan.scratch_chunks[1:])


def test_a_table_shows_its_first_rows() -> None:
    table = examples()["Transfers"]
    lines = [line.split() for line in repr(table).splitlines()]
    assert lines[0] == [f"Transfers({len(table)}", "rows)"]
    assert lines[1] == table.column_names()
    columns = table.to_dict().values()
    assert lines[2:7] == [
        ["-" if column[row] is None else str(column[row]) for column in columns] for row in range(5)
    ]
    assert lines[7:] == [["..."]]
