"""Tests of the catalog: names, parameters, and refused ones."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import CATALOG, build
from sley.algorithms.rings import ring_all_gather, ring_reduce_scatter
from support.inputs.algorithm_cases import program, sizes

MAX_LINES = 30
DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"


def body_lines(function: Any) -> int:
    """The number of lines of a function's body without its docstring."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert node.end_lineno is not None
    first = node.body[1] if ast.get_docstring(node) else node.body[0]
    return node.end_lineno - first.lineno + 1


@pytest.mark.parametrize(
    "function",
    [*(a.function for a in CATALOG.values()), ring_reduce_scatter, ring_all_gather],
    ids=lambda f: f.__name__,
)
def test_algorithms_are_short(function: Any) -> None:
    assert body_lines(function) < MAX_LINES


@pytest.mark.parametrize("algorithm", CATALOG.values(), ids=lambda a: a.name)
def test_each_entry_has_a_name_a_summary_and_a_source(algorithm: sley.algorithms.Algorithm) -> None:
    built = program(algorithm.name, {**sizes(algorithm.name)[0], "in_place": False})
    assert built.collective.name == algorithm.collective
    assert getattr(sley.algorithms, algorithm.function.__name__) is algorithm.function
    assert algorithm.summary.endswith(".")
    assert "Source:" in (algorithm.function.__doc__ or "")


def test_docs_list_every_algorithm() -> None:
    page = DOCS.read_text("utf-8")
    assert [name for name in CATALOG if f"`{name}`" not in page] == []


def test_algorithms_without_nodes_accept_nodes_and_gpus() -> None:
    assert build("ring-allreduce", nodes=2, gpus=3).collective.ranks == 6
    assert build("sccl-allgather-dgx1").collective.ranks == 8


def test_build_passes_all_arguments_to_the_algorithm() -> None:
    assert build("binomial-reduce", 4, root=2, in_place=True).collective.root == 2
    assert set(build("ring-allgather", 4, channels=2).transfers.channel) == {-1, 0, 1}
    hierarchical = build("hierarchical-allreduce", nodes=2, gpus=2, node_instances=3)
    assert set(hierarchical.transfers.instances) == {1, 3}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "text"),
    [
        ("ring-allreduc", {"ranks": 4}, "L120", "Did you mean ring-allreduce"),
        ("zzz", {"ranks": 4}, "L120", "sley list"),
        ("ring-allreduce", {}, "L112", "Give ranks."),
        ("ring-allreduce", {"nodes": 2}, "L112", "Leave out nodes and give ranks."),
        ("ring-allreduce", {"ranks": 4, "nodes": 2, "gpus": 2}, "L112", "Leave out nodes, gpus."),
        ("ring-allreduce", {"ranks": 4, "root": 1}, "L112", "Leave out root."),
        (
            "hierarchical-allreduce",
            {"ranks": 8},
            "L112",
            "gpus, optionally node_instances",
        ),
        ("ring-allreduce", {"ranks": 1}, "L121", "2 ranks or more"),
        ("hierarchical-allreduce", {"nodes": 1, "gpus": 1}, "L121", "2 ranks or more"),
        ("recursive-doubling-allgather", {"ranks": 6}, "L121", "such as 4 or 8"),
        ("sccl-allgather-dgx1", {"ranks": 4}, "L121", "8 ranks"),
        ("ring-allreduce", {"ranks": 0}, "L102", "ranks=0"),
        ("ring-allreduce", {"ranks": "8"}, "L102", "ranks='8'"),
        ("two-step-alltoall", {"nodes": True, "gpus": 4}, "L102", "nodes=True"),
        ("ring-allreduce", {"nodes": "2", "gpus": "2"}, "L102", "'2'"),
        ("ring-allreduce", {"ranks": 4, "channels": 0}, "L102", "channels=0"),
        ("hierarchical-allreduce", {"nodes": 2, "gpus": 2, "node_instances": 0}, "L102", "0"),
        ("binomial-reduce", {"ranks": 4, "root": 4}, "L101", "ranks as root."),
        ("binomial-broadcast", {"ranks": 4, "root": -1}, "L101", "root=-1"),
        ("binomial-broadcast", {"ranks": 4, "root": "0"}, "L101", "root='0'"),
        ("flat-gather", {"ranks": 4, "root": 4}, "L101", "root=4"),
        ("two-level-broadcast", {"nodes": 2, "gpus": 2, "root": 4}, "L101", "root=4"),
        ("all-pairs-alltoallv", {"ranks": 1}, "L121", "2 ranks or more"),
        ("ring-allgatherv", {"ranks": 3, "channels": 0}, "L102", "channels=0"),
        ("ring-allgatherv", {"ranks": 3, "in_place": True}, "L119", "in_place=False"),
        ("two-level-allreduce", {"nodes": 1, "gpus": 1}, "L121", "2 ranks or more"),
        ("one-step-allreduce", {"ranks": 4, "same_bits": "some"}, "L112", "same_bits='some'"),
        ("all-pairs-allreduce", {"ranks": 4, "stage_channels": (0,)}, "L102", "2 channels"),
        ("two-level-allreduce", {"nodes": 2, "gpus": 2, "stage_channels": (0, -1)}, "L102", "-1"),
    ],
)
def test_unknown_names_and_wrong_parameters_are_refused(
    name: str, arguments: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(sley.SleyError) as caught:
        build(name, **arguments)
    assert caught.value.code == code
    assert text in str(caught.value)


def test_an_error_of_an_algorithm_that_the_values_do_not_explain_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(**_given: Any) -> Any:
        return len(5)  # type: ignore[arg-type]

    broken = replace(CATALOG["swing-allreduce"], function=mistaken)
    monkeypatch.setattr("sley.algorithms.catalog.CATALOG", {"swing-allreduce": broken})
    for values in ({}, {"sides": [8]}, {"sides": np.array([2, 4])}):
        with pytest.raises(TypeError):
            build("swing-allreduce", ranks=8, **values)
    for values in ({"sides": 8}, {"sides": [[2, 4], [8]]}, {"sides": ["8"]}, {"ranks": 1 << 40}):
        with pytest.raises(sley.SleyError, match="L112"):
            build("swing-allreduce", **{"ranks": 8, **values})


def test_the_catalog_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CATALOG["mine"] = CATALOG["ring-allreduce"]  # type: ignore[index]
