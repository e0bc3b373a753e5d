"""Tables and graphs: columns, rows, edges, levels."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.graph import find_cycle, levels
from sley.ir.tables import NONE, Edges, distinct, neighbouring_writes, spans
from sley.ir.words import Buffer, Op
from support.mutants.plan_edits import with_columns


def test_columns_cannot_be_changed_and_rows_are_views_for_people() -> None:
    table = sley.algorithms.ring_allreduce(2).transfers
    with pytest.raises(ValueError, match="read-only"):
        table.src[0] = 5
    assert table[0].src == int(table.src[0])
    assert len(list(table)) == len(table)
    with pytest.raises(IndexError):
        table[len(table)]


def test_rows_and_texts_have_words_for_members_of_enumerations() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(2))
    first = plan.instructions[0]
    assert (first.op, first.src_buffer, first.dst_buffer) == (Op.SEND, Buffer.INPUT, NONE)
    assert repr(first).startswith("namespace(op=<Op.SEND: 1>, src_buffer=<Buffer.INPUT: 0>")
    columns = plan.instructions.to_dict()
    assert list(columns) == plan.instructions.column_names()
    assert (columns["op"][0], columns["src_buffer"][0], columns["dst_buffer"][0]) == (
        "send",
        "in",
        None,
    )
    assert columns["src_index"] == [i if i >= 0 else None for i in plan.instructions.src_index]
    head, row = repr(plan.instructions).splitlines()[1:3]
    assert row.split()[: len(head.split())][:4] == ["send", "in", str(first.src_index), "-"]
    links = sley.topologies.ndv4(2).links.to_dict()
    assert set(links["kind"]) == {"nvlink", "pcie", "network"}
    assert None in links["latency_us"]


def test_a_number_that_no_member_has_stays_a_number() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(2))
    wrong = with_columns(plan, 0, op=77)
    assert wrong.instructions[0].op == 77
    assert wrong.instructions.to_dict()["op"][0] == 77


def test_pandas_gets_the_columns_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        def __init__(self, columns: dict[str, Any]) -> None:
            self.columns, self.converted = columns, False

        def convert_dtypes(self) -> Frame:
            self.converted = True
            return self

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    table = sley.algorithms.ring_allreduce(2).transfers
    frame = table.to_pandas()
    assert frame.converted
    assert frame.columns == table.to_dict()


pairs = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30)


@given(pairs)
def test_edges_keep_every_pair_once(edges: list[tuple[int, int]]) -> None:
    source, target = (np.array([e[k] for e in edges], np.int64) for k in (0, 1))
    graph = Edges.from_pairs(9, source, target)
    expected = sorted(set(edges))
    assert list(zip(graph.source.tolist(), graph.target.tolist(), strict=True)) == expected
    back = graph.reversed()
    assert sorted(zip(back.target.tolist(), back.source.tolist(), strict=True)) == expected
    assert [t for node in range(9) for t in graph[node].tolist()] == graph.target.tolist()


@given(pairs)
def test_levels_are_longest_paths_and_cycles_are_found(edges: list[tuple[int, int]]) -> None:
    source, target = (np.array([e[k] for e in edges], np.int64) for k in (0, 1))
    level = levels(9, source, target)
    for a, b in set(edges):
        if level[b] >= 0:
            assert level[a] >= 0
            assert level[a] < level[b]
    stuck = level < 0
    if stuck.any():
        cycle = find_cycle(Edges.from_pairs(9, target, source), stuck)
        for here, there in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert (there, here) in set(edges)
    else:
        roots = set(range(9)) - {b for _, b in edges}
        assert all(level[r] == 0 for r in roots)
        for b in range(9):
            before = [int(level[a]) for a, t in set(edges) if t == b]
            assert level[b] == (max(before) + 1 if before else 0)


@given(st.lists(st.integers(0, 5)))
def test_distinct_gives_each_key_once_ascending(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=8))
def test_spans_lists_each_range(ranges: list[tuple[int, int]]) -> None:
    start, count = (np.array([r[k] for r in ranges], np.int64) for k in (0, 1))
    owner, value = spans(start, count)
    expected = [(k, s + i) for k, (s, c) in enumerate(ranges) for i in range(c)]
    assert list(zip(owner.tolist(), value.tolist(), strict=True)) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_neighbouring_writes_are_the_nearest_before_and_after(
    accesses: list[tuple[int, bool]],
) -> None:
    accesses.sort(key=lambda a: a[0])
    cell = np.array([a[0] for a in accesses], np.int64)
    write = np.array([a[1] for a in accesses], bool)
    before, after = neighbouring_writes(cell, write)
    for k, (here, _) in enumerate(accesses):
        writes = [i for i, (c, w) in enumerate(accesses) if w and c == here]
        assert before[k] == max((i for i in writes if i < k), default=-1)
        assert after[k] == min((i for i in writes if i > k), default=-1)
